"""Who goes to the engine with whom: requests together, one that an engine may have died of alone."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class AdmissionQueue:
    """Lets requests through together until each has shown something; a suspect goes alone, before all that wait.

    After a death every request that was inside is a suspect. What dies again then has one cause only.
    """

    def __init__(self) -> None:
        self._inside = 0
        self._alone = False
        self._suspects: deque[asyncio.Future[None]] = deque()
        self._others: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def passing(self, *, alone: bool) -> AsyncIterator[Callable[[], None]]:
        """Inside until the block ends, or until what it is given is called: the request has shown something."""
        await self._enter(alone)
        gone = False

        def leave() -> None:
            nonlocal gone
            if not gone:
                gone = True
                self._leave(alone)

        try:
            yield leave
        finally:
            leave()

    async def _enter(self, alone: bool) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line = self._suspects if alone else self._others
        line.append(place)
        self._admit()
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._leave(alone)  # the place came at the same moment
            elif place in line:
                line.remove(place)
            raise

    def _admit(self) -> None:
        """Let in who may come: a suspect into an empty engine, the others when no suspect waits."""
        while not self._alone and (self._suspects or self._others):
            if self._suspects and self._inside:
                return
            self._alone = bool(self._suspects)
            place = (self._suspects or self._others).popleft()
            if place.done():
                self._alone = False
                continue
            self._inside += 1
            place.set_result(None)

    def _leave(self, alone: bool) -> None:
        self._inside -= 1
        if alone:
            self._alone = False
        self._admit()
