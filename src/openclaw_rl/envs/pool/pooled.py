"""An environment of a pool, for a rollout: it looks like any other."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from openclaw_rl.envs.pool.leases import Lease, LeasePool
from openclaw_rl.errors import EnvFailed, OpenClawError, TooMany
from openclaw_rl.ports import Observation
from openclaw_rl.types import Message, Prompt, new_id

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
