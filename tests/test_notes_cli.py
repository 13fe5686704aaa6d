"""The command for notes, as a person types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from openclaw_rl.cli import cli
from openclaw_rl.errors import ConfigError, InvalidValue, NotInLedger
from openclaw_rl.notes import NewNote, NotesBook
from openclaw_rl.store import NotesLedger
from openclaw_rl.testing import TemporaryLedger


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    TemporaryLedger(tmp_path).close()
    return tmp_path


def typed(run_dir: Path, *words: str) -> str:
    done = CliRunner().invoke(cli, ["notes", *words, "--run-dir", str(run_dir)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_notes_are_made_seen_and_changed(run_dir: Path) -> None:
    assert "no notes; a correction in a conversation makes one" in typed(run_dir)
    assert typed(run_dir, "add", "Answer in one sentence.") == "noted for local: Answer in one sentence.   (note 1)\n"
    assert typed(run_dir, "add", "answer in one sentence") == (
        "note 1 has the same text (in force): Answer in one sentence.\n"
    )
    assert typed(run_dir, "add", "--fact", "I am vegetarian.").startswith("noted for local: I am vegetarian.")
    assert typed(run_dir, "edit", "1", "Answer in full detail.") == (
        "noted for local: Answer in full detail.   (note 3)\n  it replaces note 1: Answer in one sentence.\n"
    )
    assert typed(run_dir, "off", "3") == "note 3 is off: Answer in full detail.\n"
    listed = [line.split("   (")[0].split("  ") for line in typed(run_dir).splitlines()]
    assert [[cell.strip() for cell in line if cell] for line in listed] == [
        ["3", "off", "rule", "Answer in full detail."],
        ["2", "in force", "fact", "I am vegetarian."],
    ]
    assert typed(run_dir, "on", "3") == "note 3 is in force: Answer in full detail.\n"
    assert typed(run_dir, "rm", "2") == "note 2 is removed: I am vegetarian.\n"
    every = json.loads(typed(run_dir, "--all", "--json"))
    assert [(note["number"], note["state"]) for note in every] == [(1, "replaced"), (2, "removed"), (3, "in force")]
    story = typed(run_dir, "show", "3").splitlines()
    assert story[0] == "note 3 of local (rule): Answer in full detail."
    assert [line.split("  ")[2] for line in story[1:]] == [
        "in force, by the user: edited",
        "off, by the user: switched off by hand",
        "in force, by the user: switched on by hand",
    ]


def test_all_notes_of_a_user_are_switched_at_once(run_dir: Path) -> None:
    typed(run_dir, "add", "Answer in one sentence.")
    assert typed(run_dir, "off", "--all") == "notes of local are switched off\n"
    assert "notes of local are switched off: 'openclaw-rl notes on --all --user local'" in typed(run_dir)
    with NotesLedger(run_dir / "ledger.db") as ledger:
        assert NotesBook(ledger).in_force("local") == []
    assert typed(run_dir, "on", "--all") == "notes of local are switched on\n"


def test_where_several_people_have_a_key_it_must_be_said_whose_note_it_is(run_dir: Path) -> None:
    keys = run_dir / "keys"
    keys.write_text("ann:first-secret-key\nbob:second-secret-key\n")
    keys.chmod(0o600)
    words = ("add", "Answer in one sentence.", "--set", f"serve.keys_file={keys}")
    with pytest.raises(ConfigError, match="several people have a key: ann, bob; name the note's user with --user"):
        typed(run_dir, *words)
    assert typed(run_dir, *words, "--user", "bob").startswith("noted for bob")


@pytest.mark.parametrize("words", [("off",), ("off", "1", "--all"), ("on", "zero"), ("rm", "0"), ("edit", "1")])
def test_a_wrong_command_line_is_refused(run_dir: Path, words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(cli, ["notes", *words, "--run-dir", str(run_dir)])
    assert (done.exit_code, "Usage: " in done.output) == (2, True)


def test_what_is_not_there_is_told_with_the_remedy(run_dir: Path) -> None:
    with pytest.raises(NotInLedger, match="there is no note 7; 'openclaw-rl notes' lists them"):
        typed(run_dir, "off", "7")
    with pytest.raises(NotInLedger, match="start 'openclaw-rl up' first, or set --run-dir"):
        typed(run_dir / "nowhere", "add", "Answer in one sentence.")
    assert not (run_dir / "nowhere").exists()


def test_proposed_notes_are_shown_with_a_question_and_answered(run_dir: Path) -> None:
    with NotesLedger(run_dir / "ledger.db") as ledger:
        book = NotesBook(ledger)
        for text in ("Shorter, please.", "Use metric units."):
            book.add(NewNote(user="local", text=text, reach="wish", by="judge", reason="a correction"))
    listed = typed(run_dir).splitlines()
    assert listed[0].startswith("   1  proposed        rule  Shorter, please.")
    assert listed[1] == (
        "      did you mean this for all replies? 'openclaw-rl notes accept 1', or 'decline 1' ('--only-here')"
    )
    assert typed(run_dir, "accept", "1").startswith("noted for local: Shorter, please.")
    assert typed(run_dir, "decline", "2", "--only-here") == "note 2 is declined: Use metric units.\n"
    assert "note 2" not in typed(run_dir)
    assert "meant for one reply" in typed(run_dir, "show", "2")
    with pytest.raises(InvalidValue, match="note 2 is declined, only a proposed one can be declined"):
        typed(run_dir, "decline", "2")
