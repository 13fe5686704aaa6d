"""HTTP to an engine: JSON calls and server-sent event streams over keep-alive connections.

Every streamed token passes through here as a chunk, so the code is a C parser with a minimal wrapper.
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
"""seconds after which an idle connection is not reused: servers close theirs after five"""
_CONNECT = 10.0
"""seconds to reach the engine"""
_MOST = 2**18
"""bytes buffered before reading from the engine pauses"""
_NO_DATA = (b"", b"[DONE]")


class ConnectionLost(BackendDown):
    """The engine could not be reached, or its connection ended during an answer."""


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """A status and its body."""

    status: int
    body: bytes

    def json(self) -> Any:
        """Return the body as JSON; None if it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    @property
    def words(self) -> str:
        """Return the error message, whatever the error's format."""
        content = self.json()
        if isinstance(content, dict):
            error = content.get("error", content)
            words = error.get("message") or error.get("error_message") if isinstance(error, dict) else error
            content = words or content.get("detail") or content.get("error_message")
        return str(content or self.body.decode(errors="replace"))[:500]


class _Parser:
    """The state of one partly received answer."""

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
    """One connection: received data is buffered until it is read, and reading pauses while the buffer is large."""

    def __init__(self) -> None:
        self.idle_since = 0.0
        self._transport: asyncio.Transport | None = None
        self._received: list[bytes] = []
        self._size = 0
        self._ended: Exception | None = None
        self._waiting: asyncio.Future[None] | None = None

    @property
    def fresh(self) -> bool:
        """Return True if another request may be sent on it."""
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
        """Wait for data and return it; raise ConnectionLost at the end."""
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
    """The HTTP client for one engine. ``key`` is its API key, if it has one."""

    def __init__(self, url: str, *, key: str | None = None) -> None:
        self._key = key
        self._kept: list[_Connection] = []
        self.aim(url)

    def aim(self, url: str) -> None:
        """Switch to another address, from the next request on."""
        self.close()
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        self.url = url.rstrip("/")
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or (443 if secure else 80)
        self._ssl = ssl.create_default_context() if secure else None
        self._root = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = f"Host: {parts.netloc}\r\n" + (f"Authorization: Bearer {self._key}\r\n" if self._key else "")

    async def get(self, path: str, *, seconds: float = _CONNECT) -> EngineAnswer:
        """Send a GET request and return the answer."""
        return await self._call("GET", path, b"", seconds)

    async def post(self, path: str, body: Any, *, seconds: float = 600.0) -> EngineAnswer:
        """Post a JSON body and return the answer."""
        return await self._call("POST", path, json.dumps(body).encode(), seconds)

    async def stream(self, path: str, body: Any) -> AsyncGenerator[list[bytes] | EngineAnswer, None]:
        """Yield the events' data, those that arrived together in one list, or one `EngineAnswer` if the engine refuses.

        Closing it early closes the connection, which cancels the request in the engine.
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
                batch = [data for event in events if (data := event.partition(b"data:")[2].strip()) not in _NO_DATA]
                if batch:
                    yield batch
                if parser.whole:
                    break
                await _more(connection, parser)
        finally:
            self._done(connection, parser)

    async def whole(self, path: str, body: Any) -> AsyncGenerator[list[bytes] | EngineAnswer, None]:
        """Yield the complete answer from a route without streaming as one event, in the form that `stream` yields."""
        answer = await self.post(path, body)
        yield [answer.body] if answer.status == 200 else answer

    def close(self) -> None:
        """Close idle connections."""
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
        """Send a request and read the answer's head; replace idle connections that turn out to be dead."""
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
        raise ConnectionLost(f"the engine's answer is not HTTP: {error}") from error


async def _rest(connection: _Connection, parser: _Parser) -> bytes:
    while not parser.whole:
        await _more(connection, parser)
    return parser.taken()
