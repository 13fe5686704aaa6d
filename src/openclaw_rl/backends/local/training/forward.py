"""One forward pass over a packed tree, for any Hugging Face model that uses the attention interface.

The model's code is unchanged: an attention function is registered under a name, and each token's visibility is passed
along the layers as a keyword argument. If no tree branches (a session in which every turn extends the one before), that
is plain causal attention. Otherwise, on a CPU, blocks of queries attend only to the keys that one of them needs; on
CUDA, if kernels can be compiled, flex attention skips invisible blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from openclaw_rl.backends.hf.models import check_plain, own_state, probe_ids, window_of
from openclaw_rl.backends.local.training.head import can_compile
from openclaw_rl.losses.tree import PackedTree, TokenPath, pack

ATTENTION = "openclaw_tree"
_QUERIES = 256
_BLOCK = 128
_QUICK = 4096
_CHAINS = 32  # each is one call; beyond this, one call that skips invisible blocks is faster
_TILES = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3}
"""tiles of flex attention's kernel without a gradient: an eighth faster than its own choice on an H200

Rows are not declared safe: a branch may see nothing of the first block.
"""


@dataclass(frozen=True, slots=True)
class _QueryBlock:
    """Queries first .. last-1, the keys visible to any of them (a range or an index [k]), and the mask [q, k]."""

    first: int
    last: int
    keys: slice | Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Token visibility on one device: ``chains`` if nothing branches, otherwise ``query_blocks`` or a ``block_mask``.

    ``alone``: a single chain covers everything.
    """

    chains: tuple[slice, ...] = ()
    query_blocks: tuple[_QueryBlock, ...] = ()
    block_mask: Any = None
    alone: bool = False


def attention_plan(end: Tensor, trees: Sequence[int], device: torch.device) -> AttentionPlan:
    """Build the attention function's plan on ``device`` for a packed tree whose subtrees end at ``end`` [T].

    ``trees`` are the trees' first positions. A tree that does not branch is a chain: all its tokens end where it does.
    """
    chains = tuple(slice(first, stop) for first, stop in zip(trees, [*trees[1:], len(end)], strict=True))
    if len(chains) <= _CHAINS and all(bool((end[chain] == chain.stop).all()) for chain in chains):
        return AttentionPlan(chains=chains, alone=len(chains) == 1)
    end = end.to(device)
    fused = end.is_cuda and can_compile()
    return AttentionPlan(block_mask=block_mask(end)) if fused else AttentionPlan(query_blocks=tuple(_query_blocks(end)))


def _query_blocks(end: Tensor) -> Iterator[_QueryBlock]:
    at = torch.arange(len(end), device=end.device)
    for first in range(0, len(end), _QUERIES):
        last = min(first + _QUERIES, len(end))
        keys = torch.nonzero(end[:last] > first)[:, 0]  # keys that end earlier are invisible from here on
        mask = (keys[None] <= at[first:last, None]) & (at[first:last, None] < end[keys][None])
        contiguous = len(keys) == last - int(keys[0])
        yield _QueryBlock(first, last, slice(int(keys[0]), last) if contiguous else keys, mask)


def block_mask(end: Tensor, block: int = _BLOCK) -> Any:
    """Build the same visibility as a flex-attention BlockMask, from block bounds alone: no [T, T] is ever made.

    T is a multiple of ``block``. Query block a sees an earlier key block iff one of that block's subtrees extends into
    a, and sees all of it iff all of them outlast a.
    """
    from torch.nn.attention.flex_attention import BlockMask

    ends = end.view(-1, block)
    starts = torch.arange(len(ends), device=end.device) * block
    below = starts[None, :] < starts[:, None]
    reached = below & (ends.amax(1)[None, :] > starts[:, None])
    full = below & (ends.amin(1)[None, :] >= (starts + block)[:, None])
    part = (reached & ~full) | torch.eye(len(ends), dtype=torch.bool, device=end.device)

    def visible(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < end[key])

    return BlockMask.from_kv_blocks(
        *_ordered(part), *_ordered(full), BLOCK_SIZE=block, mask_mod=visible, seq_lengths=(len(end), len(end))
    )


def _ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Convert a bool [Q, K] for flex attention: number of key blocks per row, and their indices first."""
    count = blocks.sum(-1, dtype=torch.int32)
    order = blocks.to(torch.int8).argsort(dim=-1, descending=True, stable=True).to(torch.int32)
    return count[None, None], order[None, None].contiguous()


@cache
def _flex() -> Any:
    import torch._dynamo
    from torch.nn.attention.flex_attention import flex_attention

    # beyond this many shapes it would silently run unfused, with a mask of [T, T]
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 256)
    return torch.compile(flex_attention, dynamic=False)


def _attend(
    _module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _mask: Tensor | None,
    scaling: float | None = None,
    token_tree: AttentionPlan | None = None,
    **others: object,
) -> tuple[Tensor, None]:
    """Attend: query [1, heads, T, D], key and value [1, kv heads, T, D] -> [1, T, heads, D]."""
    check_plain(others)
    if token_tree is None:
        raise RuntimeError("the tree attention was called without its tree; this model drops keyword arguments")
    query, key = query.to(value.dtype), key.to(value.dtype)  # norms in single precision leave them wider
    grouped = query.shape[1] != key.shape[1]
    if token_tree.alone:
        attend = nn.functional.scaled_dot_product_attention
        out = attend(query, key, value, is_causal=True, scale=scaling, enable_gqa=grouped)
    else:
        out = _attend_apart(query, key, value, token_tree, scaling, grouped)
    return out.transpose(1, 2), None


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _attend_apart(
    query: Tensor, key: Tensor, value: Tensor, seen: AttentionPlan, scaling: float | None, grouped: bool
) -> Tensor:
    """Attend in several chains or a branching tree, whose shape changes with every batch."""
    if seen.block_mask is not None:
        tiles = _TILES if value.dtype.itemsize == 2 and not torch.is_grad_enabled() else None
        fused: Tensor = _flex()(
            query,
            key,
            value,
            block_mask=seen.block_mask,
            scale=scaling,
            enable_gqa=grouped,
            kernel_options=tiles,
        )
        return fused
    attend = partial(nn.functional.scaled_dot_product_attention, scale=scaling, enable_gqa=grouped)
    parts = [attend(query[:, :, c], key[:, :, c], value[:, :, c], is_causal=True) for c in seen.chains]
    parts += [
        attend(query[:, :, b.first : b.last], key[:, :, b.keys], value[:, :, b.keys], attn_mask=b.mask)
        for b in seen.query_blocks
    ]
    return torch.cat(parts, 2)


def padded(size: int) -> int:
    """Round a size up to one of few lengths, because each new length costs a compilation (10 to 25 s on an H200); in
    blocks of 128.

    Adds at most a sixteenth; at most a half below `_QUICK`, where a pass is fast and sizes differ most.
    """
    parts = 2 if size <= _QUICK else 16
    step = max(_BLOCK, (1 << max(size - 1, 1).bit_length() - 1) // parts)
    return -(-size // step) * step


def hidden(model: Any, packed: PackedTree, *, tree: bool) -> Tensor:
    """Return the last hidden states [T, d] of every packed token, before the head.

    ``tree`` True requires a model that `enable_tree` accepted. False runs each path, packed unshared, as its own
    sequence, with the model's own attention.
    """
    body, device = model.base_model, next(model.parameters()).device
    tokens = packed.tokens.to(device)
    if not tree:
        cuts = [*packed.roots(), packed.size]
        parts = [tokens[a:b][None] for a, b in pairwise(cuts)]
        return torch.cat([body(input_ids=part, use_cache=False).last_hidden_state[0] for part in parts])
    depth, end, trees, size = packed.depth.to(device), packed.end, packed.roots(), packed.size
    if device.type == "cuda" and (extra := padded(size) - size):
        tokens, depth = nn.functional.pad(tokens, (0, extra)), nn.functional.pad(depth, (0, extra))
        if len(trees) == 1 and bool((end == size).all()):  # a longer chain: no token attends to a later one
            end = torch.full((size + extra,), size + extra)
        else:  # one more tree, unread
            end, trees = nn.functional.pad(end, (0, extra), value=size + extra), [*trees, size]
    visibility = attention_plan(end, trees, device)
    out = body(input_ids=tokens[None], position_ids=depth[None], use_cache=False, token_tree=visibility)
    return torch.as_tensor(out.last_hidden_state[0, :size])


def enable_tree(model: Any) -> str | None:
    """Switch the model to tree attention permanently. Return None, or the reason that it cannot use a tree."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(ATTENTION, _attend)
    before = model.config._attn_implementation
    why = own_state(model) or _windowed(model) or _no_backend(model) or _differs(model)
    model.set_attn_implementation(before if why else ATTENTION)
    return why


def compile_layers(model: Any) -> None:
    """Fuse each layer's arithmetic, with plain causal attention included; attention of branching trees stays separate.

    The first steps are slower by the compilation, later ones faster and smaller. Layers share their code, so it is
    compiled once for all of them, and once more when the token count first changes.
    """
    import torch._dynamo

    for name in ("recompile_limit", "accumulated_recompile_limit"):  # one frame serves every layer and both roles
        setattr(torch._dynamo.config, name, max(getattr(torch._dynamo.config, name), 1024))
    for layer in getattr(model.base_model, "layers", ()):
        layer.forward = torch.compile(layer.forward)


def _windowed(model: Any) -> str | None:
    window = window_of(model)
    return None if window is None else f"its attention slides over {window} tokens"


def _no_backend(model: Any) -> str | None:
    able = getattr(model, "_supports_attention_backend", False) and model._can_set_attn_implementation()
    return None if able else "its attention does not go through the attention interface"


@torch.no_grad()
def _differs(model: Any) -> str | None:
    """Compare a small tree with its sequences: the only proof that a model's attention uses the tree."""
    ids = probe_ids(model)
    paths = [TokenPath(tokens=(*ids[:3], *ids[3:5], 1), reply=3), TokenPath(tokens=(*ids[:3], *ids[5:], 1), reply=4)]
    training = model.training
    model.eval()
    try:
        alone = _rows(hidden(model, *pack(paths, share=False), tree=False), *pack(paths, share=False))
        model.set_attn_implementation(ATTENTION)
        together = _rows(hidden(model, *pack(paths), tree=True), *pack(paths))
    except (RuntimeError, TypeError, ValueError) as error:
        return f"the tree attention failed in this model ({error})"
    finally:
        model.train(training)
    apart = max(float((a - b).norm() / b.norm()) for a, b in zip(together, alone, strict=True))
    limit = 0.05 if next(model.parameters()).dtype in (torch.bfloat16, torch.float16) else 1e-3
    return None if apart <= limit else f"a tree and its sequences differ in this model by {apart:.1e}"


def _rows(states: Tensor, packed: PackedTree) -> list[Tensor]:
    ordered = sorted(zip(packed.members, packed.rows, strict=True), key=lambda pair: pair[0])
    return [states[rows.to(states.device)].float() for _, rows in ordered]
