"""Attention of a mixed batch: every token attends to its own sequence, whose past lies in the arena.

One pass of the model sees the tokens of all sequences in a row, `[N]`: one of each running stream, and chunks of
prompts that are still being read. A `Layout` says which belongs where.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from transformers import AttentionInterface

from openclaw_rl.backends.local.cache import Arena, Strand

NAME = "openclaw"


@dataclass(frozen=True, slots=True)
class Span:
    """``count`` new tokens of one strand."""

    strand: Strand
    count: int


class Layout:
    """Where the `[N]` tokens of one pass stand: their positions and their rows in the arena."""

    def __init__(self, arena: Arena, spans: Sequence[Span]) -> None:
        self.arena = arena
        self.spans = spans
        device = arena.data.device
        pasts = [len(span.strand) for span in spans]
        positions = [past + i for past, span in zip(pasts, spans, strict=True) for i in range(span.count)]
        starts = [span.strand.start for span in spans for _ in range(span.count)]
        self.positions = torch.tensor(positions, device=device)
        self.rows = self.positions + torch.tensor(starts, device=device)
        self._ends = [past + span.count for past, span in zip(pasts, spans, strict=True)]
        self._paged = device.type == "cuda" and arena.data.dtype in (torch.bfloat16, torch.float16)
        self._masks: dict[tuple[int, int], torch.Tensor] = {}
        if self._paged:
            self._table()

    def attend(
        self, layer: int, query: torch.Tensor, kv: torch.Tensor, *, scale: float, window: int | None = None
    ) -> torch.Tensor:
        """Store ``kv`` `[N, 2, heads, dim]`, then answer ``query`` `[N, query heads, dim]` in the same shape."""
        data = self.arena.data[layer]
        data.index_copy_(0, self.rows, kv)
        return self._flash(data, query, scale, window) if self._paged else self._one_by_one(data, query, scale, window)

    def _one_by_one(self, data: torch.Tensor, query: torch.Tensor, scale: float, window: int | None) -> torch.Tensor:
        out = torch.empty_like(query)
        groups = query.shape[1] // data.shape[2]
        at = 0
        for index, (span, end) in enumerate(zip(self.spans, self._ends, strict=True)):
            past = data[span.strand.start : span.strand.start + end]
            if span.count == 1:
                past = past[-window:] if window else past
                keys, values = past[:, 0].transpose(0, 1)[None], past[:, 1].transpose(0, 1)[None]
                # one query per head: the heads of a group stand in for query positions, so that no key is repeated
                grouped = query[at].view(1, -1, groups, query.shape[2])
                out[at] = functional.scaled_dot_product_attention(grouped, keys, values, scale=scale).view_as(query[at])
            else:
                keys, values = past[:, 0].transpose(0, 1)[None], past[:, 1].transpose(0, 1)[None]
                chunk = query[at : at + span.count].transpose(0, 1)[None]
                mask = None if end == span.count and not window else self._mask(index, window or 0)
                answer = functional.scaled_dot_product_attention(
                    chunk, keys, values, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=groups > 1
                )
                out[at : at + span.count] = answer[0].transpose(0, 1)
            at += span.count
        return out

    def _mask(self, index: int, window: int) -> torch.Tensor:
        """Which past tokens each token of a chunk may see `[count, end]`; built once for all layers."""
        if (index, window) not in self._masks:
            end, device = self._ends[index], self.arena.data.device
            own = torch.arange(end - self.spans[index].count, end, device=device)[:, None]
            other = torch.arange(end, device=device)[None]
            seen = other <= own
            self._masks[index, window] = seen & (other > own - window) if window else seen
        return self._masks[index, window]

    def _table(self) -> None:
        """The same rows in the words of the paged kernel: pages of each strand, lengths, borders."""
        page, device = self.arena.page, self.arena.data.device
        counts = [span.count for span in self.spans]
        width = max(-(-end // page) for end in self._ends)
        last = self.arena.rows // page - 1
        pages = [[min(span.strand.start // page + i, last) for i in range(width)] for span in self.spans]
        self._pages = torch.tensor(pages, dtype=torch.int32, device=device)
        self._used = torch.tensor(self._ends, dtype=torch.int32, device=device)
        self._borders = functional.pad(
            torch.tensor(counts, dtype=torch.int32, device=device).cumsum(0, dtype=torch.int32), (1, 0)
        )
        self._longest = (max(counts), max(self._ends))

    def _flash(self, data: torch.Tensor, query: torch.Tensor, scale: float, window: int | None) -> torch.Tensor:
        from torch.nn.attention.varlen import varlen_attn

        pool = data.view(-1, self.arena.page, *data.shape[1:])
        answer = varlen_attn(
            query.contiguous(),
            pool[:, :, 0],
            pool[:, :, 1],
            self._borders,
            None,
            *self._longest,
            scale=scale,
            window_size=(window - 1, 0) if window else (-1, 0),
            enable_gqa=True,
            seqused_k=self._used,
            block_table=self._pages,
        )
        assert isinstance(answer, torch.Tensor)
        return answer


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    _mask: torch.Tensor | None,
    *,
    layout: Layout,
    scaling: float,
    sliding_window: int | None = None,
    **_rest: Any,
) -> tuple[torch.Tensor, None]:
    """What `transformers` models call as ``openclaw``: `[1, heads, N, dim]` in, `[1, N, heads, dim]` out."""
    kv = torch.stack((key[0].transpose(0, 1), value[0].transpose(0, 1)), dim=1)
    layer: Any = module.layer_idx
    return layout.attend(layer, query[0].transpose(0, 1), kv, scale=scaling, window=sliding_window)[None], None


AttentionInterface.register(NAME, _attention)
