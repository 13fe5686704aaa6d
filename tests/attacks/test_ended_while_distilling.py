"""SIGTERM while a note is being distilled into the weights: it ends at once, and the next start does it anew, once."""

from __future__ import annotations

from pathlib import Path

import pytest
from system import System, Talker
from test_kill import assert_nothing_lost, settled

from openclaw_rl.backends.fake import read_rules
from openclaw_rl.store import LedgerReader
from openclaw_rl.testing import wait_until
from openclaw_rl.versions import LiveVersions

pytestmark = pytest.mark.slow

FOR_EVER = "train.options.seconds=3600"
"""a step of the trainer that no end waits for"""


def test_an_end_in_the_middle_waits_for_no_step_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An end that waited for the step under way would take an hour; `System.end` gives it a minute."""
    monkeypatch.setattr("system.WISHES", ("Please don't use bullet points.", "Thanks, that's perfect!"))
    answered = set[str]()
    talk(System(tmp_path, "train.prompt_distillation.enabled=false"), answered)
    stuck, quick = System(tmp_path, FOR_EVER), System(tmp_path)
    stuck.start()
    try:
        with LedgerReader(tmp_path / "ledger.db") as ledger:
            wait_until(lambda: in_state(ledger, "learning") != [])
            [begun] = in_state(ledger, "learning")
            assert stuck.end() == 0
            assert ledger.distillations() == [], "nothing is written before its end"
            before = ledger.last_step()
        quick.start()
        with LedgerReader(tmp_path / "ledger.db") as ledger:
            wait_until(lambda: begun in in_state(ledger, "learned"))
            assert quick.end() == 0
    finally:
        for system in (stuck, quick):
            if hasattr(system, "process") and system.process.poll() is None:
                system.kill()
    with LedgerReader(tmp_path / "ledger.db") as ledger:
        [distillation] = ledger.distillations(begun)
        assert distillation.learned
        assert before is not None
        assert distillation.step > before.number
        live = LiveVersions(ledger).live()
        assert live is not None
        assert read_rules(str(live.adapter)).count(ledger.note(begun).text) == 1
        assert_nothing_lost(ledger, answered)
    assert not (tmp_path / "versions" / "distillation").exists(), "the folder of the one that was ended is gone"


def in_state(ledger: LedgerReader, state: str) -> list[int]:
    return [note.number for note in ledger.notes() if note.state == state]


def talk(system: System, answered: set[str]) -> None:
    """Turns that are trained before, and notes that wait to be distilled."""
    url = system.start()
    talker = Talker("u1", answered)
    talker.url = url
    talker.start()
    wait_until(lambda: len(answered) >= 30)
    talker.over = True
    talker.join(timeout=30)
    with LedgerReader(system.root / "ledger.db") as ledger:
        wait_until(lambda: len(ledger.versions()) > 5 and settled(ledger) and bool(in_state(ledger, "in force")))
    assert system.end() == 0
