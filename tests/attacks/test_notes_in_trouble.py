"""Notes on a clock that jumps back and on a disk without room: nothing lost, nothing made twice, nothing counted wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw_rl.errors import LedgerDown
from openclaw_rl.notes import NewNote, NotesBook
from openclaw_rl.store import NotesLedger
from openclaw_rl.testing import TemporaryLedger
from openclaw_rl.types import Hint


def nothing(_text: str, _reply: str) -> Hint | None:
    return None


@pytest.fixture
def run(tmp_path: Path) -> Iterator[tuple[TemporaryLedger, NotesLedger, NotesBook]]:
    with TemporaryLedger(tmp_path) as ledger, NotesLedger(ledger.path) as notes:
        yield ledger, notes, NotesBook(notes)


def test_changes_of_a_note_stay_in_order_on_a_clock_that_jumps_back(
    run: tuple[TemporaryLedger, NotesLedger, NotesBook], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Distillations since the last change are counted by time: one that seemed older would count for ever, or never."""
    book = run[2]
    monkeypatch.setattr(time, "time", lambda: 1_000.0)
    note = book.add(NewNote(user="ann", text="Answer in one sentence.", by="user", reason="by hand")).note
    book.advance(note.number, "learned", "version 3 does it")
    monkeypatch.setattr(time, "time", lambda: 500.0)
    book.advance(note.number, "in force", "the complaint came again")
    monkeypatch.setattr(time, "time", lambda: 2_000.0)
    book.switch(note.number, False, reason="by hand")
    times = [change.at for change in book.history(note.number)]
    assert times == sorted(set(times)), "each later than the one before"
    assert times[0] == 1_000.0
    assert times[-1] == 2_000.0
    assert book.note(note.number).state == "off"


def test_notes_are_taken_once_on_a_clock_that_jumps_back(
    run: tuple[TemporaryLedger, NotesLedger, NotesBook], monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, _, book = run
    ledger.add(-1.0, "Answer in one sentence.", user="ann")
    assert len(book.take(64, nothing)) == 1
    monkeypatch.setattr(time, "time", lambda: 500.0)
    ledger.add(-1.0, "Use metric units.", user="ann")
    assert [added.note.text for added in book.take(64, nothing)] == ["Use metric units."]
    assert book.take(64, nothing) == []


def test_a_full_disk_leaves_a_note_that_is_being_taught_as_it_was_and_training_goes_on_later(
    run: tuple[TemporaryLedger, NotesLedger, NotesBook],
) -> None:
    ledger, notes, book = run
    ledger.add(-1.0, "Answer in one sentence.", user="ann")
    [added] = book.take(64, nothing)
    book.advance(added.note.number, "learning", "32 prompts, step 4")
    ledger.add(-1.0, *(f"Never mention topic{number} {'x' * 500}" for number in range(12)), user="ann")
    notes.row("PRAGMA max_page_count = 1")
    with pytest.raises(LedgerDown, match="no room left"):
        book.take(64, nothing)
    assert book.note(added.note.number).state == "learning"
    notes.row("PRAGMA max_page_count = 1000000")
    assert len(book.take(64, nothing)) == 12, "what was said meanwhile is taken whole, and once"
    assert book.take(64, nothing) == []
    assert book.advance(added.note.number, "in force", "the complaint came again")
