"""A note that was made by hand is forgotten by a command: its text leaves every row and the file."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from openclaw_rl.cli import cli
from openclaw_rl.errors import InvalidValue, NotInLedger
from openclaw_rl.notes import NewNote, NotesBook
from openclaw_rl.store import DeletionLedger, LedgerReader, NotesLedger, Place
from openclaw_rl.store.copying import TABLES
from openclaw_rl.store.stores import open_database
from openclaw_rl.testing import TemporaryLedger, ticking_app
from openclaw_rl.types import Distillation, PromptNote, Step, Version

pytestmark = pytest.mark.anyio

SECRET = "Never mention my divorce."
OTHER = "Answer in one sentence."


def rows(place: Place) -> list[str]:
    """Every row of every table, as text."""
    with closing(open_database(LedgerReader(place).place, "read")) as db:
        return [repr(dict(row)) for name in TABLES for row in db.rows(f"SELECT * FROM {name}")]


def make_notes(place: Place, *texts: str, turn: str | None = None) -> None:
    with NotesLedger(place) as ledger:
        for text in texts:
            NotesBook(ledger).add(NewNote(user="ann", text=text, turn=turn, by="user", reason="added by hand"))


def prompted(ledger: TemporaryLedger, *numbers: int) -> str:
    """A turn whose prompt held these of the two notes."""
    text = "\n".join((SECRET, OTHER)[number - 1] for number in numbers)
    return ledger.add(1.0, user="ann", noted=PromptNote(text=text, notes=numbers)).id


def test_the_text_of_a_forgotten_note_is_in_no_row_and_the_other_note_is_untouched(place: Place) -> None:
    with TemporaryLedger(place=place) as ledger:
        make_notes(place, SECRET, OTHER)
        both, other = prompted(ledger, 1, 2), prompted(ledger, 2)
        ledger.train.add_version(Version(number=0, parent=None, base="b", state="live"))
        ledger.train.add_distillation(
            Distillation(note=1, step=1, learned=False, evidence={"practised": SECRET, "steps": 1}),
            Step(number=1, turns=(), metrics={}, seconds=1.0),
            Version(number=1, parent=0, base="b", adapter="/a", step=1),
        )
        assert sum(SECRET[:-1] in row for row in rows(place)) == 3, "the note, a prompt and a distillation"
        before = ledger.train.turn(other)
        with DeletionLedger(place) as deleting:
            assert deleting.forget_note(1) == 1
        assert [row for row in rows(place) if "divorce" in row] == []
        turn = ledger.train.turn(both)
        assert turn.noted == PromptNote(text="(a forgotten note)", notes=(2,))
        assert turn.completion.prompt_tokens == (0,), "the tokens spelt the note"
        assert len(turn.completion.reply_tokens) == len(turn.completion.logprobs) > 0
        assert ledger.train.turn(other) == before
        assert [note.text for note in ledger.train.notes("ann")] == [OTHER]
        assert ledger.train.check() == []


def test_a_forgotten_note_leaves_the_file_too(ledger_path: Path) -> None:
    with TemporaryLedger(place=ledger_path):
        make_notes(ledger_path, SECRET)

    def written() -> bytes:
        return b"".join(path.read_bytes() for path in ledger_path.parent.glob("ledger.db*"))

    assert SECRET.encode() in written()
    with DeletionLedger(ledger_path) as deleting:
        deleting.forget_note(1)
    assert SECRET.encode() not in written()


def test_a_request_that_was_under_way_is_cleared_by_the_same_command_again(place: Place) -> None:
    with TemporaryLedger(place=place) as ledger, DeletionLedger(place) as deleting:
        make_notes(place, SECRET)
        assert deleting.forget_note(1) == 0
        prompted(ledger, 1)
        assert deleting.forget_note(1) == 1
        assert [row for row in rows(place) if "divorce" in row] == []
        make_notes(place, OTHER)
        assert [note.number for note in ledger.train.notes("ann")] == [2], "its number is never another note's"


def test_a_note_of_a_conversation_goes_with_its_session_alone(place: Place) -> None:
    with TemporaryLedger(place=place) as ledger, DeletionLedger(place) as deleting:
        turn = ledger.add(-1.0, user="ann")
        make_notes(place, SECRET, turn=turn.id)
        with pytest.raises(InvalidValue, match=f"note 1 came of turn {turn.id}.*delete the session"):
            deleting.forget_note(1)
        with pytest.raises(NotInLedger, match="there is no note 2"):
            deleting.forget_note(2)
        assert len(ledger.train.notes("ann")) == 1


# --- by the command, beside a run


def typed(root: Path, *words: str) -> str:
    done = CliRunner().invoke(cli, ["notes", *words, "--run-dir", str(root)])
    assert done.exit_code == 0, done.output
    return done.output


async def test_the_command_forgets_a_note_that_was_in_prompts_and_training_goes_on(tmp_path: Path) -> None:
    talk: Sequence[str] = ("Tell me about tea",)
    async with ticking_app(tmp_path, "train.batch_size=1") as run:
        added = await run.client.post("/v1/notes", json={"text": SECRET})
        assert added.json()["number"] == 1
        first = await run.ask(*talk)
        assert run.ledger.turn(first["id"]).noted is not None
        assert typed(tmp_path, "rm", "1", "--forget") == "note 1 is forgotten; it was in 1 prompt\n"
        assert [row for row in rows(run.ledger.place) if "divorce" in row] == []
        assert "no notes" in typed(tmp_path, "--all")
        reply = first["choices"][0]["message"]["content"]
        second = await run.ask(*talk, reply, "Too long. Please keep it under 30 words.")
        await run.app.finish()
        assert run.show(first["id"])["verdict"]["score"] == -1.0
        assert first["id"] in run.ledger.step(1).turns
        assert run.ledger.turn(second["id"]).noted is None
