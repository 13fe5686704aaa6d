"""Full fine-tunes on an engine, which holds one model at a time: its requests are of one version at a time.

Requests of the version that the engine holds run together. One of another version waits until they have ended, then the
engine reads that version's weights from disk. While it does, and a while before where it never gets quiet, requests
wait; none fails. Where nobody asks for another version, the engine goes back to the live one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from openclaw_rl.backends.engines.adapters import Smoke
from openclaw_rl.backends.engines.dialect import Dialect
from openclaw_rl.backends.engines.http import EngineHttp
from openclaw_rl.errors import BackendError, ModelRefused, RequestError

log = logging.getLogger(__name__)

PATIENCE: Final = 5.0
"""seconds for which requests of the live version go before one of another version"""
LINGER: Final = 1.0
"""seconds without a request after which the engine goes back to the live version"""
_SECONDS: Final = 1800.0
"""to read the largest model from disk"""


@dataclass(eq=False, slots=True)
class _Waiting:
    place: str
    since: float = field(default_factory=time.monotonic)
    turn: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class WeightShelf:
    """Which version the engine holds, and who waits for another. ``paths`` says where a version lies, None is the base
    model, which lies in ``base``; ``live`` is the version that goes first."""

    def __init__(
        self,
        http: EngineHttp,
        dialect: Dialect,
        *,
        base: Path,
        paths: Mapping[int, str | None],
        live: Callable[[], int],
        smoke: Smoke,
    ) -> None:
        self._http, self._dialect = http, dialect
        self._base, self._paths, self._live, self._smoke = str(base), paths, live, smoke
        self._held: str | None = self._base
        """the folder of the weights that the engine holds; None where that is not known"""
        self._users = 0
        self._queue: list[_Waiting] = []
        self._change: asyncio.Task[None] | None = None
        self._home: asyncio.TimerHandle | None = None
        self._loads = 0
        self._moved = asyncio.Event()

    @property
    def names(self) -> dict[int, str]:
        """The version that the engine holds, as its own model."""
        held = [number for number in self._paths if self._place(number) == self._held]
        return {max(held): "base"} if held else {}

    @asynccontextmanager
    async def using(self, number: int) -> AsyncIterator[None]:
        """The engine holds a version for as long as the block lasts."""
        await self._enter(self._place(number))
        try:
            yield
        finally:
            self._users -= 1
            self._go_on()

    @asynccontextmanager
    async def taking_up(self) -> AsyncIterator[None]:
        """Requests that name no version wait until the block has made another one live, once it is quiet."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._until(lambda: not self._users), PATIENCE)
        self._loads += 1
        try:
            yield
        finally:
            self._loads -= 1
            self._go_on()

    async def settled(self) -> None:
        """Return when no other version is being made live."""
        if self._loads:
            await self._until(lambda: not self._loads)

    async def keep(self, number: int) -> None:
        """Find out whether a version can be loaded; raises ModelRefused where it cannot."""
        async with self.using(number):
            pass

    def let_go(self, number: int) -> None:
        """Nothing is kept: the engine holds what was asked for last."""

    def forgotten(self, number: int) -> None:
        """The engine never forgets its own model."""

    def returned(self, known: Collection[str]) -> None:
        """The engine answers again: it may be another one, so that what it holds is not known."""
        self._held = None

    async def close(self, *, unload: bool) -> None:
        """Give an engine that goes on its own weights back."""
        if self._home is not None:
            self._home.cancel()
        if self._change is not None:
            self._change.cancel()
            await asyncio.wait([self._change])
        if unload and self._held != self._base:
            with suppress(BackendError):
                await self._ask_to_load(self._base)

    # --- whose turn it is

    def _place(self, number: int) -> str:
        return self._paths.get(number) or self._base

    async def _enter(self, place: str) -> None:
        if place == self._held and self._change is None and self._may_pass():
            self._users += 1
            return
        waiting = _Waiting(place)
        self._queue.append(waiting)
        self._go_on()
        try:
            await waiting.turn
        except asyncio.CancelledError:
            if waiting in self._queue:
                self._queue.remove(waiting)
            elif waiting.turn.done() and not waiting.turn.cancelled() and waiting.turn.exception() is None:
                self._users -= 1
            self._go_on()
            raise

    def _may_pass(self) -> bool:
        """Whether a request of the version at hand goes before those who wait for another."""
        if not self._queue:
            return True
        lives = self._held == self._place(self._live())
        return lives and time.monotonic() - self._queue[0].since < PATIENCE

    def _go_on(self) -> None:
        """Let in who is next; change the weights where the next one needs others and nobody uses these."""
        if self._change is None and self._queue:
            if self._queue[0].place == self._held:
                self._let_in(self._queue[0].place)
            elif not self._users:
                self._begin_change(self._queue[0].place)
        if self._home is not None:
            self._home.cancel()
        self._home = asyncio.get_running_loop().call_later(LINGER, self._go_home)
        self._moved.set()

    def _let_in(self, place: str, why: BaseException | None = None) -> None:
        """Everybody who waits for these weights; ``why`` they cannot be had."""
        for waiting in [each for each in self._queue if each.place == place]:
            self._queue.remove(waiting)
            if waiting.turn.done():
                continue
            if why is None:
                self._users += 1
                waiting.turn.set_result(None)
            else:
                waiting.turn.set_exception(why)

    def _begin_change(self, place: str) -> None:
        self._change = asyncio.get_running_loop().create_task(self._change_to(place))

    async def _change_to(self, place: str) -> None:
        try:
            self._held = None
            await self._ask_to_load(place)
            self._held = place
            self._let_in(place)
        except Exception as error:  # told to everybody who waits for these weights, and tried again by the next
            self._let_in(place, error)
        finally:
            self._change = None
            self._go_on()

    def _go_home(self) -> None:
        """Nobody asks for anything: the next request is likely one of the live version."""
        home = self._place(self._live())
        if self._held not in (home, None) and self._change is None and not self._users and not self._queue:
            self._begin_change(home)

    async def _ask_to_load(self, place: str) -> None:
        if not await asyncio.to_thread(Path(place).is_dir):
            raise RequestError(f"the weights in {place} are no longer kept", field="model", status=404)
        began = time.monotonic()
        for path, body in self._dialect.reload_requests(place):
            answer = await self._http.post(path, body, seconds=_SECONDS)
            why = self._dialect.reloaded(answer)
            if why is not None:
                raise ModelRefused(
                    f"the engine cannot read the weights in {place}: {why}", remedy=self._dialect.reload_remedy
                )
        await self._smoke(None)
        log.info("engine.weights %s seconds=%.1f", place, time.monotonic() - began)

    async def _until(self, settled: Callable[[], bool]) -> None:
        while not settled():
            self._moved.clear()
            await self._moved.wait()
