"""Intervals and tests for means, rates and differences. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

FEWEST = 3
"""fewest pairs for which a mean difference has a meaningful interval"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean and its interval; the bounds are infinite for too few numbers."""

    mean: float
    low: float
    high: float
    count: int


def interval(values: Sequence[float], *, alpha: float) -> Interval:
    """Return the mean with one-sided bounds, each wrong with probability ``alpha`` (Student's t)."""
    mean = statistics.fmean(values)
    if len(values) < FEWEST:
        return Interval(mean=mean, low=-math.inf, high=math.inf, count=len(values))
    half = t_quantile(1 - alpha, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean=mean, low=mean - half, high=mean + half, count=len(values))


def t_quantile(share: float, freedom: int) -> float:
    """Return Student's t by Cornish and Fisher's expansion: within 2 % of the table from two degrees of freedom."""
    z: float = statistics.NormalDist().inv_cdf(share)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / float(freedom) ** power for power, term in enumerate(terms, start=1))


def sign_test(lost: int, won: int) -> float:
    """Return the chance of at least this many losses among pairs that differ, if wins and losses are equally likely."""
    return tail(lost, lost + won, 0.5)


def tail(count: int, of: int, rate: float) -> float:
    """Return the chance of ``count`` or more successes in ``of`` tries."""
    return min(1.0, sum(math.comb(of, k) * rate**k * (1 - rate) ** (of - k) for k in range(count, of + 1)))


def wilson(good: int, of: int, *, alpha: float = 0.05) -> tuple[float, float]:
    """Return a rate's two-sided Wilson interval; 0 to 1 without any tries."""
    if of == 0:
        return 0.0, 1.0
    z = statistics.NormalDist().inv_cdf(1 - alpha / 2)
    rate, weight = good / of, z * z / of
    middle = (rate + weight / 2) / (1 + weight)
    half = z / (1 + weight) * math.sqrt(rate * (1 - rate) / of + weight / (4 * of))
    return max(0.0, middle - half), min(1.0, middle + half)


def difference(first: Sequence[bool], second: Sequence[bool], *, alpha: float = 0.05) -> Interval:
    """Return the paired difference of two rates, second less first, with a two-sided interval (Newcombe, paired).

    The variance is the pairs' own; half a pair is added on either side, so that the interval is never empty.
    """
    pairs = list(zip(first, second, strict=True))
    won, lost = sum(not a and b for a, b in pairs), sum(a and not b for a, b in pairs)
    count, z = len(pairs), statistics.NormalDist().inv_cdf(1 - alpha / 2)
    if count == 0:
        return Interval(mean=0.0, low=-1.0, high=1.0, count=0)
    mean = (won - lost) / count
    spread = math.sqrt(max(won + lost + 1 - (won - lost) ** 2 / count, 0.0)) / count
    return Interval(mean=mean, low=max(-1.0, mean - z * spread), high=min(1.0, mean + z * spread), count=count)
