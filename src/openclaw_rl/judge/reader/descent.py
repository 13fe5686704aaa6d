"""A smooth loss made small: L-BFGS with numpy alone. Deterministic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def softmax(logits: Array) -> Array:
    """Of each row."""
    raised: Array = np.exp(logits - logits.max(1, keepdims=True))
    total: Array = raised.sum(1, keepdims=True)
    return raised / total


def minimised(loss: Callable[[Array], tuple[float, Array]], start: Array, *, steps: int, memory: int = 8) -> Array:
    """L-BFGS with a halving line search; ends where a step gains under a thousandth of a percent."""
    at, (value, slope) = start, loss(start)
    pairs: list[tuple[Array, Array, float]] = []
    for _ in range(steps):
        direction = -_curved(slope, pairs)
        length = 1.0 if pairs else min(1.0, 1.0 / (np.abs(slope).sum() + 1e-12))
        downhill = float(slope @ direction)
        for _ in range(20):
            ahead = at + length * direction
            new_value, new_slope = loss(ahead)
            if new_value <= value + 1e-4 * length * downhill:
                break
            length *= 0.5
        else:
            break
        step, change = ahead - at, new_slope - slope
        if (curve := float(step @ change)) > 1e-10:
            pairs = [*pairs[-memory + 1 :], (step, change, 1.0 / curve)]
        gained = value - new_value
        at, value, slope = ahead, new_value, new_slope
        if gained < 1e-5 * abs(value):
            break
    return at


def _curved(slope: Array, pairs: Sequence[tuple[Array, Array, float]]) -> Array:
    """The slope times the inverse curvature that the last steps showed."""
    found, factors = slope.copy(), []
    for step, change, inverse in reversed(pairs):
        factor = inverse * float(step @ found)
        found -= factor * change
        factors.append(factor)
    if pairs:
        step, change, inverse = pairs[-1]
        found *= 1.0 / (inverse * float(change @ change))
    for (step, change, inverse), factor in zip(pairs, reversed(factors), strict=True):
        found += (factor - inverse * float(change @ found)) * step
    return found
