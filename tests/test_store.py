"""The ledger keeps what it is told, once, and gives each loop its work."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openclaw_rl.errors import (
    AlreadyInLedger,
    ConfigError,
    LedgerDamaged,
    LedgerDown,
    LedgerError,
    LedgerHeld,
    LedgerNewer,
    NotInLedger,
)
from openclaw_rl.store import (
    WRITERS,
    CollectLedger,
    ImportLedger,
    JudgeLedger,
    LedgerReader,
    LedgerWriter,
    Place,
    ServeLedger,
    TrainLedger,
    codec,
    submit_request,
)
from openclaw_rl.store.database import root_of
from openclaw_rl.store.schema import APPLICATION_ID, MIGRATIONS
from openclaw_rl.store.train import read_group
from openclaw_rl.testing import make_completion, make_message, make_outcome, make_prompt, make_turn, make_verdict
from openclaw_rl.types import (
    Baseline,
    Drop,
    Feedback,
    GroupKey,
    Hint,
    ImportRecord,
    Sampling,
    Step,
    Tool,
    ToolCall,
    Verdict,
    Version,
)
from openclaw_rl.versions import LiveVersions, VersionManager, checkpoints
from openclaw_rl.versions.checkpoints import Checkpoint, TrainingProgress

words = st.text(max_size=40)
ids = st.lists(st.one_of(st.integers(0, 300), st.integers(0, 2**32 - 1)), min_size=1, max_size=50).map(tuple)
logprobs = st.floats(max_value=0.0, allow_infinity=False, allow_nan=False)


def test_a_baseline_written_before_it_had_a_share_is_all_scores() -> None:
    assert Baseline.read(0.5) == Baseline(0.5, 1.0)
    assert Baseline.read(json.loads(json.dumps(Baseline(0.5, 0.2)))) == Baseline(0.5, 0.2)
    assert (Baseline(-0.1, 0.1).satisfaction, Baseline().satisfaction) == (-1.0, -1.0)


OPENED = {
    "serve": lambda path: ServeLedger(path, sync="full"),
    "import": lambda path: ImportLedger(path, sync="full"),
    "collect": CollectLedger,
    "judge": JudgeLedger,
    "train": lambda path: TrainLedger(path, sync="full"),
    None: LedgerReader,
}


def one_of_each(path: Place, role: str | None) -> Any:
    return OPENED[role](path)


@given(tokens=ids, values=st.lists(logprobs, max_size=50).map(tuple))
def test_packed_arrays_come_back_exactly(tokens: tuple[int, ...], values: tuple[float, ...]) -> None:
    assert codec.unpack_tokens(codec.pack_tokens(tokens)) == tokens
    assert codec.unpack_logprobs(codec.pack_logprobs(values)) == values


@pytest.mark.parametrize(("top", "width"), [(49_151, 2), (65_535, 2), (65_536, 3), (151_935, 3), (2**24, 4)])
def test_a_token_takes_the_fewest_bytes_that_hold_the_vocabulary(top: int, width: int) -> None:
    assert len(codec.pack_tokens((top,) * 1000)) == 1 + 1000 * width


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    text=words,
    reply=words,
    tokens=ids,
    done=st.booleans(),
    user=words,
    session=st.none() | words.filter(bool),
    data=st.data(),
)
def test_any_turn_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory,
    text: str,
    reply: str,
    tokens: tuple[int, ...],
    done: bool,
    user: str,
    session: str | None,
    data: st.DataObject,
) -> None:
    values = tuple(data.draw(st.lists(logprobs, min_size=len(tokens), max_size=len(tokens))))
    call = ToolCall(id="c1", name="run", arguments='{"a":  1}')
    completion = make_completion(
        reply=make_message("assistant", reply, reasoning=text, tool_calls=(call,)),
        prompt_tokens=tokens,
        reply_tokens=tokens,
        logprobs=values,
        sampling=Sampling(temperature=0.7, stop=("x", "y"), seed=3),
        finish="tool_calls",
        flaws=("malformed_tool_call",),
    )
    tool = Tool(name="run", parameters={"type": "object", "properties": {"a": {"type": "integer"}}})
    prompt = make_prompt(text)
    turn = make_turn(
        prompt=type(prompt)(messages=prompt.messages, tools=(tool,), tool_choice="required"),
        completion=completion,
        user=user,
        session=session,
        done=done,
    )
    with ServeLedger(tmp_path_factory.mktemp("l") / "ledger.db", sync="normal") as ledger:
        ledger.add_turn(turn)
        assert ledger.turn(turn.id) == turn


def test_a_turn_walks_from_table_to_table_and_leaves_each_work_list(place: Place) -> None:
    serve, collect, judge, train = (one_of_each(place, r) for r in ("serve", "collect", "judge", "train"))
    turn = make_turn()
    serve.add_turn(turn)

    [(seq, read)] = collect.new_turns(10)
    assert read == turn
    collect.settle([], [], turns_read=seq)
    assert collect.new_turns(10) == []
    assert [t.id for _, t in collect.open_turns()] == [turn.id]
    collect.settle([make_outcome(turn)], [])
    assert collect.open_turns() == []

    [case] = judge.unjudged(10)
    assert (case.turn, case.outcome.next_state[0].content) == (turn, "thanks")
    judge.add_verdicts([make_verdict(turn, votes=(1, 1, None), hints=(Hint(text="Be brief, please."),))])
    assert judge.unjudged(10) == []

    [row] = train.untrained(10)
    assert row.verdict.votes == (1, 1, None)
    assert row.verdict.hints == (Hint(text="Be brief, please."),)
    train.add_version(Version(number=0, parent=None, base="b", state="live"))
    step = Step(number=1, turns=(turn.id,), metrics={"loss": 0.5}, seconds=1.0, baselines={"u1": Baseline(0.05, 0.05)})
    train.add_step(step, Version(number=1, parent=0, base="b", adapter=str(root_of(place) / "v1"), step=1))
    assert train.untrained(10) == []
    assert train.step(1) == step
    assert train.trained_in(turn.id) == 1
    assert LiveVersions(train).live().number == 0
    train.set_state(1, "live", "better")
    assert LiveVersions(train).live().number == 1
    assert [s for s, _, _ in train.history(1)] == ["candidate", "live"]


def test_a_turn_cannot_be_trained_twice_not_even_by_mistake(place: Place) -> None:
    with one_of_each(place, "train") as train:
        train.add_step(Step(number=1, turns=("a",), metrics={}, seconds=0.0), None)
        with pytest.raises(AlreadyInLedger):
            train.add_step(Step(number=2, turns=("b", "a"), metrics={}, seconds=0.0), None)
        assert train.last_step().number == 1
        assert train.trained_in("b") is None


def test_what_was_read_but_not_settled_is_open_after_a_restart(place: Place) -> None:
    turns = [make_turn(str(i)) for i in range(5)]
    with one_of_each(place, "serve") as serve:
        for turn in turns:
            serve.add_turn(turn)
    with one_of_each(place, "collect") as collect:
        read = collect.new_turns(4)
        collect.settle(
            [make_outcome(turns[1])],
            [Drop(turn=turns[2].id, stage="collect", reason="unmatched")],
            turns_read=read[-1][0],
        )
    with one_of_each(place, "collect") as collect:
        assert [t.id for _, t in collect.open_turns()] == [turns[0].id, turns[3].id]
        assert [t.id for _, t in collect.new_turns(10)] == [turns[4].id]
        assert collect.drop_counts() == {"unmatched": 1}


def test_an_unanswered_case_stays_on_the_judges_list_while_later_ones_leave_it(place: Place) -> None:
    turns = [make_turn(str(i)) for i in range(4)]
    serve, collect, judge = (one_of_each(place, r) for r in ("serve", "collect", "judge"))
    for turn in turns:
        serve.add_turn(turn)
    collect.settle([make_outcome(turn) for turn in turns], [], turns_read=4)
    assert len(judge.unjudged(10)) == 4
    judge.add_verdicts([make_verdict(turns[0]), make_verdict(turns[2]), make_verdict(turns[3])])
    assert [c.turn.id for c in judge.unjudged(10)] == [turns[1].id]
    judge.close()
    with one_of_each(place, "judge") as judge:
        assert [c.turn.id for c in judge.unjudged(10)] == [turns[1].id]


def test_an_outcome_that_comes_while_the_work_list_is_read_is_not_passed_by(place: Place) -> None:
    serve, collect, judge = (one_of_each(place, r) for r in ("serve", "collect", "judge"))
    turn = make_turn()
    serve.add_turn(turn)
    plain = judge.row

    def slow_row(sql: str, *values: object) -> object:
        found = plain(sql, *values)
        if "min(o.seq)" in sql:
            collect.settle([make_outcome(turn)], [], turns_read=1)
        return found

    judge.row = slow_row
    judge.unjudged(10)
    judge.row = plain
    assert [case.turn.id for case in judge.unjudged(10)] == [turn.id]


def walked(path: Place) -> tuple[ServeLedger, JudgeLedger, TrainLedger, str]:
    serve, collect, judge, train = (one_of_each(path, r) for r in ("serve", "collect", "judge", "train"))
    turn = make_turn()
    serve.add_turn(turn)
    collect.settle([make_outcome(turn)], [], turns_read=1)
    judge.unjudged(10)
    judge.add_verdicts([make_verdict(turn, None)])
    return serve, judge, train, turn.id


def test_a_thumb_after_the_verdict_comes_back_to_the_judge_once(place: Place) -> None:
    serve, judge, train, turn = walked(place)
    train.add_drops([Drop(turn=turn, stage="train", reason="no signal")])
    assert train.untrained(10) == []
    assert train.dropped(turn).reason == "no signal"
    assert judge.late_feedback(10) == []
    serve.add_feedback(Feedback(turn=turn, score=1.0))
    [case] = judge.late_feedback(10)
    assert case.feedback[0].score == 1.0
    judge.add_verdicts([Verdict(turn=turn, score=1.0, source="explicit")])
    assert judge.late_feedback(10) == []
    assert [j.verdict.score for j in train.untrained(10)] == [1.0], "the drop was of the old verdict"
    assert train.dropped(turn) is None


def test_a_thumb_that_came_while_the_judge_was_thinking_is_not_lost(place: Place) -> None:
    serve, collect, judge = (one_of_each(place, r) for r in ("serve", "collect", "judge"))
    turn = make_turn()
    serve.add_turn(turn)
    collect.settle([make_outcome(turn)], [], turns_read=1)
    [case] = judge.unjudged(10)
    assert case.feedback == ()
    serve.add_feedback(Feedback(turn=turn.id, hint="Say it in French, please."))
    judge.add_verdicts([make_verdict(turn, 1.0)])
    [late] = judge.late_feedback(10)
    assert late.feedback[0].hint == "Say it in French, please."


def test_a_thumb_after_training_changes_nothing(place: Place) -> None:
    serve, judge, train, turn = walked(place)
    train.add_step(Step(number=1, turns=(turn,), metrics={}, seconds=0.0), None)
    serve.add_feedback(Feedback(turn=turn, score=-1.0))
    assert judge.late_feedback(10) == []


def test_feedback_for_a_turn_that_is_not_there_is_refused(place: Place) -> None:
    with one_of_each(place, "serve") as serve, pytest.raises(NotInLedger, match="no turn 'nope'"):
        serve.add_feedback(Feedback(turn="nope", score=1.0))


def test_the_second_of_the_same_writer_is_refused_with_who_holds_it(ledger_path: Path) -> None:
    code = (
        "import sys; from openclaw_rl.store import CollectLedger, ImportLedger, JudgeLedger, LedgerReader, ServeLedger, TrainLedger; l = ServeLedger(sys.argv[1], sync='full');"
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(ledger_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline().strip() == "held"
        with pytest.raises(LedgerHeld, match=f"writes as 'serve'.*process {other.pid} on .* since 20"):
            ServeLedger(ledger_path, sync="full")
        JudgeLedger(ledger_path).close()
        other.kill()
        other.wait()
    ServeLedger(ledger_path, sync="full").close()


WRITES = {
    ServeLedger: {"add_turn", "add_feedback", "add_ending", "add_reward", "add_optout"},
    ImportLedger: {"add_recorded"},
    CollectLedger: {"new_turns", "open_turns", "settled_turns", "new_endings", "settle"},
    JudgeLedger: {"unjudged", "late_feedback", "late_rewards", "add_verdicts", "scores"},
    TrainLedger: {
        "untrained",
        "waiting",
        "add_drops",
        "add_step",
        "add_distillation",
        "add_version",
        "set_state",
        "add_gate_decision",
    }
    | {"new_requests", "done_requests", "pause"},
}


def test_each_writer_has_its_own_methods_and_no_others() -> None:
    common = set(dir(LedgerReader)) | set(dir(LedgerWriter))
    for ledger, methods in WRITES.items():
        assert {name for name in set(dir(ledger)) - common if not name.startswith("_")} == methods
    assert {ledger.writer for ledger in WRITES} == set(WRITERS)


def test_a_reader_cannot_write_not_even_by_sql(place: Place) -> None:
    one_of_each(place, "serve").close()
    with LedgerReader(place) as reader, pytest.raises(LedgerDown, match="may only be read"):
        reader.rows("INSERT INTO endings (session, user, at) VALUES ('s', 'u', 1.0)")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda b: b[: len(b) // 2], "cut short"),
        (lambda b: b"garbage" * 100, "does not begin"),
        (lambda b: b[:68] + b"\0\0\0\1" + b[72:], "another program"),
        (lambda b: b[:100] + b"\xff" * 4000 + b[4100:], "not a healthy ledger"),
        (lambda b: b[:50], "does not begin"),
    ],
)
@pytest.mark.parametrize("writer", ["serve", None])
def test_a_damaged_file_is_refused_and_left_as_it_is(
    ledger_path: Path, damage: object, words: str, writer: str | None
) -> None:
    with one_of_each(ledger_path, "serve") as ledger:
        for i in range(20):
            ledger.add_turn(make_turn(str(i)))
    damaged = damage(ledger_path.read_bytes())  # type: ignore[operator]
    ledger_path.write_bytes(damaged)
    with pytest.raises(LedgerDamaged, match=words):
        one_of_each(ledger_path, writer)
    assert ledger_path.read_bytes() == damaged


def test_a_process_that_died_while_its_log_was_moved_into_the_file_leaves_a_whole_ledger(tmp_path: Path) -> None:
    path, left = tmp_path / "ledger.db", tmp_path / "left.db"
    with one_of_each(path, "serve") as ledger:
        ledger.db.execute("PRAGMA wal_autocheckpoint = 0")
        for i in range(50):
            ledger.add_turn(make_turn(str(i)))
        old, log = path.read_bytes(), path.with_name("ledger.db-wal").read_bytes()
        ledger.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        new = path.read_bytes()
    assert len(new) > len(old)
    left.write_bytes(new[:4096] + old[4096:])
    left.with_name("left.db-wal").write_bytes(log)
    with one_of_each(left, "serve") as ledger:
        assert ledger.counts()["turns"] == 50
        assert ledger.check() == []


LATER = rf"has layout {len(MIGRATIONS) + 1}; this release knows layouts up to {len(MIGRATIONS)}; upgrade openclaw-rl"


def test_a_file_of_a_later_release_is_refused_and_left_as_it_is(ledger_path: Path) -> None:
    ServeLedger(ledger_path, migrations=(*MIGRATIONS, "CREATE TABLE later (x);"), sync="full").close()
    before = ledger_path.read_bytes()
    with pytest.raises(LedgerNewer, match=LATER):
        ServeLedger(ledger_path, sync="full")
    with pytest.raises(LedgerNewer):
        LedgerReader(ledger_path)
    assert ledger_path.read_bytes() == before


def test_an_older_file_is_brought_forward_with_all_its_rows(ledger_path: Path) -> None:
    turn = make_turn()
    with one_of_each(ledger_path, "serve") as ledger:
        ledger.add_turn(turn)
    later = (*MIGRATIONS, "ALTER TABLE turns ADD COLUMN mood TEXT NOT NULL DEFAULT 'calm';")
    with ServeLedger(ledger_path, migrations=later, sync="full") as ledger:
        assert ledger.turn(turn.id) == turn
        assert ledger.row("SELECT mood FROM turns")["mood"] == "calm"


def test_a_migration_that_fails_half_way_changes_nothing(ledger_path: Path) -> None:
    with one_of_each(ledger_path, "serve") as ledger:
        ledger.add_turn(make_turn())
    broken = (*MIGRATIONS, "CREATE TABLE extra (x);\nCREATE TABLE turns (y);")
    with pytest.raises(LedgerDamaged, match="already exists"):
        ServeLedger(ledger_path, migrations=broken, sync="full")
    with one_of_each(ledger_path, "serve") as ledger:
        assert ledger.rows("SELECT name FROM sqlite_master WHERE name = 'extra'") == []


def test_an_imported_conversation_is_written_whole_or_not_at_all(place: Place) -> None:
    first, second = make_turn("a"), make_turn("b")
    said = [ImportRecord(turn=t.id, session="s", index=i, kind="main") for i, t in enumerate((first, second))]
    with one_of_each(place, "import") as ledger:
        with pytest.raises(AlreadyInLedger):
            ledger.add_recorded([(first, said[0]), (first, said[0])])
        assert ledger.counts()["turns"] == 0
        ledger.add_recorded([(first, said[0]), (second, said[1])])
        assert ledger.recorded(second.id) == said[1]


def test_a_request_is_there_until_it_is_done_and_survives_a_restart(place: Place) -> None:
    with one_of_each(place, "train") as train:
        submit_request(place, "rollback", version=3)
        [request] = train.new_requests(10)
        assert (request.command, request.version, request.reason) == ("rollback", 3, "on request")
    with one_of_each(place, "train") as train:
        assert len(train.new_requests(10)) == 1
        train.done_requests(request.seq)
    with one_of_each(place, "train") as train:
        assert train.new_requests(10) == []


def test_a_run_that_was_moved_still_finds_its_adapters(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    with one_of_each(old / "ledger.db", "train") as train:
        train.add_version(Version(number=0, parent=None, base="b", state="live"))
        train.add_version(Version(number=1, parent=0, base="b", adapter=str(old / "versions" / "1")))
        train.add_version(Version(number=2, parent=1, base="b", adapter="/elsewhere/2"))
    old.rename(new)
    with LedgerReader(new / "ledger.db") as reader:
        assert reader.version(1).adapter == str(new / "versions" / "1")
        assert reader.version(2).adapter == "/elsewhere/2"


@pytest.mark.slow
def test_many_processes_may_begin_a_ledger_at_once(ledger_path: Path) -> None:
    code = (
        "import sys; from openclaw_rl import store; print('ready', flush=True); sys.stdin.readline();"
        "path, name, *sync = sys.argv[1:]; getattr(store, name)(path, **({'sync': sync[0]} if sync else {})).close();"
        "print('done')"
    )
    command = [sys.executable, "-c", code, str(ledger_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    durable = [["ServeLedger", "full"], ["ImportLedger", "full"], ["TrainLedger", "full"]]
    opened = [["CollectLedger"], ["JudgeLedger"], *durable]
    others = [subprocess.Popen([*command, *words], **pipes) for words in opened]
    for other in others:
        assert other.stdout.readline() == "ready\n"
    for other in others:
        other.stdin.write("go\n")
        other.stdin.flush()
    assert [other.communicate()[0] for other in others] == ["done\n"] * len(WRITERS)
    one_of_each(ledger_path, "train").close()  # of two that close at the same moment, SQLite lets neither tidy up
    assert sorted(p.name for p in ledger_path.parent.iterdir() if p.suffix != ".lock") == ["ledger.db"]


def test_a_version_that_was_refused_stays_so_when_its_weights_are_deleted(place: Place) -> None:
    with one_of_each(place, "train") as train:
        for number in (0, 1, 2):
            train.add_version(Version(number=number, parent=number - 1 if number else None, base="b"))
        train.set_state(1, "refused", "nonsense")
        train.set_state(1, "deleted", "retention")
        assert train.version(1).state == "deleted"
        assert (train.ever("refused"), train.ever("deleted"), train.ever("live")) == ({1}, {1}, set())


def test_readers_see_what_is_committed_while_a_writer_writes(place: Place) -> None:
    with one_of_each(place, "serve") as serve, LedgerReader(place) as reader:
        turn = make_turn()
        serve.add_turn(turn)
        assert reader.turn(turn.id) == turn
        assert reader.counts()["turns"] == 1


def test_no_work_list_scans_a_table(ledger_path: Path) -> None:
    collect, judge, train = (one_of_each(ledger_path, role) for role in ("collect", "judge", "train"))
    with one_of_each(ledger_path, "serve") as ledger:
        seen: list[str] = []
        for each in (ledger, collect, judge, train):
            each.db.connection.set_trace_callback(seen.append)
        collect.new_turns(1), collect.open_turns(), collect.new_endings(1), judge.unjudged(1), judge.late_feedback(1)
        (
            train.untrained(1),
            train.waiting(1),
            read_group(train, GroupKey("u", "g"), before=0.0),
            LiveVersions(ledger).live(),
            ledger.session("s", "u"),
            ledger.has_session("s", "u"),
            ledger.verdict("t"),
        )
        ledger.session_users("s"), ledger.opted_out("s", "u")
        ledger.recall("t", within=4)
        for each in (ledger, collect, judge, train):
            each.db.connection.set_trace_callback(None)
        reads = [sql for sql in seen if sql.startswith("SELECT")]
        assert len(reads) > 10
        for sql in reads:
            steps = [row["detail"] for row in ledger.rows(f"EXPLAIN QUERY PLAN {sql}")]
            scans = [
                s
                for s in steps
                if s.startswith("SCAN")
                and not s.startswith(
                    ("SCAN p", "SCAN h VIRTUAL TABLE", "SCAN states", "SCAN sqlite_sequence", "SCAN CONSTANT ROW")
                )
            ]
            assert not scans, (sql, steps)


def of_layout_6(path: Path) -> None:
    """A ledger as the release before this layout wrote it."""
    with closing(sqlite3.connect(path)) as db:
        db.executescript((Path(__file__).parent / "data" / "ledger_layout_6.sql").read_text())
        db.execute("PRAGMA user_version = 6")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def test_a_ledger_of_layout_6_opens_with_its_states_as_fields_and_goes_on(ledger_path: Path) -> None:
    of_layout_6(ledger_path)
    one, two = "01a00000000000000000000001", "01a00000000000000000000002"
    with one_of_each(ledger_path, "train") as train, one_of_each(ledger_path, "judge") as judge:
        found = [(v.number, v.state, v.origin, v.source, v.request) for v in train.versions()]
        assert found == [
            (0, "live", "trained", None, None),
            (1, "live", "checkpoint", "/elsewhere/versions/000007", None),
            (2, "rolled back", "trained", None, None),
            (3, "live", "rollback", None, None),
        ]
        assert LiveVersions(train).live().number == 3
        assert (train.pinned(), train.pinned_turns(), train.paused()) == ({1}, [two], "a look first")
        asked = [(r.seq, r.command, r.version, r.turn) for r in train.new_requests(9)]
        assert asked == [
            (2, "pin version", 2, None),
            (3, "pin version", 1, None),
            (4, "unpin version", 2, None),
            (5, "pin turn", None, two),
            (6, "pause", None, None),
        ]
        assert [(d.decision, d.against) for d in train.gate_decisions(2)] == [("promote", 1)]
        assert (train.trained_in(one), train.last_step().number) == (8, 8)
        [late] = judge.late_feedback(9)
        assert (late.turn.id, late.feedback[0].hint) == (two, "Say it in French, please.")
        assert submit_request(ledger_path, "resume") == 7
        assert VersionManager(train).roll_back(2, "better after all", request=8).number == 4
        assert (train.version_of_request(8).adapter, train.paused()) == (train.version(2).adapter, None)


def test_nothing_is_read_or_requested_in_an_older_layout_and_the_remedy_is_given(ledger_path: Path) -> None:
    of_layout_6(ledger_path)
    before = ledger_path.read_bytes()
    with pytest.raises(LedgerError, match="older layout than this release reads; start 'openclaw-rl up' once"):
        LedgerReader(ledger_path)
    with pytest.raises(LedgerError, match="older layout than this release reads; start 'openclaw-rl up' once"):
        submit_request(ledger_path, "pause")
    assert ledger_path.read_bytes() == before


def test_a_checkpoint_is_known_again_by_its_directory_in_a_ledger_of_layout_6(ledger_path: Path) -> None:
    of_layout_6(ledger_path)
    same, other = (
        Checkpoint(directory=Path("/elsewhere/versions") / name, base="b", progress=TrainingProgress())
        for name in ("000007", "7")
    )
    with one_of_each(ledger_path, "train") as train:
        assert not checkpoints.to_be_adopted(same, train.versions(), None)
        with pytest.raises(ConfigError, match="this run has versions of its own already"):
            checkpoints.to_be_adopted(other, train.versions(), None)
