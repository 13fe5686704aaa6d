"""The head in chunks: log-probs, the k best and a whole-vocabulary KL at given hidden states, forward and backward.

No tensor of [tokens, vocabulary] is ever made for a whole batch: a chunk of rows is multiplied out, read, and let go.
The backward pass multiplies it out again and returns the gradient of the hidden states.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

ELEMENTS = {"cpu": 1 << 24, "cuda": 1 << 27}
"""logits that one chunk may hold"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The output layer: weight [V, d], and a bias [V] or None. Its own gradient is added up only if it is trained."""

    weight: nn.Parameter
    bias: nn.Parameter | None = None
    dtype: torch.dtype | None = None
    """multiply in this type instead of the weight's own"""
    chunk: int | None = None
    """rows at once; None: as many as `ELEMENTS` allows"""

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [n, d] -> [n, V], in float32 at least."""
        weight = self._weight()
        if weight.dtype.itemsize >= 4:
            out = hidden.to(weight.dtype) @ weight.t()
        elif weight.is_cuda:
            out = torch.mm(hidden.to(weight.dtype), weight.t(), out_dtype=torch.float32)
        else:
            out = hidden.float() @ weight.float().t()
        return out if self.bias is None else out + self.bias.detach()

    def back(self, gradient: Tensor, hidden: Tensor) -> Tensor:
        """gradient of the logits [n, V] -> gradient of ``hidden`` [n, d]; adds to the parameters' own where trained."""
        weight = self._weight()
        if self.weight.requires_grad:
            _add(self.weight, gradient.t() @ hidden.to(gradient.dtype))
        if self.bias is not None and self.bias.requires_grad:
            _add(self.bias, gradient.sum(0))
        kind = weight.dtype if weight.is_cuda else gradient.dtype
        return (gradient.to(kind) @ weight.to(kind)).to(hidden.dtype)

    def rows(self, count: int) -> Iterator[slice]:
        """0 .. count in chunks."""
        step = self.chunk or max(16, ELEMENTS.get(self.weight.device.type, 1 << 24) // len(self.weight))
        return (slice(at, min(at + step, count)) for at in range(0, count, step))

    def _weight(self) -> Tensor:
        return self.weight.detach().to(self.dtype or self.weight.dtype)


def _add(parameter: nn.Parameter, gradient: Tensor) -> None:
    gradient = gradient.to(parameter.dtype)
    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The base policy at the same positions: hidden states [N, d] and the head that goes with them."""

    hidden: Tensor
    head: Head


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """One look at the vocabulary: log-normaliser [N], the k best ids and log-probs [N, k].

    With a base also the exact KL to it [N] and the base's own log-normaliser [N], else None.
    """

    norm: Tensor
    ids: Tensor
    top: Tensor
    kl: Tensor | None = None
    base_norm: Tensor | None = None


@torch.no_grad()
def scan(hidden: Tensor, head: Head, temperature: Tensor, *, k: int, base: Base | None = None) -> Scan:
    """Look once over the vocabulary at hidden [N, d], each row's logits divided by its temperature [N]."""
    k, parts = min(k, len(head.weight)), []
    for rows in head.rows(len(hidden)):
        logits = head.logits(hidden[rows]).div_(temperature[rows, None])
        norm = logits.logsumexp(-1)
        best = logits.topk(k, -1)
        found: tuple[Tensor, ...] = (norm, best.indices, best.values - norm[:, None])
        if base is not None:
            reference, base_norm = _log_base(base, rows, temperature)
            found = (*found, _kl(logits.sub_(norm[:, None]), reference), base_norm)
        parts.append(found)
    return Scan(**{name: torch.cat(part) for name, part in zip(_SCANNED, zip(*parts, strict=True), strict=False)})


_SCANNED = ("norm", "ids", "top", "kl", "base_norm")


def _log_base(base: Base, rows: slice, temperature: Tensor) -> tuple[Tensor, Tensor]:
    logits = base.head.logits(base.hidden[rows]).div_(temperature[rows, None])
    norm = logits.logsumexp(-1)
    return logits.sub_(norm[:, None]), norm


def _kl(current: Tensor, reference: Tensor) -> Tensor:
    return (current.exp() * (current - reference)).sum(-1)


@torch.no_grad()
def at(hidden: Tensor, head: Head, temperature: Tensor, norm: Tensor, ids: Tensor) -> Tensor:
    """Log-probs [N, G] of given ids [N, G], from the log-normaliser [N] of a `scan`; only those are computed."""
    parts = []
    wide = torch.float64 if head.weight.dtype == torch.float64 else torch.float32
    step = max(1, (1 << 24) // max(1, ids.shape[1] * hidden.shape[1]))
    for first in range(0, len(hidden), step):
        rows = slice(first, first + step)
        columns = head.weight.detach()[ids[rows]].to(head.dtype or head.weight.dtype).to(wide)
        logits = torch.einsum("nd,ngd->ng", hidden[rows].to(wide), columns)
        if head.bias is not None:
            logits = logits + head.bias.detach()[ids[rows]]
        parts.append(logits / temperature[rows, None] - norm[rows, None])
    return torch.cat(parts) if parts else ids.new_zeros(ids.shape, dtype=wide)


@torch.no_grad()
def pull_back(
    hidden: Tensor,
    head: Head,
    temperature: Tensor,
    ids: Tensor,
    at_ids: Tensor,
    *,
    kl: Tensor | None = None,
    base: Base | None = None,
) -> Tensor:
    """The gradient of hidden [N, d], given those of the log-probs at ids [N, G] and of the KL [N].

    For logits z / T and q = softmax: d l(v) = [v] - q, and d KL = q (log q - log p - KL).
    """
    parts = []
    for rows in head.rows(len(hidden)):
        logq = head.logits(hidden[rows]).div_(temperature[rows, None])
        logq.sub_(logq.logsumexp(-1, keepdim=True))
        q, given = logq.exp(), at_ids[rows].to(logq.dtype)
        gradient = q * -given.sum(-1, keepdim=True)
        gradient.scatter_add_(1, ids[rows], given)
        if kl is not None and base is not None:
            gap = logq.sub_(_log_base(base, rows, temperature)[0])
            gap.sub_((q * gap).sum(-1, keepdim=True))
            gradient.add_(q.mul_(gap).mul_(kl[rows, None]))
        parts.append(head.back(gradient.div_(temperature[rows, None]), hidden[rows]))
    return torch.cat(parts)
