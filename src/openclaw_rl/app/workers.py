"""An environment pool as a separate server: for other machines, or in a child process."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from openclaw_rl.app.runner import stop_on_signals
from openclaw_rl.config import Config
from openclaw_rl.errors import ConfigError, EnvFailed, OpenClawError
from openclaw_rl.serve.loop import HttpServer, bind, is_loopback

if TYPE_CHECKING:
    from openclaw_rl.envs.pool.leases import EnvPool, Lease
    from openclaw_rl.envs.pool.remote import RemotePool
    from openclaw_rl.ports import Observation
    from openclaw_rl.types import Message


# A child process: it receives its settings on stdin, prints one line, and ends with its parent.

_GRACE = 30.0
"""seconds for a process to end by itself"""
_NICE = 5
"""scheduling priority below the serving process"""


async def begin(function: str, *given: Any) -> tuple[asyncio.subprocess.Process, dict[str, str | None]]:
    """Run ``module:function`` in a child process, which reads ``given`` with `taken`; return it and its first message.

    On failure the message is ``{"error": …, "remedy": …}``.
    """
    module, _, name = function.partition(":")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}; from {module} import {name}; {name}()"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    packed = pickle.dumps(given)
    process.stdin.write(len(packed).to_bytes(8, "big") + packed)
    message = json.loads(await process.stdout.readline() or b'{"error": "it ended before it began"}')
    if "error" in message:
        await process.wait()
    return process, message


async def end(process: asyncio.subprocess.Process | None) -> None:
    """Stop the process; kill it after the grace period. Safe to call twice."""
    if process is None or process.returncode is not None:
        return
    assert process.stdin is not None
    process.stdin.close()  # the signal to end
    try:
        await asyncio.wait_for(process.wait(), _GRACE)
    except TimeoutError:
        process.kill()
        await process.wait()


def taken() -> Any:
    """Return the parent's arguments; lower this process's priority and detach it from Ctrl-C."""
    size = int.from_bytes(sys.stdin.buffer.read(8), "big")
    arguments = pickle.loads(sys.stdin.buffer.read(size))
    os.setsid()
    os.nice(_NICE)
    return arguments


def say(**found: str | None) -> None:
    """Print this process's first message."""
    print(json.dumps(found), flush=True)


def parent_ended() -> asyncio.Event:
    """Return an event that is set when the parent closes our stdin or ends."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(0, lambda: None if os.read(0, 4096) else ended.set())
    return ended


_LOOK_SECONDS = 10.0
_HEAD_SECONDS = 60.0
_HEAD_BYTES = 65536


async def serve_pool(pool: EnvPool, *, host: str, port: int, key: str | None, listening: Callable[[str], None]) -> None:
    """Serve until a signal; every lease is closed at the end."""
    if key is None and not is_loopback(host):
        raise ConfigError(
            f"{host!r} is reachable from outside and there is no key",
            remedy="export one and name it: --key-env VARIABLE; or listen on 127.0.0.1",
        )
    stop = asyncio.Event()
    with stop_on_signals(stop):
        await _serve_until(stop, pool, host=host, port=port, key=key, listening=listening)


async def _serve_until(
    stop: asyncio.Event, pool: EnvPool, *, host: str, port: int, key: str | None, listening: Callable[[str], None]
) -> None:
    from openclaw_rl.envs.pool.server import pool_app

    pool.tasks()  # errors are raised before anything listens
    server = HttpServer(
        pool_app(pool, key=key), bind(host, port), grace=_GRACE, head_seconds=_HEAD_SECONDS, head_bytes=_HEAD_BYTES
    )
    await server.begin()
    listening(server.url.removesuffix("/v1"))
    await stop.wait()
    await server.end()


async def worker_status(url: str, *, key: str | None) -> dict[str, Any]:
    """Return a worker's status; an error message if it cannot be reached."""
    import httpx2

    headers = {"authorization": f"Bearer {key}"} if key else {}
    place = url.rstrip("/").removesuffix("/v1")
    try:
        async with httpx2.AsyncClient(timeout=_LOOK_SECONDS, headers=headers) as client:
            answer = await client.get(f"{place}/v1/status")
            status: dict[str, Any] = answer.json()
    except (httpx2.HTTPError, ValueError) as error:
        return {"error": f"cannot be reached: {type(error).__name__}: {error}"}
    return {"error": status["error"]["message"]} if "error" in status else status


# --- beside this process ----------------------------------------------------------------------------------------------


class BuildPool(Protocol):
    """Builds a process's pool from the settings."""

    def __call__(self, config: Config, *, events: Path | None) -> EnvPool: ...


class OwnWorker:
    """A worker in a child process on this machine, which ends with its parent and is restarted if it ends.

    See `LeasePool`.
    """

    def __init__(self, config: Config, *, events: Path | None, build: BuildPool) -> None:
        """``build`` makes the pool in the child process, so it must be a module's function."""
        self._build = build
        self._config = config
        self._events = events
        self._key = secrets.token_urlsafe(24)
        self._process: asyncio.subprocess.Process | None = None
        self._remote: RemotePool | None = None
        self._beginning = asyncio.Lock()

    async def __aenter__(self) -> Self:
        await self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._remote is not None:
            await self._remote.__aexit__()
        await end(self._process)

    async def _begin(self) -> None:
        from openclaw_rl.envs.pool.remote import RemotePool

        arguments = (self._build, self._config, self._events, self._key)
        process, message = await begin("openclaw_rl.app.workers:serve_beside", *arguments)
        if "error" in message:
            raise EnvFailed(f"the environments cannot be run: {message['error']}", remedy=message.get("remedy"))
        assert message["url"] is not None
        self._process = process
        self._remote = await RemotePool([message["url"]], key=self._key).__aenter__()

    async def _there(self) -> RemotePool:
        """Return the worker, restarted if it has ended."""
        async with self._beginning:
            if self._process is None or self._process.returncode is not None:
                await self._begin()
        assert self._remote is not None
        return self._remote

    def _now(self) -> RemotePool:
        assert self._remote is not None
        return self._remote

    @property
    def name(self) -> str:
        return self._now().name

    def tasks(self) -> Sequence[str]:
        return self._now().tasks()

    async def lease(self, task: str, *, seed: int, request: str) -> Lease:
        return await (await self._there()).lease(task, seed=seed, request=request)

    async def step(self, lease: str, reply: Message, *, request: str) -> Observation:
        return await self._now().step(lease, reply, request=request)

    async def outcome(self, lease: str, *, request: str) -> float:
        return await self._now().outcome(lease, request=request)

    async def heartbeat(self, lease: str) -> None:
        await self._now().heartbeat(lease)

    async def release(self, lease: str) -> None:
        await self._now().release(lease)

    async def status(self) -> Mapping[str, Any]:
        return await self._now().status()


def serve_beside() -> None:
    """Run the process for `OwnWorker`."""
    build, config, events, key = taken()
    try:
        asyncio.run(_serve_beside(build(config, events=events), key=key))
    except OpenClawError as error:
        say(error=error.what, remedy=error.remedy)


async def _serve_beside(pool: EnvPool, *, key: str) -> None:
    await _serve_until(parent_ended(), pool, host="127.0.0.1", port=0, key=key, listening=lambda url: say(url=url))
