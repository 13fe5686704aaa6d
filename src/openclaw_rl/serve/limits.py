"""What one request and one user may take, and the queue of a user's requests."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from types import TracebackType

from openclaw_rl.errors import TooMany
from openclaw_rl.serve.metrics import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """What one request and one key may take. Seconds of 0 or below are not allowed."""

    body_bytes: int
    """the largest body"""
    header_bytes: int
    """all headers together"""
    messages: int
    """messages or items in one request"""
    values: int
    """values in one body: fields, entries of lists"""
    depth: int
    """how deep JSON may be nested"""
    streams_per_key: int
    """requests of one key's user that are answered at once"""
    queue_per_key: int
    """requests of one key's user that wait for their place; more are answered 429"""
    hold_seconds: float
    """how long a request is held while the backend restarts"""
    keepalive_seconds: float
    """how often a silent stream gets a comment"""
    read_seconds: float
    """how long a client may take to send its request"""
    send_seconds: float
    """how long a client may take to accept what is sent"""


class UserQueue:
    """The requests of one user: some are answered, some wait in the queue, the rest are refused."""

    def __init__(self, limits: RequestLimits, metrics: Metrics) -> None:
        self._running = 0
        self._queue: deque[asyncio.Future[None]] = deque()
        self._limits = limits
        self._metrics = metrics

    @property
    def busy(self) -> bool:
        """Whether a request of this user is answered or waits."""
        return self._running > 0 or bool(self._queue)

    def check(self) -> None:
        """Raises TooMany if neither a place nor room in the queue is left."""
        full = self._running >= self._limits.streams_per_key
        if full and len(self._queue) >= self._limits.queue_per_key:
            raise TooMany(
                f"{self._running} requests of this key are running and {len(self._queue)} are waiting",
                remedy="wait and try again",
            )

    async def __aenter__(self) -> None:
        self.check()
        if self._running < self._limits.streams_per_key:
            self._running += 1
        else:
            await self._wait()
        self._metrics.running.inc()

    async def _wait(self) -> None:
        place = asyncio.get_running_loop().create_future()
        self._queue.append(place)
        self._metrics.waiting.inc()
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._leave()  # the place came at the same moment: hand it on
            elif place in self._queue:
                self._queue.remove(place)
            raise
        finally:
            self._metrics.waiting.dec()

    def _leave(self) -> None:
        while self._queue:
            place = self._queue.popleft()
            if not place.done():
                place.set_result(None)  # the place passes to the next in the queue
                return
        self._running -= 1

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._metrics.running.dec()
        self._leave()
