"""Keys of earlier releases: each is refused with the name that it has now, or with the reason why it is fixed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

_SECTIONS: Final[tuple[tuple[str, str, str], ...]] = (
    (
        "serve",
        "serve.limits",
        "max_body_mb:body_mb max_messages:messages max_queue:queue max_streams_per_key:streams_per_key"
        " hold_seconds body_seconds write_seconds",
    ),
    ("policy", "policy.sampling", "max_tokens temperature top_p dry_multiplier"),
    (
        "judge",
        "judge.llm",
        "votes threshold quorum base_url model api_key_env temperature max_tokens deadline retries breaker_failures"
        " breaker_seconds daily_tokens history evidence_tokens prompts_dir",
    ),
    (
        "train",
        "train.loss",
        "loss:custom w_rl w_opd k clip hint_selection subset kl kl_coef aggregate eps_low eps_high max_mismatch"
        " teacher teacher_model ema_decay",
    ),
    ("train", "train.optim", "lr lr_by_signal average weight_decay adam_beta1 adam_beta2 grad_clip"),
    ("train", "train.local", "tree micro_tokens recompute compile offload_optimizer device threads"),
    ("train", "train.alarms", "gap_alarm:gap ess_alarm:ess norm_alarm:norm pause_after"),
    (
        "gate",
        "gate.limits",
        "alpha kl_budget ability_drop likelihood_drop correction_drop min_words length_ratio entropy_ratio"
        " flawed:degenerate sense_drop:relevance_drop",
    ),
    ("watch", "monitor", "mode alpha window reference least"),
)
"""the section of old, the section now, and the names in it, ``old:new`` where they differ"""

FIXED: Final[Mapping[str, str]] = {
    "serve.max_header_kb": "64 KiB, as in other servers",
    "serve.max_depth": "64 levels, more than any client sends",
    "serve.keepalive_seconds": "10 seconds, below what proxies wait for",
    "collect.capacity": "50,000 turns, about 100 MiB",
    "judge.cache": "the same content is never judged twice",
    "judge.health_window": "50 verdicts, enough to tell a collapse from chance",
    "train.adam_eps": "1e-8, as AdamW has it",
}
"""what was a setting once and is a constant now, with its value and the reason"""


def _moved() -> Iterator[tuple[str, str]]:
    yield "watch", "monitor"
    for old, new, names in _SECTIONS:
        for name in names.split():
            before, _, after = name.partition(":")
            yield f"{old}.{before}", f"{new}.{after or before}"


MOVED: Final[Mapping[str, str]] = dict(_moved())
"""the present path of each old one"""


def refusal(path: str) -> str | None:
    """What to say to who uses a key of old; None for any other name."""
    if path in MOVED:
        return f"{path} is now {MOVED[path]}"
    if path in FIXED:
        return f"{path} is no setting any more, it is fixed: {FIXED[path]}; take it out"
    return None
