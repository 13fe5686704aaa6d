"""One HTTP exchange at the edge: read the body within limits, write a response or a stream of events.

A silent stream gets a keep-alive at intervals. If the caller disconnects, or accepts no data, the work stops.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from starlette.types import Receive, Scope, Send

from openclaw_rl.errors import RequestError
from openclaw_rl.serve.request import RequestLimits
from openclaw_rl.types import Json

T = TypeVar("T")

KEEP_ALIVE = b": keep-alive\n\n"
EVENT_STREAM = "text/event-stream; charset=utf-8"


class CallerGone(Exception):
    """The caller disconnected, or did not accept the data sent to it."""


_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
quoted: Callable[[str], str] = json.encoder.encode_basestring
"""converts a text to JSON; called for every token in a stream"""


def dumps(value: Json) -> str:
    """Return JSON on one line, as sent over the wire."""
    return _ENCODER.encode(value)


def event(data: str, name: str | None = None) -> bytes:
    """Return one server-sent event; ``data`` is JSON and so has no line break."""
    return (f"event: {name}\ndata: {data}\n\n" if name else f"data: {data}\n\n").encode("utf-8", "replace")


class EventStream:
    """Base class for renderers of server-sent events."""

    media = EVENT_STREAM
    keep_alive = KEEP_ALIVE


class HttpExchange:
    """A request and its response, whose head is sent with the first bytes."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, limits: RequestLimits) -> None:
        self.scope = scope
        self.limits = limits
        self.started = False
        self.finished = False
        self.status = 0
        self.headers: dict[str, str] = {}
        self.media = EVENT_STREAM
        self._receive = receive
        self._send = send
        self._sending_since: float | None = None
        self._last_sent = time.monotonic()

    async def body(self, limit: int) -> bytes:
        """Return the whole body; raise RequestError as soon as it exceeds ``limit`` bytes or is too slow."""
        try:
            async with asyncio.timeout(self.limits.read_seconds):
                return await self._read(limit)
        except TimeoutError as error:
            raise RequestError("the request arrived too slowly", status=408) from error

    async def _read(self, limit: int) -> bytes:
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise CallerGone
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > limit:
                raise RequestError(f"the body is larger than {limit} bytes", status=413)
            chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks)

    async def run_while_connected(self, work: Coroutine[Any, Any, T], *, keep_alive: bytes = b"") -> T:
        """Run ``work`` until it ends or the caller disconnects; ``keep_alive`` is sent while a stream is silent."""
        task = asyncio.ensure_future(work)
        listening = asyncio.ensure_future(self._receive())
        try:
            while not task.done():
                await asyncio.wait({task, listening}, timeout=self._pause(), return_when=asyncio.FIRST_COMPLETED)
                if not task.done() and (listening.done() or self._stuck()):
                    raise CallerGone
                if keep_alive and not task.done():
                    await self._fill_silence(keep_alive)
            return task.result()
        finally:
            listening.cancel()
            await _cancelled(task)

    def _pause(self) -> float:
        return min(self.limits.keepalive_seconds, self.limits.send_seconds)

    def _stuck(self) -> bool:
        since = self._sending_since
        return since is not None and time.monotonic() - since > self.limits.send_seconds

    async def _fill_silence(self, data: bytes) -> None:
        quiet = time.monotonic() - self._last_sent
        if self._sending_since is None and quiet >= self.limits.keepalive_seconds * 0.9:
            await self.write(data)

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self.started = True
        self.status = status
        raw = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def write(self, data: bytes) -> None:
        """Write further stream data; send the head first if necessary."""
        if not data:
            return
        self._sending_since = self._last_sent = time.monotonic()
        try:
            if not self.started:
                head = {"content-type": self.media, "cache-control": "no-cache"}
                await self._start(200, {**head, "x-accel-buffering": "no", **self.headers})
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
        except OSError as error:
            raise CallerGone from error
        finally:
            self._sending_since = None

    async def close(self, data: bytes) -> None:
        """Write the stream's last bytes and end it."""
        await self.write(data)
        self.finished = True
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def reply(self, status: int, body: bytes, media: str = "application/json") -> None:
        """Send a whole response at once."""
        head = {"content-type": media, "content-length": str(len(body)), **self.headers}
        await self._start(status, head)
        self.finished = True
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def reply_json(self, status: int, value: Json) -> None:
        await self.reply(status, dumps(value).encode("utf-8", "replace"))


async def _cancelled(task: asyncio.Future[T]) -> None:
    """Cancel ``task`` and wait for its cleanup; its own outcome is reported elsewhere."""
    if task.done():
        return
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()
