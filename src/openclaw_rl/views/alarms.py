"""Is there anything to train on, and is it trained in time? Pure."""

from __future__ import annotations

from collections.abc import Mapping

from openclaw_rl.types import DropReason

REMEDIES: Mapping[DropReason, str] = {
    "side turn": "mark talk with the header X-Turn-Type: main, or do not use the '-side' model for it",
    "opted out": "remove x-openclaw-rl-train: off from the requests or the key",
    "no signal": "send the whole history with each request, or a session id (X-Session-Id)",
    "alike": "give tasks that the policy solves now and then, neither always nor never",
    "unjudged": "see whether the judge keeps up (judge in 'openclaw-rl status'), and end each session of a group",
    "cut off": "raise max_tokens, or set train.train_truncated = true",
    "greedy": "sample with a temperature above 0",
    "not shared": "see train.share",
    "stale": "raise train.max_lag",
    "late": "end episodes sooner, and name each group of rollouts (x-openclaw-rl-group) only once",
    "redacted": "see serve.redact",
}
"""what to do where most turns are dropped for a reason"""


_FEW = 4
_SHARE = 0.1
"""turns that are stale by chance, and their share of all that could have trained"""


def falling_behind(stale: int, trained: int) -> str | None:
    """The alarm when turns come too late to train, because versions are made faster than turns are used; None else."""
    if stale < _FEW or stale < _SHARE * (stale + trained):
        return None
    return (
        f"training falls behind: {stale} turns of the last hour were dropped as stale and {trained} trained; raise"
        " train.batch_size (fewer versions) or train.max_lag, or give the trainer a faster device"
    )


def nothing_trainable(*, answered: int, trainable: int, reasons: Mapping[DropReason, int], after: int) -> str | None:
    """The alarm when ``after`` turns or more were answered and none of them may train; None otherwise.

    ``reasons`` counts turns that do not train by why; the most frequent comes first, with its remedy if one is known.
    Turns that still wait for what comes next belong in none of the counts.
    """
    if trainable > 0 or answered < after:
        return None
    ranked = sorted(((count, why) for why, count in reasons.items() if count > 0), key=lambda item: (-item[0], item[1]))
    because = ", ".join(f"{count} {why}" for count, why in ranked) or "no reason was recorded"
    remedy = REMEDIES.get(ranked[0][1]) if ranked else None
    return f"{answered} turns answered, none trainable, because: {because}" + (f"; {remedy}" if remedy else "")
