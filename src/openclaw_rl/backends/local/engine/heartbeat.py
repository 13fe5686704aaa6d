"""Heartbeat of an engine process: counters in shared memory that its threads advance and its parent looks at.

A process can be alive and silent: a call into native code that never returns. It answers no message then, so the parent
reads memory instead. Each thread also writes the request that it works on, so that the parent can name the cause.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from multiprocessing.context import BaseContext
from typing import Final, cast

BEAT: Final = 2.0
"""seconds between two looks of the parent, and the longest that an idle thread waits before it beats"""
UNREADY: Final = 15
"""looks in a row without a beat after which the engine counts as silent: nothing should be sent to it"""
RESTART: Final = 60
"""looks in a row without a beat after which the process is ended and started again"""


class Heartbeat:
    """One thread's part of the shared memory: the number of its beats and the request it works on, 0 for none."""

    def __init__(self, cells: MutableSequence[int], at: int = 0) -> None:
        self._cells, self._at = cells, at

    def beat(self) -> None:
        """Show that the thread goes on."""
        self._cells[self._at] += 1

    def work_on(self, request: int) -> None:
        """Show which request the thread works on from now on, 0 for none in particular; counts as a beat."""
        self._cells[self._at + 1] = request
        self.beat()

    @property
    def beats(self) -> int:
        """How often it has beaten."""
        return self._cells[self._at]

    @property
    def request(self) -> int:
        """The request that the thread works on, 0 for none in particular."""
        return self._cells[self._at + 1]


class Heartbeats:
    """The threads of one engine process that must never stop. Given to the process when it starts."""

    def __init__(self, cells: MutableSequence[int]) -> None:
        self.receiving = Heartbeat(cells, 0)
        self.computing = Heartbeat(cells, 2)

    @classmethod
    def shared(cls, context: BaseContext) -> Heartbeats:
        """In memory that a process started from ``context`` shares."""
        return cls(cast("MutableSequence[int]", context.RawArray("q", 4)))

    @property
    def threads(self) -> tuple[Heartbeat, Heartbeat]:
        """The threads to look at."""
        return self.receiving, self.computing


class Watchdog:
    """Counts looks, not seconds: a clock that jumps or a machine that sleeps makes no engine silent."""

    def __init__(self, heartbeats: Heartbeats) -> None:
        self._threads = heartbeats.threads
        self._seen = [-1] * len(self._threads)
        self._missed = [0] * len(self._threads)

    def look(self) -> int:
        """How many looks in a row the most silent thread has not beaten."""
        for at, thread in enumerate(self._threads):
            beats = thread.beats
            self._missed[at] = self._missed[at] + 1 if beats == self._seen[at] else 0
            self._seen[at] = beats
        return self.missed

    @property
    def missed(self) -> int:
        """As at the last look."""
        return max(self._missed)

    @property
    def cause(self) -> int:
        """The request that the most silent thread works on, 0 where it is none in particular."""
        return self._threads[self._missed.index(self.missed)].request
