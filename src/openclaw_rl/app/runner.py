"""Runs loops: a tick, a wait, a back-off after a failure, a clean end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from openclaw_rl.errors import NothingToPlay
from openclaw_rl.ports import Loop
from openclaw_rl.store import WAITS_FOR, LoopState, Place, ServerPlace, Writer
from openclaw_rl.store.stores import AGAIN, listen

log = logging.getLogger(__name__)


class HealthReports(Protocol):
    """Receiver for a loop's health reports."""

    def report(
        self,
        loop: str,
        *,
        state: LoopState,
        moved: int,
        failures: int,
        error: str = "",
        detail: Mapping[str, Any] | None = None,
    ) -> None: ...


@runtime_checkable
class HasStatus(Protocol):
    """A loop with a status; the ``alarms`` in it are shown to people."""

    async def status(self) -> Mapping[str, Any]: ...


class LoopRunner:
    """Runs one loop until it is stopped; an exception is logged, and the loop retried after a wait."""

    def __init__(
        self,
        loop: Loop,
        health: HealthReports,
        *,
        poll: float,
        backoff: float,
        wake: asyncio.Event | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``wake`` ends an idle loop's wait; set it also to stop the loop."""
        self.loop = loop
        self._wake = wake
        self._health = health
        self._poll = poll
        self._backoff = backoff
        self._clock = clock
        self._moved = 0
        self._failures = 0
        self._error = ""
        self._state = ""
        self.over: NothingToPlay | None = None
        self._reported_at = float("-inf")

    async def run(self, stop: asyncio.Event) -> None:
        """Tick until ``stop`` is set; a running tick is finished first, unless the task is cancelled.

        A loop that can never have work again sets ``stop`` itself; ``over`` then has the reason.
        """
        await self._report("starting")
        try:
            while not stop.is_set():
                seconds = await self.once()
                if self.over is not None:
                    stop.set()
                    break
                await _wait(stop if self._wake is None or self._failures else self._wake, seconds)
                if self._wake is not None:
                    self._wake.clear()  # before the tick: events during it are handled after it
        finally:
            await self._report("stopped")

    async def once(self) -> float:
        """Run one tick; return the wait after it."""
        try:
            moved = await self.loop.tick()
        except NothingToPlay as error:
            self.over = error
            return await self._failed(error)
        except Exception as error:  # a failure in one loop must not stop the others
            return await self._failed(error)
        if self._failures:
            log.info("loop %s works again after %d failures", self.loop.name, self._failures)
        self._failures, self._error = 0, ""
        self._moved += moved
        if self._state != "running" or self._clock() - self._reported_at >= 1.0:
            await self._report("running")
        return 0.0 if moved else self._poll

    async def _failed(self, error: Exception) -> float:
        text = f"{type(error).__name__}: {error}"
        if text != self._error:
            log.exception("loop %s failed", self.loop.name)
        self._failures, self._error = self._failures + 1, text
        await self._report("failing")
        return float(min(self._backoff, 0.5 * 2 ** min(self._failures, 16)))

    async def _report(self, state: LoopState) -> None:
        self._state, self._reported_at = state, self._clock()
        try:
            detail = await self.loop.status() if isinstance(self.loop, HasStatus) else {}
            await asyncio.to_thread(
                self._health.report,
                self.loop.name,
                state=state,
                moved=self._moved,
                failures=self._failures,
                error=self._error,
                detail=detail,
            )
        except Exception:  # a loop continues even if it cannot report its health
            log.warning("loop %s could not report its health", self.loop.name, exc_info=True)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    if seconds <= 0:
        await asyncio.sleep(0)
        return
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


async def drain(loops: Sequence[Loop], *, rounds: int = 10_000) -> int:
    """Tick loops in order until none of them has work: used by `--once` and the tests."""
    total = 0
    for _ in range(rounds):
        moved = sum([await loop.tick() for loop in loops])
        total += moved
        if not moved:
            break
    return total


class StoppedWhileStarting(Exception):
    """The run was stopped before its policy was ready."""


async def unless_stopped(starting: Coroutine[Any, Any, object], stop: asyncio.Event) -> None:
    """Wait until the policy has started; abandon the start once ``stop`` is set."""
    task, stopped = asyncio.ensure_future(starting), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():  # also if Ctrl-C ended the engine's process first
            raise StoppedWhileStarting
        await task
    finally:
        stopped.cancel()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.contextmanager
def stop_on_signals(stop: asyncio.Event) -> Iterator[None]:
    """Set ``stop`` on the first SIGINT or SIGTERM; a second one ends the process as usual."""
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)

    def first() -> None:
        stop.set()
        for signum in signals:
            loop.remove_signal_handler(signum)

    for signum in signals:
        loop.add_signal_handler(signum, first)
    try:
        yield
    finally:
        for signum in signals:
            loop.remove_signal_handler(signum)


# Idle loops wait; a ledger on a server wakes the loops that have work.


class LoopWakes:
    """Wake-up events for each loop in a process; none if the ledger is a file."""

    def __init__(self, place: Place, loops: Iterable[Writer]) -> None:
        self._place = place if isinstance(place, ServerPlace) else None
        self._events = {name: asyncio.Event() for name in loops} if self._place else {}

    def event(self, loop: str) -> asyncio.Event | None:
        """Return an event that is set when a loop has work; None without a notifying ledger."""
        return next((event for name, event in self._events.items() if name == loop), None)

    def poll(self, loop: str, seconds: float) -> float:
        """Return a loop's polling interval: longer if it has an event; some work depends on time alone."""
        return seconds if self.event(loop) is None else max(seconds, AGAIN)

    def wake_all(self) -> None:
        """Wake every loop, with or without work."""
        for event in self._events.values():
            event.set()

    def _wake(self, tables: frozenset[str]) -> None:
        for name, event in self._events.items():
            if WAITS_FOR[name] & tables:
                event.set()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Wake the loops while the context is open."""
        if self._place is None:
            yield
            return
        task = asyncio.create_task(listen(self._place, self._wake))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
