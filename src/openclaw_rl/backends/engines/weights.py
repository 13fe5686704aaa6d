"""Versions in an engine: adapters loaded beside each other, or whole models (full fine-tunes) one at a time.

With full fine-tunes, requests for the version in the engine run together. A request for another version waits until
they have ended, then the engine reads that version's weights from disk. Requests wait during the change, and shortly
before it if the engine is never idle; none fails. When no request needs another version, the engine returns to the live
one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from openclaw_rl.backends.engines.dialect import Dialect
from openclaw_rl.backends.engines.http import EngineHttp
from openclaw_rl.backends.engines.launched import is_running
from openclaw_rl.errors import BackendDown, BackendError, ModelRefused, RequestError

# Adapters: each load has a new name and a new folder, and an adapter in use is never unloaded.
#
# An engine caches a prompt's keys and values by adapter name, and may read the folder again at any time. So each
# version is put into its own folder (hard links, which cost nothing and survive retention's deletions), loaded under a
# name never used before, tested, used, and released after its last request: unloaded first, its folder deleted later.

log = logging.getLogger(__name__)

SPARE: Final = 2
"""unreferenced versions that stay loaded, for the next request that names them"""
GRACE: Final = 30.0
"""seconds between unloading an adapter and deleting its folder"""

Smoke = Callable[[str | None], Awaitable[None]]
"""tests an adapter by name, None for the engine's own model; raises BackendError if it cannot answer"""


@dataclass(eq=False, slots=True)
class _Loaded:
    number: int
    name: str
    folder: Path
    users: int = 0
    gone: bool = False
    """True if the engine has lost it, or if it is being unloaded"""


class AdapterStore:
    """The loaded adapters and their use counts. ``paths`` maps versions to directories."""

    def __init__(
        self, http: EngineHttp, dialect: Dialect, folder: Path, *, paths: Mapping[int, str | None], smoke: Smoke
    ) -> None:
        self._http, self._dialect, self._folder = http, dialect, folder
        self._paths, self._smoke = paths, smoke
        self._loaded: dict[int, _Loaded] = {}
        self._kept: set[int] = set()
        self._locks: dict[int, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def names(self) -> dict[int, str]:
        """Return the loaded versions and their names in the engine."""
        return {number: entry.name for number, entry in sorted(self._loaded.items())}

    @asynccontextmanager
    async def using(self, number: int) -> AsyncIterator[str | None]:
        """Yield the version's name in the engine, usable inside the block; None is the base model."""
        if self._paths.get(number) is None:
            yield None
            return
        entry = await self._entry(number)
        entry.users += 1
        try:
            yield entry.name
        finally:
            entry.users -= 1
            self._tidy()

    @asynccontextmanager
    async def taking_up(self) -> AsyncIterator[None]:
        """Switch the live version inside the block; requests continue, since adapters are loaded beside each other."""
        yield

    async def settled(self) -> None:
        """Return at once: a switch does not block requests; see `taking_up`."""

    async def keep(self, number: int) -> None:
        """Load a version and keep it until `let_go`; raise ModelRefused if it cannot be loaded."""
        if self._paths.get(number) is None:
            return
        await self._entry(number)
        self._kept.add(number)

    def let_go(self, number: int) -> None:
        """Release a version, so that it may be unloaded once no request uses it."""
        self._kept.discard(number)
        self._tidy()

    def forgotten(self, number: int) -> None:
        """Drop a version that the engine no longer has, so that the next request loads it again."""
        entry = self._loaded.pop(number, None)
        if entry is not None:
            entry.gone = True
            self._later(self._delete(entry, unload=False))

    def returned(self, known: Collection[str]) -> None:
        """Drop the versions that a restarted engine does not report among its ``known`` names."""
        for number, name in self.names.items():
            if name not in known:
                self.forgotten(number)

    async def close(self, *, unload: bool) -> None:
        """Unload the adapters from an engine that continues to run, and remove the folders."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if unload:
            for entry in self._loaded.values():
                try:
                    await self._unload(entry)
                except BackendDown:
                    break
        self._loaded.clear()
        await asyncio.to_thread(self._sweep)

    def _sweep(self) -> None:
        """Remove this process's folders, and those of processes that ended without cleanup."""
        if not self._folder.parent.is_dir():
            return
        for folder in self._folder.parent.iterdir():
            if folder == self._folder or not _runs(folder.name):
                shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # other processes still have folders in it
            self._folder.parent.rmdir()

    async def _entry(self, number: int) -> _Loaded:
        async with self._locks.setdefault(number, asyncio.Lock()):
            entry = self._loaded.get(number)
            if entry is None:
                entry = self._loaded[number] = await self._load(number)
            return entry

    async def _load(self, number: int) -> _Loaded:
        path = self._paths[number]
        assert path is not None
        if not await asyncio.to_thread(Path(path).is_dir):
            raise RequestError(f"the weights of version {number} are no longer kept", field="model", status=404)
        name = f"openclaw-v{number}-{secrets.token_hex(3)}"
        entry = _Loaded(number, name, self._folder / name)
        await asyncio.to_thread(_linked, Path(path), entry.folder)
        try:
            await self._ask_to_load(entry)
            await self._smoke(name)
        except BackendDown:
            raise
        except BackendError:
            self._later(self._delete(entry, unload=True))
            raise
        log.info("engine.adapter loaded version=%d name=%s", number, name)
        return entry

    async def _ask_to_load(self, entry: _Loaded) -> None:
        answer = await self._http.post(*self._dialect.load_request(entry.name, str(entry.folder)), seconds=120)
        reason = self._dialect.loaded(answer)
        if reason is not None:
            raise ModelRefused(
                f"the engine cannot load version {entry.number}: {reason}",
                remedy="is it the adapter of this base model, and of a rank that the engine was started for?",
            )

    def _tidy(self) -> None:
        """Unload idle unreferenced versions, except the newest `SPARE`."""
        idle = [number for number, entry in self._loaded.items() if number not in self._kept and not entry.users]
        for number in sorted(idle)[: max(0, len(idle) - SPARE)]:
            entry = self._loaded.pop(number)
            entry.gone = True
            self._later(self._delete(entry, unload=True))

    async def _unload(self, entry: _Loaded) -> None:
        answer = await self._http.post(*self._dialect.unload_request(entry.name), seconds=60)
        reason = self._dialect.loaded(answer)
        if reason is not None:
            log.warning("engine.adapter not unloaded name=%s: %s", entry.name, reason)

    async def _delete(self, entry: _Loaded, *, unload: bool) -> None:
        try:
            if unload:
                await self._unload(entry)
            await asyncio.sleep(GRACE)
        except BackendDown as error:  # an engine that has ended holds no adapters
            log.debug("engine.adapter %s was not unloaded: %s", entry.name, error)
        await asyncio.to_thread(shutil.rmtree, entry.folder, ignore_errors=True)

    def _later(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _runs(name: str) -> bool:
    """Return True if the process that a folder is named after is running."""
    return name.isdigit() and is_running(int(name))


def _linked(source: Path, target: Path) -> None:
    """Put the same files into another folder as hard links, or as copies where the file system has none."""
    target.mkdir(parents=True)
    for file in source.iterdir():
        if not file.is_file():
            continue
        try:
            os.link(file, target / file.name)
        except OSError:
            shutil.copy2(file, target / file.name)


PATIENCE: Final = 5.0
"""seconds in which requests for the live version precede one for another version"""
LINGER: Final = 1.0
"""seconds without a request before the engine returns to the live version"""
_SECONDS: Final = 1800.0
"""seconds to read the largest model from disk"""


@dataclass(eq=False, slots=True)
class _Waiting:
    place: str
    since: float = field(default_factory=time.monotonic)
    turn: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class WeightStore:
    """The version in the engine, and the queue for others.

    ``paths`` maps versions to directories, None for the base model, whose directory is ``base``; ``live`` returns the
    version with priority.
    """

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
        """the folder of the weights in the engine; None if unknown"""
        self._users = 0
        self._queue: list[_Waiting] = []
        self._change: asyncio.Task[None] | None = None
        self._home: asyncio.TimerHandle | None = None
        self._loads = 0
        self._moved = asyncio.Event()

    @property
    def names(self) -> dict[int, str]:
        """Return the version in the engine, as its own model."""
        numbers = [number for number in self._paths if self._place(number) == self._held]
        return {max(numbers): "base"} if numbers else {}

    @asynccontextmanager
    async def using(self, number: int) -> AsyncIterator[None]:
        """Keep a version in the engine for the block's duration."""
        await self._enter(self._place(number))
        try:
            yield
        finally:
            self._users -= 1
            self._go_on()

    @asynccontextmanager
    async def taking_up(self) -> AsyncIterator[None]:
        """Hold requests without a version while the block switches the live one; start when idle or after PATIENCE."""
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
        """Check that a version can be loaded; raise ModelRefused if it cannot."""
        async with self.using(number):
            pass

    def let_go(self, number: int) -> None:
        """Do nothing: the engine keeps the version that was requested last."""

    def forgotten(self, number: int) -> None:
        """Do nothing: the engine always has its own model."""

    def returned(self, known: Collection[str]) -> None:
        """Mark the engine's weights as unknown, since it may have been replaced."""
        self._held = None

    async def close(self, *, unload: bool) -> None:
        """Restore an engine's own weights if it continues to run."""
        if self._home is not None:
            self._home.cancel()
        if self._change is not None:
            self._change.cancel()
            await asyncio.wait([self._change])
        if unload and self._held != self._base:
            with suppress(BackendError):
                await self._ask_to_load(self._base)

    # --- the queue

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
        """Return True if a request for the current version may precede those that wait for another."""
        if not self._queue:
            return True
        is_live = self._held == self._place(self._live())
        return is_live and time.monotonic() - self._queue[0].since < PATIENCE

    def _go_on(self) -> None:
        """Admit the next requests; change the weights if they need others and the current ones are idle."""
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
        """Admit all requests that wait for these weights; with ``why``, fail them with this error."""
        for waiting in [request for request in self._queue if request.place == place]:
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
        except Exception as error:  # raised in each request that waits for these weights; the next request tries again
            self._let_in(place, error)
        finally:
            self._change = None
            self._go_on()

    def _go_home(self) -> None:
        """Return to the live version while the engine is idle: the next request likely needs it."""
        home = self._place(self._live())
        if self._held not in (home, None) and self._change is None and not self._users and not self._queue:
            self._begin_change(home)

    async def _ask_to_load(self, place: str) -> None:
        if not await asyncio.to_thread(Path(place).is_dir):
            raise RequestError(f"the weights in {place} are no longer kept", field="model", status=404)
        began = time.monotonic()
        for path, body in self._dialect.reload_requests(place):
            answer = await self._http.post(path, body, seconds=_SECONDS)
            reason = self._dialect.reloaded(answer)
            if reason is not None:
                raise ModelRefused(
                    f"the engine cannot read the weights in {place}: {reason}", remedy=self._dialect.reload_remedy
                )
        await self._smoke(None)
        log.info("engine.weights %s seconds=%.1f", place, time.monotonic() - began)

    async def _until(self, settled: Callable[[], bool]) -> None:
        while not settled():
            self._moved.clear()
            await self._moved.wait()
