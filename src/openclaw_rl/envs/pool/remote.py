"""Pools on other machines, spread by task. A request over a broken connection is retried with the same id."""

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
"""seconds before the second attempt; each later pause is twice as long"""
CONNECT_SECONDS = 10.0


class RemotePool:
    """The `LeasePool` for other machines. Each task has its own worker; the next is used if it is unavailable."""

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
        """Read the tasks from the first worker that answers."""
        listing = None
        for worker in self._workers:
            try:
                listing = await self._call("GET", f"{worker}/v1/tasks")
                break
            except EnvFailed as error:
                last = error
        if listing is None:
            await self._client.aclose()
            raise last
        self._tasks, self.name = tuple(listing["tasks"]), str(listing["name"])
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
                answer = await self._call(
                    "POST", f"{worker}/v1/leases", {"task": task, "seed": seed, "request": request}
                )
            except TooMany as full:
                refused = full
            except _WorkerAway as away:
                refused = refused or away
            else:
                self._places[answer["lease"]] = worker
                return Lease(id=answer["lease"], prompt=PROMPT.validate_python(answer["prompt"]), ttl=answer["ttl"])
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
                return  # it is unreachable: its own reaper closes the lease

    async def status(self) -> Mapping[str, Any]:
        """Return the only worker's status; for several workers their addresses, and the number of leases held here."""
        if len(self._workers) > 1:
            return {"workers": list(self._workers), "leased here": len(self._places)}
        answer: Mapping[str, Any] = await self._call("GET", f"{self._workers[0]}/v1/status")
        return answer

    def _url(self, lease: str, part: str = "") -> str:
        worker = self._places.get(lease)
        if worker is None:
            raise EnvFailed(f"there is no lease {lease}")
        return f"{worker}/v1/leases/{quote(lease, safe='')}{part}"

    async def _call(self, method: str, url: str, body: dict[str, Any] | None = None) -> Any:
        """Return the answer; retry a broken connection, since a repeated request is executed once."""
        pause = FIRST_PAUSE
        for tries_left in range(TRIES - 1, -1, -1):
            try:
                return _read(await self._client.request(method, url, json=body))
            except httpx2.TransportError as error:
                if not tries_left:
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


# A pool's environment for a rollout, with the interface of any other.

log = logging.getLogger(__name__)

LONGEST_WAIT = 600.0
"""seconds that an episode waits for a place before it fails"""
GIVE_BACK_SECONDS = 10.0
"""seconds that a cancelled episode waits for its starting lease, to release it"""


class PooledEnv:
    """An `Env` from a pool. It renews its lease in the background, so that a slow reply loses no episode."""

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
        """Return the lease; if cancelled while it starts, release it first."""
        leasing = asyncio.ensure_future(self._pool.lease(task, seed=seed, request=request))
        try:
            return await asyncio.shield(leasing)
        except asyncio.CancelledError:
            await _to_its_end(self._give_back(leasing))
            raise

    async def _give_back(self, asked: asyncio.Future[Lease]) -> None:
        with contextlib.suppress(OpenClawError, TimeoutError):  # otherwise the pool's reaper closes it
            lease = await asyncio.wait_for(asked, GIVE_BACK_SECONDS)
            await self._pool.release(lease.id)

    async def _beat(self, lease: Lease) -> None:
        while True:
            await self._sleep(lease.ttl / 3)
            try:
                await self._pool.heartbeat(lease.id)
            except OpenClawError as error:  # the next step will also fail
                log.info("pool.heartbeat lease=%s: %s", lease.id, error)

    async def step(self, reply: Message) -> Observation:
        return await self._pool.step(self._begun().id, reply, request=new_id())

    async def outcome(self) -> float:
        """Return the state's current worth."""
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
"""work without a waiting caller"""


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Wait for work that continues however often this caller is cancelled."""
    task = asyncio.create_task(work)
    _ending.add(task)
    task.add_done_callback(_ending.discard)
    await asyncio.shield(task)
