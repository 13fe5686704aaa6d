"""From a candidate to a served version and back: gate decisions and automatic rollbacks are carried out here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from openclaw_rl.ports import Gate, GateDecision, LiveMonitor
from openclaw_rl.train.control import TrainingControl
from openclaw_rl.types import Version
from openclaw_rl.versions import VersionLedger, VersionManager

log = logging.getLogger(__name__)


class DecisionLedger(VersionLedger, Protocol):
    """Where decisions are written."""

    def pause(self, why: str) -> None: ...
    def add_gate_decision(self, decision: GateDecision) -> None: ...


class CandidateReview:
    """The candidate that waits for its decision, if there is one. ``held`` is why it still waits.

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
        """From now on this version waits for its decision."""
        self._candidate = candidate

    async def decided(self) -> bool:
        """Have the gate decide on the candidate; False while it waits, True if none waits any more."""
        candidate = self._candidate
        if candidate is None:
            return True
        live = await asyncio.to_thread(self._versions.current)
        rolled_back = await asyncio.to_thread(self._versions.ever, "rolled back")
        if candidate.parent in rolled_back:
            why = "what it was trained from was rolled back"
            await asyncio.to_thread(self._refuse, candidate, why, alarm=False)
        elif self._gate is None:
            await asyncio.to_thread(self._promote, candidate, "promoted: newest step")
        elif self._clock() < self._retry_at:
            return False
        else:
            decision = await self._control.during(self._gate.decide(candidate, live))
            if (await asyncio.to_thread(self._versions.current)).number != live.number:
                return False  # a rollback came meanwhile: the decision was made against another version
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
        """The live version goes on, and the next step begins from it; the candidate's turns stay used."""
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
    """Goes back when the monitor finds that what is served became worse; training then waits for a person."""

    def __init__(self, ledger: DecisionLedger, monitor: LiveMonitor | None) -> None:
        self._ledger = ledger
        self._versions = VersionManager(ledger)
        self._monitor = monitor

    def carry_out(self) -> bool:
        """Whether there was a regression; it is rolled back then, and training is paused."""
        regression = self._monitor.check() if self._monitor is not None else None
        if regression is None:
            return False
        reason = f"automatic: {regression.reason}"
        again = self._versions.roll_back_past(regression.version, regression.to, reason)
        self._ledger.pause(f"version {again.number} went back to {regression.to} automatically: {regression.reason}")
        log.error("version %d is rolled back automatically: %s", regression.version, regression.reason)
        return True
