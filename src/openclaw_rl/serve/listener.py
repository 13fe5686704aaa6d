"""The socket: which address may be listened on without a key, and a server that ends properly."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Iterator, Mapping
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from openclaw_rl.errors import ConfigError


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


def timed_head_protocol(seconds: float, head_bytes: int) -> type[HttpToolsProtocol]:
    """A connection that waits for a request's head so long and no longer, and reads so much of it and no more.

    The API times the rest of a request; before the head is whole, the API knows nothing of it.
    """

    class TimedHeadProtocol(HttpToolsProtocol):
        _waiting: asyncio.TimerHandle | None = None
        _read = 0

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._wait()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._wait()

        def on_headers_complete(self) -> None:
            self._head_done()
            super().on_headers_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            self._head_done()
            super().connection_lost(exc)

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
    """The HTTP server on a socket that is already bound. Heads of requests have ``head_seconds`` and ``head_bytes``."""

    def __init__(
        self,
        api: Any,
        listener: socket.socket,
        *,
        grace: float,
        head_seconds: float,
        head_bytes: int,
    ) -> None:
        settings = uvicorn.Config(
            api,
            http=timed_head_protocol(head_seconds, head_bytes),
            log_config=None,
            access_log=False,
            lifespan="on",
            timeout_graceful_shutdown=max(1, round(grace)),
            timeout_keep_alive=75,
            server_header=False,
        )
        self._server = _SignalFreeServer(settings)
        self._listener = listener
        self._task: asyncio.Task[None] | None = None
        host, port = listener.getsockname()[:2]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"

    async def begin(self) -> None:
        """Return once requests are answered."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        while not self._server.started:
            if self._task.done():
                await self._task
                raise ConfigError("the API server ended before it began; its log says why")
            await asyncio.sleep(0.01)

    async def end(self) -> None:
        """Take no more requests, let streams finish, close. Safe to call twice."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task
