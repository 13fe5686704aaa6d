"""The parts of the train loop, each alone: alarms that pause, a candidate that is held, a rollback nobody asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw_rl.ports import Decision, GateDecision, Regression
from openclaw_rl.store import TrainLedger, submit_request
from openclaw_rl.train.decisions import AutomaticRollback, CandidateReview, TrainingControl
from openclaw_rl.types import Version
from openclaw_rl.versions import LiveVersions


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[TrainLedger]:
    """Versions 0 and 1 were live, 2 is live."""
    with TrainLedger(tmp_path / "ledger.db", sync="normal") as found:
        found.add_version(Version(number=0, parent=None, base="fake", state="live"))
        for number in (1, 2):
            made = Version(number=number, parent=number - 1, base="fake", adapter=f"/v{number}", state="live")
            found.add_version(made)
        yield found


def test_alarms_in_a_row_pause_and_one_that_is_cleared_begins_a_new_row(ledger: TrainLedger) -> None:
    control = TrainingControl(ledger, pause_after=2)
    control.alarm("first")
    control.clear_alarms()
    control.alarm("second")
    assert ledger.paused() is None
    control.alarm("third")
    assert ledger.paused() == "2 alarms in a row, the last: third"


def test_a_command_that_nobody_knows_is_passed_by(ledger: TrainLedger, tmp_path: Path) -> None:
    submit_request(tmp_path / "ledger.db", "sing")
    submit_request(tmp_path / "ledger.db", "rollback", version=0)
    control = TrainingControl(ledger, pause_after=3)
    assert control.carry_out_requests() == 2
    assert control.carry_out_requests() == 0
    live = LiveVersions(ledger).live()
    assert live is not None
    assert (live.number, live.adapter) == (3, None)


class Scripted:
    """A gate that gives these decisions, one after the other."""

    def __init__(self, *decisions: Decision) -> None:
        self.decisions = list(decisions)

    async def decide(self, candidate: Version, live: Version) -> GateDecision:
        decision = self.decisions.pop(0)
        return GateDecision(version=candidate.number, against=live.number, decision=decision, reason="", evidence={})


@pytest.mark.anyio
async def test_a_held_candidate_is_examined_again_when_its_time_has_come(ledger: TrainLedger) -> None:
    now = [100.0]
    review = CandidateReview(
        ledger,
        TrainingControl(ledger, pause_after=3),
        gate=Scripted("hold", "hold", "promote"),
        retry=30.0,
        clock=lambda: now[0],
    )
    assert await review.decided(), "nothing waits"
    candidate = Version(number=3, parent=2, base="fake", adapter="/v3")
    ledger.add_version(candidate)
    review.offer(candidate)
    assert not await review.decided()
    assert review.held is not None
    now[0] += 29
    assert not await review.decided(), "it is not examined yet"
    now[0] += 1
    assert not await review.decided()
    assert len(ledger.gate_decisions(3)) == 1, "the same decision is written once"
    now[0] += 30
    assert await review.decided()
    assert review.held is None
    assert ledger.version(3).state == "live"


class Worse:
    """A monitor that finds a regression since a version."""

    def __init__(self, version: int, to: int) -> None:
        self.found: Regression | None = Regression(version=version, to=to, reason="6 of 6 bad", evidence={})

    def check(self) -> Regression | None:
        found, self.found = self.found, None
        return found


def test_an_automatic_rollback_takes_what_was_built_on_the_regression_with_it(ledger: TrainLedger) -> None:
    rollback = AutomaticRollback(ledger, Worse(1, to=0))
    assert rollback.carry_out()
    assert [ledger.version(number).state for number in (1, 2)] == ["rolled back", "rolled back"]
    live = LiveVersions(ledger).live()
    assert live is not None
    assert (live.number, live.parent, live.adapter) == (3, 0, None)
    assert ledger.paused() == "version 3 went back to 0 automatically: 6 of 6 bad"
    assert not rollback.carry_out()
