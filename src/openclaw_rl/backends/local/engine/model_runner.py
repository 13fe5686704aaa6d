"""Model runners: one version's weights, ready to run. A fused pass for the common shapes, `transformers` for others.

Both give the logits of chosen tokens of a mixed batch. `runner_choice` decides which one a model gets, if either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn import functional

from openclaw_rl.backends.hf.shapes import text_config
from openclaw_rl.backends.local.engine.attention import NAME, AttentionLayout
from openclaw_rl.backends.local.engine.kv_cache import KVCache
from openclaw_rl.backends.local.engine.packed_linear import LinearPacker, PackedLinear, worth_packing

FUSED = frozenset({"llama", "mistral", "qwen2", "qwen3"})


class ModelRunner(Protocol):
    """Logits of the tokens ``keep`` `[K]` of a batch of ``tokens`` `[N]`, as float32 `[K, vocabulary]`."""

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
    """Llama, Mistral, Qwen2 and Qwen3 shapes with joined projections: about half the kernels of the model's own pass.

    The model's weights become views of the joined ones, so nothing is held twice but what is packed.
    What a version shares with ``like`` it shares packed, too.
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
        # Mistral keeps its window in the config alone, the others in each layer, where it may be off
        window = config.sliding_window if config.model_type == "mistral" else None
        self.layers = [_layer(layer, window, self.packer) for layer in inner.layers]

    @staticmethod
    def fits(model: Any) -> bool:
        """Whether the shape is one of those written out here."""
        config = model.config
        plain = config.hidden_act == "silu" if config.model_type in FUSED else False
        return plain and model.lm_head.bias is None and not getattr(config, "mlp_bias", False)

    def __call__(self, tokens: torch.Tensor, layout: AttentionLayout, keep: torch.Tensor) -> torch.Tensor:
        x = functional.embedding(tokens, self.embedding)
        cos, sin = (part[0, :, None] for part in self.rotary(x[None], layout.positions[None]))
        half = self.dim // 2
        sin = torch.cat((-sin[..., :half], sin[..., half:]), dim=-1)  # the sign of a turned half, once for all layers
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
    """Whether the projections of ``model`` are to be packed."""
    widest = model.model.layers[0].mlp.gate_proj.weight
    return worth_packing(widest, needed=version_bytes(model) + model.lm_head.weight.nbytes)


def version_bytes(model: Any, runner: ModelRunner | None = None) -> int:
    """The most bytes that a version of ``model`` takes which is run like ``runner``."""
    body = model.base_model
    plain = sum(int(part.nbytes) for part in getattr(body, "layers", body).parameters())
    return 2 * plain if isinstance(runner, FusedRunner) and runner.packer.packs else plain


def _joined(*linears: nn.Linear) -> torch.Tensor:
    """The weights of several projections as one linear; the projections become views of it."""
    first = linears[0].weight
    rows = sum(part.out_features for part in linears)
    if _adjacent(linears):
        return first.detach().as_strided((rows, first.shape[1]), first.stride())
    whole = torch.cat([part.weight.detach() for part in linears])
    at = 0
    for part in linears:
        part.weight = nn.Parameter(whole[at : at + part.out_features], requires_grad=False)
        at += part.out_features
    return whole


def _adjacent(linears: tuple[nn.Linear, ...]) -> bool:
    """Whether the weights already lie one behind the other, as a version does that shares them with the base."""
    ends = [part.weight.data_ptr() + part.weight.nbytes for part in linears[:-1]]
    starts = [part.weight.data_ptr() for part in linears[1:]]
    stores = {part.weight.untyped_storage().data_ptr() for part in linears}
    return ends == starts and len(stores) == 1


def row_bytes(model: Any) -> int:
    """Bytes of KV cache that one token needs."""
    layers, heads, dim = _shape(text_config(model))
    return layers * 2 * heads * dim * int(model.dtype.itemsize)


def kv_cache_for(model: Any, *, rows: int) -> KVCache:
    """A cache of ``rows`` tokens for this model, beside its weights."""
    layers, heads, dim = _shape(text_config(model))
    page = 64
    return KVCache(
        layers=layers, heads=heads, dim=dim, rows=max(rows, page), dtype=model.dtype, device=model.device, page=page
    )


def _shape(config: Any) -> tuple[int, int, int]:
    heads = config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return config.num_hidden_layers, getattr(config, "num_key_value_heads", None) or heads, dim
