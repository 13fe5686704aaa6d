"""The socket: which address may be listened on without a key, and a server that ends properly.

Each connection is an open file, and a process that has none left cannot write its ledger. So the server takes fewer
connections than it may open files, and refuses requests on further ones with 503.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from openclaw_rl.errors import ConfigError
from openclaw_rl.serve.api_errors import ApiError, anthropic_error, openai_error
from openclaw_rl.serve.pauses import ShortCollections
from openclaw_rl.serve.sse import dumps

RESERVED_FILES: Final = 256
"""open files that are left for the ledger, the processes of this one, and connections that are being refused"""
CONNECTIONS: Final = 768
"""connections at once where a process may open 1,024 files, as most systems allow unasked"""
REFUSED_AT_ONCE: Final = 64
"""connections beyond the limit whose request is read before it is refused; more are closed as they come"""
ALWAYS_ANSWERED: Final = frozenset({"/healthz", "/readyz", "/metrics"})
"""a server that has no room left is not one to be ended and started again"""


def refuse_open_listener(host: str, keys: Mapping[str, str]) -> None:
    """Without a key, only this machine may be listened to."""
    if keys or is_loopback(host):
        return
    raise ConfigError(
        f"serve.host = {host!r} is reachable from outside and there is no key",
        remedy="set OPENCLAW_API_KEY or serve.keys_file, or listen on 127.0.0.1",
    )


def is_loopback(host: str) -> bool:
    """Can only this machine reach it?"""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; raises ConfigError with the remedy when the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror}", remedy="choose another with --port, or --port 0"
        ) from error
    listener.listen(2048)
    return listener


async def refuse_connection(scope: Scope, _: Receive, send: Send) -> None:
    """Answer 503: as many connections are open as this process may have."""
    message = (
        "this server has as many connections as it can; try again later, or raise its limit of open files (ulimit -n)"
    )
    shape = anthropic_error if scope["path"].startswith("/v1/messages") else openai_error
    body = dumps(shape(ApiError(status=503, message=message, code="too_many_connections"))).encode()
    head = {"content-type": "application/json", "content-length": str(len(body)), "retry-after": "5"}
    raw = [(name.encode(), value.encode()) for name, value in {**head, "connection": "close"}.items()]
    await send({"type": "http.response.start", "status": 503, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def timed_head_protocol(
    seconds: float, head_bytes: int, connections: int, closed: Callable[[], None]
) -> type[HttpToolsProtocol]:
    """A connection that waits for a request's head so long and no longer, and reads so much of it and no more.

    The API times the rest of a request; before the head is whole, the API knows nothing of it. Requests on more than
    so many ``connections`` at once are refused. ``closed`` is called at the end of each.
    """

    class TimedHeadProtocol(HttpToolsProtocol):
        _waiting: asyncio.TimerHandle | None = None
        _read = 0

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > connections + REFUSED_AT_ONCE:
                transport.abort()
                return
            self._wait()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._wait()

        def on_headers_complete(self) -> None:
            self._head_done()
            if len(self.connections) > connections and self.url.split(b"?")[0].decode("latin-1") not in ALWAYS_ANSWERED:
                self.app = refuse_connection
            super().on_headers_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            self._head_done()
            super().connection_lost(exc)
            closed()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._waiting is not None:
                self._read += len(data)
                if self._read > head_bytes:
                    self._refuse("431 Request Header Fields Too Large")

        def _wait(self) -> None:
            if self._waiting is None:
                self._read = 0
                self._waiting = self.loop.call_later(seconds, self._refuse, "408 Request Timeout")

        def _head_done(self) -> None:
            if self._waiting is not None:
                self._waiting.cancel()
                self._waiting = None

        def _refuse(self, status: str) -> None:
            self._head_done()
            self.transport.write(f"HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".encode())
            self.transport.close()

    return TimedHeadProtocol


class _SignalFreeServer(uvicorn.Server):
    """uvicorn without its own signal handling: signals are the runner's business."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """The HTTP server on a socket that is already bound. Heads of requests have ``head_seconds`` and ``head_bytes``.

    At most ``connections`` are open at once, which should leave the process `RESERVED_FILES`.
    """

    def __init__(
        self,
        api: Any,
        listener: socket.socket,
        *,
        grace: float,
        head_seconds: float,
        head_bytes: int,
        connections: int = CONNECTIONS,
    ) -> None:
        settings = uvicorn.Config(
            api,
            http=timed_head_protocol(head_seconds, head_bytes, connections, lambda: self._pauses.connection_closed()),
            log_config=None,
            access_log=False,
            lifespan="on",
            timeout_graceful_shutdown=max(1, round(grace)),
            timeout_keep_alive=75,
            server_header=False,
        )
        self._server = _SignalFreeServer(settings)
        self._pauses = ShortCollections(self._server.server_state.connections)
        self._listener = listener
        self._task: asyncio.Task[None] | None = None
        host, port = listener.getsockname()[:2]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"

    async def begin(self) -> None:
        """Return once requests are answered."""
        self._pauses.begin()
        self._task = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        while not self._server.started:
            if self._task.done():
                await self._task
                raise ConfigError("the API server ended before it began; its log says why")
            await asyncio.sleep(0.01)

    async def end(self) -> None:
        """Take no more requests, let streams finish, close. Safe to call twice."""
        self._server.should_exit = True
        self._pauses.end()
        if self._task is not None:
            await self._task
