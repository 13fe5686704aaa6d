"""A session is a user's own: nobody takes, sees, ends, blocks or opts out a session of another user by its name."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw_rl.collect.loop import CollectLoop
from openclaw_rl.errors import NotInLedger
from openclaw_rl.store import CollectLedger, ServeLedger
from openclaw_rl.store.schema import APPLICATION_ID, MIGRATIONS
from openclaw_rl.testing import RunningServer, make_turn, serving
from openclaw_rl.views import status as views
from openclaw_rl.views import transcripts

KEYS = {"k1": "ann", "k2": "bob"}
ANN, BOB = ({"authorization": f"Bearer {key}"} for key in KEYS)
OLD = Path(__file__).parents[1] / "data" / "ledger_layout_5.sql"


@pytest.fixture
def book(ledger_path: Path) -> Iterator[ServeLedger]:
    with ServeLedger(ledger_path, sync="normal") as ledger:
        yield ledger


@pytest.fixture
def server(book: ServeLedger) -> Iterator[RunningServer]:
    with serving(ledger=book, keys=KEYS) as server:
        yield server


def says(server: RunningServer, who: dict[str, str], text: str, **headers: str) -> str:
    answer = server.chat(text, headers={**who, "x-session-id": "work", **headers})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def test_who_comes_second_with_a_name_gets_a_session_of_their_own(server: RunningServer, book: ServeLedger) -> None:
    anns, bobs = says(server, ANN, "one"), says(server, BOB, "two")
    assert (book.session("work", "ann"), book.session("work", "bob")) == ([anns], [bobs])
    assert list(book.sessions()) == [("work", "ann"), ("work", "bob")]
    assert [one["session_id"] for one in transcripts.export(book)] == ["work", "work"]
    assert [turn["id"] for turn in views.session(book, "work", "bob")["turns"]] == [bobs]
    with pytest.raises(NotInLedger, match="2 users have a session 'work': ann, bob; give --user"):
        views.session(book, "work")


def test_a_guessed_name_is_the_users_own_too(server: RunningServer, book: ServeLedger) -> None:
    for who in (ANN, BOB):
        assert server.chat(headers=who, user="u4").status_code == 200
    assert list(book.sessions()) == [("u4", "ann"), ("u4", "bob")]


def test_nobody_can_end_a_session_of_another(server: RunningServer, ledger_path: Path) -> None:
    says(server, ANN, "one")
    assert server.post("/v1/sessions/work/end", {}, **BOB).status_code == 404
    says(server, BOB, "two")
    assert server.post("/v1/sessions/work/end", {}, **BOB).status_code == 200
    with CollectLedger(ledger_path) as collect:
        assert [(end.session, end.user) for _, end in collect.new_endings(9)] == [("work", "bob")]


async def test_the_end_of_one_leaves_the_other_open(
    server: RunningServer, book: ServeLedger, ledger_path: Path
) -> None:
    anns, bobs = says(server, ANN, "one"), says(server, BOB, "two", **{"x-session-done": "true"})
    with CollectLedger(ledger_path) as collect:
        await CollectLoop(collect, session_idle=1800.0, env_idle=1800.0).tick()
        assert [turn.id for _, turn in collect.open_turns()] == [anns]
        assert collect.outcome(bobs).ended == "done"  # type: ignore[union-attr]


def test_nobody_can_take_a_session_of_another_out_of_training(server: RunningServer, book: ServeLedger) -> None:
    out = says(server, BOB, "two", **{"x-openclaw-rl-train": "off-session"})
    turns = [out, says(server, ANN, "one"), says(server, BOB, "three")]
    assert [book.turn(turn).trainable for turn in turns] == [False, True, False]
    assert (book.opted_out("work", "ann"), book.opted_out("work", "bob")) == (False, True)


def test_a_session_that_trains_nothing_and_keeps_nothing_can_be_ended_all_the_same(ledger_path: Path) -> None:
    with ServeLedger(ledger_path, sync="full") as book, serving(ledger=book, keys=KEYS, store_optouts=False) as server:
        says(server, ANN, "one", **{"x-openclaw-rl-train": "off"})
        assert server.post("/v1/sessions/work/end", {}, **ANN).status_code == 200


def test_a_ledger_of_the_layout_before_goes_on_with_its_sessions_and_opt_outs(ledger_path: Path) -> None:
    db = sqlite3.connect(ledger_path)
    db.executescript(OLD.read_text())
    db.execute("PRAGMA user_version = 5")
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.close()
    with ServeLedger(ledger_path, sync="full") as book:
        assert book.row("PRAGMA user_version")["user_version"] == len(MIGRATIONS)
        assert (book.opted_out("work", "ann"), book.opted_out("work", "bob")) == (True, False)
        assert (book.has_session("home", "bob"), book.has_session("home", "ann")) == (True, False)
        assert list(book.sessions()) == [("s", "ann"), ("home", "bob")]
        with CollectLedger(ledger_path) as collect:
            assert [end.session for _, end in collect.new_endings(9)] == ["home"]
        book.add_optout("work", "bob")
        book.add_turn(make_turn(session="home", user="ann"))
        assert (book.opted_out("work", "bob"), book.has_session("home", "ann")) == (True, True)
        assert book.check() == []
