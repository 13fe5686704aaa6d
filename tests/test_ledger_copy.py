"""A ledger copied to a server and back: every row, every number, and every answer of every query is the same."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from openclaw_rl.cli import cli
from openclaw_rl.errors import LedgerDamaged, LedgerError, LedgerHeld, NotInLedger
from openclaw_rl.ports import GateDecision
from openclaw_rl.store import (
    DeletionLedger,
    ImportLedger,
    LedgerReader,
    NotesLedger,
    Place,
    ServeLedger,
    ServerPlace,
    copying,
    submit_request,
)
from openclaw_rl.store.copying import TABLES, copy_ledger
from openclaw_rl.store.database import GAPS
from openclaw_rl.store.rows import turn_row
from openclaw_rl.testing import TemporaryLedger, make_turn
from openclaw_rl.types import (
    Distillation,
    Drop,
    Feedback,
    Hint,
    ImportRecord,
    PromptNote,
    SessionReward,
    Step,
    Turn,
    Version,
)

ASKED = ("Under 30 words, please.", "Shorter.", "No lists.")


def filled(folder: Path) -> list[Turn]:
    """A ledger with a row in every table, a zero character in a text, and a turn that is still open."""
    with TemporaryLedger(folder) as ledger:
        noted = PromptNote(text="Be brief.", notes=(1,))
        turns = [
            ledger.add(-1.0, Hint(text=ASKED[0]), session="s1", noted=noted),
            ledger.add(-1.0, Hint(text=ASKED[1], vague=True), session="s1"),
            ledger.add(None, Hint(text=ASKED[2], kind="fact"), user="ann"),
            ledger.add(1.0, user="env:door", session="e1", group="g"),
            ledger.add(0.5, user="env:door", session="e2", group="g"),
        ]
        turns.append(make_turn("open", session="s1"))
        ledger.serve.add_turn(turns[-1])
        ledger.collect.settle([], [], turns_read=ledger.serve.newest("turns"))
        ledger.serve.add_feedback(Feedback(turn=turns[1].id, score=-1.0, hint="a zero \0 in it", edit="so"))
        ledger.serve.add_ending("s1", "u1")
        ledger.serve.add_optout("s9", "ann")
        ledger.serve.add_reward(SessionReward(session="e2", user="env:door", score=1.0))
        ledger.train.add_version(Version(number=0, parent=None, base="b", state="live"))
        drop = Drop(turn=turns[2].id, stage="train", reason="no signal")
        step = Step(number=1, turns=(turns[0].id,), metrics={"loss": 0.5}, seconds=1.0, parts={turns[0].id: {"ess": 1}})
        ledger.train.add_step(step, Version(number=1, parent=0, base="b", adapter=str(folder / "v1"), step=1), [drop])
        evidence = {"replays": [turns[0].id]}
        ledger.train.add_gate_decision(
            GateDecision(version=1, against=0, decision="promote", reason="better", evidence=evidence, seconds=1.0)
        )
        ledger.train.set_state(1, "live", "better")
        distillation = Distillation(note=1, step=2, learned=True, evidence={"rate": 0.9})
        made = Version(number=2, parent=1, base="b", adapter=str(folder / "v2"), step=2)
        ledger.train.add_distillation(distillation, Step(number=2, turns=(), metrics={}, seconds=1.0), made)
        ledger.train.set_state(2, "rolled back", "worse")
        ledger.train.report("train", state="running", moved=3, failures=0, detail={"busy": True})
    with ImportLedger(folder / "ledger.db", sync="normal") as imports:
        recorded = make_turn("recorded")
        record = ImportRecord(turn=recorded.id, session="r", index=0, kind="main", extra={"mood": "calm"})
        imports.add_recorded([(recorded, record)])
    with NotesLedger(folder / "ledger.db") as notes:
        for user, text in (("u1", "Be brief."), ("ann", "Never use lists.")):
            given = {"user": user, "kind": "rule", "text": text, "vague": False, "turn": None}
            notes.atomically(lambda given=given: notes.insert_note(**given, by="judge", reason="said"))
        notes.atomically(lambda: notes.insert_switch("ann", False, "on request"))
    submit_request(folder / "ledger.db", "pin turn", turn=turns[0].id)
    submit_request(folder / "ledger.db", "pin version", version=1)
    with ServeLedger(folder / "ledger.db", sync="normal") as serve:
        for name in ("first", "last"):
            serve.add_turn(make_turn(name, session="gone"))
    with DeletionLedger(folder / "ledger.db") as deleting:
        deleting.delete_session("gone", turns[0].user, by="ann")
    return [*turns, recorded]


NAMES: dict[str, tuple[Any, ...]] = {
    "version": (0, 1, 2, 9),
    "number": (0, 1, 2, 9),
    "step": (1, 2, 9),
    "request": (1, 2),
    "note": (None, 1, 2),
    "user": (None, "u1", "ann", "env:door", "nobody"),
    "session": ("s1", "e2", "s9", "gone", "none"),
    "group": ("g", "none"),
    "task": (None, "g"),
    "limit": (1, 100),
    "within": (2, 64),
    "window": (100,),
    "before": (None, 3, 4e9),
    "words": ("open", "HELLO", "none"),
    "most": (1, 100),
    "since": (0.0,),
    "seq": (0, 3),
    "state": ("live", "rolled back"),
    "table": ("turns", "feedback", "outcomes", "verdicts", "requests", "deletions"),
    "up_to": (1000,),
}


def questions(turns: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """Every query of a reader, with arguments that fit."""
    found: list[tuple[str, dict[str, Any]]] = []
    known = NAMES | {"turn": (*turns, "none"), "turns": ([], turns)}
    leave = {"rows", "row", "one", "close", "horizon", "size", "feedback_rows", "check"}
    for name, method in inspect.getmembers(LedgerReader, inspect.isfunction):
        if name.startswith("_") or name in leave:
            continue
        named = [part for part in inspect.signature(method).parameters if part != "self"]
        asked: list[dict[str, Any]] = [{}]
        for part in named:
            assert part in known, f"{name} takes {part}: give it a value in NAMES"
            asked = [{**one, part: value} for one in asked for value in known[part]]
        found += [(name, one) for one in asked]
    return found


def answer(ledger: LedgerReader, name: str, values: dict[str, Any]) -> Any:
    ask: Callable[..., Any] = getattr(ledger, name)
    signature = inspect.signature(ask)
    first = [p.name for p in signature.parameters.values() if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    try:
        found = ask(*(values[name] for name in first), **{n: v for n, v in values.items() if n not in first})
    except NotInLedger as error:
        return str(error)
    return list(found) if name == "sessions" else found


def everything(place: Place) -> dict[str, list[dict[str, Any]]]:
    known = {"cursors": f"WHERE name NOT LIKE '{GAPS}%'"}  # each store counts in its own way
    with LedgerReader(place) as ledger:
        return {
            name: [
                dict(row)
                for row in ledger.rows(f"SELECT * FROM {name} {known.get(name, '')} ORDER BY {', '.join(key)}")
            ]
            for name, key in TABLES.items()
        }


def test_a_ledger_goes_to_a_server_and_back_with_every_row_and_every_answer(
    tmp_path: Path, database: ServerPlace
) -> None:
    turns = [turn.id for turn in filled(tmp_path)]
    first, again = tmp_path / "ledger.db", tmp_path / "again" / "ledger.db"
    before = everything(first)
    assert [name for name, rows in before.items() if not rows] == [], "a table without a row proves nothing"
    counts = copy_ledger(first, database)
    assert counts == {name: len(rows) for name, rows in before.items()}
    assert everything(database) == before
    copy_ledger(database, again)
    assert everything(again) == before
    asked = questions(turns)
    assert len({name for name, _ in asked}) > 50
    with LedgerReader(first) as file, LedgerReader(database) as server:
        for name, values in asked:
            assert answer(server, name, values) == answer(file, name, values), (name, values)
        assert server.check() == []
    turn = make_turn("goes on")
    with ServeLedger(database, sync="full") as serve:
        serve.add_turn(turn)
        assert serve.newest("turns") == before["turns"][-1]["seq"] + 3, "numbers of deleted turns are not given again"


def test_numbers_that_a_server_left_out_are_not_counted_as_rows(tmp_path: Path, database: ServerPlace) -> None:
    with ServeLedger(database, sync="full") as serve:
        for kept in (True, False, True):
            with nullcontext() if kept else pytest.raises(ZeroDivisionError), serve.writing() as db:
                db.insert("turns", turn_row(make_turn()))
                assert kept or 1 / 0
    path = tmp_path / "ledger.db"
    copy_ledger(database, path)
    with LedgerReader(path) as ledger:
        assert (ledger.newest("turns"), ledger.counts()["turns"]) == (3, 2)
    with ServeLedger(path, sync="full") as serve:
        serve.add_turn(make_turn())
        assert (serve.newest("turns"), serve.counts()["turns"]) == (4, 3)


def test_a_ledger_that_is_written_or_a_place_that_is_not_empty_is_refused(
    tmp_path: Path, database: ServerPlace
) -> None:
    path = tmp_path / "ledger.db"
    with ServeLedger(path, sync="full") as serve:
        serve.add_turn(make_turn())
        with pytest.raises(LedgerHeld, match=r"is being written: .*'serve'.*; stop the run, then copy"):
            copy_ledger(path, database)
    copy_ledger(path, database)
    with pytest.raises(LedgerError, match=r"has rows already \(turns\); nothing was changed; copy to a new file"):
        copy_ledger(path, database)
    with ServeLedger(database, sync="full"), pytest.raises(LedgerHeld, match=r"is being written: process \d+ on"):
        copy_ledger(database, tmp_path / "other.db")
    with pytest.raises(LedgerError, match="cannot be copied to itself"):
        copy_ledger(path, path)


def test_a_copy_that_is_not_the_same_is_not_kept(
    tmp_path: Path, database: ServerPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.db"
    with ServeLedger(path, sync="full") as serve:
        serve.add_turn(make_turn())
    plain = copying._value
    monkeypatch.setattr(copying, "_value", lambda t, n, v: v + 1 if n == "at" else plain(t, n, v))
    with pytest.raises(LedgerDamaged, match="the copy of the table 'turns' differs from its source"):
        copy_ledger(path, database)
    monkeypatch.undo()
    assert copy_ledger(path, database)["turns"] == 1, "nothing was kept of the first"


def test_the_command_takes_a_run_directory_and_a_url(tmp_path: Path, database: ServerPlace) -> None:
    with ServeLedger(tmp_path / "ledger.db", sync="full") as serve:
        serve.add_turn(make_turn())
    done = CliRunner().invoke(cli, ["ledger", "copy", str(tmp_path), database.url])
    assert done.exit_code == 0, done.output
    assert "1  turns" in done.output
    assert "copied and compared: 3 rows" in done.output
