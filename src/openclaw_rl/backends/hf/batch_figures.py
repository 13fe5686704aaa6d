"""Figures of a batch: how much it has to say, how old it is, what could be measured of it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from openclaw_rl.types import Sample, Tokens


def batch_weight(
    weigh: Callable[..., float],
    samples: Sequence[Sample],
    views: Sequence[Sequence[Tokens | None]],
    *,
    by_urgency: bool = False,
) -> float:
    """How much a batch has to say, 0 .. 1: the mean of its samples, each by its urgency if that is to count.

    What a step of turns repeats of notes says nothing more: it holds what was learned, however far the turns go.
    """
    alone = rehearses_alone(samples)
    found = [
        (sample.urgency if by_urgency else 1.0)
        if sample.rehearses is not None
        else weigh(
            hinted=any(view is not None for view in row),
            advantage=sample.advantage,
            urgency=sample.urgency if by_urgency else 1.0,
        )
        for sample, row in zip(samples, views, strict=True)
        if alone or sample.rehearses is None
    ]
    return statistics.fmean(found) if found else 0.0


def rehearses_alone(samples: Sequence[Sample]) -> bool:
    """Whether all of them rehearse notes, and none is a turn."""
    return all(sample.rehearses is not None for sample in samples)


def lag(samples: Sequence[Sample], version: int) -> dict[str, float]:
    """How many versions behind ``version`` they are."""
    lags = [version - sample.version for sample in samples]
    return {"lag_mean": sum(lags) / len(lags), "lag_max": float(max(lags))} if lags else {}


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """What could not be measured is absent, not a number."""
    return {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
