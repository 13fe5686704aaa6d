"""The serving loop: takes up each new live version. Generation itself happens in the API."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from openclaw_rl.errors import BackendDown, BackendError, FatalRequest, NotInLedger
from openclaw_rl.ports import Policy, ReportsOutage, ReportsRunner, SupportsVersions
from openclaw_rl.types import Json, Version

log = logging.getLogger(__name__)

RETRY = 60.0
"""seconds until a version that could not be loaded is tried again"""


class VersionSource(Protocol):
    """Where versions are written down; their numbers follow one another."""

    def live(self, user: str | None = None) -> Version | None: ...

    def versions(self) -> list[Version]: ...

    def version(self, number: int) -> Version: ...

    def ancestors(self, version: Version) -> Iterable[Version]: ...


class ServeLoop:
    """Keeps the policy on the newest live version; requests in flight end on the one they began with.

    Where the live version cannot be loaded, the nearest one that it was trained from and that can be answers instead:
    turns are kept with the version that answered them, and `status` says so. It is tried again from time to time,
    unless the engine died of it. A policy that supports versions gets to know every one in the ledger, so that each can
    be requested by its number, also those from before a restart.
    """

    name = "serve"

    def __init__(
        self,
        policy: Policy,
        versions: VersionSource,
        *,
        alarms: Callable[[], list[dict[str, Json]]] = list,
        busy: Callable[[], bool] = lambda: False,
        load: Callable[[], Mapping[str, float]] = dict,
        url: Callable[[], str | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._policy = policy
        self._knowing = policy if isinstance(policy, SupportsVersions) else None
        self._alarms = alarms
        self._busy = busy
        self._load_now = load
        self._url = url
        self._versions = versions
        self._clock = clock
        self._newest: int | None = None
        self._unloadable: tuple[int, str] | None = None
        self._retry_at = 0.0

    async def tick(self) -> int:
        """1 if another version was taken up, 0 if there was nothing to do."""
        unknown, live = await asyncio.to_thread(self._look)
        for version in unknown:
            assert self._knowing is not None
            self._knowing.know(version)
            self._newest = version.number
        return await self._take_up(live)

    def _look(self) -> tuple[list[Version], Version | None]:
        """Versions that the policy is to know, and the live one: one visit to the ledger, as it is looked at often."""
        return self._unknown_versions() if self._knowing is not None else [], self._versions.live()

    async def _take_up(self, version: Version | None) -> int:
        if version is None or version.number == self._policy.live:
            self._unloadable = None
            return 0
        if self._unloadable is not None and self._unloadable[0] == version.number and self._clock() < self._retry_at:
            return 0
        error = await self._load(version)
        if error is None:
            self._unloadable = None
            return 1
        self._unloadable = (version.number, error.what)
        self._retry_at = math.inf if isinstance(error, FatalRequest) else self._clock() + RETRY
        for older in await asyncio.to_thread(self._before, version):
            if older.number == self._policy.live:
                return 0  # what answers now is the nearest that can be loaded
            if await self._load(older) is None:
                return 1
        return 0

    def _before(self, version: Version) -> list[Version]:
        """The versions that it was trained from, which were live before it; the newest first."""
        return [older for older in self._versions.ancestors(version) if older.state != "deleted"]

    async def _load(self, version: Version) -> BackendError | None:
        """Why it could not be loaded, None if it was; raises BackendDown, which is of no version's doing."""
        before = self._policy.live
        try:
            await self._policy.load(version)
        except BackendDown:
            raise
        except BackendError as error:
            log.error("version not loaded version=%d: %s", version.number, error)
            return error
        log.info("version taken up version=%d before=%d", version.number, before)
        return None

    async def status(self) -> Mapping[str, Json]:
        """What `status` shows: why nobody is answered, why another version than the live one answers, lost turns.

        ``busy`` tells other processes that somebody waits for a reply, ``load`` how many, and how much they got.
        And where it answers, and how the model is run, where the policy says it.
        """
        alarms = self._alarms()
        if isinstance(self._policy, ReportsOutage) and self._policy.outage:
            remedy = "see the log; it is tried again automatically, and at once by 'openclaw-rl rollback'"
            alarms.append({"what": self._policy.outage, "remedy": remedy})
        if self._unloadable is not None:
            number, why = self._unloadable
            what = f"version {number} is live but cannot be loaded, version {self._policy.live} answers: {why}"
            alarms.append({"what": what, "remedy": "restore its folder, or 'openclaw-rl rollback'"})
        runner = self._policy.runner if isinstance(self._policy, ReportsRunner) else None
        said = {"runner": runner, "url": self._url(), "load": dict(self._load_now())}
        return {"alarms": alarms, "busy": self._busy(), **{name: value for name, value in said.items() if value}}

    def _unknown_versions(self) -> list[Version]:
        """Versions that the policy does not know yet, oldest first: all of them once, then what follows."""
        if self._newest is None:
            return self._versions.versions()
        found: list[Version] = []
        while True:
            try:
                found.append(self._versions.version(self._newest + len(found) + 1))
            except NotInLedger:
                return found
