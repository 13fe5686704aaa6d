"""The head in chunks: log-probs, the k best and a whole-vocabulary KL at given hidden states, forward and backward.

No [tokens, vocabulary] tensor exists for a whole batch: a chunk of rows is multiplied, read and released. The backward
pass multiplies it again and returns the hidden states' gradient. On CUDA the reading is fused, because each separate
operation would pass over a large chunk.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from openclaw_rl.backends.hf.models import probe_ids, text_config
from openclaw_rl.errors import ModelRefused

# The steps between a model's head product and its logits, derived by comparing the two.

_NEAR = 0.01
"""relative distance at which a measured factor is replaced by the configured number"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitForm:
    """Logits are the head's product times ``scale``, then limited to ± ``cap`` by a tanh, or unlimited."""

    scale: float = 1.0
    cap: float | None = None

    def __call__(self, product: Tensor) -> Tensor:
        scaled = product if self.scale == 1.0 else product * self.scale
        return scaled if self.cap is None else self.cap * torch.tanh(scaled / self.cap)

    def back(self, gradient: Tensor, logits: Tensor) -> Tensor:
        """Convert a gradient of ``logits`` to a gradient of the head's product."""
        if self.cap is not None:
            gradient = gradient * (1 - (logits / self.cap).square())
        return gradient if self.scale == 1.0 else gradient * self.scale


@torch.no_grad()
def logit_form(model: Any) -> LogitForm:
    """Derive the form of ``model``'s logits; raise `ModelRefused` if it is neither a factor nor a cap."""
    ids = torch.tensor([probe_ids(model)], device=model.device)
    head, config = model.get_output_embeddings(), text_config(model)
    product = head(model.base_model(input_ids=ids, use_cache=False).last_hidden_state)[0].float()
    logits = model(input_ids=ids, use_cache=False).logits[0].float()
    cap = getattr(config, "final_logit_softcapping", None)
    factor = 1.0 if cap is not None else float((product * logits).sum() / product.square().sum())
    form = LogitForm(scale=_configured(factor, config), cap=cap)
    limit = 1e-3 if head.weight.dtype.itemsize >= 4 else 3e-2
    apart = float((form(product) - logits).norm() / logits.norm())
    if not apart <= limit:
        raise ModelRefused(
            f"the logits of {type(model).__name__} are not the product of its head (off by {apart:.1e})",
            remedy="run 'openclaw-rl serve' alone, which does not train, or choose another model",
        )
    return form


def _configured(factor: float, config: Any) -> float:
    """Return the config's factor, which is exact; the measured factor is rounded."""
    numbers = [float(v) for v in config.to_dict().values() if isinstance(v, (int, float)) and v > 0]
    candidates = [1.0, *numbers, *(1 / number for number in numbers)]
    nearest = min(candidates, key=lambda number: abs(number - factor))
    return nearest if abs(nearest - factor) <= _NEAR * abs(factor) else factor


ELEMENTS = {"cpu": 1 << 24, "cuda": 1 << 27}
"""logits per chunk, at most"""
_BLOCK = 128
"""logits per block; the search for the k best first reads each block's largest"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The output layer: weight [V, d], and a bias [V] or None. It accumulates a gradient only if it is trained."""

    weight: nn.Parameter
    bias: nn.Parameter | None = None
    dtype: torch.dtype | None = None
    """type for the multiplication instead of the weight's own"""
    chunk: int | None = None
    """rows at once; None: as many as `ELEMENTS` allows"""
    form: LogitForm = field(default_factory=LogitForm)
    """steps from the product to the logits"""

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [n, V] of hidden [n, d], in float32 at least."""
        weight = self._weight()
        if weight.dtype.itemsize >= 4:
            out = hidden.to(weight.dtype) @ weight.t()
        elif weight.is_cuda:
            out = torch.mm(hidden.to(weight.dtype), weight.t(), out_dtype=torch.float32)
        else:
            out = hidden.float() @ weight.float().t()
        return self.form(out if self.bias is None else out + self.bias.detach())

    def back(self, gradient: Tensor, logits: Tensor, hidden: Tensor) -> Tensor:
        """Return the gradient of ``hidden`` [n, d] from the logits' [n, V]; add to trained parameters' gradients."""
        weight, gradient = self._weight(), self.form.back(gradient, logits)
        if self.weight.requires_grad:
            _add(self.weight, gradient.t() @ hidden.to(gradient.dtype))
        if self.bias is not None and self.bias.requires_grad:
            _add(self.bias, gradient.sum(0))
        kind = weight.dtype if weight.is_cuda else gradient.dtype
        return (gradient.to(kind) @ weight.to(kind)).to(hidden.dtype)

    def rows(self, count: int) -> Iterator[slice]:
        """Split 0 .. count into chunks."""
        step = self.chunk or max(16, ELEMENTS.get(self.weight.device.type, 1 << 24) // len(self.weight))
        return (slice(at, min(at + step, count)) for at in range(0, count, step))

    @property
    def trained(self) -> bool:
        """True if its own parameters are trained."""
        return self.weight.requires_grad or (self.bias is not None and self.bias.requires_grad)

    def _weight(self) -> Tensor:
        return self.weight.detach().to(self.dtype or self.weight.dtype)


def _add(parameter: nn.Parameter, gradient: Tensor) -> None:
    gradient = gradient.to(parameter.dtype)
    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseOutputs:
    """The base policy at the same positions: hidden states [N, d] and their head."""

    hidden: Tensor
    head: Head


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularyScan:
    """One pass over the vocabulary: log-normaliser [N], the k best ids and log-probs [N, k].

    With a base also the exact KL to it [N] and the base's log-normaliser [N], otherwise None.
    """

    norm: Tensor
    ids: Tensor
    top: Tensor
    kl: Tensor | None = None
    base_norm: Tensor | None = None


@torch.no_grad()
def scan(hidden: Tensor, head: Head, temperature: Tensor, *, k: int, base: BaseOutputs | None = None) -> VocabularyScan:
    """Read the vocabulary once at hidden [N, d], each row's logits divided by its temperature [N]."""
    k, parts = min(k, len(head.weight)), []
    for rows in head.rows(len(hidden)):
        logits, temperatures = head.logits(hidden[rows]), temperature[rows, None]
        best, ids = largest(logits, k)
        if base is None:
            columns = [_on(logits, _norm)(logits, temperatures)]
        else:
            columns = [*_on(logits, _norm_and_kl)(logits, base.head.logits(base.hidden[rows]), temperatures)]
        norm, *base_columns = columns
        parts.append((norm, ids, best / temperatures - norm[:, None], *base_columns))
    return VocabularyScan(
        **{name: torch.cat(part) for name, part in zip(_SCANNED, zip(*parts, strict=True), strict=False)}
    )


_SCANNED = ("norm", "ids", "top", "kl", "base_norm")


def largest(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest of each row [n, V] and their positions, largest first.

    In a long row only the k blocks with the largest maxima can contain them, so everything else is read once.
    """
    full = logits.shape[1] // _BLOCK * _BLOCK
    if full < k * _BLOCK * 4:
        best = logits.topk(k, -1)
        return best.values, best.indices
    blocks = logits[:, :full].view(len(logits), -1, _BLOCK)
    chosen = blocks.amax(-1).topk(k, -1).indices
    near = blocks.gather(1, chosen[..., None].expand(-1, -1, _BLOCK)).flatten(1)
    where = (chosen[..., None] * _BLOCK + torch.arange(_BLOCK, device=logits.device)).flatten(1)
    tail = torch.arange(full, logits.shape[1], device=logits.device).expand(len(logits), -1)
    best = torch.cat([near, logits[:, full:]], 1).topk(k, -1)
    return best.values, torch.cat([where, tail], 1).gather(1, best.indices)


def _norm(logits: Tensor, temperatures: Tensor) -> Tensor:
    """Return the log-normaliser [n] of logits [n, V] divided by their temperature [n, 1]."""
    return (logits / temperatures).logsumexp(-1)


def _norm_and_kl(logits: Tensor, base: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the log-normaliser, KL to the base and the base's log-normaliser, each [n]."""
    logits, base = logits / temperatures, base / temperatures
    norm, base_norm = logits.logsumexp(-1), base.logsumexp(-1)
    logq = logits - norm[:, None]
    return norm, (logq.exp() * (logq - (base - base_norm[:, None]))).sum(-1), base_norm


def _logit_gradient(logits: Tensor, temperatures: Tensor, given: Tensor) -> Tensor:
    """Return the part of the logits' gradient [n, V] that is common to log-probs whose gradients sum to ``given`` [n,
    1]."""
    return (logits / temperatures).softmax(-1) * (-given / temperatures)


def _logit_gradient_with_kl(logits: Tensor, base: Tensor, temperatures: Tensor, given: Tensor, kl: Tensor) -> Tensor:
    """As `_logit_gradient`, with a KL to the base whose gradient is ``kl`` [n, 1]."""
    logq, logp = (logits / temperatures).log_softmax(-1), (base / temperatures).log_softmax(-1)
    q, gap = logq.exp(), logq - logp
    return q * ((gap - (q * gap).sum(-1, keepdim=True)) * kl - given) / temperatures


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """A KL [N] over the whole vocabulary, and by-products of the same reading: the log-normaliser [N], and gradients.

    A row's gradient is by its own row of the hidden states [N, d]: ``slope`` of the KL, ``pull`` of a token's log-prob.
    None if the head is trained too, which needs the loss first, and if not requested.
    """

    kl: Tensor
    norm: Tensor
    slope: Tensor | None = None
    pull: Tensor | None = None


@torch.no_grad()
def divergence(
    hidden: Tensor,
    head: Head,
    temperature: Tensor,
    *,
    other: BaseOutputs,
    forward: bool,
    tokens: Tensor | None = None,
) -> Divergence:
    """Return KL(current || other) at hidden [N, d] over the whole vocabulary -> [N]; with ``forward`` KL(other ||
    current).

    ``tokens`` [N] are the tokens whose log-probs need a gradient.
    """
    columns: dict[str, list[Tensor]] = {"kl": [], "norm": [], "slope": [], "pull": []}
    for rows in head.rows(len(hidden)):
        logits, other_logits, heat = (
            head.logits(hidden[rows]),
            other.head.logits(other.hidden[rows]),
            temperature[rows, None],
        )
        first, second = (other_logits, logits) if forward else (logits, other_logits)
        norm, kl, other_norm = _on(logits, _norm_and_kl)(first, second, heat)
        columns["kl"].append(kl)
        columns["norm"].append(other_norm if forward else norm)
        if head.trained:
            continue
        unit = torch.ones_like(logits[:, :1])
        columns["slope"].append(_back(hidden[rows], head, logits, other_logits, heat, unit, forward=forward))
        if tokens is not None:
            gradient = _on(logits, _logit_gradient)(logits, heat, unit).scatter_add_(1, tokens[rows, None], unit / heat)
            columns["pull"].append(head.back(gradient, logits, hidden[rows]))
    return Divergence(**{name: torch.cat(parts) for name, parts in columns.items() if parts})


@torch.no_grad()
def backward_divergence(
    hidden: Tensor, head: Head, temperature: Tensor, given: Tensor, *, other: BaseOutputs, forward: bool
) -> Tensor:
    """Return the gradient of hidden [N, d] from that of the `divergence` [N]: q (log q - log p - KL), or q - p."""
    parts = []
    for rows in head.rows(len(hidden)):
        logits, other_logits = head.logits(hidden[rows]), other.head.logits(other.hidden[rows])
        temperatures, kl = temperature[rows, None], given[rows, None].to(logits.dtype)
        parts.append(_back(hidden[rows], head, logits, other_logits, temperatures, kl, forward=forward))
    return torch.cat(parts)


def _back(
    hidden: Tensor, head: Head, ours: Tensor, theirs: Tensor, temperatures: Tensor, kl: Tensor, *, forward: bool
) -> Tensor:
    if forward:
        gradient = _on(ours, _logit_gradient_forward)(ours, theirs, temperatures, kl)
    else:
        gradient = _on(ours, _logit_gradient_with_kl)(ours, theirs, temperatures, torch.zeros_like(kl), kl)
    return head.back(gradient, ours, hidden)


def _logit_gradient_forward(logits: Tensor, other: Tensor, temperatures: Tensor, kl: Tensor) -> Tensor:
    return ((logits / temperatures).softmax(-1) - (other / temperatures).softmax(-1)) * (kl / temperatures)


@cache
def _fused(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function)


def _on(logits: Tensor, function: Callable[..., Any]) -> Callable[..., Any]:
    return _fused(function) if logits.is_cuda and can_compile() else function


@cache
def can_compile() -> bool:
    """Return True if this machine can compile kernels: it has Triton, and a C compiler for the launchers."""
    return find_spec("triton") is not None and any(map(shutil.which, ("cc", "gcc", "clang")))


@torch.no_grad()
def at(hidden: Tensor, head: Head, temperature: Tensor, norm: Tensor, ids: Tensor) -> Tensor:
    """Return log-probs [N, G] at given ids [N, G], from a `scan`'s log-normaliser [N]; only these are computed."""
    parts = []
    wide = torch.float64 if head.weight.dtype == torch.float64 else torch.float32
    step = max(1, (1 << 24) // max(1, ids.shape[1] * hidden.shape[1]))
    for first in range(0, len(hidden), step):
        rows = slice(first, first + step)
        columns = head.weight.detach()[ids[rows]].to(head.dtype or head.weight.dtype).to(wide)
        logits = torch.einsum("nd,ngd->ng", hidden[rows].to(wide), columns)
        if head.bias is not None:
            logits = logits + head.bias.detach()[ids[rows]]
        parts.append(head.form(logits) / temperature[rows, None] - norm[rows, None])
    return torch.cat(parts) if parts else ids.new_zeros(ids.shape, dtype=wide)


@torch.no_grad()
def backward_hidden(
    hidden: Tensor,
    head: Head,
    temperature: Tensor,
    ids: Tensor,
    at_ids: Tensor,
    *,
    kl: Tensor | None = None,
    base: BaseOutputs | None = None,
) -> Tensor:
    """Return the gradient of hidden [N, d] from those of the log-probs at ids [N, G] and the KL [N].

    For logits z / T and q = softmax: d l(v) = [v] - q, and d KL = q (log q - log p - KL).
    """
    parts = []
    for rows in head.rows(len(hidden)):
        logits, temperatures = head.logits(hidden[rows]), temperature[rows, None]
        slopes = at_ids[rows].to(logits.dtype)
        total = slopes.sum(-1, keepdim=True)
        if kl is None or base is None:
            gradient = _on(logits, _logit_gradient)(logits, temperatures, total)
        else:
            base_logits = base.head.logits(base.hidden[rows])
            gradient = _on(logits, _logit_gradient_with_kl)(logits, base_logits, temperatures, total, kl[rows, None])
        gradient.scatter_add_(1, ids[rows], slopes / temperatures)
        parts.append(head.back(gradient, logits, hidden[rows]))
    return torch.cat(parts)
