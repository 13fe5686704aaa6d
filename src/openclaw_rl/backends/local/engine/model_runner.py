"""Model runners: one version's weights, ready to run. A fused pass for the common shapes, `transformers` for the
others.

Both return the logits of chosen tokens of a mixed batch. `runner_choice` chooses a model's runner, if either fits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn import functional

from openclaw_rl.backends.hf.models import available, best_of, text_config
from openclaw_rl.backends.local.engine.attention import NAME, AttentionLayout, DecodeLayout, Layout, Span
from openclaw_rl.backends.local.engine.kv_cache import KVCache, SequenceCache
from openclaw_rl.backends.local.engine.scheduler import EngineJob, Generation, ScheduledTokens, Scoring

# Projections: a plain product for a single token; for several, a copy of the weights in this CPU's preferred layout.
#
# A plain product of a few tokens rearranges the weights on every call, which costs more than the product itself. The
# copy is arranged once. It is made only if a trial on this machine shows a gain and memory allows it.

GAIN = 1.15
"""speed-up over a plain product at which a packed product is worth its memory"""
ROOM = 4
"""copies that must fit into free memory before packed copies are made"""


class PackedLinear:
    """A projection ``weight`` `[out, in]`; with ``pack`` also in the layout for several tokens at once."""

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
    """Builds matrices, packed or not, and reuses the matrices that a related runner has made of the same weights."""

    def __init__(self, packs: bool, known: Mapping[int, PackedLinear] | None = None) -> None:
        self.packs = packs
        self.made: dict[int, PackedLinear] = {}
        self._known = known or {}

    def __call__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> PackedLinear:
        place = weight.data_ptr()
        cached = self._known.get(place)
        linear = (
            cached if cached and cached.weight.shape == weight.shape else PackedLinear(weight, bias, pack=self.packs)
        )
        self.made[place] = linear
        return linear


def worth_packing(weight: torch.Tensor, *, needed: int) -> bool:
    """Return True if ``needed`` bytes for copies fit and they speed up products by a layer like ``weight``."""
    device = weight.device
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return (
        needed * ROOM <= available(device) and _gain(min(weight.shape[0], 4096), weight.shape[1], weight.dtype) >= GAIN
    )


@lru_cache(maxsize=8)
def _gain(rows: int, columns: int, dtype: torch.dtype) -> float:
    """Return the speed-up of a packed product of sixteen tokens on this machine; 0 if no packed product is correct.

    Several matrices take turns, because in a pass no matrix is still in a cache either.
    """
    rng = torch.Generator().manual_seed(0)
    weights = [torch.randn(rows, columns, generator=rng).to(dtype) for _ in range(4)]
    x = torch.randn(16, columns, generator=rng).to(dtype)
    with torch.inference_mode():
        try:
            packed = [_packed(weight) for weight in weights]
            right = torch.allclose(_product(x, packed[0], None), functional.linear(x, weights[0]), rtol=1e-2, atol=1e-2)
        except (RuntimeError, NotImplementedError):
            return 0.0  # this build of torch or this number type has no such product
        plain = best_of(lambda: [functional.linear(x, weight) for weight in weights], times=5)
        quick = best_of(lambda: [_product(x, weight, None) for weight in packed], times=5)
    return plain / quick if right else 0.0


def _packed(weight: torch.Tensor) -> torch.Tensor:
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, 16)
    return packed


def _product(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return product


FUSED = frozenset({"llama", "mistral", "qwen2", "qwen3"})


class ModelRunner(Protocol):
    """Returns the logits of the tokens ``keep`` `[K]` of a batch ``tokens`` `[N]`, as float32 `[K, vocabulary]`."""

    def __call__(self, tokens: torch.Tensor, layout: Any, keep: torch.Tensor) -> torch.Tensor: ...


class TransformersRunner:
    """Any decoder of `transformers` whose attention can be replaced by name."""

    def __init__(self, model: Any) -> None:
        self.model = model
        model.set_attn_implementation(NAME)

    def __call__(self, tokens: torch.Tensor, layout: AttentionLayout, keep: torch.Tensor) -> torch.Tensor:
        output = self.model(
            input_ids=tokens[None],
            position_ids=layout.positions[None],
            use_cache=False,
            layout=layout,
            logits_to_keep=keep,
        )
        logits: torch.Tensor = output.logits[0].float()
        return logits


@dataclass(frozen=True, slots=True)
class _Layer:
    before: torch.Tensor
    qkv: PackedLinear
    norms: tuple[torch.Tensor, torch.Tensor] | None
    out: PackedLinear
    after: torch.Tensor
    gate_up: PackedLinear
    down: PackedLinear
    scale: float
    window: int | None


class FusedRunner:
    """Llama, Mistral, Qwen2 and Qwen3 with joined projections: about half the kernels of the model's own pass.

    The model's weights become views of the joined weights, so only packed copies take extra memory. Weights shared with
    ``like`` share their packed copies too.
    """

    def __init__(self, model: Any, *, like: FusedRunner | None = None) -> None:
        config, inner = model.config, model.model
        self.model = model
        self.packer: LinearPacker = (
            LinearPacker(like.packer.packs, like.packer.made) if like is not None else LinearPacker(_packs(model))
        )
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.dim: int = inner.layers[0].self_attn.head_dim
        self.eps: float = config.rms_norm_eps
        self.embedding: torch.Tensor = inner.embed_tokens.weight
        self.head = self.packer(model.lm_head.weight)
        self.norm: torch.Tensor = inner.norm.weight
        self.rotary: Any = inner.rotary_emb
        # Mistral has its window in the config alone, the others in each layer, where it may be off
        window = config.sliding_window if config.model_type == "mistral" else None
        self.layers = [_layer(layer, window, self.packer) for layer in inner.layers]

    @staticmethod
    def fits(model: Any) -> bool:
        """Return True if the fused pass implements the model's shape."""
        config = model.config
        plain = config.hidden_act == "silu" if config.model_type in FUSED else False
        return plain and model.lm_head.bias is None and not getattr(config, "mlp_bias", False)

    def __call__(self, tokens: torch.Tensor, layout: AttentionLayout, keep: torch.Tensor) -> torch.Tensor:
        x = functional.embedding(tokens, self.embedding)
        cos, sin = (part[0, :, None] for part in self.rotary(x[None], layout.positions[None]))
        half = self.dim // 2
        sin = torch.cat((-sin[..., :half], sin[..., half:]), dim=-1)  # the rotated half's sign, once for all layers
        size = x.shape[-1:]
        for index, layer in enumerate(self.layers):
            h = functional.rms_norm(x, size, layer.before, self.eps)
            x = x + layer.out(self._attend(index, layer, h, cos, sin, layout))
            h = functional.rms_norm(x, size, layer.after, self.eps)
            gate, up = layer.gate_up(h).chunk(2, dim=-1)
            x = x + layer.down(functional.silu(gate).mul_(up))
        return self.head(functional.rms_norm(x[keep], size, self.norm, self.eps)).float()

    def _attend(
        self, index: int, layer: _Layer, h: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, layout: AttentionLayout
    ) -> torch.Tensor:
        turned = self.heads + self.kv_heads
        y = layer.qkv(h).view(len(h), -1, self.dim)
        qk = y[:, :turned]
        if layer.norms is not None:
            sizes, norms = [self.heads, self.kv_heads], layer.norms
            parts = zip(torch.split(qk, sizes, dim=1), norms, strict=True)
            qk = torch.cat([functional.rms_norm(part, (self.dim,), weight, self.eps) for part, weight in parts], dim=1)
        qk = torch.addcmul(qk * cos, qk.roll(self.dim // 2, -1), sin)
        kv = torch.stack((qk[:, self.heads :], y[:, turned:]), dim=1)
        answer = layout.attend(index, qk[:, : self.heads], kv, scale=layer.scale, window=layer.window)
        return answer.reshape(len(h), -1)


def _layer(layer: Any, window: int | None, packer: LinearPacker) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    normed = getattr(attention, "q_norm", None) is not None
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    bias = torch.cat([part.bias for part in projections]) if attention.q_proj.bias is not None else None
    return _Layer(
        before=layer.input_layernorm.weight,
        qkv=packer(_joined(*projections), bias),
        norms=(attention.q_norm.weight, attention.k_norm.weight) if normed else None,
        out=packer(attention.o_proj.weight, attention.o_proj.bias),
        after=layer.post_attention_layernorm.weight,
        gate_up=packer(_joined(mlp.gate_proj, mlp.up_proj)),
        down=packer(mlp.down_proj.weight),
        scale=attention.scaling,
        window=getattr(attention, "sliding_window", window),
    )


def _packs(model: Any) -> bool:
    """Return True if the projections of ``model`` should be packed."""
    widest = model.model.layers[0].mlp.gate_proj.weight
    return worth_packing(widest, needed=version_bytes(model) + model.lm_head.weight.nbytes)


def version_bytes(model: Any, runner: ModelRunner | None = None) -> int:
    """Return a version's largest size in bytes for ``model``, run like ``runner``."""
    body = model.base_model
    plain = sum(int(part.nbytes) for part in getattr(body, "layers", body).parameters())
    return 2 * plain if isinstance(runner, FusedRunner) and runner.packer.packs else plain


def _joined(*linears: nn.Linear) -> torch.Tensor:
    """Join several projections' weights into one; the projections become views of it."""
    first = linears[0].weight
    rows = sum(part.out_features for part in linears)
    if _adjacent(linears):
        return first.detach().as_strided((rows, first.shape[1]), first.stride())
    joined = torch.cat([part.weight.detach() for part in linears])
    at = 0
    for part in linears:
        part.weight = nn.Parameter(joined[at : at + part.out_features], requires_grad=False)
        at += part.out_features
    return joined


def _adjacent(linears: tuple[nn.Linear, ...]) -> bool:
    """Return True if the weights are already contiguous, as in a version that shares them with the base."""
    ends = [part.weight.data_ptr() + part.weight.nbytes for part in linears[:-1]]
    starts = [part.weight.data_ptr() for part in linears[1:]]
    stores = {part.weight.untyped_storage().data_ptr() for part in linears}
    return ends == starts and len(stores) == 1


def row_bytes(model: Any) -> int:
    """Return the KV cache's bytes per token."""
    layers, heads, dim = _shape(text_config(model))
    return layers * 2 * heads * dim * int(model.dtype.itemsize)


def kv_cache_for(model: Any, *, rows: int) -> KVCache:
    """Build a cache of ``rows`` tokens for this model, on its device."""
    layers, heads, dim = _shape(text_config(model))
    page = 64
    return KVCache(
        layers=layers, heads=heads, dim=dim, rows=max(rows, page), dtype=model.dtype, device=model.device, page=page
    )


def _shape(config: Any) -> tuple[int, int, int]:
    heads = config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return config.num_hidden_layers, getattr(config, "num_key_value_heads", None) or heads, dim


# One model pass over scheduled tokens: the tokens that need logits, and the jobs that own them.


@dataclass(frozen=True, slots=True)
class PassOutput:
    """Logits `[K, vocabulary]`, the job of each row, and the jobs whose known tokens are all computed."""

    logits: torch.Tensor
    owners: Sequence[EngineJob]
    finished: Sequence[EngineJob]
    tokens: int

    def generations(self) -> tuple[list[Generation], torch.Tensor]:
        """Return the replies that get a token, and their logits."""
        rows = [(row, job) for row, job in enumerate(self.owners) if isinstance(job, Generation)]
        unmixed = len(rows) in (0, len(self.owners))
        return [job for _, job in rows], self.logits if unmixed else self.logits[[row for row, _ in rows]]

    def scorings(self) -> list[tuple[Scoring, torch.Tensor]]:
        """Return the scores that get log-probs, and their logits, which are contiguous."""
        rows: dict[Scoring, list[int]] = {}
        for row, job in enumerate(self.owners):
            if isinstance(job, Scoring):
                rows.setdefault(job, []).append(row)
        return [(job, self.logits[places[0] : places[-1] + 1]) for job, places in rows.items()]


def run_pass(
    runner: ModelRunner,
    cache: SequenceCache,
    parts: Sequence[ScheduledTokens],
    device: torch.device,
    beat: Callable[[], None],
) -> PassOutput:
    """Compute the scheduled tokens into the cache; ``beat`` is called once per layer.

    A runner that computes sequences one at a time gets bare spans.
    """
    spans = [Span(part.job.slot, part.count) for part in parts if part.job.slot is not None]
    chunks = [part.job.tokens[part.done : part.done + part.count] for part in parts]
    tokens = [token for chunk in chunks for token in chunk]
    keep_rows, owners = _kept(parts)
    keep = torch.tensor(keep_rows, dtype=torch.long, device=device)
    layout = Layout(cache, spans, beat=beat) if isinstance(cache, KVCache) else spans
    logits = runner(torch.tensor(tokens, device=device), layout, keep)
    finished = [part.job for part in parts if part.last]
    for span, chunk in zip(spans, chunks, strict=True):
        span.slot.tokens.extend(chunk)
    return PassOutput(logits, owners, finished, len(tokens))


def _kept(parts: Sequence[ScheduledTokens]) -> tuple[list[int], list[EngineJob]]:
    """Return the pass's tokens that need logits, and each token's job."""
    indices: list[int] = []
    owners: list[EngineJob] = []
    at = 0
    for part in parts:
        if isinstance(part.job, Scoring):
            first = max(part.job.reusable - part.done, 0)
            rows = range(at + first, at + part.count)
        else:
            rows = range(at + part.count - 1, at + part.count) if part.last else range(0)
        indices.extend(rows)
        owners.extend(part.job for _ in rows)
        at += part.count
    return indices, owners


# Graphs for a GPU: a pass over single tokens is launched as one graph instead of hundreds of kernels.
#
# Graphs have fixed shapes, so batches and pasts are rounded up; padding rows belong to no job.

logger = logging.getLogger(__name__)

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
SHORTEST = 512


@dataclass(frozen=True, slots=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    inputs: torch.Tensor
    logits: torch.Tensor


class GraphedRunner:
    """A `ModelRunner` that replays recorded passes of another runner if it can, and otherwise calls it."""

    def __init__(self, runner: ModelRunner, kv_cache: KVCache) -> None:
        self._runner = runner
        self._kv_cache = kv_cache
        self._graphs: dict[tuple[int, int], _Graph] = {}
        self._able = True

    def __call__(self, tokens: torch.Tensor, layout: Layout, keep: torch.Tensor) -> torch.Tensor:
        if not (self._able and layout.single and len(keep) == len(tokens) <= SIZES[-1]):
            return self._runner(tokens, layout, keep)
        size = next(size for size in SIZES if size >= len(tokens))
        length = max(SHORTEST, 1 << (layout.longest - 1).bit_length())
        graph = self._graphs.get((size, length)) or self._capture(size, length)
        if graph is None:
            return self._runner(tokens, layout, keep)
        graph.inputs[:, : len(tokens)] = torch.stack((tokens, layout.rows - layout.positions, layout.positions))
        graph.inputs[:, len(tokens) :] = self._padding(graph.inputs.device)
        graph.graph.replay()
        return graph.logits[: len(tokens)]

    def _padding(self, device: torch.device) -> torch.Tensor:
        """Return a token that writes to the spare rows behind the KV cache and attends only to itself."""
        return torch.tensor([[0], [self._kv_cache.rows], [0]], device=device)

    def _capture(self, size: int, length: int) -> _Graph | None:
        device = self._kv_cache.data.device
        inputs = self._padding(device).expand(3, size).contiguous()

        def action() -> torch.Tensor:
            # all tensors but the inputs are made inside, so that they live in the graph's memory
            tokens, starts, positions = inputs
            keep = torch.arange(size, device=device)
            return self._runner(tokens, DecodeLayout(self._kv_cache, starts, positions, length), keep)

        try:
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
            with torch.cuda.stream(side):
                action()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            # other threads may be loading a version meanwhile
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                logits = action()
        except RuntimeError as error:  # a model that reads its inputs from the CPU cannot be recorded, only run
            logger.warning("engine.graphs off error=%s", error)
            self._able = False
            return None
        self._graphs[size, length] = _Graph(graph, inputs, logits)
        return self._graphs[size, length]
