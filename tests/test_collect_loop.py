"""The loop: everything settled once, nothing lost, whatever kills it in between."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conversations import CHANGES, bot, simulate, turn, user

from openclaw_rl.collect import CollectLoop
from openclaw_rl.store import CollectLedger, ServeLedger
from openclaw_rl.types import Drop, ImportRecord, Message, Outcome, SessionEnd, Turn
from openclaw_rl.views.status import nothing_trainable

pytestmark = pytest.mark.anyio


class Killed(BaseException):
    """The process is gone."""


@dataclass
class Book:
    """A ledger on the table. ``kill_at`` counts calls, before (even) and after (odd) they take effect."""

    turns: list[Turn] = field(default_factory=list)
    endings: list[SessionEnd] = field(default_factory=list)
    records: dict[str, ImportRecord] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    drops: dict[str, Drop] = field(default_factory=dict)
    turns_read: int = 0
    endings_read: int = 0
    kill_at: int = -1
    calls: int = 0

    def _step(self) -> None:
        self.calls += 1
        if self.calls - 1 == self.kill_at:
            raise Killed

    def new_turns(self, limit: int) -> list[tuple[int, Turn]]:
        self._step()
        return list(enumerate(self.turns, 1))[self.turns_read : self.turns_read + limit]

    def open_turns(self) -> list[tuple[int, Turn]]:
        self._step()
        read = list(enumerate(self.turns, 1))[: self.turns_read]
        return [(seq, each) for seq, each in read if each.id not in self.outcomes and each.id not in self.drops]

    def new_endings(self, limit: int) -> list[tuple[int, SessionEnd]]:
        self._step()
        return list(enumerate(self.endings, 1))[self.endings_read : self.endings_read + limit]

    def recorded(self, turn: str) -> ImportRecord | None:
        return self.records.get(turn)

    def settle(
        self, outcomes: Sequence[Outcome], drops: Sequence[Drop], *, turns_read: int | None, endings_read: int | None
    ) -> None:
        self._step()
        for outcome in outcomes:
            assert outcome.turn not in self.outcomes, "settled twice"
            self.outcomes[outcome.turn] = outcome
        self.drops |= {drop.turn: drop for drop in drops}
        self.turns_read = turns_read or self.turns_read
        self.endings_read = endings_read or self.endings_read
        self._step()


class Memoir(Book):
    """A ledger that also tells what was settled lately."""

    def settled_turns(self, since: float) -> list[tuple[int, Turn, Outcome]]:
        self._step()
        read = list(enumerate(self.turns, 1))[: self.turns_read]
        known = [(seq, each, self.outcomes.get(each.id)) for seq, each in read if each.at >= since]
        return [(seq, each, outcome) for seq, each, outcome in known if outcome is not None]


def loop(book: Any, now: float = 0.0, **settings: Any) -> CollectLoop:
    return CollectLoop(book, clock=lambda: now, **{"session_idle": 1800.0, "env_idle": 1800.0, **settings})


async def run_dry(collect: CollectLoop) -> int:
    moved = total = await collect.tick()
    while moved:
        moved = await collect.tick()
        total += moved
    return total


async def test_a_tick_settles_and_says_how_much_moved() -> None:
    book = Book(turns=[turn("t1", [user("hi")], "hello"), turn("t2", [user("hi"), bot("hello"), user("so?")], "ok")])
    collect = loop(book)
    assert collect.name == "collect"
    assert await collect.tick() == 3  # two turns read, one outcome
    assert (book.turns_read, list(book.outcomes), collect.open) == (2, ["t1"], 1)
    assert await collect.tick() == 0
    assert dict(collect.counts) == {"main: continued": 1}


async def test_idleness_is_judged_by_the_clock_once_all_is_read() -> None:
    now = 0.0
    book = Book(turns=[turn("t1", [user("hi")], "hello", at=100.0)])
    collect = CollectLoop(book, session_idle=30.0, env_idle=30.0, clock=lambda: now)
    assert await collect.tick() == 1
    now = 130.0
    assert await collect.tick() == 0
    now = 130.5
    assert await collect.tick() == 1
    assert (book.outcomes["t1"].ended, book.outcomes["t1"].at) == ("idle", 130.0)


async def test_a_backlog_is_read_in_batches_and_is_not_idle_meanwhile() -> None:
    talk: list[Message] = []
    turns = []
    for n in range(10):
        talk.append(user(f"q{n}"))
        turns.append(turn(f"t{n}", list(talk), f"a{n}", at=float(n)))
        talk.append(bot(f"a{n}"))
    book = Book(turns=turns)
    collect = loop(book, now=1e6, batch=3)
    await run_dry(collect)
    assert [book.outcomes[f"t{n}"].ended for n in range(10)] == [None] * 9 + ["idle"]
    assert [book.outcomes[f"t{n}"].index for n in range(10)] == list(range(10))


async def test_an_ending_closes_what_was_said_before_it_and_nothing_later() -> None:
    later = turn("t2", [user("new topic")], "fine", session="s", at=9.0)
    book = Book(turns=[turn("t1", [user("hi")], "hello", session="s", at=1.0), later])
    book.endings = [SessionEnd(session="s", user="u1", at=5.0), SessionEnd(session="s", user="u2", at=99.0)]
    await run_dry(loop(book))
    assert {id: outcome.ended for id, outcome in book.outcomes.items()} == {"t1": "done"}
    assert book.endings_read == 2


async def test_an_ending_waits_for_turns_that_are_not_read_yet() -> None:
    book = Book(turns=[turn(f"t{n}", [user(f"q{n}")], "a", session="s", at=float(n)) for n in range(4)])
    book.endings = [SessionEnd(session="s", user="u1", at=2.5)]
    collect = loop(book, batch=2)
    await collect.tick()
    assert (book.outcomes, book.endings_read) == ({}, 0)
    await run_dry(collect)
    assert sorted(id for id, outcome in book.outcomes.items() if outcome.ended == "done") == ["t0", "t1", "t2"]


async def test_an_imported_turn_is_settled_from_its_record() -> None:
    imported = turn("t1", [user("hi")], "hello", trainable=False)
    said = ImportRecord(turn="t1", session="old", index=4, kind="main", next_state=(user("thanks"),), trainable=False)
    book = Book(turns=[imported, turn("t2", [user("x")], "y")], records={"t1": said})
    book.records["t2"] = ImportRecord(turn="t2", session="old", index=5, kind="side")
    await run_dry(loop(book))
    first, second = book.outcomes["t1"], book.outcomes["t2"]
    assert (first.session, first.index, first.kind_reason, first.ended) == ("old", 4, "recorded", None)
    assert first.next_state == (user("thanks"),)
    assert (second.kind, second.ended) == ("side", "recorded")


async def test_an_opted_out_turn_gets_its_outcome_too() -> None:
    book = Book(turns=[turn("t1", [user("hi")], "hello", trainable=False)])
    await run_dry(loop(book, now=1e6))
    assert book.outcomes["t1"].ended == "idle"


async def test_a_reply_without_a_token_is_dropped_with_the_reason() -> None:
    empty = turn("t1", [user("hi")], "", finish="aborted")
    object.__setattr__(empty.completion, "reply_tokens", ())
    object.__setattr__(empty.completion, "logprobs", ())
    book = Book(turns=[empty])
    await run_dry(loop(book, now=1e6))
    assert (book.outcomes, book.drops["t1"].stage, book.drops["t1"].reason) == ({}, "collect", "empty reply")


async def test_a_failed_write_is_decided_again() -> None:
    book = Book(turns=[turn("t1", [user("hi")], "hello"), turn("t2", [user("hi"), bot("hello"), user("so?")], "ok")])
    collect = loop(book)
    book.kill_at = 3  # open_turns, new_endings, new_turns, settle
    with pytest.raises(Killed):
        await collect.tick()
    await run_dry(collect)
    assert [outcome.turn for outcome in book.outcomes.values()] == ["t1"]


def random_turns(seed: int, length: int = 45) -> list[Turn]:
    rng = random.Random(seed)
    steps = [(rng.randrange(4), rng.choice(CHANGES)) for _ in range(length)]
    return simulate(seed, steps, unique=seed % 2 == 0).turns


async def lived(book: Book, turns: Sequence[Turn], endings: Sequence[SessionEnd], restart: bool) -> dict[str, Outcome]:
    """A life of the loop: turns come in threes, the clock goes with them; ``restart`` forgets all before each tick."""
    now = 0.0
    collect = None
    for at in range(0, len(turns), 3):
        book.turns += turns[at : at + 3]
        now = book.turns[-1].at
        book.endings += [ending for ending in endings if ending not in book.endings and ending.at <= now]
        if collect is None or restart:
            collect = CollectLoop(book, session_idle=150.0, env_idle=150.0, batch=2, clock=lambda: now)  # noqa: B023
        while await collect.tick():
            if restart:
                collect = CollectLoop(book, session_idle=150.0, env_idle=150.0, batch=2, clock=lambda: now)  # noqa: B023
    now = 1e9
    await run_dry(collect or loop(book))
    assert set(book.outcomes) == {each.id for each in turns}
    return book.outcomes


@pytest.mark.parametrize("seed", range(8))
async def test_a_loop_that_is_restarted_all_the_time_writes_the_same_outcomes(seed: int) -> None:
    turns = random_turns(seed)
    ends = [SessionEnd(session="session-0", user="u1", at=205.0), SessionEnd(session="session-1", user="u1", at=415.0)]
    assert await lived(Memoir(), turns, ends, restart=True) == await lived(Memoir(), turns, ends, restart=False)


async def test_a_kill_between_any_two_calls_changes_nothing() -> None:
    turns = random_turns(3, length=24)
    whole = Memoir(turns=turns)
    await run_dry(loop(whole, now=turns[-1].at, session_idle=60.0, env_idle=60.0, batch=8))
    assert whole.calls > 10
    for kill_at in range(whole.calls):
        book = Memoir(turns=turns, kill_at=kill_at)
        collect = loop(book, now=turns[-1].at, session_idle=60.0, env_idle=60.0, batch=8)
        with pytest.raises(Killed):
            await run_dry(collect)
        await run_dry(loop(book, now=turns[-1].at, session_idle=60.0, env_idle=60.0, batch=8))
        assert book.outcomes == whole.outcomes


async def test_without_a_memory_in_the_ledger_a_restart_still_finds_what_was_said_next() -> None:
    talk = [user("hi"), bot("hello"), user("shorter"), bot("hey"), user("good")]
    turns = [turn(f"t{n}", talk[: 2 * n + 1], talk[2 * n + 1] if n < 2 else "bye", at=float(n)) for n in range(3)]
    book = Book()
    for each in turns:
        book.turns.append(each)
        await run_dry(loop(book))
    assert [[m.content for m in book.outcomes[id].next_state] for id in ("t0", "t1")] == [["shorter"], ["good"]]
    assert [outcome.index for outcome in book.outcomes.values()] == [0, 1]


async def test_the_real_ledger_is_read_and_settled(ledger_path: Path) -> None:
    serve = ServeLedger(ledger_path, sync="full")
    collect_ledger = CollectLedger(ledger_path)
    with serve, collect_ledger:
        serve.add_turn(turn("t1", [user("hi")], "hello", session="s", at=1.0))
        serve.add_turn(turn("t2", [user("hi"), bot("hello"), user("so?")], "ok", session="s", at=2.0))
        assert await loop(collect_ledger, now=2.0).tick() == 3
        serve.add_ending("s", "u1")
        assert await loop(collect_ledger, now=2.0).tick() == 2
        assert await loop(collect_ledger, now=2.0).tick() == 0
        first, second = collect_ledger.outcome("t1"), collect_ledger.outcome("t2")
        assert first is not None
        assert second is not None
        assert ([m.content for m in first.next_state], second.ended, second.index) == (["so?"], "done", 1)


def test_starvation_is_said_with_its_reasons_and_a_remedy() -> None:
    reasons = {"no signal": 4, "side turn": 26, "stale": 0}
    said = nothing_trainable(answered=30, trainable=0, reasons=reasons, after=20)
    assert said is not None
    assert said.startswith(
        "30 turns answered, none trainable, because: 26 side turn, 4 no signal; mark conversations with"
    )


@pytest.mark.parametrize(("answered", "trainable"), [(19, 0), (30, 1), (0, 0)])
def test_no_alarm_while_there_is_something_to_learn_or_little_was_said(answered: int, trainable: int) -> None:
    reasons = {"no signal": answered}
    assert nothing_trainable(answered=answered, trainable=trainable, reasons=reasons, after=20) is None
