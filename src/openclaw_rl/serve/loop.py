"""The serving loop: takes up each new live version. Answering itself happens in the API."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from openclaw_rl.ports import Policy
from openclaw_rl.types import Version

log = logging.getLogger(__name__)


class Versions(Protocol):
    """Where the live version is written down."""

    def live_version(self) -> Version | None: ...


class ServeLoop:
    """Keeps the policy on the newest live version; requests in flight end on the one they began with."""

    name = "serve"

    def __init__(self, policy: Policy, ledger: Versions) -> None:
        self._policy = policy
        self._ledger = ledger

    async def tick(self) -> int:
        """1 if another version was taken up, 0 if there was nothing to do."""
        version = await asyncio.to_thread(self._ledger.live_version)
        if version is None or version.number == self._policy.live:
            return 0
        before = self._policy.live
        await self._policy.load(version)
        log.info("version taken up version=%d before=%d", version.number, before)
        return 1
