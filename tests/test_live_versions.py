"""The versions room alone says which version is live, for whom, and what becomes of the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw_rl.errors import NotInLedger
from openclaw_rl.store import TrainLedger
from openclaw_rl.testing import MemoryVersions
from openclaw_rl.types import Version
from openclaw_rl.versions import LiveVersions, VersionManager


def version(number: int, parent: int, adapter: str | None = None, state: str = "live") -> Version:
    return Version(number=number, parent=parent, base="b", adapter=adapter or f"/v{number}", state=state)  # type: ignore[arg-type]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[TrainLedger]:
    with TrainLedger(tmp_path / "ledger.db", sync="normal") as found:
        yield found


@pytest.fixture
def versions(ledger: TrainLedger) -> VersionManager:
    """A run whose version 1 is live and whose version 2 waits for the gate."""
    manager = VersionManager(ledger)
    manager.begin("b")
    ledger.add_version(version(1, 0))
    ledger.add_version(version(2, 1, state="candidate"))
    return manager


def test_before_the_first_version_none_is_live_for_anybody() -> None:
    found = LiveVersions(MemoryVersions())
    assert (found.live(), found.live("ann"), found.candidate()) == (None, None, None)
    with pytest.raises(NotInLedger, match="no version is live yet"):
        found.rollback_target(None)


def test_one_version_is_live_for_everybody(versions: VersionManager) -> None:
    assert {versions.current(user).number for user in (None, "ann", "bob")} == {1}


def test_a_candidate_is_live_once_it_is_promoted_and_never_if_it_is_refused(versions: VersionManager) -> None:
    waiting = versions.candidate()
    assert waiting is not None
    versions.refuse(waiting, "too short")
    assert (versions.current().number, versions.candidate(), versions.ever("refused")) == (1, None, {2})
    versions.promote(waiting, "short after all")
    assert (versions.current().number, versions.version(2).state) == (2, "live")


def test_a_rollback_is_a_new_version_with_older_weights_and_knows_its_request(versions: VersionManager) -> None:
    again = versions.roll_back(None, "too terse", request=7)
    assert (again.number, again.parent, again.adapter, again.origin, again.request) == (3, 0, None, "rollback", 7)
    assert (versions.current(), versions.version(1).state) == (again, "rolled back")


def test_a_rollback_past_a_version_takes_every_one_of_its_line(ledger: TrainLedger, versions: VersionManager) -> None:
    versions.promote(versions.version(2), "passed")
    ledger.add_version(version(3, 2))
    again = versions.roll_back_past(2, to=1, reason="automatic: worse")
    assert (again.adapter, versions.ever("rolled back")) == (versions.version(1).adapter, {2, 3})
    assert [found.number for found in versions.ancestors(again)] == [1, 0]


def test_weights_that_are_gone_are_no_place_to_go_back_to(ledger: TrainLedger, versions: VersionManager) -> None:
    versions.promote(versions.version(2), "passed")
    ledger.set_state(1, "deleted", "retention")
    with pytest.raises(NotInLedger, match="the weights of version 1 are no longer kept"):
        versions.rollback_target(1)
    assert versions.rollback_target(None).number == 0
