"""A pool of environments: each is leased for one episode.

The caller gives each request an id. A repeated id returns the same answer, also while the first request is still
running: a broken connection causes no second run. A lease without a request for ``ttl`` seconds is closed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from openclaw_rl.envs.episodes import as_failure, told
from openclaw_rl.errors import EnvFailed, TooMany
from openclaw_rl.ports import Env, Observation, SupportsOutcome
from openclaw_rl.types import Message, Prompt, new_id

# A pool's events: the newest in memory, all of them in a file if one is named.

log = logging.getLogger(__name__)

KEPT = 1000


class EventLog:
    """Records events in one process. If the disk refuses, it stops writing the file; episodes continue."""

    def __init__(self, file: Path | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self._file = file
        self._clock = clock
        self._newest: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self.counts: Counter[str] = Counter()

    def add(self, event: str, **fields: Any) -> None:
        row = {"at": self._clock(), "event": event, **fields}
        self.counts[event] += 1
        self._newest.append(row)
        log.debug("pool.%s %s", event, " ".join(f"{name}={value}" for name, value in fields.items()))
        if self._file is None:
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(row, ensure_ascii=False) + "\n")
        except OSError as error:
            log.warning("the event log %s cannot be written: %s", self._file, error)
            self._file = None

    def newest(self, limit: int) -> Sequence[dict[str, Any]]:
        """Return the newest events, oldest first."""
        return list(self._newest)[-limit:]


T = TypeVar("T")

CLOSE_SECONDS = 30.0
"""seconds that an environment may take to close before it is abandoned"""
REAP_SECONDS = 1.0
BUSY_SECONDS = 600.0
"""additional seconds for a lease whose step is still running"""
RETRY_AFTER = 1.0
"""seconds after which a full pool may be asked again"""
_REMEMBERED = 4096
"""lease requests whose answer is stored after their lease has ended"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A started environment for one episode: its id, the first prompt, and its idle lifetime in seconds."""

    id: str
    prompt: Prompt
    ttl: float


class LeasePool(Protocol):
    """A source of leases. Every call but `tasks` may be repeated with the same ``request``: it replays.

    Raises EnvFailed for failures that the policy did not cause, such as an expired lease.
    """

    @property
    def name(self) -> str:
        """Return the environment's own name."""
        ...

    def tasks(self) -> Sequence[str]:
        """Return the task ids."""
        ...

    async def lease(self, task: str, *, seed: int, request: str) -> Lease:
        """Start a task; raise TooMany, with the seconds to wait, while the pool is full."""
        ...

    async def step(self, lease: str, reply: Message, *, request: str) -> Observation:
        """Act on a reply, once for each ``request``."""
        ...

    async def outcome(self, lease: str, *, request: str) -> float:
        """Return the state's current worth; 0 for an environment without one."""
        ...

    async def heartbeat(self, lease: str) -> None:
        """Extend the lease."""
        ...

    async def release(self, lease: str) -> None:
        """Release the lease. It always ends; safe to call twice, and for an ended lease."""
        ...

    async def status(self) -> Mapping[str, Any]:
        """Return the state in plain JSON."""
        ...


@dataclass(slots=True)
class _Held:
    """An active lease. ``answers`` has all its requests, done or not."""

    env: Env
    task: str
    expires: float
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    answers: dict[str, asyncio.Task[Any]] = field(default_factory=dict)
    busy: int = 0


class EnvPool:
    """This process's pool: at most ``capacity`` leases at once."""

    def __init__(
        self,
        make_env: Callable[[], Env],
        *,
        capacity: int,
        ttl: float,
        events: EventLog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make_env = make_env
        self._capacity = capacity
        self._ttl = ttl
        self._events = events
        self._clock = clock
        self._held: dict[str, _Held] = {}
        self._beginning = 0
        self._leased: dict[str, asyncio.Task[Lease]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._tasks: Sequence[str] | None = None
        self.name = ""

    def tasks(self) -> Sequence[str]:
        if self._tasks is None:
            env = self._make_env()
            self.name, self._tasks = env.name, tuple(env.tasks())
        return self._tasks

    async def lease(self, task: str, *, seed: int, request: str) -> Lease:
        if request in self._leased:
            self._events.add("replayed", request=request)
            return await _answer(self._leased[request])
        if len(self._held) + self._beginning >= self._capacity:
            self._events.add("refused", task=task)
            raise TooMany(
                f"all {self._capacity} places of the pool are taken",
                retry_after=RETRY_AFTER,
                remedy="raise env.parallel, or name more env.workers",
            )
        self._forget_old_requests()
        self._beginning += 1  # not in the task: a request before it runs must see the place as taken
        self._leased[request] = _once_task(self._begin(task, seed))
        return await _answer(self._leased[request])

    async def _begin(self, task: str, seed: int) -> Lease:
        """Start the task in its reserved place."""
        try:
            return await self._begun(task, seed)
        finally:
            self._beginning -= 1

    async def _begun(self, task: str, seed: int) -> Lease:
        env = self._make_env()
        try:
            prompt = await env.reset(task, seed=seed)
        except BaseException as error:
            self._events.add("failed", task=task, error=told(error))
            await self._close(env, "")
            raise as_failure(error) from error
        lease = f"lease-{new_id()}"
        self._held[lease] = _Held(env=env, task=task, expires=self._clock() + self._ttl)
        self._events.add("leased", lease=lease, task=task, seed=seed)
        return Lease(id=lease, prompt=prompt, ttl=self._ttl)

    async def step(self, lease: str, reply: Message, *, request: str) -> Observation:
        entry = self._known(lease)
        observation: Observation = await self._once(lease, entry, request, "step", lambda: entry.env.step(reply))
        return observation

    async def outcome(self, lease: str, *, request: str) -> float:
        entry = self._known(lease)

        async def ask() -> float:
            return await entry.env.outcome() if isinstance(entry.env, SupportsOutcome) else 0.0

        worth: float = await self._once(lease, entry, request, "outcome", ask)
        return worth

    async def _once(self, lease: str, held: _Held, request: str, what: str, work: Callable[[], Awaitable[Any]]) -> Any:
        """Return a request's answer; the work runs once, even if its caller disconnects."""
        if request in held.answers:
            self._events.add("replayed", lease=lease, request=request)
        else:
            held.answers[request] = _once_task(self._work(lease, held, what, work))
        return await _answer(held.answers[request])

    async def _work(self, lease: str, held: _Held, what: str, work: Callable[[], Awaitable[Any]]) -> Any:
        held.busy += 1
        try:
            async with held.lock:
                began = self._clock()
                result = await work()
            self._events.add(what, lease=lease, seconds=round(self._clock() - began, 4))
            return result
        except Exception as error:  # third-party code; the caller receives the failure
            self._events.add("failed", lease=lease, task=held.task, error=told(error))
            raise as_failure(error) from error
        finally:
            held.busy -= 1
            held.expires = self._clock() + self._ttl

    async def heartbeat(self, lease: str) -> None:
        self._known(lease)

    def _known(self, lease: str) -> _Held:
        """Return the lease and extend it."""
        entry = self._held.get(lease)
        if entry is None:
            raise EnvFailed(f"lease {lease} has ended: it was released or it expired")
        entry.expires = self._clock() + self._ttl
        return entry

    async def release(self, lease: str) -> None:
        entry = self._held.pop(lease, None)
        if entry is not None:
            self._events.add("released", lease=lease)
            await self._end(lease, entry)

    async def reap(self) -> int:
        """Close the expired leases and return their number."""
        now = self._clock()
        late = [lease for lease, entry in self._held.items() if entry.expires + BUSY_SECONDS * bool(entry.busy) < now]
        for lease in late:
            entry = self._held.pop(lease)
            self._events.add("reaped", lease=lease, task=entry.task)
            self._in_background(self._end(lease, entry))
        return len(late)

    async def close(self) -> None:
        """Close every lease, and wait until they are closed or abandoned."""
        entries, self._held = self._held, {}
        for lease, entry in entries.items():
            self._in_background(self._end(lease, entry))
        beginning = [task for task in self._leased.values() if not task.done()]
        for task in beginning:
            task.cancel()
        await asyncio.gather(*beginning, *self._closing, return_exceptions=True)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _end(self, lease: str, held: _Held) -> None:
        """Cancel the lease's running work, then close the environment."""
        under_way = [task for task in held.answers.values() if not task.done()]
        for task in under_way:
            task.cancel()
        if under_way:
            await asyncio.wait(under_way, timeout=CLOSE_SECONDS)
        await self._close(held.env, lease)

    async def _close(self, env: Env, lease: str) -> None:
        try:
            await asyncio.wait_for(env.close(), CLOSE_SECONDS)
        except Exception as error:  # an environment that cannot be closed must not delay the others
            log.warning("an environment could not be closed lease=%s", lease, exc_info=True)
            self._events.add("close failed", lease=lease, error=told(error))

    def _forget_old_requests(self) -> None:
        """Drop the answers to the oldest lease requests, once there are many."""
        for request in list(self._leased)[: max(0, len(self._leased) - _REMEMBERED)]:
            if self._leased[request].done():
                del self._leased[request]

    async def status(self) -> dict[str, Any]:
        """Return the report for `envs status`."""
        by_task: dict[str, int] = {}
        for entry in self._held.values():
            by_task[entry.task] = by_task.get(entry.task, 0) + 1
        return {
            "capacity": self._capacity,
            "leased": len(self._held),
            "beginning": self._beginning,
            "ttl": self._ttl,
            "tasks": by_task,
            "counts": dict(self._events.counts),
            "events": list(self._events.newest(20)),
        }


async def reap_for_ever(pool: EnvPool) -> None:
    """Run a pool's reaper until it is cancelled."""
    while True:
        await asyncio.sleep(REAP_SECONDS)
        await pool.reap()


def _once_task(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Return a task whose failure reaches its callers, and is not logged if all have disconnected."""
    task = asyncio.create_task(work)
    task.add_done_callback(lambda done: None if done.cancelled() else done.exception())
    return task


async def _answer(work: asyncio.Task[T]) -> T:
    """Return the result. The work continues if this caller is cancelled; raise EnvFailed if the work was."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        caller = asyncio.current_task()
        if work.cancelled() and not (caller is not None and caller.cancelling()):
            raise EnvFailed("the lease was released during this request") from None
        raise
