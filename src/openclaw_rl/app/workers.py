"""A pool of environments as a server of its own, and the look at one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from openclaw_rl.app.runner import stop_on_signals
from openclaw_rl.errors import ConfigError
from openclaw_rl.serve.listener import HttpServer, bind, is_loopback

if TYPE_CHECKING:
    from openclaw_rl.envs.pool.leases import EnvPool

_LOOK_SECONDS = 10.0
_GRACE = 30.0
_HEAD_SECONDS = 60.0
_HEAD_BYTES = 65536


async def serve_pool(pool: EnvPool, *, host: str, port: int, key: str | None, listening: Callable[[str], None]) -> None:
    """Serve until a signal; every lease is closed at the end."""
    from openclaw_rl.envs.pool.server import pool_app

    if key is None and not is_loopback(host):
        raise ConfigError(
            f"{host!r} is reachable from outside and there is no key",
            remedy="export one and name it: --key-env VARIABLE; or listen on 127.0.0.1",
        )
    pool.tasks()  # what cannot work is said before anything listens
    server = HttpServer(
        pool_app(pool, key=key), bind(host, port), grace=_GRACE, head_seconds=_HEAD_SECONDS, head_bytes=_HEAD_BYTES
    )
    stop = asyncio.Event()
    with stop_on_signals(stop):
        await server.begin()
        listening(server.url.removesuffix("/v1"))
        await stop.wait()
        await server.end()


async def worker_status(url: str, *, key: str | None) -> dict[str, Any]:
    """What a worker says of itself; where it cannot be had, why."""
    import httpx2

    headers = {"authorization": f"Bearer {key}"} if key else {}
    place = url.rstrip("/").removesuffix("/v1")
    try:
        async with httpx2.AsyncClient(timeout=_LOOK_SECONDS, headers=headers) as client:
            answer = await client.get(f"{place}/v1/status")
            found: dict[str, Any] = answer.json()
    except (httpx2.HTTPError, ValueError) as error:
        return {"error": f"cannot be reached: {type(error).__name__}: {error}"}
    return {"error": found["error"]["message"]} if "error" in found else found
