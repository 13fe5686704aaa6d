"""What a person requests of a run while it trains, and the alarms that pause it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from openclaw_rl.errors import NotInLedger
from openclaw_rl.types import ControlRequest
from openclaw_rl.versions import VersionLedger, VersionManager

log = logging.getLogger(__name__)
T = TypeVar("T")

POLL = 0.25
"""seconds between two looks for requests while a step or an examination is under way"""


class ControlLedger(VersionLedger, Protocol):
    """Where requests are read, and what they change."""

    def new_requests(self, limit: int) -> Sequence[ControlRequest]: ...
    def done_requests(self, seq: int) -> None: ...
    def pause(self, why: str) -> None: ...


class TrainingControl:
    """Carries out rollbacks, pauses and pins in their order; ``pause_after`` alarms in a row pause training."""

    def __init__(self, ledger: ControlLedger, *, pause_after: int) -> None:
        self._ledger = ledger
        self._versions = VersionManager(ledger)
        self._pause_after = pause_after
        self._alarms = 0

    def alarm(self, what: str) -> None:
        """Count an alarm; the last of a row pauses training until a person resumes it."""
        self._alarms += 1
        if self._alarms >= self._pause_after:
            self._ledger.pause(f"{self._alarms} alarms in a row, the last: {what}")

    def clear_alarms(self) -> None:
        self._alarms = 0

    def carry_out_requests(self) -> int:
        """Carry out the requests that are new; how many."""
        requests = self._ledger.new_requests(16)
        for request in requests:
            try:
                self._carry_out(request)
            except NotInLedger as error:  # a request that cannot be met must not block those after it
                log.warning("request %d (%s) refused: %s", request.seq, request.command, error)
            self._ledger.done_requests(request.seq)
        return len(requests)

    async def during(self, work: Coroutine[Any, Any, T]) -> T:
        """What ``work`` gives. Meanwhile requests are carried out: nobody waits for a step in order to undo one."""
        task = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait({task}, timeout=POLL))[0]:
                await asyncio.to_thread(self.carry_out_requests)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
            raise
        return task.result()

    def _carry_out(self, request: ControlRequest) -> None:
        command = request.command
        if command == "rollback":
            self._versions.roll_back(request.version, request.reason, request=request.seq)
        elif command in ("pause", "resume"):  # the row itself is the state: see the ledger's `paused`
            self.clear_alarms()
            log.info("training: %s", command)
        elif command in ("pin turn", "unpin turn"):  # likewise: see `pinned_turns`
            log.info("turn %s: %s", request.turn, command)
        elif command in ("pin version", "unpin version"):  # likewise: see `pinned`
            log.info("version %s: %s", request.version, command)
        else:
            log.warning("request %d: no such command %r", request.seq, command)
