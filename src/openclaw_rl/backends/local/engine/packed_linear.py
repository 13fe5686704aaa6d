"""Projections: a plain product for a single token; for several, a copy of the weights laid out for this CPU.

A plain product of a few tokens arranges the weights anew on every call, which costs more than the product itself. The
copy is arranged once. It is only made where a trial on this machine shows that it pays, and where memory allows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import torch
from torch.nn import functional

from openclaw_rl.backends.hf.memory import available, best_of

GAIN = 1.15
"""a packed product must be this much faster than a plain one to be worth its memory"""
ROOM = 4
"""packed copies are made where this many of them would fit into what is free"""


class PackedLinear:
    """A projection ``weight`` `[out, in]`; with ``pack`` also in the layout that suits several tokens at once."""

    __slots__ = ("bias", "packed", "weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None, *, pack: bool = False) -> None:
        self.weight = weight.detach()
        self.bias = bias
        self.packed = _packed(self.weight) if pack else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.packed is None or len(x) == 1:
            return functional.linear(x, self.weight, self.bias)
        return _product(x, self.packed, self.bias)


class LinearPacker:
    """Makes matrices, packed or not. Weights that a relative has made one of already are not taken twice."""

    def __init__(self, packs: bool, known: Mapping[int, PackedLinear] | None = None) -> None:
        self.packs = packs
        self.made: dict[int, PackedLinear] = {}
        self._known = known or {}

    def __call__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> PackedLinear:
        place = weight.data_ptr()
        known = self._known.get(place)
        linear = known if known and known.weight.shape == weight.shape else PackedLinear(weight, bias, pack=self.packs)
        self.made[place] = linear
        return linear


def worth_packing(weight: torch.Tensor, *, needed: int) -> bool:
    """Whether copies of ``needed`` bytes in all may be made, and products by a linear like ``weight`` gain by them."""
    device = weight.device
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return (
        needed * ROOM <= available(device) and _gain(min(weight.shape[0], 4096), weight.shape[1], weight.dtype) >= GAIN
    )


@lru_cache(maxsize=8)
def _gain(rows: int, columns: int, dtype: torch.dtype) -> float:
    """How many times as fast as plain a packed product of sixteen tokens is here; 0 where there is none that is right.

    Several matrices are gone through in turn, because in a pass none is still in a cache either.
    """
    rng = torch.Generator().manual_seed(0)
    weights = [torch.randn(rows, columns, generator=rng).to(dtype) for _ in range(4)]
    x = torch.randn(16, columns, generator=rng).to(dtype)
    with torch.inference_mode():
        try:
            packed = [_packed(weight) for weight in weights]
            right = torch.allclose(_product(x, packed[0], None), functional.linear(x, weights[0]), rtol=1e-2, atol=1e-2)
        except (RuntimeError, NotImplementedError):
            return 0.0  # a build of torch or a type of number without such a product
        plain = best_of(lambda: [functional.linear(x, weight) for weight in weights], times=5)
        quick = best_of(lambda: [_product(x, weight, None) for weight in packed], times=5)
    return plain / quick if right else 0.0


def _packed(weight: torch.Tensor) -> torch.Tensor:
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, 16)
    return packed


def _product(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return product
