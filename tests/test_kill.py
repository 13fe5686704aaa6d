"""``kill -9`` of the whole system, fifty times, under load and commands: no answered turn is lost, none trains twice."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from system import Commander, System, Talker

from openclaw_rl.backends.fake import read_turns
from openclaw_rl.store import LedgerReader
from openclaw_rl.testing import wait_until
from openclaw_rl.types import Version
from openclaw_rl.versions import LiveVersions

KILLS = 50
COMMANDS = ("pause", "resume", "resume", "rollback", "pin 0", "unpin 0", "status")


@pytest.mark.slow
def test_fifty_kills_under_load_lose_no_answered_turn_and_train_none_twice(tmp_path: Path, system: System) -> None:
    answered, rng, commander = set[str](), random.Random(11), Commander(tmp_path)
    talkers = [Talker(name, answered) for name in ("u1", "u2", "u3")]
    for talker in talkers:
        talker.start()
    for _ in range(KILLS):
        url = system.start(forked=True)
        for talker in talkers:
            talker.url = url
        commander.type(rng.choice(COMMANDS))
        time.sleep(rng.uniform(0.0, 0.5))
        system.kill()
        for talker in talkers:
            talker.url = None
    before = len(answered)
    url = system.start()
    commander.type("resume")
    assert commander.end() == []
    for talker in talkers:
        talker.url = url
    wait_until(lambda: len(answered) >= before + 30)  # the system goes on
    for talker in talkers:
        talker.over = True
    for talker in talkers:
        talker.join(timeout=30)
    with LedgerReader(tmp_path / "ledger.db") as ledger:
        wait_until(lambda: settled(ledger))  # and so do the loops behind the API
    assert system.end() == 0

    assert before >= KILLS, "the load was too thin to prove anything"
    with LedgerReader(tmp_path / "ledger.db") as ledger:
        assert_nothing_lost(ledger, answered)


def assert_nothing_lost(ledger: LedgerReader, answered: set[str]) -> None:
    """Every answered turn is kept once, and the weights that are live saw each turn that they were trained on once."""
    assert ledger.check() == []
    kept = [row["id"] for row in ledger.rows("SELECT id FROM turns")]
    assert len(kept) == len(set(kept))
    assert answered <= set(kept), f"{len(answered - set(kept))} answered turns are lost"
    live = LiveVersions(ledger).live()
    assert live is not None
    assert live.number >= 5
    inside = [turn for turn in read_turns(live.adapter or "") if not turn.startswith("distillation-")]
    assert len(inside) == len(set(inside)), "a turn went into the weights twice"
    assert sorted(inside) == sorted(trained(ledger, live)), "what the ledger says is what the weights saw"


def trained(ledger: LedgerReader, version: Version) -> set[str]:
    """The turns of every step that a version descends from."""
    turns = set(ledger.step(version.step).turns) if version.step is not None else set()
    return turns | (trained(ledger, ledger.version(version.parent)) if version.parent is not None else set())


def settled(ledger: LedgerReader) -> bool:
    """Whether everything that has a next state is judged, and everything judged is trained or dropped."""
    unread = ledger.rows(
        "SELECT seq FROM turns t WHERE t.seq > coalesce((SELECT seq FROM cursors WHERE name = 'turns'), 0)"
    )
    unjudged = ledger.rows("SELECT turn FROM outcomes WHERE turn NOT IN (SELECT turn FROM verdicts)")
    unused = ledger.rows(
        "SELECT turn FROM verdicts WHERE turn NOT IN (SELECT turn FROM trained) AND turn NOT IN (SELECT turn FROM drops)"
    )
    return not (unread or unjudged or unused)
