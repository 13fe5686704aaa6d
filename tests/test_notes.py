"""Standing notes: made once, in force at once, and every change of them is kept with its reason."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from test_store import of_layout_6

from openclaw_rl.errors import InvalidValue, NotInLedger
from openclaw_rl.notes import NewNote, NotesBook
from openclaw_rl.store import NotesLedger
from openclaw_rl.testing import TemporaryLedger, make_turn, make_verdict
from openclaw_rl.types import Feedback, Hint, Note, PromptNote


@pytest.fixture
def book(tmp_path: Path) -> Iterator[NotesBook]:
    with NotesLedger(tmp_path / "ledger.db") as ledger:
        yield NotesBook(ledger)


def told(book: NotesBook, user: str, text: str, **more: Any) -> Note:
    return book.add(NewNote(user=user, text=text, by="judge", reason="the user said it", **more)).note


def texts(notes: list[Note]) -> list[str]:
    return [note.text for note in notes]


def test_a_note_is_in_force_at_once_and_is_its_users_alone(book: NotesBook) -> None:
    told(book, "ann", "Answer in one sentence.")
    told(book, "bob", "Answer in full detail.")
    assert texts(book.in_force("ann")) == ["Answer in one sentence."]
    assert texts(book.in_force("bob")) == ["Answer in full detail."]
    assert book.in_force("cid") == []
    assert texts(book.all()) == ["Answer in one sentence.", "Answer in full detail."]


def test_rules_come_before_facts_and_the_newest_first(book: NotesBook) -> None:
    told(book, "ann", "I am vegetarian.", kind="fact")
    told(book, "ann", "Answer in one sentence.")
    told(book, "ann", "My dog is called Rex.", kind="fact")
    told(book, "ann", "Use metric units.")
    assert texts(book.in_force("ann")) == [
        "Use metric units.",
        "Answer in one sentence.",
        "My dog is called Rex.",
        "I am vegetarian.",
    ]


def test_training_retires_a_note_and_brings_it_back_each_with_its_reason(book: NotesBook) -> None:
    note = told(book, "ann", "Answer in one sentence.", turn="t1")
    assert book.advance(note.number, "learning", "32 prompts, step 4")
    assert texts(book.in_force("ann")) == ["Answer in one sentence."]
    assert book.advance(note.number, "learned", "version 3 answers alike without it")
    assert (book.in_force("ann"), book.note(note.number).state) == ([], "learned")
    assert book.advance(note.number, "in force", "the complaint came again")
    assert texts(book.in_force("ann")) == ["Answer in one sentence."]
    assert [(change.state, change.by, change.reason) for change in book.history(note.number)] == [
        ("in force", "judge", "the user said it"),
        ("learning", "trainer", "32 prompts, step 4"),
        ("learned", "trainer", "version 3 answers alike without it"),
        ("in force", "trainer", "the complaint came again"),
    ]


def test_training_cannot_move_a_note_that_its_user_took_away(book: NotesBook) -> None:
    note = told(book, "ann", "Answer in one sentence.")
    book.switch(note.number, False, reason="not today")
    assert not book.advance(note.number, "learned", "late")
    assert book.note(note.number).state == "off"
    assert book.switch(note.number, True, reason="again").state == "in force"
    assert not book.advance(note.number, "in force", "already there")
    assert len(book.history(note.number)) == 3
    book.remove(note.number, reason="no longer")
    assert not book.advance(note.number, "learning", "late")
    assert book.all("ann") == []


def test_training_can_neither_remove_nor_switch_off_a_note(book: NotesBook) -> None:
    note = told(book, "ann", "Answer in one sentence.")
    with pytest.raises(InvalidValue, match="training cannot make a note 'off'"):
        book.advance(note.number, "off", "no")


def test_an_edited_note_is_a_new_one_that_replaces_it(book: NotesBook) -> None:
    old = told(book, "ann", "Answer in one sentence.", turn="t1")
    new = book.edit(old.number, "Answer in two\n sentences.").note
    assert (new.text, new.turn, new.user, new.state) == ("Answer in two sentences.", "t1", "ann", "in force")
    gone = book.note(old.number)
    assert (gone.state, gone.replaced_by) == ("replaced", new.number)
    assert texts(book.in_force("ann")) == ["Answer in two sentences."]


def test_a_removed_note_comes_back_in_no_way(book: NotesBook) -> None:
    note = told(book, "ann", "Answer in one sentence.")
    book.remove(note.number, reason="gone")
    for attempt in (
        lambda: book.switch(note.number, True, reason="again"),
        lambda: book.edit(note.number, "Answer in two sentences."),
    ):
        with pytest.raises(InvalidValue, match="was removed; add a new one"):
            attempt()
    with pytest.raises(NotInLedger, match="there is no note 99; 'openclaw-rl notes' lists them"):
        book.note(99)


def test_a_user_switches_all_notes_off_and_on(book: NotesBook) -> None:
    told(book, "ann", "Answer in one sentence.")
    told(book, "bob", "Answer in full detail.")
    book.enable("ann", False, reason="by hand")
    told(book, "ann", "Use metric units.")
    assert (book.enabled("ann"), book.in_force("ann")) == (False, [])
    assert texts(book.in_force("bob")) == ["Answer in full detail."]
    book.enable("ann", True, reason="by hand")
    assert texts(book.in_force("ann")) == ["Use metric units.", "Answer in one sentence."]


def test_several_processes_may_write_notes_beside_each_other(tmp_path: Path) -> None:
    with TemporaryLedger(tmp_path) as ledger, NotesLedger(ledger.path) as one, NotesLedger(ledger.path) as two:
        told(NotesBook(one), "ann", "Answer in one sentence.")
        told(NotesBook(two), "ann", "Use metric units.")
        assert texts(ledger.serve.notes("ann")) == ["Answer in one sentence.", "Use metric units."]


def test_a_turn_keeps_what_was_put_into_its_prompt(tmp_path: Path) -> None:
    noted = PromptNote(text="Keep in mind: Answer in one sentence.", notes=(1, 4))
    turn = make_turn("hello", noted=noted)
    with TemporaryLedger(tmp_path) as ledger:
        ledger.serve.add_turn(turn)
        ledger.serve.add_turn(make_turn("hello"))
        assert ledger.serve.turn(turn.id) == turn


def test_what_was_judged_before_there_were_notes_makes_none(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    of_layout_6(path)
    with NotesLedger(path) as ledger, closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM verdicts").fetchone()[0] > 0
        assert ledger.new_hints(9) == []


def nothing(_text: str, _reply: str) -> Hint | None:
    return None


def taken(book: NotesBook) -> list[tuple[str, str]]:
    return [(added.note.user, added.note.text) for added in book.take(64, nothing)]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[tuple[TemporaryLedger, NotesBook]]:
    with TemporaryLedger(tmp_path) as ledger, NotesLedger(ledger.path) as notes:
        yield ledger, NotesBook(notes)


def test_rules_and_facts_of_a_verdict_become_notes_once_and_complaints_do_not(
    run: tuple[TemporaryLedger, NotesBook],
) -> None:
    ledger, book = run
    rule, fact = Hint(text="Answer in one sentence."), Hint(text="The file is b.txt.", kind="fact")
    turn = ledger.add(-1.0, rule, fact, Hint(text="Wrong, again!", kind="complaint"), user="ann")
    assert taken(book) == [("ann", "Answer in one sentence."), ("ann", "The file is b.txt.")]
    assert taken(book) == []
    assert [note.turn for note in book.all("ann")] == [turn.id, turn.id]
    ledger.judge.add_verdicts([make_verdict(turn, -1.0, hints=(rule,))])  # judged again: nothing new was said
    assert taken(book) == []


@pytest.mark.parametrize(
    ("turn", "outcome"),
    [({"user": "env:terminal"}, {}), ({"trainable": False}, {}), ({}, {"kind": "side", "kind_reason": "a title"})],
    ids=["environment", "opted out", "side turn"],
)
def test_no_note_is_made_of_what_may_not_be_kept(
    run: tuple[TemporaryLedger, NotesBook], turn: dict[str, Any], outcome: dict[str, Any]
) -> None:
    ledger, book = run
    ledger.add(-1.0, "Answer in one sentence.", outcome=outcome, **turn)
    assert taken(book) == []
    assert book.all() == []


def test_the_newer_note_replaces_the_one_it_contradicts_and_says_so(run: tuple[TemporaryLedger, NotesBook]) -> None:
    ledger, book = run
    ledger.add(-1.0, "Answer in one sentence.", user="ann")
    ledger.add(-1.0, "Use metric units.", user="ann")
    ledger.add(-1.0, "Answer in one sentence.", user="bob")
    book.take(64, nothing)
    ledger.add(-1.0, "Answer in full detail.", user="ann")
    [added] = book.take(64, nothing)
    assert [note.text for note in added.replaced] == ["Answer in one sentence."]
    assert book.history(added.replaced[0].number)[-1].reason == f"note {added.note.number} says otherwise"
    assert texts(book.in_force("ann")) == ["Answer in full detail.", "Use metric units."]
    assert texts(book.in_force("bob")) == ["Answer in one sentence."]


def test_who_says_again_what_was_learned_has_the_note_back(run: tuple[TemporaryLedger, NotesBook]) -> None:
    ledger, book = run
    ledger.add(-1.0, "Answer in one sentence.", user="ann")
    [added] = book.take(64, nothing)
    book.advance(added.note.number, "learned", "version 3 does it")
    ledger.add(-1.0, "answer in ONE sentence", user="ann")
    assert taken(book) == []
    assert texts(book.in_force("ann")) == ["Answer in one sentence."]
    assert book.history(added.note.number)[-1].reason == "the user said it again"


def test_what_is_put_into_a_prompt_alike_is_one_note(run: tuple[TemporaryLedger, NotesBook]) -> None:
    ledger, book = run
    for said in ("I prefer a bulleted list.", "Please answer with a bulleted list.", "Please use a numbered list."):
        ledger.add(-1.0, said, user="ann")
    assert taken(book) == [("ann", "I prefer a bulleted list."), ("ann", "Please use a numbered list.")]
    assert texts(book.in_force("ann")) == ["Please use a numbered list."]


def test_a_vague_rule_does_not_stand_beside_one_with_a_measure(run: tuple[TemporaryLedger, NotesBook]) -> None:
    ledger, book = run
    ledger.add(-1.0, "Answer in under 30 words.", user="ann")
    ledger.add(-1.0, Hint(text="Please keep it shorter.", vague=True), user="ann")
    assert taken(book) == [("ann", "Answer in under 30 words.")]


def test_what_is_said_outright_is_a_note_before_anything_else_is_said(run: tuple[TemporaryLedger, NotesBook]) -> None:
    ledger, book = run
    turn, world = make_turn(user="ann"), make_turn(user="env:terminal")
    for one in (turn, world):
        ledger.serve.add_turn(one)
        ledger.serve.add_feedback(Feedback(turn=one.id, hint="Answer in one sentence."))
    ledger.serve.add_feedback(Feedback(turn=turn.id, score=1.0))

    def read(text: str, reply: str) -> Hint | None:
        assert reply == turn.completion.reply.content
        return Hint(text=text)

    assert [added.note.text for added in book.take(64, read)] == ["Answer in one sentence."]
    assert book.take(64, read) == []
    assert texts(book.in_force("ann")) == ["Answer in one sentence."]
