"""One bad row never stops a loop: it costs itself alone, is counted, and stays settled when the process starts again."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judges import LIMITS, judge_loop, rules_judge
from training import queue_settings, sample_settings

from openclaw_rl.collect.loop import CollectLoop
from openclaw_rl.collect.threads import Threads
from openclaw_rl.errors import JudgeUnavailable
from openclaw_rl.judge import evidence
from openclaw_rl.judge.custom import reaction_of
from openclaw_rl.judge.evidence import decide
from openclaw_rl.ports import Case, Judge
from openclaw_rl.store import CollectLedger, JudgeLedger, ServeLedger, TrainLedger
from openclaw_rl.testing import make_completion, make_message, make_outcome, make_prompt, make_turn
from openclaw_rl.train.queue import TrainingQueue
from openclaw_rl.types import Hint, Message, Outcome, Turn, UnreadableTurn, Verdict, Version

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

DIGITS = "1" * 5_000
PILLS = {
    "an exit code of 5,000 digits": make_message("tool", f"exit code {DIGITS}"),
    "an exit mark of 5,000 digits": make_message("tool", f"[exit code: {DIGITS}]"),
    "nested objects": make_message("tool", '{"a":' * 3_000),
    "nested lists": make_message("tool", '{"error": ' + "[" * 50_000),
    "a return code of 5,000 digits": make_message("user", f"<returncode>{DIGITS}</returncode>"),
    "a JSON number of 5,000 digits": make_message("tool", f'{{"exit_code": {DIGITS}}}'),
    "numbers that are none": make_message("tool", '{"exit_code": NaN, "returncode": Infinity, "ok": 1e999}'),
    "5,000 digits of tests passed": make_message("tool", f"{DIGITS} passed in 0.1s"),
    "5,000 digits of unit tests": make_message("tool", f"Ran {DIGITS} tests in 1.0s\n\nOK"),
    "5,000 digits of cargo tests": make_message("tool", f"test result: ok. {DIGITS} passed; {DIGITS} failed"),
    "5,000 digits of jest tests": make_message("tool", f"Tests: {DIGITS} failed, {DIGITS} passed, {DIGITS} total"),
    "half an emoji": make_message("user", "Please stop using \ud83d in your answers."),
    "null bytes": make_message("tool", "\x00" * 1_000 + "error: \x00"),
    "half emojis of a tool": make_message("tool", '{"error": "\ud83d\ude00\udfff"}\udc00'),
    "half emojis in a complaint": make_message("user", "No, that's wrong \ud800\udbff!"),
}
GOOD = make_message("user", "No, that's wrong.")


@pytest.fixture
def book(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def told(path: Path, *said: Message) -> list[Turn]:
    """Turns with these next messages, in the ledger. Half characters are put in by the hands of `cases`."""
    turns = [make_turn(f"question {at}", session=f"s{at}") for at, _ in enumerate(said)]
    with ServeLedger(path, sync="full") as serve:
        for turn in turns:
            serve.add_turn(turn)
    with CollectLedger(path) as collect:
        for turn, message in zip(turns, said, strict=True):
            collect.settle([make_outcome(turn, next_state=(message,))], [], turns_read=None)
    return turns


class Swapped(JudgeLedger):
    """A ledger whose cases end in other words than were written: in some that no file can hold."""

    said: dict[str, Message]

    def unjudged(self, limit: int) -> list[Case | UnreadableTurn]:
        return [self._swapped(case) for case in super().unjudged(limit) if isinstance(case, Case)]

    def _swapped(self, case: Case) -> Case:
        return replace(case, outcome=make_outcome(case.turn, next_state=(self.said[case.turn.id],)))


@pytest.mark.parametrize("name", PILLS)
async def test_a_pill_is_judged_like_any_other_message_and_so_are_those_after_it(name: str, book: Path) -> None:
    pill, good = told(book, make_message("user", "x"), make_message("user", "y"))
    with Swapped(book) as ledger:
        ledger.said = {pill.id: PILLS[name], good.id: GOOD}
        await judge_loop(ledger, rules_judge()).tick()
        verdict = ledger.verdict(pill.id)
        assert verdict is not None
        assert len(verdict.note) < 200
        assert ledger.verdict(good.id) is not None
        assert ledger.drop_counts() == {}, "the readers themselves can do with it"


async def test_a_case_that_no_reader_can_read_is_an_abstention_and_a_drop_for_good(
    book: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = told(book, make_message("tool", "poison"), GOOD)

    def failing(text: str) -> str | None:
        raise RecursionError(text)

    monkeypatch.setattr(evidence.tools, "failure", failing)
    with JudgeLedger(book) as ledger:
        loop = judge_loop(ledger, rules_judge())
        assert await loop.tick() == 2
        assert (await loop.status())["failed"] == 1
        assert ledger.verdict(good.id).score == -1  # type: ignore[union-attr]
        assert ledger.verdict(bad.id).score is None  # type: ignore[union-attr]
        assert ledger.drop_counts() == {"judge failed": 1}
    with JudgeLedger(book) as ledger:
        assert await judge_loop(ledger, rules_judge()).tick() == 0
        assert ledger.dropped(bad.id).stage == "judge"  # type: ignore[union-attr]


def damage(path: Path, table: str, column: str, turn: Turn, blob: bytes) -> None:
    key = "id" if table == "turns" else "turn"
    with ServeLedger(path, sync="full") as ledger:
        ledger.db.execute(f"UPDATE {table} SET {column} = ? WHERE {key} = ?", (blob, turn.id))


@pytest.mark.parametrize(
    ("table", "column"), [("turns", "prompt"), ("turns", "reply"), ("turns", "logprobs"), ("outcomes", "next_state")]
)
@pytest.mark.parametrize("blob", [b"", b"\x00rubbish", zlib.compress(b'{"a":'), zlib.compress(b"[" * 100_000)])
async def test_a_damaged_row_is_given_up_by_the_judge_and_the_others_go_on(
    book: Path, table: str, column: str, blob: bytes
) -> None:
    bad, good = told(book, GOOD, GOOD)
    damage(book, table, column, bad, blob)
    with JudgeLedger(book) as ledger:
        loop = judge_loop(ledger, rules_judge())
        assert await loop.tick() == 2
        assert await loop.tick() == 0
        assert ledger.verdict(good.id).score == -1  # type: ignore[union-attr]
        assert ledger.verdict(bad.id).score is None  # type: ignore[union-attr]
        assert ledger.drop_counts() == {"unreadable": 1}
    with TrainLedger(book, sync="full") as ledger:
        assert [found.turn.id for found in ledger.untrained(9)] == [good.id]


@pytest.mark.parametrize(
    ("table", "column"), [("turns", "logprobs"), ("outcomes", "next_state"), ("verdicts", "votes")]
)
async def test_a_row_damaged_after_it_was_judged_is_dropped_by_the_trainer_and_the_others_train(
    book: Path, table: str, column: str
) -> None:
    bad, good = told(book, GOOD, GOOD)
    with JudgeLedger(book) as ledger:
        await judge_loop(ledger, rules_judge()).tick()
    damage(book, table, column, bad, b"\x00rubbish")
    with TrainLedger(book, sync="full") as ledger:
        ledger.add_version(Version(number=0, parent=None, base="b", state="live"))
        work = TrainingQueue(ledger, sample_settings(), queue_settings(batch_size=1, max_wait=0.0, idle=0.0))
        assert work.read() == 1
        assert work.read() == 0
        assert [sample.turn for sample in work.next_batch()] == [good.id]
        assert ledger.drop_counts() == {"unreadable": 1}


class Picky:
    """A judge that answers everybody but one, and nobody while it is down."""

    name = "picky"

    def __init__(self, refused: str) -> None:
        self.refused, self.down, self.asked = refused, False, list[str]()

    async def judge(self, case: Case) -> Verdict:
        self.asked.append(case.turn.id)
        if self.down or case.turn.id == self.refused:
            raise JudgeUnavailable("no vote could be had")
        return Verdict(turn=case.turn.id, score=1.0, source="judge", hints=(Hint(text="be \ud800 brief please"),))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        self.now += 100.0
        return self.now


async def test_an_outage_costs_no_turn_and_one_turn_that_always_fails_holds_up_none(book: Path) -> None:
    turns = told(book, *[make_message("user", f"so it is {at}") for at in range(12)])
    judge = Picky(turns[0].id)
    assert isinstance(judge, Judge)
    judge.down = True
    with JudgeLedger(book) as ledger:
        loop = judge_loop(ledger, judge, batch=4, clock=Clock())
        for _ in range(40):
            await loop.tick()
        assert ledger.counts()["verdicts"] == 0, "however long it is down, it costs nothing"
        judge.down = False
        for _ in range(40):
            await loop.tick()
        scores = [verdict.score for turn in turns[1:] if (verdict := ledger.verdict(turn.id))]
        assert scores == [1.0] * 11, "the one that fails does not stand before the others"
        assert ledger.verdict(turns[0].id) is None, "and nobody was answered since, so it may still be an outage"
    told_later = told_more(book, 12)
    with JudgeLedger(book) as ledger:
        loop = judge_loop(ledger, judge, batch=1, clock=Clock())
        for _ in range(60):
            await loop.tick()
        assert all(ledger.verdict(turn.id) for turn in told_later)
        given_up = ledger.verdict(turns[0].id)
        assert given_up is not None
        assert given_up.score is None
        assert ledger.drop_counts() == {"judge failed": 1}


def told_more(path: Path, count: int) -> list[Turn]:
    return told(path, *[make_message("user", f"and so it goes {at}") for at in range(count)])


def talk(path: Path, *names: str) -> list[tuple[Turn, Turn]]:
    """A question and a follow-up in each of these sessions."""
    pairs = []
    with ServeLedger(path, sync="full") as serve:
        for name in names:
            first = make_turn(f"ask {name}", session=name, completion=make_completion(f"reply {name}"))
            history = make_prompt(f"ask {name}", f"reply {name}", "No, that's wrong.")
            second = make_turn(prompt=history, session=name, completion=make_completion("sorry"))
            pairs.append((first, second))
            for turn in (first, second):
                serve.add_turn(turn)
    return pairs


async def collected(path: Path) -> tuple[list[Outcome | None], dict[str, int]]:
    with CollectLedger(path) as ledger:
        loop = CollectLoop(ledger, session_idle=1800.0, env_idle=1800.0)
        for _ in range(6):
            await loop.tick()
        ids = [row["id"] for row in ledger.rows("SELECT id FROM turns ORDER BY seq")]
        assert ledger.new_turns(9) == []
        return [ledger.outcome(turn) for turn in ids], ledger.drop_counts()


@pytest.mark.parametrize("when", ["before it is read", "while it is open"])
async def test_a_damaged_turn_is_dropped_by_collect_and_the_others_are_settled(book: Path, when: str) -> None:
    (bad, _), (good, _) = talk(book, "a", "b")
    if when == "while it is open":
        with CollectLedger(book) as ledger:
            ledger.settle([], [], turns_read=1)
    damage(book, "turns", "prompt", bad, b"rubbish")
    outcomes, drops = await collected(book)
    assert outcomes[0] is None
    assert outcomes[2] is not None
    assert outcomes[2].turn == good.id
    assert outcomes[2].next_state
    assert drops == {"unreadable": 1}
    assert (await collected(book))[1] == {"unreadable": 1}, "a restart does not drop it again"


async def test_a_turn_that_cannot_be_placed_is_dropped_and_the_others_are_settled(
    book: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk(book, "a", "poison", "b")
    place = Threads._place

    def failing(threads: Threads, seq: int, turn: Turn, known: Outcome | None = None) -> object:
        if turn.session == "poison" and len(turn.prompt.messages) == 1:
            raise RecursionError
        return place(threads, seq, turn, known)

    monkeypatch.setattr(Threads, "_place", failing)
    outcomes, drops = await collected(book)
    assert [outcome is not None for outcome in outcomes[::2]] == [True, False, True]
    assert drops == {"collect failed": 1}
    assert (await collected(book))[1] == {"collect failed": 1}


SIGNS = [
    "<",
    ">",
    "</a>",
    "<a b='",
    "```",
    '"""',
    "[",
    "]",
    "{",
    '{"a":',
    "\n",
    "\n\n",
    " ",
    ":",
    "\x00",
    "\ud83d",
    "\udc00",
]
SIGNS += [
    "From now on ",
    "use lists.",
    "exit code ",
    "9" * 5_000,
    "Traceback (most recent call last):",
    "不对，",
    "请用",
]
SIGNS += [
    "summarise this",
    "he said ",
    "No, it's ",
    ", not ",
    "---",
    "1e999",
    "NaN",
    "Error: ",
    "<returncode>",
    "\u2028",
]
TEXTS = st.one_of(st.text(st.characters(), max_size=60), st.lists(st.sampled_from(SIGNS), max_size=12).map("".join))


@pytest.mark.slow
@given(before=TEXTS, reply=TEXTS, said=TEXTS, role=st.sampled_from(["user", "tool", "assistant"]))
def test_the_default_judge_reads_any_text_whatsoever(before: str, reply: str, said: str, role: str) -> None:
    turn = make_turn(before, completion=make_completion(reply))
    case = Case(turn=turn, outcome=make_outcome(turn, next_state=(make_message(role, said),)))
    assert reaction_of(case).score in (None, -1, 0, 1)
    verdict = decide(case, limits=LIMITS)
    assert verdict is None or verdict.turn == turn.id
