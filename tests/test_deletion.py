"""A session is deleted with everything of it: from either store, beside loops at work, whole or not at all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner
from training import Story

from openclaw_rl.app.control import delete_session
from openclaw_rl.backends.fake import FakeTrainer
from openclaw_rl.cli import cli
from openclaw_rl.errors import DeletedMeanwhile, NotInLedger
from openclaw_rl.ports import GateDecision, StepResult
from openclaw_rl.store import DeletionLedger, ImportLedger, LedgerReader, NotesLedger, Place, submit_request
from openclaw_rl.store.copying import TABLES
from openclaw_rl.store.deletions import learned_from
from openclaw_rl.store.rows import turn_row
from openclaw_rl.store.stores import open_database
from openclaw_rl.testing import TemporaryLedger, make_message, make_outcome, make_turn, make_verdict, serving
from openclaw_rl.train.records import Recorder, read
from openclaw_rl.types import (
    Deletion,
    Distillation,
    Drop,
    Feedback,
    Hint,
    ImportRecord,
    Sample,
    SessionReward,
    Step,
    Turn,
    Version,
)

SECRET = "the wedding of my sister"
MARKS = {"gone", "gone1", "gone2", SECRET}
"""what tells rows of the session that is deleted"""


def tell(ledger: TemporaryLedger) -> tuple[Turn, Turn, Turn]:
    """Two turns of a session that left a trace in every table, and one of another that did too."""
    turns = (_turn(ledger, "gone1", "gone"), _turn(ledger, "gone2", "gone"), _turn(ledger, "kept1", "kept"))
    ledger.train.add_version(Version(number=0, parent=None, base="b", state="live"))
    for number, turn in enumerate((turns[0], turns[2]), 1):
        made = Version(
            number=number, parent=number - 1, base="b", adapter=str(ledger.folder / f"{number}"), step=number
        )
        ledger.train.add_step(Step(number=number, turns=(turn.id,), metrics={}, seconds=1.0), made)
        ledger.train.set_state(number, "live", "passed")
    examples = [{"prompt": turn.prompt.messages[0].content, "turn": turn.id} for turn in turns]
    ledger.train.add_gate_decision(decision([*examples, {"prompt": "What is tea?", "turn": None}]))
    ledger.train.add_drops([Drop(turn=turns[1].id, stage="train", reason="no signal", detail=SECRET)])
    for turn in turns:
        submit_request(ledger.path, "pin turn", turn=turn.id, reason=SECRET if turn.session == "gone" else "")
    return turns


def decision(examples: Sequence[dict[str, Any]]) -> GateDecision:
    leans = {str(one["turn"]): 0.1 for one in examples if one["turn"]}
    evidence = {"checks": [], "examples": list(examples), "best": {"tasks": {}, "leans": leans}}
    return GateDecision(version=1, against=0, decision="promote", reason="passed", evidence=evidence, seconds=1.0)


def _turn(ledger: TemporaryLedger, name: str, session: str) -> Turn:
    words = SECRET if session == "gone" else "tea"
    said = (make_message("user", f"Shorter, about {words}."),)
    turn = ledger.add(
        -1.0,
        Hint(text=f"Be brief about {words}."),
        text=f"A toast for {words}",
        id=name,
        session=session,
        user="ann",
        outcome={"session": session, "next_state": said},
    )
    ledger.serve.add_feedback(Feedback(turn=turn.id, score=-1.0, hint=f"too long for {words}"))
    ledger.serve.add_ending(session, "ann")
    ledger.serve.add_reward(SessionReward(session=session, user="ann", score=1.0))
    with NotesLedger(ledger.path) as notes:
        given = {"user": "ann", "kind": "rule", "text": f"Brief about {words}: {name}", "vague": False, "turn": turn.id}
        notes.atomically(lambda: notes.insert_note(**given, by="judge", reason="a correction"))
    return turn


def rows(place: Place) -> dict[str, list[str]]:
    """Every row of every table as text, blobs unpacked where they are text."""
    with closing(open_database(LedgerReader(place).place, "read")) as db:
        return {name: [repr(dict(row)) for row in db.rows(f"SELECT * FROM {name}")] for name in TABLES}


def traces(place: Place) -> dict[str, list[str]]:
    return {
        name: hits
        for name, found in rows(place).items()
        if (hits := [row for row in found if any(m in row for m in MARKS)])
    }


def test_everything_of_a_session_goes_and_nothing_of_another(place: Place) -> None:
    with TemporaryLedger(place=place) as ledger:
        tell(ledger)
        assert len(traces(place)) == 11, sorted(traces(place))
        before, counted = rows(place), ledger.train.counts()
        with DeletionLedger(place) as deleting:
            done = deleting.delete_session("gone", "ann", by="ann")
        assert (done.turns, done.notes, done.trained, done.versions, done.clean) == (2, 2, 1, (1, 2), 0)
        left = traces(place)
        assert set(left) == {"trained", "deleted_turns"}, left
        assert all(SECRET not in row for found in left.values() for row in found), "ids are left, and nothing else"
        after = rows(place)
        for table in set(TABLES) - {"deletions", "deleted_turns", "cursors", "gate_decisions", "health"}:
            gone = [row for row in before[table] if any(mark in row for mark in MARKS - {"gone"} | {"'gone'"})]
            kept = [row for row in before[table] if row not in gone] if table != "note_changes" else after[table]
            assert after[table] == (before[table] if table == "trained" else kept), table
        [shown] = ledger.train.gate_decisions(1)
        assert [one["turn"] for one in shown.evidence["examples"]] == ["kept1", None]
        assert shown.evidence["best"]["leans"] == {"kept1": 0.1}
        assert ledger.train.pinned_turns() == ["kept1"]
        assert ledger.train.drop_counts() == {}
        assert counted["turns"] - ledger.train.counts()["turns"] == 2
        assert counted["verdicts"] - ledger.train.counts()["verdicts"] == 2
        assert ledger.train.check() == []
        assert [note.turn for note in ledger.train.notes("ann")] == ["kept1"]
        with pytest.raises(NotInLedger, match="turn gone1 was deleted with its session"):
            ledger.train.turn("gone1")


def test_what_is_deleted_leaves_the_file_too(ledger_path: Path) -> None:
    with TemporaryLedger(place=ledger_path) as ledger:
        tell(ledger)
        packed = turn_row(ledger.train.turn("gone2"))["prompt"]

    def written() -> bytes:
        return b"".join(path.read_bytes() for path in ledger_path.parent.glob("ledger.db*"))

    assert packed in written()
    assert SECRET.encode() in written()
    with DeletionLedger(ledger_path) as deleting:
        deleting.delete_session("gone", "ann", by="ann")
    assert packed not in written()
    assert SECRET.encode() not in written()


def test_numbers_are_counted_on_after_the_newest_row_was_deleted(place: Place) -> None:
    with TemporaryLedger(place=place) as ledger, DeletionLedger(place) as deleting:
        for name in ("a", "b"):
            ledger.add(1.0, id=name, session=name)
        deleting.delete_session("b", "u1", by="u1")
        ledger.add(1.0, id="c", session="c")
        assert [one.turn for one in ledger.train.untrained(9)] == [ledger.train.turn("a"), ledger.train.turn("c")]
        assert (ledger.train.counts()["turns"], ledger.train.newest("turns")) == (2, 3)
        assert ledger.train.users() == ["u1"]


def test_whoever_was_at_work_on_a_deleted_turn_writes_nothing_of_it(place: Place) -> None:
    with TemporaryLedger(place=place) as ledger, DeletionLedger(place) as deleting:
        tell(ledger)
        deleting.delete_session("gone", "ann", by="ann")
        late, secret = make_turn(id="gone2"), Hint(text=SECRET)
        ledger.collect.settle([make_outcome(late)], [Drop(turn="gone1", stage="collect", reason="unreadable")])
        ledger.judge.add_verdicts(
            [make_verdict(late, -1.0, hints=(secret,))], [Drop(turn="gone2", stage="judge", reason="unreadable")]
        )
        ledger.train.add_gate_decision(decision([{"prompt": SECRET, "turn": "gone2"}]))
        with pytest.raises(NotInLedger):
            ledger.serve.add_feedback(Feedback(turn="gone2", score=1.0))
        for step in (
            Step(number=3, turns=("gone2", "kept1"), metrics={}, seconds=1.0),
            Step(number=3, turns=("kept1",), metrics={}, seconds=1.0, parts={"kept1": {"recalled": "gone1"}}),
        ):
            with pytest.raises(DeletedMeanwhile, match="1 turns of step 3 were deleted while it was taken"):
                ledger.train.add_step(step, None)
        version = Version(number=3, parent=2, base="b", adapter="/a", step=3)
        distilled = Distillation(note=3, step=3, learned=True, evidence={})
        with pytest.raises(DeletedMeanwhile, match="a session was deleted while note 3 was distilled"):
            ledger.train.add_distillation(
                distilled, Step(number=3, turns=(), metrics={}, seconds=1.0), version, deletions=0
            )
        assert set(traces(place)) == {"trained", "deleted_turns"}
        assert ledger.train.check() == []


def test_a_reply_that_was_under_way_is_not_kept_and_a_later_one_is(place: Place) -> None:
    with TemporaryLedger(place=place) as ledger, DeletionLedger(place) as deleting:
        ledger.serve.add_turn(make_turn(session="s"))
        early, elsewhere = make_turn(session="s"), make_turn(session="other")
        deleting.delete_session("s", "u1", by="u1")
        late, others = make_turn(session="s"), make_turn(session="s", user="bob")
        for turn in (early, elsewhere, late, others):
            ledger.serve.add_turn(turn)
        kept = [turn.id for turn in (early, elsewhere, late, others) if ledger.serve.has_turn(turn.id)]
        assert kept == [elsewhere.id, late.id, others.id]


def test_a_turn_that_turns_out_to_be_of_a_deleted_session_goes_with_it(place: Place) -> None:
    with TemporaryLedger(place=place) as ledger, DeletionLedger(place) as deleting:
        first, second = make_turn(), make_turn()
        for turn in (first, second):
            ledger.serve.add_turn(turn)
        ledger.collect.settle([make_outcome(first, session="found")], [], turns_read=2)
        assert deleting.delete_session("found", "u1", by="u1").turns == 1
        third = make_turn()
        ledger.serve.add_turn(third)
        outcomes = [make_outcome(turn, session="found") for turn in (second, third)]
        ledger.collect.settle(outcomes, [], turns_read=3)
        assert [ledger.serve.has_turn(turn.id) for turn in (first, second, third)] == [False, False, True]
        assert ledger.collect.open_turns() == []
        assert deleting.delete_session(make_and_leave_open(ledger), "u1", by="u1").turns == 1


def make_and_leave_open(ledger: TemporaryLedger) -> str:
    """The id of a turn that belongs to no session yet."""
    turn = make_turn()
    ledger.serve.add_turn(turn)
    ledger.collect.settle([], [], turns_read=ledger.serve.newest("turns"))
    return turn.id


def private(story: Story) -> str:
    """A turn of a session that is deleted before long."""
    outcome = {"kind": "main", "session": "private"}
    return story.add(-1.0, "About my sister, please.", session="private", outcome=outcome, at=story.now).id


@pytest.mark.anyio
async def test_a_step_under_way_is_taken_again_without_what_was_deleted_meanwhile(tmp_path: Path) -> None:
    story = Story(tmp_path)
    taken: list[tuple[str, ...]] = []

    class Interrupted(FakeTrainer):
        async def step(self, samples: Sequence[Sample], *, number: int, parent: Version, target: str) -> StepResult:
            taken.append(tuple(sample.turn for sample in samples))
            if len(taken) == 1:
                delete_session(tmp_path / "ledger.db", "private", "u1", by="u1")
            return await super().step(samples, number=number, parent=parent, target=target)

    loop = story.begin(Interrupted())
    gone = private(story)
    kept = [story.said(1.0)]
    assert await loop.tick() == 0
    assert taken == [(gone, kept[0])]
    assert not (tmp_path / "versions" / "000001").exists(), "the weights that saw it are gone"
    kept.append(story.said(1.0))
    assert await loop.tick() == 2
    assert (set(taken[1]), story.train.step(1).turns) == (set(kept), tuple(sorted(kept)))


@pytest.mark.anyio
async def test_what_waits_to_be_trained_is_read_anew_after_a_deletion(tmp_path: Path) -> None:
    story = Story(tmp_path)
    private(story)
    assert await story.loop.tick() == 0
    delete_session(tmp_path / "ledger.db", "private", "u1", by="u1")
    kept = [story.said(1.0), story.said(1.0)]
    assert await story.loop.tick() == 2
    assert story.train.step(1).turns == tuple(sorted(kept))


def test_a_deletion_that_is_cut_off_leaves_all_of_it_and_is_repeated(tmp_path: Path) -> None:
    with TemporaryLedger(tmp_path) as ledger:
        tell(ledger)
    before = rows(tmp_path / "ledger.db")
    dies = (
        "import os, signal, sys; from openclaw_rl.store import writers as deleting, DeletionLedger\n"
        "deleting.insert_deletion = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)\n"
        "DeletionLedger(sys.argv[1]).delete_session('gone', 'ann', by='ann')"
    )
    killed = subprocess.run([sys.executable, "-c", dies, str(tmp_path / "ledger.db")], env=os.environ, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert rows(tmp_path / "ledger.db") == before, "it was all done but its last row, and nothing of it holds"
    first = delete_session(tmp_path / "ledger.db", "gone", "ann", by="ann")
    assert delete_session(tmp_path / "ledger.db", "gone", "ann", by="ann") == first, "a second time it is told again"
    with pytest.raises(NotInLedger, match="bob has no session 'gone'"):
        delete_session(tmp_path / "ledger.db", "gone", "bob", by="bob")


def test_the_record_keeps_that_there_was_a_sample_and_nothing_of_it(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    with TemporaryLedger(tmp_path) as ledger:
        tell(ledger)
        recorder = Recorder(ledger.train, record)
        recorder.catch_up()
        before = record.read_bytes()
        delete_session(tmp_path / "ledger.db", "gone", "ann", by="ann")
        after = record.read_bytes()
        told = [(line["kind"], line.get("turn"), line["step"]) for line in read(record)]
        assert told == [("deleted", None, 1), ("step", None, 1), ("sample", "kept1", 2), ("step", None, 2)]
        assert (len(after), b"gone1" in after, after.count(b"\n")) == (len(before), False, before.count(b"\n"))
        record.unlink()
        Recorder(ledger.train, record).catch_up()
        assert [line["kind"] for line in read(record)] == ["deleted", "step", "sample", "step"]
        record.write_bytes(before)
        Recorder(ledger.train, record).catch_up()
        assert b"gone1" not in record.read_bytes(), "a trainer elsewhere takes it out at its next look"


def test_a_record_that_is_imported_again_is_there_again(ledger_path: Path) -> None:
    turn = make_turn(id="import-1")
    record = ImportRecord(turn=turn.id, session="r", index=0, kind="main")
    for _ in range(2):
        with ImportLedger(ledger_path, sync="normal") as imports:
            imports.add_recorded([(turn, record)])
        with TemporaryLedger(place=ledger_path) as ledger, DeletionLedger(ledger_path) as deleting:
            ledger.collect.settle([make_outcome(turn, session="r")], [], turns_read=ledger.serve.newest("turns"))
            assert ledger.serve.outcome(turn.id) is not None
            assert deleting.delete_session("r", turn.user, by="u1").turns == 1


def test_versions_learn_from_a_session_through_their_ancestors_and_notes() -> None:
    def version(number: int, parent: int | None, step: int | None) -> Version:
        return Version(number=number, parent=parent, base="b", step=step)

    line = [version(0, None, None), version(1, 0, 1), version(2, 1, 2), version(3, 2, 3), version(4, 1, 1)]
    assert learned_from({2}, line) == [2, 3], "a rollback to version 1 has not learned it"
    assert learned_from({1}, line) == [1, 2, 3, 4]
    assert learned_from(set(), line) == []
    with TemporaryLedger() as ledger:
        turn = _turn(ledger, "gone1", "gone")
        ledger.train.add_version(Version(number=0, parent=None, base="b", state="live"))
        for step, evidence in ((1, {}), (2, {"own_prompts": 3})):
            with NotesLedger(ledger.path) as notes:
                given: dict[str, Any] = {"user": "ann", "kind": "rule", "text": "x", "vague": False, "turn": None}
                number = notes.atomically(lambda given=given: notes.insert_note(**given, by="user", reason="r"))
            ledger.train.add_distillation(
                Distillation(note=number, step=step, learned=True, evidence=evidence),
                Step(number=step, turns=(), metrics={}, seconds=1.0),
                Version(number=step, parent=0, base="b", adapter="/a", step=step),
            )
        assert ledger.train.deletable([turn.id], "ann").versions == (2,), "its prompts may have been distilled"


# --- by whom, and how ---


def test_a_session_is_its_users_to_delete_and_an_admins() -> None:
    asked: list[tuple[str, str, str]] = []

    def delete(session: str, user: str, /, *, by: str) -> Deletion:
        asked.append((session, user, by))
        if session == "none":
            raise NotInLedger("there is none")
        return Deletion(turns=3, notes=1, trained=2, versions=(4, 5), clean=3, at=1.0)

    keys = {"key-ann": "ann", "key-owner": "default"}
    with serving(keys=keys, admins=("default",), delete=delete) as server:

        def call(path: str, key: str) -> tuple[int, Any]:
            done = httpx2.delete(f"{server.url}/v1/sessions/{path}", headers={"authorization": f"Bearer {key}"})
            return done.status_code, done.json()

        status, told = call("my%20talk", "key-ann")
        assert (status, told["turns"], told["versions"]) == (200, 3, [4, 5])
        assert told["message"] == (
            "3 turns and 1 note that came of them deleted; versions 4 and 5 were trained on it; weights do not forget"
            " by deletion: version 3 is from before it"
        )
        assert call("s?user=default", "key-ann")[0] == 403
        assert call("s?user=ann", "key-owner")[0] == 200
        assert call("none", "key-ann")[0] == 404
        assert call("s", "wrong")[0] == 401
    assert asked == [("my talk", "ann", "ann"), ("s", "ann", "default"), ("none", "ann", "ann")]


def test_the_command_asks_twice_and_says_what_the_weights_keep(tmp_path: Path) -> None:
    with TemporaryLedger(tmp_path) as ledger:
        tell(ledger)
    where = ["--run-dir", str(tmp_path)]

    def run(*words: str, answers: str = "") -> Any:
        return CliRunner().invoke(cli, ["delete", *words, *where], input=answers)

    for answers in ("n\n", "y\nn\n", ""):
        assert run("gone", answers=answers).exit_code == 1
    with LedgerReader(tmp_path / "ledger.db") as ledger:
        assert ledger.has_turn("gone1")
    done = run("gone", answers="y\ny\n")
    assert done.exit_code == 0, done.output
    assert "Delete session gone of ann: 2 turns and 2 notes that came of them? [y/N]" in done.output
    assert "Versions 1 and 2 were trained on it; weights do not forget by deletion" in done.output
    assert "it was deleted before: 2 turns" in run("gone").output
    assert json.loads(run("kept", "--yes", "--json").output)["turns"] == 1
    assert isinstance(run("never").exception, NotInLedger)


def test_the_command_needs_to_know_whose_session_it_is(tmp_path: Path) -> None:
    with TemporaryLedger(tmp_path) as ledger:
        for user in ("ann", "bob"):
            ledger.add(1.0, user=user, session="s", outcome={"session": "s"})
    refused = CliRunner().invoke(cli, ["delete", "s", "--yes", "--run-dir", str(tmp_path)])
    assert (
        refused.exit_code,
        "ann, bob have a session 's' each; name the user with --user" in str(refused.exception),
    ) == (
        1,
        True,
    )
    assert CliRunner().invoke(cli, ["delete", "s", "--user", "bob", "--yes", "--run-dir", str(tmp_path)]).exit_code == 0
    with LedgerReader(tmp_path / "ledger.db") as ledger:
        assert ledger.session_users("s") == ["ann"]


def test_sessions_are_found_by_what_they_say_and_how_they_went(tmp_path: Path) -> None:
    with TemporaryLedger(tmp_path) as ledger:
        tell(ledger)

    def found(*words: str) -> list[str]:
        done = CliRunner().invoke(cli, ["sessions", *words, "--json", "--run-dir", str(tmp_path)])
        return [one["session"] for one in json.loads(done.output)]

    assert (found(), found("wedding"), found("--only", "dropped"), found("nothing")) == (
        ["kept", "gone"],
        ["gone"],
        ["gone"],
        [],
    )
    text = CliRunner().invoke(cli, ["sessions", "--run-dir", str(tmp_path)]).output
    assert "gone  ann  " in text
