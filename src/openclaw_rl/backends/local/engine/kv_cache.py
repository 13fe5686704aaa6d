"""The KV cache: keys and values of sequences in one tensor of fixed size, and the prefix cache over it.

A sequence slot has a run of rows, one per token: `[layers, rows, 2, heads, dim]`. A finished sequence's slot stays idle
until its rows are needed, so that the conversation's next turn is a prefix cache hit. A hit needs the same (version,
scope, tokens): values of one version never serve another, and prefill speed does not reveal another scope's prompts.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

SHORTEST_HIT = 16
"""a shorter shared prefix is computed again"""


@dataclass(eq=False, slots=True)
class SequenceSlot:
    """One sequence's computed tokens and their rows."""

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
    """Return two sequences' common prefix length."""
    size = min(len(a), len(b))
    first, second = np.asarray(a[:size]), np.asarray(b[:size])
    differs = first != second
    return int(differs.argmax()) if size and bool(differs.any()) else size


class SequenceCache(Protocol):
    """Space for running sequences, counted in tokens; `KVCache` documents each method."""

    reuses: bool
    """True if a finished sequence serves later ones with the same beginning"""
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
    """Rows for at most ``rows`` tokens, allocated in whole pages; the least recent idle slot is evicted first."""

    reuses = True

    def __init__(
        self, *, layers: int, heads: int, dim: int, rows: int, dtype: torch.dtype, device: torch.device, page: int
    ) -> None:
        self.page = page
        self.rows = max(rows // page, 1) * page
        # one spare page, never allocated: padding writes there
        self.data = torch.zeros((layers, self.rows + page, 2, heads, dim), dtype=dtype, device=device)
        self.slots: list[SequenceSlot] = []
        self._clock = 0

    @property
    def free(self) -> int:
        """Unallocated rows."""
        return self.rows - sum(slot.room for slot in self.slots)

    @property
    def held(self) -> int:
        """Busy slots' rows."""
        return sum(slot.room for slot in self.slots if slot.busy)

    def match(self, version: int, tokens: Sequence[int], *, scope: str = "") -> tuple[SequenceSlot | None, int]:
        """Return the slot of this version and scope with the longest prefix of ``tokens``, and that prefix's length."""
        best: SequenceSlot | None = None
        length = SHORTEST_HIT - 1
        for slot in self.slots:
            if (slot.version, slot.scope) == (version, scope) and len(slot) > length:
                common = common_prefix(slot.tokens, tokens)
                if common > length or (common == length and best and best.busy and not slot.busy):
                    best, length = slot, common
        return (best, length) if best else (None, 0)

    def open(self, version: int, tokens: Sequence[int], room: int, *, scope: str = "") -> SequenceSlot | None:
        """Return a busy slot with ``room`` rows that has the longest cached prefix of ``tokens``; None if there is no
        space.

        An idle slot that ends at the match is reused; any other is copied, unless memory is short.
        """
        source, common = self.match(version, tokens, scope=scope)
        self._clock += 1
        if source is None:
            return self._new(version, scope, room)
        if not source.busy and len(source) - common < SHORTEST_HIT:
            return self._adopt(source, common, room)
        busy, source.busy = source.busy, True
        slot = self._new(version, scope, room)
        source.busy = busy
        if slot is not None:
            self._copy(source, slot, common)
            return slot
        return None if source.busy else self._adopt(source, common, room)

    def grow(self, slot: SequenceSlot, room: int) -> bool:
        """Ensure ``room`` rows in all, moving the slot if necessary; return False if there is no space."""
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
        """Make a slot idle for later matches, until its rows are needed."""
        self._clock += 1
        slot.busy, slot.used = False, self._clock
        slot.room = min(slot.room, self._pages(max(len(slot), 1)))
        if len(slot) < SHORTEST_HIT:
            self.drop(slot)

    def drop(self, slot: SequenceSlot) -> None:
        """Release the rows at once."""
        self.slots.remove(slot)

    def forget(self, version: int) -> None:
        """Drop a version's idle slots."""
        self.slots = [slot for slot in self.slots if slot.busy or slot.version != version]

    def _pages(self, rows: int) -> int:
        return -(-rows // self.page) * self.page

    def _sort(self) -> None:
        self.slots.sort(key=lambda slot: slot.start)

    def _gaps(self) -> Iterable[tuple[int, int]]:
        """Yield the (start, size) of each free run."""
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
        """Return a busy slot of ``room`` rows; evict idle slots for it, then move the busy slots together."""
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
        """Reuse an idle slot, keeping its first ``common`` tokens."""
        slot.busy = True
        tail = slot.tokens[common:]
        del slot.tokens[common:]
        if self.grow(slot, room):
            return slot
        slot.tokens.extend(tail)
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
