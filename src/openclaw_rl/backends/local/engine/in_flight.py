"""Requests in flight to an engine process, by number, with their waiting callers."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeAlias

from openclaw_rl.backends.local.engine.messages import Finished, ScoreFinished, TokenDelta
from openclaw_rl.errors import OpenClawError

Streamed: TypeAlias = TokenDelta | Finished | OpenClawError


class InFlight:
    """Calls wait for one value, streams for several. Numbers are unique across processes."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._streams: dict[int, asyncio.Queue[Streamed]] = {}

    @contextmanager
    def call(self) -> Iterator[tuple[int, asyncio.Future[Any]]]:
        """Yield a new call's number and its future."""
        id, future = next(self._ids), asyncio.get_running_loop().create_future()
        self._calls[id] = future
        try:
            yield id, future
        finally:
            del self._calls[id]

    @contextmanager
    def stream(self) -> Iterator[tuple[int, asyncio.Queue[Streamed]]]:
        """Yield a new stream's number and its event queue."""
        id = next(self._ids)
        queue: asyncio.Queue[Streamed] = asyncio.Queue()
        self._streams[id] = queue
        try:
            yield id, queue
        finally:
            del self._streams[id]

    def returned(self, id: int, value: object) -> None:
        """Settle a call with its value or error; ignore a cancelled call."""
        settle(self._calls.get(id), value)

    def deliver(self, id: int, item: TokenDelta | Finished | ScoreFinished | OpenClawError) -> None:
        """Pass an event or error to the call or stream that waits for it."""
        if isinstance(item, ScoreFinished):
            self.returned(id, item.scores)
        elif id in self._streams:
            self._streams[id].put_nowait(item)
        elif isinstance(item, OpenClawError):
            self.returned(id, item)

    def fail(self, error: OpenClawError) -> None:
        """Fail every call and stream with ``error``."""
        for future in list(self._calls.values()):
            settle(future, error)
        for queue in self._streams.values():
            queue.put_nowait(error)


def settle(future: asyncio.Future[Any] | None, value: object) -> None:
    """Settle a pending future with a value or an error."""
    if future is None or future.done():
        return
    if isinstance(value, OpenClawError):
        future.set_exception(value)
    else:
        future.set_result(value)


# Admission: requests run together, but a request that may have ended the engine runs alone.


class AdmissionQueue:
    """Admits requests together until each has yielded an event; a suspect runs alone, before all that wait.

    After a crash every admitted request is a suspect. The next crash then has a single cause.
    """

    def __init__(self) -> None:
        self._inside = 0
        self._alone = False
        self._suspects: deque[asyncio.Future[None]] = deque()
        self._others: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def passing(self, *, alone: bool) -> AsyncIterator[Callable[[], None]]:
        """Hold a place until the block ends or the yielded function is called: the request has yielded an event."""
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
                self._leave(alone)  # admitted at the same moment
            elif place in line:
                line.remove(place)
            raise

    def _admit(self) -> None:
        """Admit waiting requests: a suspect into an empty engine, the others if no suspect waits."""
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
