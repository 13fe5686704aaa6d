"""The serving loop: takes up each new live version. Answering itself happens in the API."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from openclaw_rl.errors import NotInLedger
from openclaw_rl.ports import Policy, Recall
from openclaw_rl.types import Json, Version

log = logging.getLogger(__name__)


class Versions(Protocol):
    """Where versions are written down; their numbers follow one another."""

    def live_version(self) -> Version | None: ...

    def versions(self) -> list[Version]: ...

    def version(self, number: int) -> Version: ...


class ServeLoop:
    """Keeps the policy on the newest live version; requests in flight end on the one they began with.

    A policy that can recall versions is told of every one in the ledger, so that each can be asked for by its number,
    also those from before a restart.
    """

    name = "serve"

    def __init__(self, policy: Policy, ledger: Versions, *, alarms: Callable[[], list[dict[str, Json]]] = list) -> None:
        self._policy = policy
        self._alarms = alarms
        self._ledger = ledger
        self._newest: int | None = None

    async def tick(self) -> int:
        """1 if another version was taken up, 0 if there was nothing to do."""
        if isinstance(self._policy, Recall):
            for version in await asyncio.to_thread(self._unheard_of):
                self._policy.know(version)
                self._newest = version.number
        return await self._take_up()

    async def status(self) -> Mapping[str, Json]:
        """What `status` shows: what a person should look at."""
        return {"alarms": self._alarms()}

    async def _take_up(self) -> int:
        version = await asyncio.to_thread(self._ledger.live_version)
        if version is None or version.number == self._policy.live:
            return 0
        before = self._policy.live
        await self._policy.load(version)
        log.info("version taken up version=%d before=%d", version.number, before)
        return 1

    def _unheard_of(self) -> list[Version]:
        """Versions that the policy has not been told of, oldest first: all of them once, then what follows."""
        if self._newest is None:
            return self._ledger.versions()
        found: list[Version] = []
        while True:
            try:
                found.append(self._ledger.version(self._newest + len(found) + 1))
            except NotInLedger:
                return found
