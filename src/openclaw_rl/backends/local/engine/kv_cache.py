"""The engine's memory: keys and values of sequences, in one arena of fixed size.

A sequence holds a run of rows, one row per token: `[layers, rows, 2, heads, dim]`. A finished one stays, idle, until
the room is needed, so that the next turn of its conversation finds its beginning computed. Keys are (version, scope,
tokens): the values of one version are never taken for those of another, and how fast a prompt is read tells nobody
what was asked in another scope.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

WORTHWHILE = 16
"""fewer shared tokens than this are computed anew"""


@dataclass(eq=False, slots=True)
class Strand:
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


def shared(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences have in common at their beginning."""
    size = min(len(a), len(b))
    left, right = np.asarray(a[:size]), np.asarray(b[:size])
    differs = left != right
    return int(differs.argmax()) if size and bool(differs.any()) else size


class Arena:
    """Rows for at most ``rows`` tokens, given out in whole pages; the least recent idle strand leaves first."""

    def __init__(
        self, *, layers: int, heads: int, dim: int, rows: int, dtype: torch.dtype, device: torch.device, page: int
    ) -> None:
        self.page = page
        self.rows = max(rows // page, 1) * page
        # one spare page, which is never given out: padding writes there
        self.data = torch.zeros((layers, self.rows + page, 2, heads, dim), dtype=dtype, device=device)
        self.strands: list[Strand] = []
        self._clock = 0

    @property
    def free(self) -> int:
        """Rows that nobody holds."""
        return self.rows - sum(strand.room for strand in self.strands)

    @property
    def held(self) -> int:
        """Rows of strands that are in use."""
        return sum(strand.room for strand in self.strands if strand.busy)

    def match(self, version: int, tokens: Sequence[int], *, scope: str = "") -> tuple[Strand | None, int]:
        """The strand of this version and scope with the longest beginning of ``tokens``, and how long that is."""
        best: Strand | None = None
        length = WORTHWHILE - 1
        for strand in self.strands:
            if (strand.version, strand.scope) == (version, scope) and len(strand) > length:
                common = shared(strand.tokens, tokens)
                if common > length or (common == length and best and best.busy and not strand.busy):
                    best, length = strand, common
        return (best, length) if best else (None, 0)

    def open(self, version: int, tokens: Sequence[int], room: int, *, scope: str = "") -> Strand | None:
        """A busy strand with ``room`` rows that holds as much of ``tokens`` as is known; None when there is no place.

        An idle strand that ends where the match ends is taken over; any other is copied from, unless memory is short.
        """
        source, common = self.match(version, tokens, scope=scope)
        self._clock += 1
        if source is None:
            return self._new(version, scope, room)
        if not source.busy and len(source) - common < WORTHWHILE:
            return self._adopt(source, common, room)
        held, source.busy = source.busy, True
        strand = self._new(version, scope, room)
        source.busy = held
        if strand is not None:
            self._copy(source, strand, common)
            return strand
        return None if source.busy else self._adopt(source, common, room)

    def grow(self, strand: Strand, room: int) -> bool:
        """Make place for ``room`` rows in all, moving the strand if need be. False when there is no place."""
        if room <= strand.room:
            return True
        room = self._pages(room)
        if self._gap_after(strand) >= room - strand.room:
            strand.room = room
            return True
        bigger = self._new(strand.version, strand.scope, room)
        if bigger is None:
            return False
        self._copy(strand, bigger, len(strand))
        self.strands.remove(bigger)
        strand.start, strand.room = bigger.start, bigger.room
        self._sort()
        return True

    def close(self, strand: Strand) -> None:
        """Keep the strand for later matches, as long as nobody needs its rows."""
        self._clock += 1
        strand.busy, strand.used = False, self._clock
        strand.room = min(strand.room, self._pages(max(len(strand), 1)))
        if len(strand) < WORTHWHILE:
            self.drop(strand)

    def drop(self, strand: Strand) -> None:
        """Give the rows back at once."""
        self.strands.remove(strand)

    def forget(self, version: int) -> None:
        """Drop every idle strand of a version."""
        self.strands = [strand for strand in self.strands if strand.busy or strand.version != version]

    def _pages(self, rows: int) -> int:
        return -(-rows // self.page) * self.page

    def _sort(self) -> None:
        self.strands.sort(key=lambda strand: strand.start)

    def _gaps(self) -> Iterable[tuple[int, int]]:
        """(start, size) of each free run."""
        at = 0
        for strand in self.strands:
            if strand.start > at:
                yield at, strand.start - at
            at = strand.start + strand.room
        if at < self.rows:
            yield at, self.rows - at

    def _gap_after(self, strand: Strand) -> int:
        end = strand.start + strand.room
        return next((size for start, size in self._gaps() if start == end), 0)

    def _new(self, version: int, scope: str, room: int) -> Strand | None:
        """A busy strand of ``room`` rows; idle ones make way, then the busy ones move together."""
        room = self._pages(room)
        while (start := self._fit(room)) is None:
            idle = [strand for strand in self.strands if not strand.busy]
            if idle:
                self.drop(min(idle, key=lambda strand: strand.used))
            elif self.free >= room:
                self._compact()
            else:
                return None
        strand = Strand(version=version, scope=scope, start=start, room=room, used=self._clock)
        self.strands.append(strand)
        self._sort()
        return strand

    def _fit(self, room: int) -> int | None:
        fits = [(size, start) for start, size in self._gaps() if size >= room]
        return min(fits)[1] if fits else None

    def _adopt(self, strand: Strand, common: int, room: int) -> Strand | None:
        """Take an idle strand over from its first ``common`` tokens on."""
        strand.busy = True
        kept = strand.tokens[common:]
        del strand.tokens[common:]
        if self.grow(strand, room):
            return strand
        strand.tokens.extend(kept)
        strand.busy = False
        return None

    def _copy(self, source: Strand, target: Strand, count: int) -> None:
        self.data[:, target.start : target.start + count] = self.data[:, source.start : source.start + count]
        target.tokens[:] = source.tokens[:count]

    def _compact(self) -> None:
        at = 0
        for strand in self.strands:
            if strand.start > at:
                rows = self.data[:, strand.start : strand.start + len(strand)].clone()
                self.data[:, at : at + len(strand)] = rows
                strand.start = at
            at += strand.room
