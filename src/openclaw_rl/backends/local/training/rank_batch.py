"""A batch divided among ranks: by tokens, turns that share a beginning on the same one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from openclaw_rl.backends.hf.collation import TrainBatch, Views
from openclaw_rl.backends.local.training.ranks import Ranks
from openclaw_rl.losses.tree import divide
from openclaw_rl.types import Sample

_PASSES = 4
"""of a turn's own tokens: forward, back (twice the work), and forward through the base; a teacher's view is one"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBatch:
    """What one rank computes: samples as a batch of their own, and where its tokens [n] stand in the whole one."""

    batch: TrainBatch
    at: Tensor
    heard: bool


def rank_batch(
    batch: TrainBatch,
    samples: Sequence[Sample],
    views: Views,
    ranks: Ranks,
    flatten: Callable[[Sequence[Sample], Views], TrainBatch],
) -> RankBatch | None:
    """This rank's part of ``batch``, which ``flatten`` made of these; None where it is all of it."""
    if ranks.count == 1:
        return None
    dealt = divide(batch.plain, _beside(batch), ranks.count)
    heard = ranks.number < len(dealt)
    mine = sorted(dealt[ranks.number]) if heard else dealt[0][:1]
    part = flatten([samples[at] for at in mine], [views[at] for at in mine])
    spans = [batch.spans[at] for at in mine]
    at = torch.cat([torch.arange(span.start, span.stop) for span in spans]).to(batch.tokens.device)
    return RankBatch(batch=replace(part, hints=batch.hints), at=at, heard=heard)


def _beside(batch: TrainBatch) -> list[int]:
    """For each sample what its teachers' views cost, in tokens of its own; they share its beginning, not its reply."""
    found = [0] * len(batch.plain)
    for sample, path in [*((s, path) for _, s, path in batch.hinted), *batch.noted]:
        found[sample] += len(path.tokens) - _same(path.tokens, batch.plain[sample].tokens)
    return [-(-cost // _PASSES) for cost in found]


def _same(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
