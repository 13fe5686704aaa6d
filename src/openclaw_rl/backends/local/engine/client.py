"""Client of the engine process: starts it, restarts it after a crash, and tracks the requests in flight.

A restarted process loads the version that was live, or the nearest earlier version that can be loaded. A request that
has already yielded events fails with `BackendDown`; the others are sent again once, one at a time, and a request that
ends the engine twice fails with `FatalRequest`. A process that is alive but silent is killed, and the request that it
worked on fails at once. After several failed starts the engine is down: it refuses requests at once, and is started
again at intervals and by the next `restart`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias, TypeVar

from openclaw_rl.backends.hf.version_table import VersionTable
from openclaw_rl.backends.local.engine.heartbeat import BEAT, RESTART, UNREADY, Watchdog
from openclaw_rl.backends.local.engine.in_flight import AdmissionQueue, InFlight, settle
from openclaw_rl.backends.local.engine.messages import (
    CallResult,
    CancelRequest,
    EngineArgs,
    EngineFailure,
    EngineMessage,
    EngineOutput,
    EngineReady,
    EngineRequest,
    Finished,
    LoadProgress,
    LoadRequest,
    RegisterVersions,
    TokenDelta,
)
from openclaw_rl.backends.local.engine.process import EngineProcess
from openclaw_rl.errors import BackendDown, BackendError, BackendGone, FatalRequest, OpenClawError, RequestError

logger = logging.getLogger(__name__)

RESTARTS = 5
"""consecutive failed starts after which the engine is down"""
BACKOFF = 1.0
"""seconds before the second start; doubled before each later start"""
RETRY_DOWN = 60.0
"""seconds between two starts while the engine is down"""
HOLD = 120.0
"""seconds a request waits for an engine that is restarting"""

T = TypeVar("T")
_Events: TypeAlias = AsyncGenerator[TokenDelta | Finished, None]


class EngineLost(BackendDown):
    """The process ended during a request."""


class EngineClient:
    """One engine across restarts of its process. ``versions`` are those that it can serve."""

    def __init__(self, args: EngineArgs, versions: VersionTable, progress: Callable[[str], None]) -> None:
        self.state = "stopped"
        self._args = args
        self._versions = versions
        self._progress = progress
        self._process: EngineProcess | None = None
        self._error: str | None = None
        self._last_error: str | None = None
        self._restarts = 0
        self._facts: EngineReady | None = None
        self._stats: Mapping[str, int] = {}
        self._up = asyncio.Event()
        self._retry_now = asyncio.Event()
        self._admission = AdmissionQueue()
        self._in_flight = InFlight()
        self._starting: asyncio.Future[EngineReady] | None = None
        self._restarting: asyncio.Task[None] | None = None
        self._watchdog: Watchdog | None = None
        self._watching: asyncio.Task[None] | None = None
        self._silenced = 0
        self._after_silence = False

    @property
    def health(self) -> dict[str, Any]:
        """State, runner, process, crashes and current load."""
        return {
            "state": self.state,
            "runner": self._facts.runner if self._facts else None,
            "pid": self._process.pid if self._process is not None else None,
            "restarts": self._restarts,
            "error": self._error,
            "last_error": self._last_error,
            "live": self._versions.live,
            "unloadable": dict(self._versions.unloadable),
            "device": self._facts.device if self._facts else None,
            "memory": self._facts.memory if self._facts else None,
            **self._stats,
        }

    @property
    def outage(self) -> str | None:
        """Return the reason if the engine is down or silent; None while it answers or restarts after a crash."""
        if self.state == "down":
            return f"the local engine is down: {self._error or 'not started'}"
        if self._after_silence:
            return "the local engine was silent and is being started again"
        missed = self._watchdog.missed if self._watchdog is not None else 0
        if missed >= UNREADY:
            return f"the local engine is silent for {missed * BEAT:.0f} s; it is restarted after {RESTART * BEAT:.0f} s"
        return None

    async def start(self) -> EngineReady:
        """Start the process and load the model; raise `ModelRefused` with the numbers and the remedy."""
        self.state = "starting"
        try:
            facts = await self._open()
        except BaseException:
            await self.stop()
            raise
        self._watching = asyncio.get_running_loop().create_task(self._watch())
        return facts

    async def stop(self) -> None:
        """End the process. Safe to call twice."""
        self.state = "stopped"
        self._up.clear()
        await _cancelled(self._watching)
        await _cancelled(self._restarting)
        self._watching = self._restarting = None
        await self._close()
        self._in_flight.fail(BackendDown("the local policy was stopped"))

    async def restart(self, number: int) -> None:
        """Restart an engine that is down at once, with version ``number``."""
        self._versions.live = number
        self._retry_now.set()
        await _within(self._up.wait(), "the local engine is down")
        if self.state != "ready":
            raise BackendGone(str(self.outage), retry_after=RETRY_DOWN)
        if self._versions.live != number:
            raise BackendError(f"version {number} cannot be loaded: {self._versions.unloadable.get(number)}")

    def notify(self, request: EngineRequest) -> None:
        """Send a request that has no answer; do nothing while there is no process."""
        if self._process is not None:
            self._process.send(request)

    async def call(self, request: Callable[[int], EngineRequest]) -> Any:
        """Send a request and return its value; send it again, once and alone, if the process ends during it."""
        for again in (False, True):
            async with self._admission.passing(alone=again):
                await self._ready()
                try:
                    return await self._call(request)
                except EngineLost as lost:
                    if again:
                        raise _fatal(lost) from lost
        raise AssertionError("the loop above returns or raises")

    async def stream(self, request: Callable[[int], EngineRequest]) -> _Events:
        """Send a request and yield its events; send it again as in `call` if nothing was yielded yet."""
        for again in (False, True):
            yielded = False
            events = self._stream(request, alone=again)
            try:
                async for event in events:
                    yielded = True
                    yield event
                return
            except EngineLost as lost:
                if yielded:
                    raise
                if again:
                    raise _fatal(lost) from lost
            finally:
                await events.aclose()

    # --- requests

    async def _call(self, request: Callable[[int], EngineRequest]) -> Any:
        assert self._process is not None
        process = self._process
        with self._in_flight.call() as (id, future):
            process.send(request(id))
            try:
                return await future
            finally:
                if future.cancelled():
                    process.send(CancelRequest(id))

    async def _stream(self, request: Callable[[int], EngineRequest], *, alone: bool) -> _Events:
        async with self._admission.passing(alone=alone) as leave:
            await self._ready()
            assert self._process is not None
            process = self._process
            with self._in_flight.stream() as (id, queue):
                process.send(request(id))
                over = False
                try:
                    while not over:
                        item = await queue.get()
                        over = not isinstance(item, TokenDelta)
                        if isinstance(item, OpenClawError):
                            raise item
                        leave()
                        yield item
                finally:
                    if not over:
                        process.send(CancelRequest(id))

    async def _ready(self) -> None:
        """Wait while the engine starts; raise `BackendDown` if that takes too long or the engine is down."""
        if self._up.is_set():
            return
        if self.state in ("starting", "restarting"):
            await _within(self._up.wait(), f"the local engine is {self.state}")
        if self.state == "down":
            raise BackendGone(str(self.outage), retry_after=RETRY_DOWN, remedy="see the server's log")
        if not self._up.is_set() or self.state != "ready":
            raise BackendDown(f"the local engine is {self.state}: {self._error or 'not started'}", retry_after=30.0)

    def _received(self, process: EngineProcess, message: EngineMessage) -> None:
        if process is not self._process:
            return
        match message:
            case EngineReady():
                settle(self._starting, message)
            case LoadProgress(text):
                self._progress(text)
            case CallResult(id, value):
                self._in_flight.returned(id, value)
            case EngineFailure(id=None):
                self._error = message.error().what
                settle(self._starting, message.error())
            case EngineFailure(id=int(id)):
                self._in_flight.deliver(id, message.error())
            case EngineOutput(events, stats):
                self._stats = stats
                for event in events:
                    self._in_flight.deliver(event.job, event)

    # --- the process

    async def _open(self) -> EngineReady:
        """Start a process, load its model and its live version."""
        self._starting = asyncio.get_running_loop().create_future()
        self._process = EngineProcess(self._args, received=self._received, ended=self._ended)
        facts = self._facts = await self._starting
        self._process.send(RegisterVersions(dict(self._versions.adapters)))
        await self._load_live()
        self._watchdog = Watchdog(self._process.heartbeats)
        self.state = "ready"
        self._after_silence = False
        self._up.set()
        return facts

    async def _load_live(self) -> None:
        """Load the live version; if that fails, the nearest earlier version that loads, and finally the base."""
        number = self._versions.live
        while number:
            try:
                await self._call(partial(LoadRequest, version=number))
                self._versions.loaded(number)
                break
            except BackendDown as error:
                if self._versions.died(number, error.what):
                    self._versions.live = self._versions.before(number)
                raise
            except (BackendError, RequestError) as error:
                self._versions.unloadable[number] = error.what
                logger.error("engine.unloadable version=%d error=%s", number, error.what)
                number = self._versions.before(number)
        self._versions.live = number

    async def _close(self) -> None:
        process, loading = self._process, self._watchdog is None
        self._process = self._watchdog = None
        if process is not None:
            if loading:  # it reads no request before its model is loaded
                process.kill()
            await asyncio.to_thread(process.close)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(BEAT)
            self.look()

    def look(self) -> None:
        """Check the process's heartbeat once; kill a process that is alive but silent for too long."""
        process, watchdog = self._process, self._watchdog
        if process is None or watchdog is None or self.state != "ready" or watchdog.look() < RESTART:
            return
        self._watchdog = None  # the kill happens once
        self._after_silence = True
        self._error = f"the engine process was alive and silent for {RESTART * BEAT:.0f} s"
        logger.error("engine.silent pid=%s request=%d", process.pid, watchdog.cause)
        self._silenced = watchdog.cause
        process.kill()

    def _ended(self, process: EngineProcess, code: int | None) -> None:
        if process is not self._process or self.state == "stopped":
            return
        self._error = self._error or f"the engine process ended with exit code {code}"
        self._last_error = self._error
        logger.error("engine.died code=%s error=%s", code, self._error)
        settle(self._starting, BackendDown(self._error))
        self._up.clear()
        if self._silenced:
            self._in_flight.deliver(self._silenced, _silent(self._error))
            self._silenced = 0
        self._in_flight.fail(EngineLost(f"the local engine stopped: {self._error}"))
        if self.state == "ready":
            self.state = "restarting"
            self._restarting = asyncio.get_running_loop().create_task(self._restart_until_ready())

    async def _restart_until_ready(self) -> None:
        """Restart the engine, waiting longer after each failure; after `RESTARTS` failures it is down."""
        for attempt in itertools.count():
            await self._close()
            await self._back_off(attempt)
            self._restarts += 1
            self._error = None
            try:
                await self._open()
                return
            except BackendError as error:
                self._error = error.what
                logger.error("engine.restart attempt=%d error=%s", attempt + 1, error.what)
            if attempt + 1 >= RESTARTS:
                self.state = "down"
                self._up.set()  # waiting requests continue and find the engine down
                self._up.clear()

    async def _back_off(self, attempt: int) -> None:
        """Wait before the next start; `restart` cuts a long wait short."""
        seconds = 0.0 if attempt == 0 else BACKOFF * 2 ** (attempt - 1) if attempt < RESTARTS else RETRY_DOWN
        with suppress(TimeoutError):
            await asyncio.wait_for(self._retry_now.wait(), seconds)
        self._retry_now.clear()


def _fatal(lost: EngineLost) -> FatalRequest:
    return FatalRequest(
        f"the engine ended twice while it worked on this request, which is not tried again ({lost.what})",
        remedy="change the request, or report what the server's log says",
    )


def _silent(error: str) -> FatalRequest:
    return FatalRequest(
        f"the engine fell silent while it worked on this request, which is not tried again ({error})",
        remedy="change the request, or report what the server's log says",
    )


async def _cancelled(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _within(waited: Awaitable[T], what: str) -> T:
    try:
        return await asyncio.wait_for(waited, HOLD)
    except TimeoutError as error:
        raise BackendDown(f"{what} for more than {HOLD:.0f} s") from error
