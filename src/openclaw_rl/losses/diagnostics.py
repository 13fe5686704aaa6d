"""Select the tokens fit for training, and report figures that separate a sound batch from a broken one."""

from __future__ import annotations

import math

from torch import Tensor

from openclaw_rl.losses.arithmetic import ratio
from openclaw_rl.losses.inputs import LossInputs
from openclaw_rl.losses.selection import teacher_present


def fit(x: LossInputs, max_mismatch: float) -> dict[str, Tensor]:
    """Return a [N] bool per reason to exclude a token, all disjoint; ``kept`` is the remainder."""
    finite = x.current.detach().isfinite() & x.old.isfinite()
    near = ((x.comparable - x.old).abs() <= math.log(max_mismatch)) | ~x.same_weights
    return {
        "masked_sample": ~x.mask,
        "masked_non_finite": x.mask & ~finite,
        "masked_off_policy": x.mask & finite & ~near,
        "kept": x.mask & finite & near,
    }


def health(x: LossInputs, max_mismatch: float) -> dict[str, float]:
    """Return batch health: the gap to the engine, effective sample size, and token counts by reason.

    The gap is |trainer - engine| at equal weights, before the off-policy mask; NaN if no token is comparable.
    """
    reasons = fit(x, max_mismatch)
    gap = (x.comparable - x.old).abs()[x.same_weights & (reasons["kept"] | reasons["masked_off_policy"])]
    weight = ratio(x.current.detach(), x.old)[reasons["kept"] & x.of_turns]  # prompt distillation uses no ratio
    nothing = float("nan")
    return {
        "gap_mean": float(gap.mean()) if len(gap) else nothing,
        "gap_p99": float(gap.double().quantile(0.99)) if len(gap) else nothing,
        "ess": float(weight.sum() ** 2 / (len(weight) * (weight**2).sum())) if len(weight) else nothing,
        "masked_no_teacher": float((reasons["kept"] & ~teacher_present(x).any(0)).sum()),
        "tokens": float(len(x.mask)),
        **{name: float(where.sum()) for name, where in reasons.items()},
    }
