"""Reduce a value per token to one number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

import torch
from torch import Tensor

TOKENS: Final = 256
"""divisor of a reply's sum in `mean_constant`, regardless of its length"""


def mean_token(values: Tensor, mask: Tensor, _sample: Tensor, _samples: int) -> Tensor:
    """Return the mean over the tokens in ``mask`` of the whole batch; 0 without any."""
    return torch.where(mask, values, 0.0).sum() / mask.sum().clamp_min(1)


def mean_sample(values: Tensor, mask: Tensor, sample: Tensor, samples: int) -> Tensor:
    """Return the mean within each sample that has tokens in ``mask``, then over those samples; 0 without any."""
    total = values.new_zeros(samples).index_add(0, sample, torch.where(mask, values, 0.0))
    count = values.new_zeros(samples).index_add(0, sample, mask.to(values.dtype))
    return (total / count.clamp_min(1)).sum() / (count > 0).sum().clamp_min(1)


def mean_constant(values: Tensor, mask: Tensor, sample: Tensor, samples: int) -> Tensor:
    """Divide each sample's sum by a constant, `TOKENS`, then average over samples that have tokens in ``mask``.

    Nothing is divided by a length: each token of a short wrong reply is pushed no harder than that of a long one.
    """
    count = values.new_zeros(samples).index_add(0, sample, mask.to(values.dtype))
    return torch.where(mask, values, 0.0).sum() / TOKENS / (count > 0).sum().clamp_min(1)


Aggregate: TypeAlias = Callable[[Tensor, Tensor, Tensor, int], Tensor]
AGGREGATES: Mapping[str, Aggregate] = MappingProxyType(
    {"token": mean_token, "sample": mean_sample, "constant": mean_constant}
)
