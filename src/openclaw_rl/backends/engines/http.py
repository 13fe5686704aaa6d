"""HTTP to an engine: JSON calls and streams of server-sent events over kept-alive connections.

A chunk of every stream passes here for each token, so this is a parser in C and no more around it than is needed.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

import httptools

from openclaw_rl.errors import BackendDown

_IDLE = 4.0
"""seconds after which a kept connection is not used again: servers close theirs after five"""
_CONNECT = 10.0
"""seconds to reach the engine"""
_MOST = 2**18
"""bytes that wait for somebody to take them before the engine is made to wait"""
_NO_DATA = (b"", b"[DONE]")


class ConnectionLost(BackendDown):
    """The engine could not be reached, or its connection ended in the middle of an answer."""


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """A status and the body that came with it."""

    status: int
    body: bytes

    def json(self) -> Any:
        """The body as JSON; None where it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    @property
    def words(self) -> str:
        """What an error says, whatever form it has."""
        found = self.json()
        if isinstance(found, dict):
            error = found.get("error", found)
            words = error.get("message") or error.get("error_message") if isinstance(error, dict) else error
            found = words or found.get("detail") or found.get("error_message")
        return str(found or self.body.decode(errors="replace"))[:500]


class _Parser:
    """What came of one answer so far."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.headed = self.whole = False
        self._parser = httptools.HttpResponseParser(self)

    def on_headers_complete(self) -> None:
        self.headed = True

    def on_body(self, data: bytes) -> None:
        self.chunks.append(data)

    def on_message_complete(self) -> None:
        self.whole = True

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    @property
    def status(self) -> int:
        return int(self._parser.get_status_code())

    @property
    def reusable(self) -> bool:
        return self.whole and bool(self._parser.should_keep_alive())

    def taken(self) -> bytes:
        data, self.chunks = b"".join(self.chunks), []
        return data


class _Connection(asyncio.Protocol):
    """One connection: what comes is kept until it is taken, and no more is read while much of it waits."""

    def __init__(self) -> None:
        self.idle_since = 0.0
        self._transport: asyncio.Transport | None = None
        self._received: list[bytes] = []
        self._size = 0
        self._ended: Exception | None = None
        self._waiting: asyncio.Future[None] | None = None

    @property
    def fresh(self) -> bool:
        """Whether another request may be sent on it."""
        idle = time.monotonic() - self.idle_since
        return idle < _IDLE and self._ended is None and not self._received and not self.closing

    @property
    def closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received.append(data)
        self._size += len(data)
        if self._size > _MOST:
            self._flowing().pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._end(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error)

    def write(self, data: bytes) -> None:
        self._flowing().write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    async def received(self) -> bytes:
        """What has come, as soon as something has; raises ConnectionLost at the end."""
        if not self._received and self._ended is None:
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        if not self._received:
            raise ConnectionLost(f"the connection to the engine ended in the middle of an answer{_why(self._ended)}")
        data = self._received[0] if len(self._received) == 1 else b"".join(self._received)
        if self._size > _MOST and not self.closing:
            self._flowing().resume_reading()
        self._received, self._size = [], 0
        return data

    def _flowing(self) -> asyncio.Transport:
        assert self._transport is not None, "a connection is handed out once it is made"
        return self._transport

    def _end(self, error: Exception | None) -> None:
        self._ended = self._ended or error or EOFError()
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


def _why(error: Exception | None) -> str:
    return f": {error}" if error is not None and str(error) else ""


class EngineHttp:
    """The HTTP side of one engine. ``key`` is its API key, if it has one."""

    def __init__(self, url: str, *, key: str | None = None) -> None:
        self._key = key
        self._kept: list[_Connection] = []
        self.aim(url)

    def aim(self, url: str) -> None:
        """Take another address from the next request on."""
        self.close()
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        self.url = url.rstrip("/")
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or (443 if secure else 80)
        self._ssl = ssl.create_default_context() if secure else None
        self._root = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = f"Host: {parts.netloc}\r\n" + (f"Authorization: Bearer {self._key}\r\n" if self._key else "")

    async def get(self, path: str, *, seconds: float = _CONNECT) -> EngineAnswer:
        """What a route says."""
        return await self._call("GET", path, b"", seconds)

    async def post(self, path: str, body: Any, *, seconds: float = 600.0) -> EngineAnswer:
        """What a route answers to a JSON body."""
        return await self._call("POST", path, json.dumps(body).encode(), seconds)

    async def stream(self, path: str, body: Any) -> AsyncGenerator[list[bytes] | EngineAnswer, None]:
        """The data of events, those that came together at once; one `EngineAnswer` instead where the engine refuses.

        Closing it early closes the connection, by which the engine knows that nobody waits any more.
        """
        connection, parser = await self._ask("POST", path, json.dumps(body).encode())
        try:
            if parser.status != 200:
                yield EngineAnswer(parser.status, await _rest(connection, parser))
                return
            buffer = b""
            while True:
                buffer += parser.taken()
                *events, buffer = buffer.split(b"\n\n")
                found = [data for event in events if (data := event.partition(b"data:")[2].strip()) not in _NO_DATA]
                if found:
                    yield found
                if parser.whole:
                    break
                await _more(connection, parser)
        finally:
            self._done(connection, parser)

    async def whole(self, path: str, body: Any) -> AsyncGenerator[list[bytes] | EngineAnswer, None]:
        """The same of a route that answers in one piece, which is the one event."""
        answer = await self.post(path, body)
        yield [answer.body] if answer.status == 200 else answer

    def close(self) -> None:
        """Let kept connections go."""
        for connection in self._kept:
            connection.close()
        self._kept.clear()

    async def _call(self, method: str, path: str, body: bytes, seconds: float) -> EngineAnswer:
        try:
            async with asyncio.timeout(seconds):
                connection, parser = await self._ask(method, path, body)
                try:
                    return EngineAnswer(parser.status, await _rest(connection, parser))
                finally:
                    self._done(connection, parser)
        except TimeoutError as error:
            raise ConnectionLost(f"{self.url}{path} did not answer within {seconds:.0f} s") from error

    async def _ask(self, method: str, path: str, body: bytes) -> tuple[_Connection, _Parser]:
        """Send a request and read the head of its answer; a kept connection that turns out dead is replaced once."""
        head = f"{method} {self._root}{path} HTTP/1.1\r\n{self._headers}Content-Length: {len(body)}\r\n"
        request = head.encode() + (b"Content-Type: application/json\r\n" if body else b"") + b"\r\n" + body
        while self._kept:
            connection = self._kept.pop()
            if connection.fresh:
                try:
                    return connection, await self._head(connection, request)
                except ConnectionLost:
                    continue
            connection.close()
        connection = await self._open()
        return connection, await self._head(connection, request)

    async def _head(self, connection: _Connection, request: bytes) -> _Parser:
        parser = _Parser()
        try:
            connection.write(request)
            while not parser.headed:
                await _more(connection, parser)
        except BaseException:
            connection.close()
            raise
        return parser

    async def _open(self) -> _Connection:
        try:
            async with asyncio.timeout(_CONNECT):
                loop = asyncio.get_running_loop()
                return (await loop.create_connection(_Connection, self._host, self._port, ssl=self._ssl))[1]
        except (OSError, TimeoutError) as error:
            raise ConnectionLost(f"no engine at {self.url}: {error or 'it does not answer'}") from error

    def _done(self, connection: _Connection, parser: _Parser) -> None:
        if parser.reusable and not connection.closing:
            connection.idle_since = time.monotonic()
            self._kept.append(connection)
        else:
            connection.close()


async def _more(connection: _Connection, parser: _Parser) -> None:
    data = await connection.received()
    try:
        parser.feed(data)
    except httptools.HttpParserError as error:
        raise ConnectionLost(f"what came from the engine is no HTTP: {error}") from error


async def _rest(connection: _Connection, parser: _Parser) -> bytes:
    while not parser.whole:
        await _more(connection, parser)
    return parser.taken()
