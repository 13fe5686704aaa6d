"""Pools on other machines, spread by task. A broken connection is tried again with the same request id."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import zlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Self
from urllib.parse import quote

import httpx2

from openclaw_rl.envs.pool.leases import Lease, LeasePool
from openclaw_rl.envs.pool.server import MESSAGE, OBSERVATION, PROMPT, REFUSED
from openclaw_rl.errors import EnvFailed, NotAllowed, OpenClawError, RequestError, TaskRefused, TooMany
from openclaw_rl.ports import Observation
from openclaw_rl.types import Message, Prompt, new_id

TRIES = 4
FIRST_PAUSE = 0.5
"""seconds before the second try; each later pause is twice as long"""
CONNECT_SECONDS = 10.0


class RemotePool:
    """See `LeasePool`. Each task has a worker of its own; one that is full or away gives way to the next."""

    def __init__(
        self,
        workers: Sequence[str],
        *,
        key: str | None,
        transport: httpx2.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._workers = [worker.rstrip("/").removesuffix("/v1") for worker in workers]
        headers = {"authorization": f"Bearer {key}"} if key else {}
        waits = httpx2.Timeout(None, connect=CONNECT_SECONDS)
        self._client = httpx2.AsyncClient(headers=headers, timeout=waits, transport=transport)
        self._sleep = sleep
        self._tasks: tuple[str, ...] = ()
        self.name = ""
        self._places: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        """Learn the tasks from the first worker that answers."""
        found = None
        for worker in self._workers:
            try:
                found = await self._call("GET", f"{worker}/v1/tasks")
                break
            except EnvFailed as error:
                last = error
        if found is None:
            await self._client.aclose()
            raise last
        self._tasks, self.name = tuple(found["tasks"]), str(found["name"])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    def tasks(self) -> Sequence[str]:
        return self._tasks

    async def lease(self, task: str, *, seed: int, request: str) -> Lease:
        refused: TooMany | EnvFailed | None = None
        first = zlib.crc32(task.encode()) % len(self._workers)
        for worker in (*self._workers[first:], *self._workers[:first]):
            try:
                found = await self._call(
                    "POST", f"{worker}/v1/leases", {"task": task, "seed": seed, "request": request}
                )
            except TooMany as full:
                refused = full
            except _WorkerAway as away:
                refused = refused or away
            else:
                self._places[found["lease"]] = worker
                return Lease(id=found["lease"], prompt=PROMPT.validate_python(found["prompt"]), ttl=found["ttl"])
        assert refused is not None
        raise refused

    async def step(self, lease: str, reply: Message, *, request: str) -> Observation:
        body = {"reply": MESSAGE.dump_python(reply, mode="json"), "request": request}
        return OBSERVATION.validate_python(await self._call("POST", self._url(lease, "/step"), body))

    async def outcome(self, lease: str, *, request: str) -> float:
        return float((await self._call("POST", self._url(lease, "/outcome"), {"request": request}))["outcome"])

    async def heartbeat(self, lease: str) -> None:
        await self._call("POST", self._url(lease, "/heartbeat"), {})

    async def release(self, lease: str) -> None:
        if lease in self._places:
            url = self._url(lease)
            del self._places[lease]
            try:
                await self._call("DELETE", url)
            except EnvFailed:
                return  # it is away: its own reaper closes the lease

    async def status(self) -> Mapping[str, Any]:
        """That of the only worker; of several only where they are, and how many leases are ours."""
        if len(self._workers) > 1:
            return {"workers": list(self._workers), "leased here": len(self._places)}
        found: Mapping[str, Any] = await self._call("GET", f"{self._workers[0]}/v1/status")
        return found

    def _url(self, lease: str, part: str = "") -> str:
        worker = self._places.get(lease)
        if worker is None:
            raise EnvFailed(f"there is no lease {lease}")
        return f"{worker}/v1/leases/{quote(lease, safe='')}{part}"

    async def _call(self, method: str, url: str, body: dict[str, Any] | None = None) -> Any:
        """The answer; a connection that breaks is tried again, since what a request did is done once."""
        pause = FIRST_PAUSE
        for left in range(TRIES - 1, -1, -1):
            try:
                return _read(await self._client.request(method, url, json=body))
            except httpx2.TransportError as error:
                if not left:
                    what = f"no pool of environments answers at {url}: {type(error).__name__}: {error}"
                    raise _WorkerAway(what, remedy="start it: openclaw-rl envs serve; or change env.workers") from error
            await self._sleep(pause)
            pause *= 2
        raise AssertionError("the last try returns or raises")


class _WorkerAway(EnvFailed):
    """A worker that cannot be reached."""


def _read(response: httpx2.Response) -> Any:
    if response.status_code < 400:
        return response.json()
    code = None
    try:
        error = response.json()["error"]
        what, code = str(error["message"]), error.get("code")
    except (ValueError, KeyError, TypeError, AttributeError):
        what = f"{response.url} answered {response.status_code}: {response.text[:300]}"
    if response.status_code == 429:
        raise TooMany(what, retry_after=float(response.headers.get("retry-after", "1")))
    if response.status_code in (401, 403):
        raise NotAllowed(f"{response.url.host}: {what}", remedy="give the worker's key: env.workers_key_env")
    if response.status_code < 500 and response.status_code != 410:
        raise RequestError(what, status=response.status_code)
    raise TaskRefused(what) if code == REFUSED else EnvFailed(what)


# An environment of a pool, for a rollout: it looks like any other.

log = logging.getLogger(__name__)

LONGEST_WAIT = 600.0
"""seconds that an episode waits for a place before it fails"""
GIVE_BACK_SECONDS = 10.0
"""how long an episode that is ended while it begins waits for its lease, to give it back"""


class PooledEnv:
    """See `Env`. It keeps its lease alive in the background, so that a slow reply loses no episode."""

    def __init__(self, pool: LeasePool, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self.name = pool.name
        self._pool = pool
        self._sleep = sleep
        self._lease: Lease | None = None
        self._beating: asyncio.Task[None] | None = None

    def tasks(self) -> Sequence[str]:
        return self._pool.tasks()

    async def reset(self, task: str, *, seed: int) -> Prompt:
        await self.close()
        self._lease = await self._wait_for_lease(task, seed)
        self._beating = asyncio.create_task(self._beat(self._lease))
        return self._lease.prompt

    async def _wait_for_lease(self, task: str, seed: int) -> Lease:
        request, waited = new_id(), 0.0
        while True:
            try:
                return await self._lease_or_give_back(task, seed, request)
            except TooMany as full:
                waited += full.retry_after
                if waited > LONGEST_WAIT:
                    raise EnvFailed(f"no place in the pool within {LONGEST_WAIT:g} s", remedy=full.remedy) from full
                await self._sleep(full.retry_after)

    async def _lease_or_give_back(self, task: str, seed: int, request: str) -> Lease:
        """The lease; whoever goes away while it is being begun gives it back first."""
        asked = asyncio.ensure_future(self._pool.lease(task, seed=seed, request=request))
        try:
            return await asyncio.shield(asked)
        except asyncio.CancelledError:
            await _to_its_end(self._give_back(asked))
            raise

    async def _give_back(self, asked: asyncio.Future[Lease]) -> None:
        with contextlib.suppress(OpenClawError, TimeoutError):  # the pool's reaper closes it then
            lease = await asyncio.wait_for(asked, GIVE_BACK_SECONDS)
            await self._pool.release(lease.id)

    async def _beat(self, lease: Lease) -> None:
        while True:
            await self._sleep(lease.ttl / 3)
            try:
                await self._pool.heartbeat(lease.id)
            except OpenClawError as error:  # the next step will say so too
                log.info("pool.heartbeat lease=%s: %s", lease.id, error)

    async def step(self, reply: Message) -> Observation:
        return await self._pool.step(self._begun().id, reply, request=new_id())

    async def outcome(self) -> float:
        """What the state is worth now."""
        return await self._pool.outcome(self._begun().id, request=new_id())

    def _begun(self) -> Lease:
        if self._lease is None:
            raise EnvFailed("no episode has begun in this environment")
        return self._lease

    async def close(self) -> None:
        lease, self._lease = self._lease, None
        if self._beating is not None:
            self._beating.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._beating
            self._beating = None
        if lease is not None:
            await _to_its_end(self._pool.release(lease.id))


_ending: set[asyncio.Task[None]] = set()
"""work that nobody may wait for any more"""


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Wait for work that goes on though we are cancelled meanwhile, however often."""
    task = asyncio.create_task(work)
    _ending.add(task)
    task.add_done_callback(_ending.discard)
    await asyncio.shield(task)
