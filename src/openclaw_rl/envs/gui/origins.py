"""The only way out of a browser's namespace: a proxy on its loopback that leads to the origins the tasks name."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Collection
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from openclaw_rl.envs.gui.chromium import PROXY_PORT
from openclaw_rl.envs.sandbox import network
from openclaw_rl.errors import EnvFailed

HEAD: Final = 64 << 10
"""most bytes of a request's head"""
_WAIT: Final = 10.0


class OriginProxy:
    """Forwards HTTP and tunnels to these origins, and refuses the rest with 403."""

    def __init__(self, origins: Collection[str]) -> None:
        self._origins = frozenset(origins)
        self._server: asyncio.Server | None = None

    async def listen_inside(self, info: Path) -> None:
        """Listen on the loopback of the namespace that bubblewrap tells of in ``info``.

        Without an origin nothing listens: there is no way out at all.
        """
        if not self._origins:
            return
        listening = await network.listen(await _namespace(info), PROXY_PORT)
        self._server = await asyncio.start_server(self._serve, sock=listening, limit=HEAD)

    async def close(self) -> None:
        """Listen no more."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._forward(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, ValueError):
            pass  # the browser shows a page that did not load
        finally:
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _WAIT)
        line, _, fields = head.partition(b"\r\n")
        method, target, _ = line.decode("latin-1").split(" ", 2)
        tunnel = method == "CONNECT"
        origin = f"https://{target}" if tunnel else origin_of(target)
        if not self._allows(origin, target, tunnel=tunnel):
            writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
            return
        place = urlsplit(origin)
        there, out = await asyncio.wait_for(asyncio.open_connection(place.hostname, _port(origin)), _WAIT)
        if tunnel:
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        else:
            parts = urlsplit(target)
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            out.write(f"{method} {path} HTTP/1.1\r\n".encode("latin-1") + _closing(fields))
        try:
            await asyncio.gather(_copy(reader, out), _copy(there, writer))
        finally:
            out.close()

    def _allows(self, origin: str, target: str, *, tunnel: bool) -> bool:
        if not tunnel:
            return origin in self._origins
        host, _, port = target.rpartition(":")
        return bool({origin_of(f"{scheme}://{host}:{port}") for scheme in ("http", "https")} & self._origins)


def origin_of(address: str) -> str:
    """Scheme, host and port of an address.

    >>> origin_of("https://Example.org/shop?x=1"), origin_of("http://localhost:3000/")
    ('https://example.org', 'http://localhost:3000')
    >>> origin_of("http://example.org:80/")
    'http://example.org'
    """
    parts = urlsplit(address)
    usual = {"http": 80, "https": 443}.get(parts.scheme)
    port = "" if parts.port in (None, usual) else f":{parts.port}"
    return f"{parts.scheme}://{parts.hostname or ''}{port}"


def _port(origin: str) -> int:
    parts = urlsplit(origin)
    return parts.port or (443 if parts.scheme == "https" else 80)


def _closing(fields: bytes) -> bytes:
    """The same fields for a server that answers once: a second request would go past the check."""
    kept = [
        field
        for field in fields.split(b"\r\n")
        if field and not field.lower().startswith((b"proxy-", b"connection:", b"keep-alive:"))
    ]
    upgrade = any(field.lower().startswith(b"upgrade:") for field in kept)
    return b"\r\n".join([*kept, b"Connection: " + (b"Upgrade" if upgrade else b"close"), b"", b""])


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(64 << 10):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


async def _namespace(info: Path) -> int:
    """The process id that bubblewrap has written, once it is there."""
    for _ in range(100):
        found = _child(info)
        if found is not None:
            return found
        await asyncio.sleep(0.05)
    raise EnvFailed("the network of the browser cannot be found")


def _child(info: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError, KeyError):
        return int(json.loads(info.read_text(encoding="utf-8"))["child-pid"])
    return None
