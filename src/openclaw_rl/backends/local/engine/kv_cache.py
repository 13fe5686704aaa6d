"""The KV cache: keys and values of sequences, in one tensor of fixed size, and the prefix cache over it.

A sequence slot holds a run of rows, one row per token: `[layers, rows, 2, heads, dim]`. The slot of a finished sequence
stays, idle, until its rows are needed, so that the next turn of its conversation is a prefix cache hit. A hit needs
the same (version, scope, tokens): values of one version are never taken for those of another, and how fast a prompt is
prefilled does not show what another scope has sent.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

SHORTEST_HIT = 16
"""a shared prefix of fewer tokens is computed anew"""


@dataclass(eq=False, slots=True)
class SequenceSlot:
    """The computed tokens of one sequence and the rows that hold them."""

    version: int
    scope: str
    start: int
    room: int
    tokens: array[int] = field(default_factory=lambda: array("q"))
    busy: bool = True
    used: int = 0

    def __len__(self) -> int:
        return len(self.tokens)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences have in common at their beginning."""
    size = min(len(a), len(b))
    left, right = np.asarray(a[:size]), np.asarray(b[:size])
    differs = left != right
    return int(differs.argmax()) if size and bool(differs.any()) else size


class SequenceCache(Protocol):
    """Where running sequences have their place, counted in tokens; see `KVCache` for what each method promises."""

    reuses: bool
    """whether a finished sequence serves later ones that begin alike"""
    rows: int

    @property
    def free(self) -> int: ...

    @property
    def held(self) -> int: ...

    def match(self, version: int, tokens: Sequence[int], *, scope: str = "") -> tuple[SequenceSlot | None, int]: ...

    def open(self, version: int, tokens: Sequence[int], room: int, *, scope: str = "") -> SequenceSlot | None: ...

    def grow(self, slot: SequenceSlot, room: int) -> bool: ...

    def close(self, slot: SequenceSlot) -> None: ...

    def drop(self, slot: SequenceSlot) -> None: ...

    def forget(self, version: int) -> None: ...


class KVCache:
    """Rows for at most ``rows`` tokens, given out in whole pages; the least recent idle slot leaves first."""

    reuses = True

    def __init__(
        self, *, layers: int, heads: int, dim: int, rows: int, dtype: torch.dtype, device: torch.device, page: int
    ) -> None:
        self.page = page
        self.rows = max(rows // page, 1) * page
        # one spare page, which is never given out: padding writes there
        self.data = torch.zeros((layers, self.rows + page, 2, heads, dim), dtype=dtype, device=device)
        self.slots: list[SequenceSlot] = []
        self._clock = 0

    @property
    def free(self) -> int:
        """Rows that nobody holds."""
        return self.rows - sum(slot.room for slot in self.slots)

    @property
    def held(self) -> int:
        """Rows of slots that are in use."""
        return sum(slot.room for slot in self.slots if slot.busy)

    def match(self, version: int, tokens: Sequence[int], *, scope: str = "") -> tuple[SequenceSlot | None, int]:
        """The slot of this version and scope with the longest beginning of ``tokens``, and how long that is."""
        best: SequenceSlot | None = None
        length = SHORTEST_HIT - 1
        for slot in self.slots:
            if (slot.version, slot.scope) == (version, scope) and len(slot) > length:
                common = common_prefix(slot.tokens, tokens)
                if common > length or (common == length and best and best.busy and not slot.busy):
                    best, length = slot, common
        return (best, length) if best else (None, 0)

    def open(self, version: int, tokens: Sequence[int], room: int, *, scope: str = "") -> SequenceSlot | None:
        """A busy slot with ``room`` rows that holds as much of ``tokens`` as is known; None when there is no place.

        An idle slot that ends where the match ends is taken over; any other is copied from, unless memory is short.
        """
        source, common = self.match(version, tokens, scope=scope)
        self._clock += 1
        if source is None:
            return self._new(version, scope, room)
        if not source.busy and len(source) - common < SHORTEST_HIT:
            return self._adopt(source, common, room)
        held, source.busy = source.busy, True
        slot = self._new(version, scope, room)
        source.busy = held
        if slot is not None:
            self._copy(source, slot, common)
            return slot
        return None if source.busy else self._adopt(source, common, room)

    def grow(self, slot: SequenceSlot, room: int) -> bool:
        """Make place for ``room`` rows in all, moving the slot if need be. False when there is no place."""
        if room <= slot.room:
            return True
        room = self._pages(room)
        if self._gap_after(slot) >= room - slot.room:
            slot.room = room
            return True
        bigger = self._new(slot.version, slot.scope, room)
        if bigger is None:
            return False
        self._copy(slot, bigger, len(slot))
        self.slots.remove(bigger)
        slot.start, slot.room = bigger.start, bigger.room
        self._sort()
        return True

    def close(self, slot: SequenceSlot) -> None:
        """Keep the slot for later matches, as long as nobody needs its rows."""
        self._clock += 1
        slot.busy, slot.used = False, self._clock
        slot.room = min(slot.room, self._pages(max(len(slot), 1)))
        if len(slot) < SHORTEST_HIT:
            self.drop(slot)

    def drop(self, slot: SequenceSlot) -> None:
        """Give the rows back at once."""
        self.slots.remove(slot)

    def forget(self, version: int) -> None:
        """Drop every idle slot of a version."""
        self.slots = [slot for slot in self.slots if slot.busy or slot.version != version]

    def _pages(self, rows: int) -> int:
        return -(-rows // self.page) * self.page

    def _sort(self) -> None:
        self.slots.sort(key=lambda slot: slot.start)

    def _gaps(self) -> Iterable[tuple[int, int]]:
        """(start, size) of each free run."""
        at = 0
        for slot in self.slots:
            if slot.start > at:
                yield at, slot.start - at
            at = slot.start + slot.room
        if at < self.rows:
            yield at, self.rows - at

    def _gap_after(self, slot: SequenceSlot) -> int:
        end = slot.start + slot.room
        return next((size for start, size in self._gaps() if start == end), 0)

    def _new(self, version: int, scope: str, room: int) -> SequenceSlot | None:
        """A busy slot of ``room`` rows; idle ones make way, then the busy ones move together."""
        room = self._pages(room)
        while (start := self._fit(room)) is None:
            idle = [slot for slot in self.slots if not slot.busy]
            if idle:
                self.drop(min(idle, key=lambda slot: slot.used))
            elif self.free >= room:
                self._compact()
            else:
                return None
        slot = SequenceSlot(version=version, scope=scope, start=start, room=room, used=self._clock)
        self.slots.append(slot)
        self._sort()
        return slot

    def _fit(self, room: int) -> int | None:
        fits = [(size, start) for start, size in self._gaps() if size >= room]
        return min(fits)[1] if fits else None

    def _adopt(self, slot: SequenceSlot, common: int, room: int) -> SequenceSlot | None:
        """Take an idle slot over from its first ``common`` tokens on."""
        slot.busy = True
        kept = slot.tokens[common:]
        del slot.tokens[common:]
        if self.grow(slot, room):
            return slot
        slot.tokens.extend(kept)
        slot.busy = False
        return None

    def _copy(self, source: SequenceSlot, target: SequenceSlot, count: int) -> None:
        self.data[:, target.start : target.start + count] = self.data[:, source.start : source.start + count]
        target.tokens[:] = source.tokens[:count]

    def _compact(self) -> None:
        at = 0
        for slot in self.slots:
            if slot.start > at:
                rows = self.data[:, slot.start : slot.start + len(slot)].clone()
                self.data[:, at : at + len(slot)] = rows
                slot.start = at
            at += slot.room
