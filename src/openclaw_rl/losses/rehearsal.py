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


def rehearsal_loss(x: LossInputs) -> tuple[Tensor, dict[str, float]]:
    """Return the mean KL to the teacher over the distilled tokens, plus a score term for tokens with an advantage.

    A value that is not finite is left out with its token.
    """
    if x.rehearsal is None or x.rehearsed is None:
        raise InvalidValue("rehearsal", "there is nothing to distil", remedy="fill in rehearsed and rehearsal")
    where = x.mask & x.rehearsed & x.rehearsal.detach().isfinite()
    value = mean_token(torch.where(where, x.rehearsal, 0.0), where, x.sample, len(x.advantage))
    metrics = {"loss_rehearsal": float(value.detach()), "tokens_rehearsal": float(where.sum())}
    scored = where & x.has_advantage[x.sample]
    if not bool(scored.any()):
        return value, metrics
    by_score = mean_token(
        torch.where(scored, -x.advantage[x.sample] * x.current, 0.0), where, x.sample, len(x.advantage)
    )
    return value + by_score, {**metrics, "loss_rehearsal_score": float(by_score.detach())}


def with_rehearsal(live: LossFunction) -> LossFunction:
    """Return ``live`` on tokens of turns plus `rehearsal_loss` on distilled ones, each averaged over its own tokens."""

    def both(x: LossInputs) -> tuple[Tensor, Mapping[str, float]]:
        if x.rehearsed is None or not bool(x.rehearsed.any()):
            return live(x)
        value, metrics = rehearsal_loss(x)
        if not bool(x.of_turns.any()):
            return value, {**metrics, "loss": float(value.detach())}
        of_turns, live_metrics = live(replace(x, mask=x.of_turns))
        total = of_turns + value
        return total, {**live_metrics, **metrics, "loss": float(total.detach())}

    return both
