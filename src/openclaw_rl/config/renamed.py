"""Keys from earlier releases: each is refused with its present name, or with the reason for its fixed value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from openclaw_rl.config.values import weights

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
    (
        "train.rehearse",
        "train.prompt_distillation",
        "enabled steps seconds batch prompts held_back replay loss reward teacher lr decay temperature tokens idle"
        " tolerance",
    ),
    ("env", "env", "rungs:levels per_rung:per_level"),
    ("judge.reader", "judge.feedback_classifier", "classifier seconds"),
    ("serve", "serve", "outright:inline_feedback"),
    ("gate", "gate", "rehearsal_probes:distillation_probes"),
    ("gate.limits", "gate.limits", "rehearsal_drop:distillation_drop"),
)
"""the former section, the present section, and their names, ``old:new`` where these differ"""

FIXED: Final[Mapping[str, str]] = {
    "serve.max_header_kb": "64 KiB, as in other servers",
    "serve.max_depth": "64 levels, more than any client sends",
    "serve.keepalive_seconds": "10 seconds, below what proxies wait for",
    "collect.capacity": "50,000 turns, about 100 MiB",
    "judge.cache": "the same content is never judged twice",
    "judge.health_window": "50 verdicts, enough to tell a collapse from chance",
    "train.adam_eps": "1e-8, as AdamW has it",
}
"""former settings that are constants now, with the value and the reason"""


def _moved() -> Iterator[tuple[str, str]]:
    yield "watch", "monitor"
    yield "train.rehearse", "train.prompt_distillation"
    yield "judge.reader", "judge.feedback_classifier"
    for old, new, names in _SECTIONS:
        for name in names.split():
            before, _, after = name.partition(":")
            yield f"{old}.{before}", f"{new}.{after or before}"


MOVED: Final[Mapping[str, str]] = dict(_moved())
"""the present path for each former path"""


def refusal(path: str) -> str | None:
    """Return the error for a former key; None for any other name."""
    if path in MOVED:
        return f"{path} is now {MOVED[path]}"
    if path in FIXED:
        return f"{path} is no setting any more, it is fixed: {FIXED[path]}; take it out"
    return None


# Names used elsewhere that select no setting because their value is fixed: each is accepted with a note, or refused.

TEACHER_PLACE: Final = "trainer"
STATED: Final[Mapping[str, str]] = {
    "REF_LOAD": "the reference of the KL penalty is always the base model, policy.model, in Hugging Face form",
    "OPENCLAW_COMBINE_OPD_TEACHER_SOURCE": f"the teacher always runs in the {TEACHER_PLACE}",
}
"""each name and its fixed value"""


def notes(environ: Mapping[str, str], *, model: str) -> Iterator[str]:
    """Yield a note for each name that is set without effect; ``model`` is the base model."""
    if _reference(environ) == model:
        yield f"environment REF_LOAD is the base model: {STATED['REF_LOAD']}"
    name = "OPENCLAW_COMBINE_OPD_TEACHER_SOURCE"
    place = environ.get(name, "").strip()
    if place and place != TEACHER_PLACE:
        yield f"environment {name} = {place} changes nothing: {STATED[name]}"


def problems(environ: Mapping[str, str], *, model: str) -> Iterator[str]:
    """Yield an error, with the remedy, for each name whose value cannot be used."""
    reference = _reference(environ)
    if reference is None or reference == model:
        return
    folder = Path(reference)
    why = f"names other weights than policy.model, which is {model}"
    if folder.is_absolute() and not folder.exists():
        why = "is not there"
    elif folder.is_dir() and not (folder / "config.json").is_file():
        why = "is no model in Hugging Face form (it has no config.json)"
    yield f"environment REF_LOAD = {reference}: {why}; {STATED['REF_LOAD']}: unset it, or name that model"


def _reference(environ: Mapping[str, str]) -> str | None:
    text = environ.get("REF_LOAD", "").strip()
    return weights(text) if text else None
