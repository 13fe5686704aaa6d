"""Scores alone, by the service's own clipped surrogate ("ppo"): one pass in place of two, where it is the same loss.

Whether it was the same is known after the pass, from the log-probs that it gives: a token that ours would have masked,
or one whose ratio at equal weights ours would not have clipped, makes it another, and the step is taken in two passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from openclaw_rl.backends.hf.collation import TrainBatch
from openclaw_rl.backends.tinker.lookups import Lookup
from openclaw_rl.backends.tinker.passes import placed
from openclaw_rl.backends.tinker.session import TinkerSession
from openclaw_rl.backends.tinker.settings import TinkerTrainerSettings

_TOLERANCE: Final = 1e-5
"""of the largest gradient by a log-prob"""


def fits(settings: TinkerTrainerSettings, batch: TrainBatch) -> bool:
    """Whether a batch's loss may be the service's own: scores alone, no KL penalty, every log-prob recorded."""
    s = settings
    alone = s.method == "binary" and s.loss is None and s.kl_coef == 0
    return alone and bool(batch.recorded.all()) and not bool(batch.rehearsed.any())


def token_advantages(batch: TrainBatch, aggregate: str) -> Tensor:
    """[N] each token's advantage by its share of the mean, as the service adds up; 0 where a token has no say."""
    counted = batch.mask & batch.has_advantage[batch.sample]
    if aggregate == "token":
        share = counted.float() / counted.sum().clamp_min(1)
    else:
        lengths = torch.zeros_like(batch.advantage).index_add(0, batch.sample, counted.float())
        share = counted / lengths.clamp_min(1)[batch.sample] / (lengths > 0).sum().clamp_min(1)
    return batch.advantage[batch.sample] * share


def surrogate_pass(session: TinkerSession, client: Any, settings: TinkerTrainerSettings, found: Lookup) -> Any:
    """Begin the pass forward and back; what it promises."""
    types, batch = session.sdk.types, found.batch
    advantages = token_advantages(batch, settings.aggregate)
    data = [
        types.Datum(
            model_input=types.ModelInput.from_ints(list(row.tokens[:-1])),
            loss_fn_inputs={
                "target_tokens": placed(types, row, batch.tokens[span]),
                "logprobs": placed(types, row, batch.old[span]),
                "advantages": placed(types, row, advantages[span]),
            },
        )
        for row, span in zip(found.rows, batch.spans, strict=True)
    ]
    session.spending.add(train=sum(each.model_input.length for each in data))
    bounds = {"clip_low_threshold": 1 - settings.eps_low, "clip_high_threshold": 1 + settings.eps_high}
    return client.forward_backward(data, "ppo", bounds)


def same_gradient(
    settings: TinkerTrainerSettings, batch: TrainBatch, values: Sequence[Tensor], ours: Sequence[Tensor]
) -> bool:
    """Whether the surrogate's gradient by these log-probs is that of our loss."""
    advantage, ratio = token_advantages(batch, settings.aggregate), (torch.cat(list(values))[:, 0] - batch.old).exp()
    flat = ((advantage > 0) & (ratio > 1 + settings.eps_high)) | ((advantage < 0) & (ratio < 1 - settings.eps_low))
    theirs = torch.where(flat, 0.0, -advantage * ratio)
    wanted = torch.cat(list(ours))[:, 0]
    return bool((theirs - wanted).abs().max() <= _TOLERANCE * wanted.abs().max())
