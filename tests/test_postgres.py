"""The ledger on a PostgreSQL server: its places, its order, what it says when something is wrong, and its return."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from fakes.postgres import PostgresServer

from openclaw_rl import config
from openclaw_rl.errors import (
    ConfigError,
    LedgerDamaged,
    LedgerDown,
    LedgerError,
    LedgerHeld,
    LedgerNewer,
    MissingExtra,
    NotInLedger,
)
from openclaw_rl.store import (
    CollectLedger,
    JudgeLedger,
    LedgerReader,
    NotesLedger,
    ServeLedger,
    ServerPlace,
    TrainLedger,
    exists,
)
from openclaw_rl.store.connection import LedgerConnection
from openclaw_rl.store.copying import COUNTED, TABLES
from openclaw_rl.store.schema import FIRST_LAYOUT, MIGRATIONS, POSTGRES_MIGRATIONS
from openclaw_rl.testing import make_outcome, make_turn
from openclaw_rl.types import Feedback

HOLD = (
    "import sys; from openclaw_rl import store; ledger = getattr(store, sys.argv[1])(sys.argv[2]);"
    "print('held', flush=True); sys.stdin.read()"
)


def serving(place: ServerPlace) -> ServeLedger:
    return ServeLedger(place, sync="full")


def columns(ledger: LedgerConnection, table: str) -> set[str]:
    row = ledger.row(f"SELECT * FROM (SELECT 1) one LEFT JOIN {table} ON true LIMIT 1")
    assert row is not None
    return set(dict(row)) - {"1", "?column?"}


def test_a_layout_has_the_same_tables_and_columns_in_both_stores(ledger_path: Path, database: ServerPlace) -> None:
    assert FIRST_LAYOUT + len(POSTGRES_MIGRATIONS) - 1 == len(MIGRATIONS)
    with CollectLedger(ledger_path) as file, CollectLedger(database) as server:
        named = {row["name"] for row in file.rows("SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert named - {"sqlite_sequence"} == set(TABLES) | set(COUNTED)
        for table in (*TABLES, *COUNTED):
            assert columns(file, table) == columns(server, table), table


def test_every_table_that_several_write_is_numbered_in_the_order_of_commits(database: ServerPlace) -> None:
    with CollectLedger(database) as ledger:
        named = {row["tgname"].removesuffix("_in_order") for row in ledger.rows("SELECT tgname FROM pg_trigger")}
        shared = {table for table in TABLES if ledger.db.horizon(table, 0) == 0}
        assert shared == {"turns", "feedback", "endings", "session_rewards", "requests"}
        assert shared == named & set(TABLES)


def test_a_ledger_that_lost_a_turn_is_found_out(database: ServerPlace) -> None:
    turn = make_turn()
    with serving(database) as serve, CollectLedger(database) as collect:
        serve.add_turn(turn)
        collect.settle([make_outcome(turn)], [], turns_read=1)
        assert serve.check() == []
        serve.db.execute("DELETE FROM turns")
        assert serve.check() == [f"an outcome of turn {turn.id}, which is not there"]


# --- places ---


def test_the_second_of_the_same_writer_is_refused_with_who_holds_it(database: ServerPlace) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, "CollectLedger", database.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=database.root,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline().strip() == "held"
        with pytest.raises(LedgerHeld, match=f"writes as 'collect'.*process {other.pid} on .* since 20"):
            CollectLedger(database)
        JudgeLedger(database).close()
        other.kill()
        other.wait()
        other.stdin.close()
    CollectLedger(database).close()


def test_each_gateway_is_a_writer_of_its_own_and_its_place_is_taken_again(database: ServerPlace) -> None:
    first, second, third = serving(database), serving(database), serving(database)
    for ledger in (first, second, third):
        ledger.add_turn(make_turn())
        ledger.report("serve", state="running", moved=1, failures=0)
    assert [one.loop for one in first.health()] == ["serve", "serve 2", "serve 3"]
    assert {one.role for one in first.health()} == {"serve"}
    assert first.counts()["turns"] == 3
    second.close()
    assert serving(database).db.slot == 2


def test_what_a_slow_gateway_commits_later_is_not_passed_by(database: ServerPlace) -> None:
    """The first to get a number is the second to commit; collect must not read past it."""
    slow, quick, collect = serving(database), serving(database), CollectLedger(database)
    begun, go_on = threading.Event(), threading.Event()
    early, late = make_turn("early"), make_turn("late")

    def write() -> None:
        from openclaw_rl.store.rows import turn_row

        with slow.writing() as db:
            db.insert("turns", turn_row(early))
            begun.set()
            assert go_on.wait(20)

    writer = threading.Thread(target=write)
    writer.start()
    assert begun.wait(20)
    quick.add_turn(late)
    assert [read.turn.id for read in collect.turns_after(0, 9)] == [late.id], "it is there to be seen"
    collect.db.execute("SET lock_timeout = '10ms'")
    with collect.db.transaction():
        collect.db.execute("ALTER FUNCTION ledger_horizon SET lock_timeout = '10ms'")  # or it waits for two seconds
    assert collect.new_turns(9) == [], "and not to be read past"
    go_on.set()
    writer.join()
    read = collect.new_turns(9)
    assert [one.turn.id for one in read] == [early.id, late.id]
    collect.settle([], [], turns_read=read[-1].seq)
    assert collect.new_turns(9) == []


def test_any_text_comes_back_as_it_was(database: ServerPlace) -> None:
    with serving(database) as serve:
        turn = make_turn(user="a zero \0, a mark \x1a, both \x1a0\0", session="s\0")
        serve.add_turn(turn)
        serve.add_feedback(Feedback(turn=turn.id, hint="say \0 \x1a\x1a0 \U0001f40d"))
        assert serve.turn(turn.id) == turn
        assert serve.has_session("s\0", turn.user)
        assert not serve.has_session("s", turn.user)
        assert serve.feedback(turn.id)[0].hint == "say \0 \x1a\x1a0 \U0001f40d"
        assert serve.users() == [turn.user]


# --- what is wrong, and what to do ---


def test_a_server_that_is_not_there_is_named_with_the_remedy(tmp_path: Path) -> None:
    nowhere = ServerPlace(url="postgresql://ann:secret@127.0.0.1:1/run", root=tmp_path)
    with pytest.raises(LedgerDown, match=r"ann@127.0.0.1:1/run cannot be used.*cannot be reached.*store.url") as error:
        serving(nowhere)
    assert "secret" not in str(error.value)


def test_a_wrong_password_a_missing_database_and_an_unknown_role_are_told_apart(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    def refused(url: str) -> str:
        with pytest.raises(LedgerDown) as error:
            LedgerReader(ServerPlace(url=url, root=tmp_path))
        return f"{error.value.why}; {error.value.remedy}"

    assert "password is wrong" in refused(postgres.url(password="guess"))
    assert "~/.pgpass" in refused(postgres.url(password="guess"))
    assert "createdb" in refused(postgres.url("nowhere"))
    assert "password is wrong" in refused(postgres.url().replace("ledger:", "stranger:"))


def test_a_role_that_may_not_write_is_told_what_it_lacks(postgres: PostgresServer, tmp_path: Path) -> None:
    import psycopg

    url = postgres.database()
    with closing(psycopg.connect(url, autocommit=True)) as db:
        db.execute("CREATE ROLE guest LOGIN PASSWORD 'guest'")
        db.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    guest = re.sub("//.*@", "//guest:guest@", url)
    with pytest.raises(LedgerDown, match=r"it may not be written .*permission denied.*; give the role of store.url"):
        serving(ServerPlace(url=guest, root=tmp_path))


def test_without_the_driver_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtra, match=r"pip install 'openclaw-rl\[postgres\]'"):
        LedgerReader(ServerPlace(url="postgresql://127.0.0.1/run", root=tmp_path))


def test_a_ledger_of_a_later_release_is_refused_and_left_as_it_is(database: ServerPlace) -> None:
    ServeLedger(database, sync="full", migrations=(*POSTGRES_MIGRATIONS, "CREATE TABLE later (x INTEGER)")).close()
    newest = len(MIGRATIONS)
    with pytest.raises(LedgerNewer, match=f"has layout {newest + 1}; this release knows layouts up to {newest}"):
        serving(database)
    with pytest.raises(LedgerNewer, match="upgrade openclaw-rl, or give it another database"):
        LedgerReader(database)


def test_an_older_ledger_is_brought_forward_by_a_writer_alone(database: ServerPlace) -> None:
    turn = make_turn()
    with serving(database) as serve:
        serve.add_turn(turn)
    later = (*POSTGRES_MIGRATIONS, "ALTER TABLE turns ADD mood TEXT NOT NULL DEFAULT 'calm'")
    with pytest.raises(LedgerError, match="older layout than this release reads; start 'openclaw-rl up' once"):
        LedgerReader(database, migrations=later)
    with ServeLedger(database, sync="full", migrations=later) as serve:
        assert serve.turn(turn.id) == turn
        assert serve.one("SELECT mood FROM turns")["mood"] == "calm"


def test_tables_of_another_program_are_left_as_they_are(database: ServerPlace) -> None:
    import psycopg

    with closing(psycopg.connect(database.url, autocommit=True)) as db:
        db.execute("CREATE TABLE verdicts (guilty BOOLEAN)")
    assert not exists(database)
    with pytest.raises(NotInLedger, match="there is no ledger in postgresql://ledger@127"):
        LedgerReader(database)
    with pytest.raises(LedgerDamaged, match=r"another program: .*verdicts.*createdb NAME"):
        serving(database)
    with closing(psycopg.connect(database.url, autocommit=True)) as db:
        found = db.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        assert found == [("verdicts",)], "nothing was changed"


def test_the_url_is_a_setting_that_nobody_shows(database: ServerPlace) -> None:
    resolved = config.load(environ={}, sets=[f"store.url={database.url}"])
    assert "let%20me" not in str(config.as_json(resolved))
    with pytest.raises(ConfigError, match=r"store\.url.*must begin with postgresql://") as error:
        config.load(environ={}, sets=["store.url=mysql://ann:secret@db/run"])
    assert "secret" not in str(error.value)


# --- a server that goes away and comes back ---


@pytest.mark.slow
def test_a_turn_waits_for_a_server_that_is_back_soon_and_is_written_once(
    postgres: PostgresServer, database: ServerPlace
) -> None:
    first, second = make_turn("first"), make_turn("second")
    with serving(database) as serve, CollectLedger(database) as collect, NotesLedger(database) as notes:
        serve.add_turn(first)
        [read] = collect.new_turns(9)
        collect.settle([make_outcome(first)], [], turns_read=read.seq)
        postgres.kill()
        back = threading.Timer(0.5, postgres.start)
        back.start()
        serve.add_turn(second)
        back.join()
        assert [found.turn.id for found in serve.turns_after(0, 9)] == [first.id, second.id]
        with pytest.raises(LedgerDown):
            collect.new_turns(9)  # it is told, so that it reads what it remembers anew
        while True:
            try:
                assert second.id in [found.turn.id for found in collect.new_turns(9)]
                break
            except LedgerDown:
                continue
        assert notes.notes() == []


@pytest.mark.slow
def test_a_commit_whose_answer_was_lost_is_not_written_again(postgres: PostgresServer, database: ServerPlace) -> None:
    turn = make_turn()
    with serving(database) as serve:
        commit = serve.db._run  # type: ignore[attr-defined]

        def cut(sql: str, values: object = ()) -> object:
            done = commit(sql, values)
            if sql == "COMMIT":
                serve.db._run = commit  # type: ignore[attr-defined]
                serve.db.connection.close()  # type: ignore[attr-defined]
                commit("SELECT 1")
            return done

        serve.db._run = cut  # type: ignore[attr-defined]
        serve.add_turn(turn)
        assert serve.counts()["turns"] == 1
        assert serve.trouble is None


def test_a_trainer_finds_its_place_again_after_its_connection_was_cut(database: ServerPlace) -> None:
    with TrainLedger(database, sync="full") as train, LedgerReader(database) as reader:
        import psycopg

        with closing(psycopg.connect(database.url, autocommit=True)) as db:
            db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE '%train%'")
        with pytest.raises(LedgerDown, match="cannot be used"):
            train.new_requests(9)
        with pytest.raises(LedgerDown, match="was unreachable for a while; no action is needed"):
            train.new_requests(9)
        train.pause("a look first")
        assert reader.paused() == "a look first"
        with pytest.raises(LedgerHeld):
            TrainLedger(database, sync="full")
