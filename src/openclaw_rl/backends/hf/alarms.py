"""Reasons to take no step: a batch that must not be trained on, a gradient that must not be applied."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

HISTORY = 32
"""gradient norms that the running median looks back on"""
LEAST = 0.05
"""gradients are compared for what their batches have to say, and for this at least"""
_ENOUGH = 3
"""gradient norms before their median may raise an alarm"""


class StepSkipped(Exception):
    """A reason to take no step, with what was measured up to there; not an error."""

    def __init__(self, reason: str, metrics: Mapping[str, float] | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.metrics = metrics or {}


def batch_alarm(health: Mapping[str, float], *, gap: float, ess: float) -> str | None:
    """Why a batch must not be trained on, seen before its backward pass; None if nothing is wrong."""
    if health["masked_non_finite"]:
        return f"alarm: {health['masked_non_finite']:.0f} log-probs are not finite"
    if health["gap_mean"] > gap:
        return f"alarm: trainer and engine differ by {health['gap_mean']:.3f} a token (above {gap})"
    if not health["kept"]:
        return "no signal: every token is masked"
    if health["ess"] < ess:
        return f"alarm: effective sample size {health['ess']:.2f} (below {ess})"
    return None


def norm_alarm(norm: float, history: Sequence[float], times: float) -> str | None:
    """Why this gradient must not be applied: not finite, or far beyond its running median."""
    if not math.isfinite(norm):
        return "alarm: the gradient is not finite"
    usual = statistics.median(history) if len(history) >= _ENOUGH else 0.0
    if usual > 0 and norm > times * usual:  # where nothing was learned lately there is nothing to compare with
        beyond = f"is above {times:g} times its median {usual:.3g}"
        return f"alarm: gradient norm {norm:.3g}, by what its batch has to say, {beyond}"
    return None
