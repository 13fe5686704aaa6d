"""Attention of a mixed batch: every token attends to its own sequence, whose past is in the KV cache.

One model pass receives all sequences' tokens in a row, `[N]`: one per running stream, and chunks of prompts in
prefill. A `Layout` maps tokens to sequences. Single tokens are computed together, from copies of their pasts; on a CPU
only tokens with short pasts, where a copy costs less than a call per token. A long past is read in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch.nn import functional
from transformers import AttentionInterface

from openclaw_rl.backends.hf.models import check_plain
from openclaw_rl.backends.local.engine.kv_cache import KVCache, SequenceSlot

NAME = "openclaw"
STRIDE = 64
"""on CUDA, pasts that are computed together are padded to a multiple of this"""
COPIED = 8192
"""rows of short pasts that a CPU copies per layer, at most"""


@dataclass(frozen=True, slots=True)
class Span:
    """A slot's next ``count`` tokens."""

    slot: SequenceSlot
    count: int


class AttentionLayout(Protocol):
    """Positions of one pass's `[N]` tokens."""

    positions: torch.Tensor

    def attend(
        self, layer: int, query: torch.Tensor, kv: torch.Tensor, *, scale: float, window: int | None = None
    ) -> torch.Tensor:
        """Store ``kv`` `[N, 2, heads, dim]`, then return the attention of ``query`` `[N, query heads, dim]`, in its
        shape."""
        ...


class DecodeLayout:
    """One token of each of `[n]` sequences, computed together from copies of their pasts, ``length`` rows each."""

    def __init__(self, kv_cache: KVCache, starts: torch.Tensor, positions: torch.Tensor, length: int) -> None:
        self.kv_cache = kv_cache
        self.positions = positions
        self.rows = starts + positions
        self._steps = torch.arange(length, device=positions.device)
        self._past = (starts[:, None] + torch.minimum(self._steps, positions[:, None])).flatten()
        self._masks: dict[int, torch.Tensor] = {}

    def attend(
        self, layer: int, query: torch.Tensor, kv: torch.Tensor, *, scale: float, window: int | None = None
    ) -> torch.Tensor:
        data = self.kv_cache.data[layer]
        data.index_copy_(0, self.rows, kv)
        return self.answer(data, query, scale, window)

    def answer(self, data: torch.Tensor, query: torch.Tensor, scale: float, window: int | None) -> torch.Tensor:
        """Return each token's attention over its past, once its own keys and values are stored."""
        past = data.index_select(0, self._past).view(len(query), -1, *data.shape[1:])
        keys, values = past[:, :, 0].transpose(1, 2), past[:, :, 1].transpose(1, 2)
        # one query per head: a group's heads act as query positions, so that no key is repeated
        grouped = query.reshape(len(query), data.shape[2], -1, query.shape[-1])
        mask = self._mask(window or 0)
        answer = functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=scale)
        return answer.reshape(query.shape)

    def _mask(self, window: int) -> torch.Tensor:
        if window not in self._masks:
            positions = self.positions[:, None]
            visible = self._steps <= positions
            visible = visible & (self._steps > positions - window) if window else visible
            self._masks[window] = _additive(visible, self.kv_cache.data)[:, None, None]
        return self._masks[window]


class Layout:
    """Any mix of single tokens and chunks. ``beat`` is called once per layer."""

    def __init__(self, kv_cache: KVCache, spans: Sequence[Span], *, beat: Callable[[], None] | None = None) -> None:
        self._beat = beat
        self.kv_cache = kv_cache
        self.spans = spans
        device = kv_cache.data.device
        pasts = [len(span.slot) for span in spans]
        positions = [past + i for past, span in zip(pasts, spans, strict=True) for i in range(span.count)]
        starts = [span.slot.start for span in spans for _ in range(span.count)]
        self.positions = torch.tensor(positions, device=device)
        self.rows = self.positions + torch.tensor(starts, device=device)
        self._ends = [past + span.count for past, span in zip(pasts, spans, strict=True)]
        self._masks: dict[tuple[int, int], torch.Tensor] = {}
        self._pasts: dict[int, tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]] = {}
        self._grouped = self._group()
        self._together = self._gather() if self._grouped else None

    @property
    def single(self) -> bool:
        """True if there are only single tokens."""
        return all(span.count == 1 for span in self.spans)

    @property
    def longest(self) -> int:
        """The longest sequence's length in tokens, including the new ones."""
        return max(self._ends)

    def attend(
        self, layer: int, query: torch.Tensor, kv: torch.Tensor, *, scale: float, window: int | None = None
    ) -> torch.Tensor:
        """Store ``kv`` `[N, 2, heads, dim]`, then return the attention of ``query`` `[N, query heads, dim]`, in its
        shape."""
        if self._beat is not None:
            self._beat()
        data = self.kv_cache.data[layer]
        data.index_copy_(0, self.rows, kv)
        if self._together is not None and len(self._grouped) == len(query):
            return self._together[1].answer(data, query, scale, window)
        out = torch.empty_like(query)
        if self._together is not None:
            where, singles = self._together
            out[where] = singles.answer(data, query[where], scale, window)
        at = 0
        for index, span in enumerate(self.spans):
            if span.count > 1:
                out[at : at + span.count] = self._chunk(index, data, query[at : at + span.count], scale, window)
            elif index not in self._grouped:
                out[at] = self._one(index, layer, query[at], scale, window)
            at += span.count
        return out

    def _one(self, index: int, layer: int, query: torch.Tensor, scale: float, window: int | None) -> torch.Tensor:
        if index not in self._pasts:
            start = self.spans[index].slot.start
            # views for all layers in one call: one per call would take as long as the attention itself
            past = self.kv_cache.data[:, start : start + self._ends[index]].transpose(1, 3)[:, None]
            self._pasts[index] = past[:, :, :, 0].unbind(), past[:, :, :, 1].unbind()
        keys, values = (views[layer] for views in self._pasts[index])
        if window:
            keys, values = keys[:, :, -window:], values[:, :, -window:]
        # as in `DecodeLayout`: a group's heads act as query positions
        grouped = query.view(1, keys.shape[1], -1, query.shape[-1])
        return functional.scaled_dot_product_attention(grouped, keys, values, scale=scale).reshape(query.shape)

    def _chunk(
        self, index: int, data: torch.Tensor, query: torch.Tensor, scale: float, window: int | None
    ) -> torch.Tensor:
        past = self._past(index, data)
        keys, values = past[:, 0].transpose(0, 1)[None], past[:, 1].transpose(0, 1)[None]
        mask = None if len(past) == len(query) and not window else self._mask(index, window or 0)
        answer = functional.scaled_dot_product_attention(
            query.transpose(0, 1)[None],
            keys,
            values,
            attn_mask=mask,
            is_causal=mask is None,
            scale=scale,
            enable_gqa=query.shape[1] != data.shape[2],
        )
        return answer[0].transpose(0, 1)

    def _past(self, index: int, data: torch.Tensor) -> torch.Tensor:
        start = self.spans[index].slot.start
        return data[start : start + self._ends[index]]

    def _mask(self, index: int, window: int) -> torch.Tensor:
        """Return the visibility mask `[count, end]` for a chunk, built once for all layers."""
        if (index, window) not in self._masks:
            end, device = self._ends[index], self.kv_cache.data.device
            queries = torch.arange(end - self.spans[index].count, end, device=device)[:, None]
            keys = torch.arange(end, device=device)[None]
            visible = keys <= queries
            visible = visible & (keys > queries - window) if window else visible
            self._masks[index, window] = _additive(visible, self.kv_cache.data)
        return self._masks[index, window]

    def _group(self) -> list[int]:
        """Return the spans that are computed together: single tokens; on a CPU as many as may be copied, shortest pasts
        first."""
        singles = [index for index, span in enumerate(self.spans) if span.count == 1]
        if self.kv_cache.data.device.type == "cuda":
            return singles
        by_length = sorted(singles, key=lambda index: self._ends[index])
        short = [index for place, index in enumerate(by_length, 1) if place * self._ends[index] <= COPIED]
        return sorted(short) if len(short) > 1 else []

    def _gather(self) -> tuple[torch.Tensor, DecodeLayout]:
        """Return the grouped tokens' positions, and their layout."""
        counts = [span.count for span in self.spans]
        firsts = [end - count for end, count in zip(accumulate(counts), counts, strict=True)]
        grouped = self._grouped
        device = self.kv_cache.data.device
        where = torch.tensor([firsts[index] for index in grouped], device=device)
        starts = torch.tensor([self.spans[index].slot.start for index in grouped], device=device)
        stride = STRIDE if device.type == "cuda" else 1  # a CPU needs no shared shapes, and copies all it reads
        length = -(-max(self._ends[index] for index in grouped) // stride) * stride
        return where, DecodeLayout(self.kv_cache, starts, self.positions[where], length)


def _additive(seen: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a mask in additive form on a CPU, which would otherwise convert ``seen`` again for every layer."""
    if like.device.type == "cuda":
        return seen
    return torch.zeros(seen.shape, dtype=like.dtype).masked_fill_(~seen, float("-inf"))


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    _mask: torch.Tensor | None,
    *,
    layout: AttentionLayout,
    scaling: float,
    sliding_window: int | None = None,
    **rest: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of `transformers` models under the name ``openclaw``: `[1, heads, N, dim]` in, `[1, N, heads, dim]`
    out."""
    check_plain(rest)
    kv = torch.stack((key[0].transpose(0, 1), value[0].transpose(0, 1)), dim=1)
    layer: Any = module.layer_idx
    return layout.attend(layer, query[0].transpose(0, 1), kv, scale=scaling, window=sliding_window)[None], None


AttentionInterface.register(NAME, _attention)
