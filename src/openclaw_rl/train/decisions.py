"""Carry out gate decisions, automatic rollbacks and users' control requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from openclaw_rl.errors import NotInLedger
from openclaw_rl.ports import Gate, GateDecision, LiveMonitor
from openclaw_rl.types import ControlRequest, Version
from openclaw_rl.versions import VersionLedger, VersionManager

# Control requests during training, and the alarms that pause it.

log = logging.getLogger(__name__)
T = TypeVar("T")

POLL = 0.25
"""seconds between two checks for requests during a step or an examination"""


class ControlLedger(VersionLedger, Protocol):
    """Part of the ledger that requests are read from and act on."""

    def new_requests(self, limit: int) -> Sequence[ControlRequest]: ...
    def done_requests(self, seq: int) -> None: ...
    def pause(self, why: str) -> None: ...


class TrainingControl:
    """Executor of rollbacks, pauses and pins in their order; ``pause_after`` alarms in a row pause training."""

    def __init__(self, ledger: ControlLedger, *, pause_after: int) -> None:
        self._ledger = ledger
        self._versions = VersionManager(ledger)
        self._pause_after = pause_after
        self._alarms = 0

    def alarm(self, what: str) -> None:
        """Count an alarm; ``pause_after`` in a row pause training until it is resumed by hand."""
        self._alarms += 1
        if self._alarms >= self._pause_after:
            self._ledger.pause(f"{self._alarms} alarms in a row, the last: {what}")

    def clear_alarms(self) -> None:
        self._alarms = 0

    def carry_out_requests(self) -> int:
        """Carry out new requests; return their number."""
        requests = self._ledger.new_requests(16)
        for request in requests:
            try:
                self._carry_out(request)
            except NotInLedger as error:  # a request that cannot be met must not block those after it
                log.warning("request %d (%s) refused: %s", request.seq, request.command, error)
            self._ledger.done_requests(request.seq)
        return len(requests)

    async def during(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of ``work``; requests, such as a rollback, are carried out meanwhile."""
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


class DecisionLedger(VersionLedger, Protocol):
    """Part of the ledger that decisions are written to."""

    def pause(self, why: str) -> None: ...
    def add_gate_decision(self, decision: GateDecision) -> None: ...


class CandidateReview:
    """Review of the candidate that waits for a decision, if any; ``held`` is the decision that holds it.

    Without a ``gate`` every candidate is promoted. A held one is examined again after ``retry`` seconds.
    """

    def __init__(
        self,
        ledger: DecisionLedger,
        control: TrainingControl,
        *,
        gate: Gate | None,
        retry: float,
        clock: Callable[[], float],
    ) -> None:
        self._ledger = ledger
        self._versions = VersionManager(ledger)
        self._gate = gate
        self._control = control
        self._retry = retry
        self._clock = clock
        self._candidate: Version | None = None
        self._retry_at = 0.0
        self.held: GateDecision | None = None

    def offer(self, candidate: Version) -> None:
        """Queue this version for a decision."""
        self._candidate = candidate

    async def decided(self) -> bool:
        """Have the gate decide on the candidate; return False while one waits, True if none does."""
        candidate = self._candidate
        if candidate is None:
            return True
        live = await asyncio.to_thread(self._versions.current)
        rolled_back = await asyncio.to_thread(self._versions.ever, "rolled back")
        if candidate.parent in rolled_back:
            why = "its parent version was rolled back"
            await asyncio.to_thread(self._refuse, candidate, why, alarm=False)
        elif self._gate is None:
            await asyncio.to_thread(self._promote, candidate, "promoted: newest step")
        elif self._clock() < self._retry_at:
            return False
        else:
            decision = await self._control.during(self._gate.decide(candidate, live))
            if (await asyncio.to_thread(self._versions.current)).number != live.number:
                return False  # rolled back meanwhile: the decision compares with another version
            await asyncio.to_thread(self._carry_out, candidate, decision)
        return self._candidate is None

    def _carry_out(self, candidate: Version, decision: GateDecision) -> None:
        if self.held is None or (decision.decision, decision.reason) != (self.held.decision, self.held.reason):
            self._ledger.add_gate_decision(decision)
        if decision.decision == "hold":
            self.held, self._retry_at = decision, self._clock() + self._retry
            log.warning("version %d is held: %s", candidate.number, decision.reason)
        elif decision.decision == "refuse":
            self._refuse(candidate, decision.reason)
        else:
            self._promote(candidate, decision.reason)

    def _refuse(self, candidate: Version, why: str, *, alarm: bool = True) -> None:
        """Refuse the candidate: the next step starts from the live version; the candidate's turns stay used."""
        self._versions.refuse(candidate, why)
        log.warning("version %d is refused: %s", candidate.number, why)
        self._clear()
        if alarm:
            self._control.alarm(f"version {candidate.number} was refused: {why}")

    def _promote(self, candidate: Version, why: str) -> None:
        self._versions.promote(candidate, why)
        log.info("version %d is live (step %s)", candidate.number, candidate.step)
        self._clear()
        self._control.clear_alarms()

    def _clear(self) -> None:
        self._candidate = self.held = None
        self._retry_at = 0.0


class AutomaticRollback:
    """Rollback of a regression that the monitor reports; training then pauses until it is resumed by hand."""

    def __init__(self, ledger: DecisionLedger, monitor: LiveMonitor | None) -> None:
        self._ledger = ledger
        self._versions = VersionManager(ledger)
        self._monitor = monitor

    def carry_out(self) -> bool:
        """Roll back and pause training if there is a regression; return True if there was one."""
        regression = self._monitor.check() if self._monitor is not None else None
        if regression is None:
            return False
        reason = f"automatic: {regression.reason}"
        again = self._versions.roll_back_past(regression.version, regression.to, reason)
        self._ledger.pause(f"version {again.number} went back to {regression.to} automatically: {regression.reason}")
        log.error("version %d is rolled back automatically: %s", regression.version, regression.reason)
        return True
