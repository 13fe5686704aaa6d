"""The door: who may be listened to, on which socket, and a server that ends properly."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Iterator, Mapping
from typing import Any

import uvicorn

from openclaw_rl.errors import ConfigError


def refuse_open_door(host: str, keys: Mapping[str, str]) -> None:
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


class _Quiet(uvicorn.Server):
    """uvicorn without its own signal handling: signals are the runner's business."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Server:
    """The HTTP server on a socket that is already bound."""

    def __init__(self, api: Any, listener: socket.socket, *, grace: float) -> None:
        settings = uvicorn.Config(
            api,
            log_config=None,
            access_log=False,
            lifespan="on",
            timeout_graceful_shutdown=max(1, round(grace)),
            timeout_keep_alive=75,
            server_header=False,
        )
        self._server = _Quiet(settings)
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
