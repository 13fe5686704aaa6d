"""Requests under way to an engine process: who waits for what, by the request's number."""

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
    """Calls wait for one value, streams for several. Numbers are never used twice, by no process either."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._streams: dict[int, asyncio.Queue[Streamed]] = {}

    @contextmanager
    def call(self) -> Iterator[tuple[int, asyncio.Future[Any]]]:
        """The number of a new call and where its value will be."""
        id, future = next(self._ids), asyncio.get_running_loop().create_future()
        self._calls[id] = future
        try:
            yield id, future
        finally:
            del self._calls[id]

    @contextmanager
    def stream(self) -> Iterator[tuple[int, asyncio.Queue[Streamed]]]:
        """The number of a new stream and where its events will be."""
        id = next(self._ids)
        queue: asyncio.Queue[Streamed] = asyncio.Queue()
        self._streams[id] = queue
        try:
            yield id, queue
        finally:
            del self._streams[id]

    def returned(self, id: int, value: object) -> None:
        """A call's value or error has come; nobody waits for it after a cancellation."""
        settle(self._calls.get(id), value)

    def deliver(self, id: int, item: TokenDelta | Finished | ScoreFinished | OpenClawError) -> None:
        """Give an event or an error to whoever waits for it."""
        if isinstance(item, ScoreFinished):
            self.returned(id, item.scores)
        elif id in self._streams:
            self._streams[id].put_nowait(item)
        elif isinstance(item, OpenClawError):
            self.returned(id, item)

    def fail(self, error: OpenClawError) -> None:
        """Nothing more will come for any of them."""
        for future in list(self._calls.values()):
            settle(future, error)
        for queue in self._streams.values():
            queue.put_nowait(error)


def settle(future: asyncio.Future[Any] | None, value: object) -> None:
    """Give a value or an error to a future that still waits."""
    if future is None or future.done():
        return
    if isinstance(value, OpenClawError):
        future.set_exception(value)
    else:
        future.set_result(value)


# Who goes to the engine with whom: requests together, one that an engine may have died of alone.


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
