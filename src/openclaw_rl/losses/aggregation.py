"""From a value for each token to one number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

import torch
from torch import Tensor

TOKENS: Final = 256
"""tokens by which `mean_constant` divides the sum of a reply, whatever its length"""


def mean_token(values: Tensor, mask: Tensor, _sample: Tensor, _samples: int) -> Tensor:
    """The mean over the tokens in ``mask`` of the whole batch; 0 when there is none."""
    return torch.where(mask, values, 0.0).sum() / mask.sum().clamp_min(1)


def mean_sample(values: Tensor, mask: Tensor, sample: Tensor, samples: int) -> Tensor:
    """The mean within each sample that has tokens in ``mask``, then over those samples; 0 when there is none."""
    total = values.new_zeros(samples).index_add(0, sample, torch.where(mask, values, 0.0))
    count = values.new_zeros(samples).index_add(0, sample, mask.to(values.dtype))
    return (total / count.clamp_min(1)).sum() / (count > 0).sum().clamp_min(1)


def mean_constant(values: Tensor, mask: Tensor, sample: Tensor, samples: int) -> Tensor:
    """The sum within each sample over a constant, `TOKENS`, then the mean over samples that have tokens in ``mask``.

    No length divides anything, so that a short wrong reply is pushed no harder at each token than a long one.
    """
    count = values.new_zeros(samples).index_add(0, sample, mask.to(values.dtype))
    return torch.where(mask, values, 0.0).sum() / TOKENS / (count > 0).sum().clamp_min(1)


Aggregate: TypeAlias = Callable[[Tensor, Tensor, Tensor, int], Tensor]
AGGREGATES: Mapping[str, Aggregate] = MappingProxyType(
    {"token": mean_token, "sample": mean_sample, "constant": mean_constant}
)
