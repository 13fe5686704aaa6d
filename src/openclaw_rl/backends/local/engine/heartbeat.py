"""Heartbeat of an engine process: counters in shared memory, advanced by its threads and checked by its parent.

A process can be alive but silent: a call into native code that never returns. It cannot answer messages then, so the
parent reads memory instead. Each thread also writes its current request, so that the parent can name the cause.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from multiprocessing.context import BaseContext
from typing import Final, cast

BEAT: Final = 2.0
"""seconds between two checks by the parent, and an idle thread's longest wait before it beats"""
UNREADY: Final = 15
"""consecutive checks without a beat after which the engine is silent and should receive no requests"""
RESTART: Final = 60
"""consecutive checks without a beat after which the process is killed and restarted"""


class Heartbeat:
    """One thread's part of the shared memory: its beat count and its current request, 0 for none."""

    def __init__(self, cells: MutableSequence[int], at: int = 0) -> None:
        self._cells, self._at = cells, at

    def beat(self) -> None:
        """Record that the thread is running."""
        self._cells[self._at] += 1

    def work_on(self, request: int) -> None:
        """Record the thread's current request, 0 for none in particular; counts as a beat."""
        self._cells[self._at + 1] = request
        self.beat()

    @property
    def beats(self) -> int:
        """Beat count."""
        return self._cells[self._at]

    @property
    def request(self) -> int:
        """The thread's current request, 0 for none in particular."""
        return self._cells[self._at + 1]


class Heartbeats:
    """The threads of one engine process that must never stop. Passed to the process at its start."""

    def __init__(self, cells: MutableSequence[int]) -> None:
        self.receiving = Heartbeat(cells, 0)
        self.computing = Heartbeat(cells, 2)

    @classmethod
    def shared(cls, context: BaseContext) -> Heartbeats:
        """Allocate them in memory shared with processes started from ``context``."""
        return cls(cast("MutableSequence[int]", context.RawArray("q", 4)))

    @property
    def threads(self) -> tuple[Heartbeat, Heartbeat]:
        """The monitored threads."""
        return self.receiving, self.computing


class Watchdog:
    """Counts checks, not seconds: a clock that jumps or a machine that sleeps makes no engine silent."""

    def __init__(self, heartbeats: Heartbeats) -> None:
        self._threads = heartbeats.threads
        self._seen = [-1] * len(self._threads)
        self._missed = [0] * len(self._threads)

    def look(self) -> int:
        """Check once; return the most silent thread's consecutive checks without a beat."""
        for at, thread in enumerate(self._threads):
            beats = thread.beats
            self._missed[at] = self._missed[at] + 1 if beats == self._seen[at] else 0
            self._seen[at] = beats
        return self.missed

    @property
    def missed(self) -> int:
        """The last check's result."""
        return max(self._missed)

    @property
    def cause(self) -> int:
        """The most silent thread's request, 0 for none in particular."""
        return self._threads[self._missed.index(self.missed)].request
