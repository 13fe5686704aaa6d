"""The engine behind a URL, started here or externally: its health, and its return after an outage.

An engine started here is restarted when it ends; an external one is awaited. Requests wait meanwhile, and while it
sleeps; a caller whose answer was interrupted calls `lost` and retries inside `request`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from openclaw_rl.backends.engines.dialect import Dialect, EngineFacts, EngineRequest, too_old
from openclaw_rl.backends.engines.http import ConnectionLost, EngineHttp
from openclaw_rl.backends.engines.launched import LaunchedEngine
from openclaw_rl.errors import BackendDown, BackendError, BackendGone, ModelRefused

log = logging.getLogger(__name__)

RESTARTS: Final = 5
"""failed starts after which the engine is down"""
RETRY_DOWN: Final = 60.0
"""seconds between two attempts while an engine is down"""
HOLD: Final = 300.0
"""seconds that a request waits for a restarting engine: large models take minutes"""
POLL: Final = 0.25
SHOWN: Final = 10.0
"""seconds between two progress messages"""
PATIENCE: Final = 1800.0
"""seconds an engine has to load its model"""


class EngineServer:
    """The connection to an engine.

    ``launched`` None: the engine is external; ``find`` returns its address if that may change. ``returned`` is called
    when it answers again after an outage.
    """

    def __init__(
        self,
        http: EngineHttp,
        dialect: Dialect,
        *,
        launched: LaunchedEngine | None,
        returned: Callable[[], Awaitable[None]],
        progress: Callable[[str], None],
        find: Callable[[], str | None] | None = None,
    ) -> None:
        self.http, self.dialect = http, dialect
        self.state = "stopped"
        self.restarts = 0
        self.error: str | None = None
        self._launched = launched
        self._returned = returned
        self._progress = progress
        self._find = find
        self._requests = 0
        self._quiet = asyncio.Event()
        self._facts: EngineFacts | None = None
        self._up = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._again: asyncio.Task[None] | None = None

    @property
    def facts(self) -> EngineFacts:
        """Return the properties that the engine reports."""
        assert self._facts is not None, "the engine was started"
        return self._facts

    @property
    def ours(self) -> bool:
        """Return True if the engine was started here."""
        return self._launched is not None

    @property
    def outage(self) -> str | None:
        """Return the reason for a lasting outage; None if there is none."""
        return f"the {self.dialect.name} engine is down: {self.error}" if self.state == "down" else None

    @property
    def health(self) -> dict[str, Any]:
        """Return the state for status reports."""
        return {
            "state": self.state,
            "url": self.http.url,
            "engine": f"{self.dialect.name} {self._facts.version}" if self._facts else self.dialect.name,
            "pid": self._launched.pid if self._launched else None,
            "restarts": self.restarts,
            "error": self.error,
        }

    async def start(self) -> EngineFacts:
        """Start the engine, or reach the running one; raise ModelRefused or BackendDown with reason and remedy."""
        self.state = "starting"
        try:
            await self._open()
        except BaseException:
            await self.stop()
            raise
        return self.facts

    async def stop(self) -> None:
        """End an engine started here. Safe to call twice."""
        self.state = "stopped"
        self._up.clear()
        for task in (self._again, self._watching):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        self._again = self._watching = None
        if self._launched is not None:
            await self._launched.stop()
        self.http.close()

    @asynccontextmanager
    async def request(self) -> AsyncIterator[None]:
        """Wait until the engine answers, and keep it from sleeping inside the block; raise BackendDown on failure."""
        await self.ready()
        self._requests += 1
        self._quiet.clear()
        try:
            yield
        finally:
            self._requests -= 1
            if not self._requests:
                self._quiet.set()

    @asynccontextmanager
    async def asleep(self) -> AsyncIterator[None]:
        """Release the engine's GPU memory inside the block. Requests in flight end first, new ones wait."""
        await self.ready()
        self.state, slept = "asleep", False
        self._up.clear()
        try:
            if self._requests:
                await self._quiet.wait()
            await self._tell(self.dialect.sleep_request)
            slept = True
            yield
        finally:
            await self._wake(slept)

    async def _wake(self, slept: bool) -> None:
        if self.state != "asleep":  # stopped meanwhile
            return
        try:
            if slept:
                await self._tell(self.dialect.wake_request)
            elif not await self._healthy():
                raise ConnectionLost(f"no engine answers at {self.http.url}")
        except BackendError as error:  # an engine that cannot be woken is restarted if it was started here
            self._restart(error.what)
            return
        self.state = "ready"
        self._up.set()

    async def _tell(self, request: EngineRequest) -> None:
        answer = await self.http.post(*request)
        if answer.status != 200:
            what = f"the {self.dialect.name} engine refuses {request[0].partition('?')[0]}: {answer.words}"
            raise BackendError(what, remedy=self.dialect.sleep_remedy)

    async def ready(self) -> None:
        """Wait while the engine sleeps or restarts; raise BackendDown if a start takes too long."""
        while self.state == "asleep":  # lasts as long as a training step
            await self._up.wait()
        if self._up.is_set():
            return
        if self.state in ("starting", "restarting"):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._up.wait(), HOLD)
        if self.state == "down":
            raise BackendGone(str(self.outage), retry_after=RETRY_DOWN, remedy="see the server's log")
        if self.state != "ready":
            raise BackendDown(f"the {self.dialect.name} engine is {self.state}: {self.error}", retry_after=30.0)

    def lost(self, error: ConnectionLost) -> None:
        """Report a lost answer: check whether the engine still answers, and restart it if not."""
        if self.state == "ready":
            self._restart(error.what)

    # --- starting

    async def _open(self) -> None:
        if self._launched is not None:
            await self._launch(self._launched)
        elif not await self._answers():
            raise BackendDown(
                f"no {self.dialect.name} engine answers at {self.http.url}",
                remedy="start it, correct policy.url, or leave policy.url out to have it started",
            )
        self._facts = await self._read_facts()
        self.state, self.error = "ready", None
        self._up.set()

    async def _launch(self, launched: LaunchedEngine) -> None:
        if await self._healthy():  # it would be mistaken for the engine started here, which cannot have that port
            raise ModelRefused(
                f"something answers at {self.http.url} already, where {self.dialect.name} was to be started",
                remedy="leave policy.launch out to use it, or policy.url to have a free port chosen",
            )
        await launched.start()
        await self._until_healthy(launched)
        self._watching = asyncio.get_running_loop().create_task(self._watch(launched))

    async def _until_healthy(self, launched: LaunchedEngine) -> None:
        began = reported = time.monotonic()
        self._progress(f"starting {self.dialect.name}; this takes a minute or more, see its log")
        ended = asyncio.ensure_future(launched.wait())
        try:
            while not await self._healthy():
                now = time.monotonic()
                if ended.done():
                    raise launched.failure()
                if now - began > PATIENCE:
                    raise ModelRefused(
                        f"{self.dialect.name} did not answer within {PATIENCE:.0f} s", remedy="see its log"
                    )
                if now - reported >= SHOWN:
                    reported = now
                    self._progress(f"{self.dialect.name} loads the model ({now - began:.0f} s)")
                await asyncio.wait([ended], timeout=POLL)
        finally:
            ended.cancel()
        self._progress(f"{self.dialect.name} is ready after {time.monotonic() - began:.0f} s")

    async def _answers(self) -> bool:
        """Return True if an external engine answers; wait for one that another process in the run has just started."""
        began = time.monotonic()
        while not await self._healthy():
            url = self._find() if self._find is not None else None
            if url is None or time.monotonic() - began > PATIENCE:
                return False
            self.http.aim(url)
            await asyncio.sleep(POLL)
        return True

    async def _healthy(self) -> bool:
        try:
            return (await self.http.get(self.dialect.health_path)).status == 200
        except ConnectionLost:
            return False

    async def _read_facts(self) -> EngineFacts:
        answers = {}
        for path in self.dialect.fact_paths:
            answer = await self.http.get(path)
            answers[path] = answer.json() if answer.status == 200 else None
        try:
            facts = self.dialect.facts(answers)
        except (KeyError, TypeError, StopIteration, IndexError) as error:
            raise ModelRefused(
                f"what answers at {self.http.url} is no {self.dialect.name} engine that this release knows",
                remedy="check policy.url and policy.backend, and the releases in docs/engines.md",
            ) from error
        if old := too_old(self.dialect, facts.version):
            raise ModelRefused(old, remedy="install a newer release in the engine's environment")
        return facts

    # --- recovery

    async def _watch(self, launched: LaunchedEngine) -> None:
        code = await launched.wait()
        if self.state == "ready":
            self._restart(f"the {self.dialect.name} process ended with exit code {code}")

    def _restart(self, why: str) -> None:
        self.state, self.error = "restarting", why
        self._up.clear()
        log.error("engine.lost %s", why)
        self._again = asyncio.get_running_loop().create_task(self._come_back())

    async def _come_back(self) -> None:
        """Retry until the engine answers: restart one that was started here and ended, wait for an external one."""
        attempt = 0
        while True:
            if attempt:
                await asyncio.sleep(min(2.0 ** (attempt - 1), RETRY_DOWN) if attempt < RESTARTS else RETRY_DOWN)
            attempt += 1
            try:
                await self._try_again()
                return
            except BackendError as error:
                self.error = error.what
                log.error("engine.restart attempt=%d error=%s", attempt, error.what)
            if attempt == RESTARTS:
                self.state = "down"
                self._up.set()  # waiting requests continue, and find the state "down"
                self._up.clear()

    async def _try_again(self) -> None:
        if self._find is not None and (url := self._find()) is not None:
            self.http.aim(url)
        survived = await self._healthy() and (self._launched is None or self._launched.pid is not None)
        if survived:  # one connection broke, or the external engine is back
            self._facts = await self._read_facts()
        else:
            self.restarts += 1
            if self._launched is not None:
                await self._launched.stop()
                await self._launch(self._launched)
            elif not await self._healthy():
                raise ConnectionLost(f"no engine answers at {self.http.url}")
            self._facts = await self._read_facts()
        await self._returned()
        self.state, self.error = "ready", None
        self._up.set()
