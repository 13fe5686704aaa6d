"""Prompt distillation loss: pulls replies sampled for a note towards the teacher that has the note in its prompt.

    reverse   KL(current || teacher) at each token in a policy's reply: the default
    forward   KL(teacher || current) there
    sft       KL(teacher || current) at a teacher reply's tokens

Exact, over the whole vocabulary, averaged over reply tokens. The gradient vanishes where the two agree. A reply that is
better or worse than the others in its step has an advantage A, and adds ``-A log current`` at each of its tokens: so
the policy can follow the note more often than its teacher does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from openclaw_rl.errors import InvalidValue
from openclaw_rl.losses.aggregation import mean_token
from openclaw_rl.losses.inputs import LossFunction, LossInputs


def distillation_loss(x: LossInputs) -> tuple[Tensor, dict[str, float]]:
    """Return the mean KL to the teacher over the distilled tokens, plus a score term for tokens with an advantage.

    A value that is not finite is left out with its token.
    """
    if x.distillation is None or x.distilled is None:
        raise InvalidValue("distillation", "there is nothing to distill", remedy="fill in distilled and distillation")
    where = x.mask & x.distilled & x.distillation.detach().isfinite()
    value = mean_token(torch.where(where, x.distillation, 0.0), where, x.sample, len(x.advantage))
    metrics = {"loss_distillation": float(value.detach()), "tokens_distillation": float(where.sum())}
    scored = where & x.has_advantage[x.sample]
    if not bool(scored.any()):
        return value, metrics
    by_score = mean_token(
        torch.where(scored, -x.advantage[x.sample] * x.current, 0.0), where, x.sample, len(x.advantage)
    )
    return value + by_score, {**metrics, "loss_distillation_score": float(by_score.detach())}


def with_distillation(live: LossFunction) -> LossFunction:
    """Return ``live`` on turns' tokens plus `distillation_loss` on distilled ones, each averaged over its own."""

    def both(x: LossInputs) -> tuple[Tensor, Mapping[str, float]]:
        if x.distilled is None or not bool(x.distilled.any()):
            return live(x)
        value, metrics = distillation_loss(x)
        if not bool(x.of_turns.any()):
            return value, {**metrics, "loss": float(value.detach())}
        of_turns, live_metrics = live(replace(x, mask=x.of_turns))
        total = of_turns + value
        return total, {**live_metrics, **metrics, "loss": float(total.detach())}

    return both
