"""Idle loops wait; a ledger on a server wakes those that have work."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable

from openclaw_rl.store import WAITS_FOR, Place, ServerPlace, Writer
from openclaw_rl.store.wakeups import AGAIN, listen


class LoopWakes:
    """For each loop of a process, what ends its wait; nothing does where the ledger is a file."""

    def __init__(self, place: Place, loops: Iterable[Writer]) -> None:
        self._place = place if isinstance(place, ServerPlace) else None
        self._events = {name: asyncio.Event() for name in loops} if self._place else {}

    def event(self, loop: str) -> asyncio.Event | None:
        """Set when there is work for a loop; None where nobody says so."""
        return next((event for name, event in self._events.items() if name == loop), None)

    def poll(self, loop: str, seconds: float) -> float:
        """How long a loop waits before it looks by itself: longer where it is woken; some work comes with time."""
        return seconds if self.event(loop) is None else max(seconds, AGAIN)

    def wake_all(self) -> None:
        """Have every loop look, whether there is work or not."""
        for event in self._events.values():
            event.set()

    def _wake(self, tables: frozenset[str]) -> None:
        for name, event in self._events.items():
            if WAITS_FOR[name] & tables:
                event.set()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """The loops are woken inside."""
        if self._place is None:
            yield
            return
        task = asyncio.create_task(listen(self._place, self._wake))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
