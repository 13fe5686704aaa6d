"""Simulated users: their preferences, what they ask and write, and what the judge makes of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
from learner import BACKEND

from openclaw_rl.app.application import App
from openclaw_rl.clients.api import ApiClient
from openclaw_rl.errors import RequestError
from openclaw_rl.experiments.sessions import SimulatedUser, run_session, run_sessions, sample_replies, user_tasks
from openclaw_rl.judge.reaction import read
from openclaw_rl.store import LedgerReader
from openclaw_rl.tasks import everyday
from openclaw_rl.tasks.everyday import Task, is_relevant, is_right, names_subject
from openclaw_rl.tasks.preferences import PREFERENCES, Preference
from openclaw_rl.testing import ticking_app
from openclaw_rl.text import degenerate, items, sentence_count, word_count
from openclaw_rl.versions import LiveVersions
from openclaw_rl.views import status as views

THIRTY = " ".join(f"word{number}" for number in range(30))
TWENTY_NINE = " ".join(f"word{number}" for number in range(29))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("One two three.", 3),
        ("1. One\n2. Two", 2),
        ("- a\n* b\n• c", 3),
        ("# Title\n\nIt costs 3.5 dollars - or 4.", 7),
        ("well-known, isn't it?", 3),
        ("... !!! --", 0),
    ],
)
def test_words_are_counted_as_a_reader_would(text: str, count: int) -> None:
    assert word_count(text) == count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("It rains.", 1),
        ("It rains. It pours.", 2),
        ("Dr. Smith and Mr. Jones met at 3.5 km, e.g. here.", 1),
        ("J. K. Rowling wrote it.", 1),
        ("The U.S. Army is large.", 1),
        ("They live in the U.S. It is large.", 2),
        ('He said "Go!" and left.', 1),
        ("Really? Yes! It is so.", 3),
        ("No. It is not.", 2),
        ("See no. 5 for more.", 1),
        ("A line\nthat is wrapped.", 1),
        ("Sure!\n\nHere it is.", 2),
        ("- one\n- two", 2),
        ("", 0),
    ],
)
def test_sentences_are_counted_as_a_reader_would(text: str, count: int) -> None:
    assert sentence_count(text) == count


@pytest.mark.parametrize(
    ("preference", "met", "unmet"),
    [
        ("short", TWENTY_NINE, THIRTY),
        ("short", "Yes.", ""),
        ("list", "Take:\n- milk\n- eggs", "Take milk and eggs."),
        ("list", "1. Go\n2. Come", "- only one item"),
        ("list", "1. Go home.\n2. Go on.", "1. Go home.\n2. Come.\n3. Go home."),
        ("list", "- a\n- b\n- c\n- a", "- a\n- b\n- b\n- a"),
        ("one_sentence", "A comet is a ball of ice, e.g. Halley.", "It is ice. It flies."),
        ("one_sentence", "It is so!", "A reply that was cut off before its"),
        ("student", "It is six, since two times three is six.", "The answer is **six**."),
        ("student", "It is 3 - 2.", "The answer is \\boxed{6}."),
        ("student", "Plain.", "# Heading\nText"),
        ("long", "For example, " + "word " * 98, "word " * 120),
        ("long", "word " * 99 + "7", "For example, " + "word " * 97),
        ("praise", "Great question! It is ice.", "It is a great mountain."),
        ("praise", "Well done, it is six.", "It is done well enough."),
        ("metric", "It is 5.5 m tall.", "It is 18 feet tall."),
        ("metric", "About 300,000 kilometers.", "It is very tall."),
        ("metric", "It weighs 4 kg.", "It weighs 4 kg or 9 pounds."),
        ("closing", "It is ice. Hope that helps!", "Hope that helps! It is ice."),
        ("closing", "It is ice.\n\n*Hope that helps.*", "It is ice."),
    ],
)
def test_a_preference_is_checked_by_program(preference: str, met: str, unmet: str) -> None:
    assert PREFERENCES[preference].met_by(met)
    assert not PREFERENCES[preference].met_by(unmet)


def test_items_of_a_list_are_lines_that_begin_like_one() -> None:
    assert items("- a\n2) b \n  • c\nd - e\n3.5 km") == ["a", "b", "c"]


@pytest.mark.parametrize("preference", PREFERENCES.values(), ids=lambda preference: preference.name)
def test_a_user_has_thirty_ways_to_complain_and_the_judge_understands_the_precise_ones(preference: Preference) -> None:
    assert len(set(preference.complaints)) == len(preference.complaints) >= 30
    assert len(preference.vague) >= 5
    reply = "A comet is a small icy body. It has a tail of gas and dust, and it comes back."

    def hears(said: str) -> tuple[int | None, bool]:
        found = read(said, request="What is a comet?", reply=reply)
        return found.score, any(hint.kind == "rule" for hint in found.hints)

    precise = [hears(said) for said in preference.precise]
    assert sum(score == -1 for score, _ in precise) >= 0.7 * len(precise)
    assert sum(rule for _, rule in precise) >= 0.7 * len(precise)
    assert all(score in (-1, None) for score, _ in map(hears, preference.vague)), "no complaint sounds like praise"
    assert {hears(said)[0] for said in preference.thanks} == {1}
    assert {hears(said) for said in preference.nonsense} == {(-1, False)}, "bad, and no rule to learn"


# --- tasks ---


def test_hundreds_of_prompts_fall_into_two_halves_that_share_nothing() -> None:
    written = everyday.everyday()
    assert len(written) == len({task.prompt for task in written}) >= 300
    for kind in ("everyday", "facts", "advice", "measures"):
        train, held = everyday.training(kind), everyday.held_out(kind)
        assert not {task.prompt for task in train} & {task.prompt for task in held}
        assert min(len(train), len(held)) >= 0.4 * (len(train) + len(held))
    assert len(everyday.training()) + len(everyday.held_out()) + len(everyday.training("measures")) + len(
        everyday.held_out("measures")
    ) == len(written)


def test_word_problems_have_their_answers_and_their_own_halves() -> None:
    train, held = everyday.word_problems(40, seed=1), everyday.word_problems(40, seed=1, held=True)
    assert not {task.prompt for task in train} & {task.prompt for task in held}
    assert train == everyday.word_problems(40, seed=1)
    boxes = next(task for task in train if "boxes" in task.prompt)
    number, each = [int(word) for word in boxes.prompt.split() if word.isdigit()]
    assert boxes.answer == str(number * each)
    assert is_right(boxes, f"There are {number} times {each}, so {boxes.answer}.")
    assert not is_right(boxes, "I do not know.")


@pytest.mark.parametrize(
    ("mention", "reply", "relevant"),
    [
        ("bake", "Baking takes an hour.", True),
        ("berry", "Frozen berries keep.", True),
        ("leaf", "The leaves fall.", True),
        ("run", "Start running slowly.", True),
        ("black hole", "A black, heavy hole.", True),
        ("magnet", "A magnetic force.", True),
        ("wi-fi", "WI-FI is radio.", True),
        ("cat", "A cat's purr.", True),
        ("plane", "I plan to go.", False),
        ("ant", "Plants want water.", False),
        ("party", "It is a part.", False),
    ],
)
def test_a_reply_is_relevant_when_it_names_what_was_asked_about(mention: str, reply: str, relevant: bool) -> None:
    assert is_relevant(Task(prompt="?", mentions=("unheard-of", mention), about="facts"), reply) is relevant


@pytest.mark.parametrize(
    ("question", "reply", "about"),
    [
        ("How do I sharpen my kitchen knives?", "Sharpening a knife takes a stone.", True),
        ("How do I sharpen my kitchen knives?", "That is a great question!", False),
        ("What is lava?", "Molten rock.", True),  # a shipped prompt, which knows more words for it
        ("What is lava?", "I like it.", False),
        ("Why?", "Because.", True),  # no word of substance to look for
        ("请用一句话回答", "好的。", True),
    ],
)
def test_whether_a_reply_is_about_a_question_is_read_from_its_words(question: str, reply: str, about: bool) -> None:
    assert names_subject(question, reply) is about


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("Awful advice.", "under 3 words"),
        ("", "under 3 words"),
        ("no no no no no no", "it repeats a phrase"),
        ("The cat sat on it. " * 5, "it repeats a phrase"),
        ("1. Yes\n2. Yes\n3. Yes\n4. Yes\n5. No", "it repeats a phrase"),
        ("a b c !!! ??? ...... -----", "more signs than letters"),
        ("1. 1.\n2. 2.\n3. 3.\n4.\n5.\n6.", "more signs than letters"),
        ("1. **Oats**\n2. **Soup**\n3. **Beef**\n4. **Milk**\n5. **Eggs**", None),
        ("hello <|im_end|> you there", "signs that are no text"),
        ("A comet is a comet, a frozen piece of space.", None),
        ("Mix flour and milk. Add eggs. Bake it for an hour and let it cool.", None),
    ],
)
def test_a_degenerate_reply_is_told_apart_and_why(reply: str, why: str | None) -> None:
    assert degenerate(reply) == why


def test_figures_are_no_answer_to_a_question_that_asks_for_words() -> None:
    figures, date = "1. 2 3. 4\n2. 5 6. 7\n3. 8. 9", "September 2, 1945."
    assert degenerate(figures, figure=False) == "figures where words were asked for"
    assert degenerate(date, figure=False) is None
    assert degenerate(figures, figure=True) is None
    assert degenerate(figures) is None, "what was asked is not known"


# --- users ---


def test_a_user_complains_in_other_words_each_time_and_thanks_at_last() -> None:
    session = SimulatedUser(PREFERENCES["short"], seed=4, rounds=3).session(7)
    first, second = session.respond(THIRTY), session.respond(THIRTY)
    assert first in PREFERENCES["short"].complaints
    assert second in PREFERENCES["short"].precise
    assert first != second
    assert not session.over
    assert session.respond("It is ice.") in PREFERENCES["short"].thanks
    assert (session.met, session.over) == (True, True)
    assert session.respond("You are welcome.") is None


def test_nobody_thanks_for_a_reply_that_is_none_at_all() -> None:
    for preference, reply in (
        ("short", "Benefactions."),
        ("list", "- go on\n" + "- it is so and so it is and so\n" * 4),
        ("list", "- Go home.\n- Go home."),
    ):
        session = SimulatedUser(PREFERENCES[preference], seed=4).session(7)
        assert session.respond(reply) in session.preference.nonsense
        assert not session.met
    user = SimulatedUser(PREFERENCES["short"])
    sums = next(session for number in range(99) if (session := user.session(number)).task.answer)
    assert sums.respond("38.") in sums.preference.thanks, "a bare figure answers a sum"


def test_a_user_never_says_the_same_twice_in_a_session() -> None:
    for number in range(20):
        session = SimulatedUser(PREFERENCES["list"], rounds=26).session(number)
        said = [session.respond("Not a list.") for _ in range(26)]
        assert len(set(said)) == 26


def test_a_user_gives_up_after_as_many_rounds_as_it_has() -> None:
    session = SimulatedUser(PREFERENCES["short"], rounds=1).session(0)
    assert session.respond(THIRTY) is not None
    assert (session.met, session.over, session.respond(THIRTY)) == (False, True, None)


def test_a_seed_settles_what_is_asked_and_said_and_another_seed_asks_otherwise() -> None:
    def story(seed: int) -> list[tuple[str, str | None]]:
        return [
            ((s := SimulatedUser(PREFERENCES["list"], seed=seed).session(n)).opening, s.respond("Not a list."))
            for n in range(6)
        ]

    assert story(1) == story(1)
    assert story(1) != story(2)


def test_held_out_tasks_are_never_asked_in_a_session() -> None:
    for preference in PREFERENCES.values():
        held = {task.prompt for task in user_tasks(preference, seed=0, held=True)}
        user = SimulatedUser(preference, seed=0)
        assert not held & {user.session(number).opening for number in range(400)}


def test_the_users_run_on_a_bare_machine() -> None:
    code = "import sys, openclaw_rl.experiments.sessions; print(sorted({'pydantic', 'httpx2', 'starlette', 'sqlite3'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- over HTTP ---


@asynccontextmanager
async def learning(root: Path, *settings: str) -> AsyncIterator[tuple[App, ApiClient, LedgerReader]]:
    sets = (f"policy.backend={BACKEND}", "train.batch_size=2", "train.idle_wait=3600")
    async with ticking_app(root / "run", *sets, *settings) as run:
        transport = httpx2.ASGITransport(app=run.app.api)
        async with ApiClient("http://localhost/v1", transport=transport) as client:
            yield run.app, client, run.ledger


@pytest.mark.anyio
@pytest.mark.parametrize("named", [True, False])
async def test_a_preference_travels_from_the_user_to_the_weights_with_and_without_headers(
    tmp_path: Path, named: bool
) -> None:
    async with learning(tmp_path) as (app, client, reader):
        user = SimulatedUser(PREFERENCES["closing"], seed=1)
        turns = await run_sessions(client, user, range(12), concurrency=3, named=named)
        assert len(turns) == 12
        assert {(one.round, one.version, one.met) for one in turns} == {(0, 0, False)}
        await app.finish()
        corrected = views.turn(reader, turns[0].turn)
        assert [message["content"] for message in corrected["next_state"]] == [turns[0].response]
        live = LiveVersions(reader).live()
        assert live is not None
        assert live.number >= 1
        [learned] = await run_session(client, user, 100, named=named)
        assert (learned.version, learned.met) == (live.number, True)
        assert learned.response in PREFERENCES["closing"].thanks


@pytest.mark.anyio
async def test_a_second_round_is_part_of_the_same_session(tmp_path: Path) -> None:
    async with learning(tmp_path) as (app, client, reader):
        user = SimulatedUser(PREFERENCES["closing"], seed=1, rounds=2)
        number = next(
            n for n in range(50) if (user.session(n).respond("Not at all so.") or "") in user.preference.precise
        )
        first, second = await run_session(client, user, number)
        await app.finish()
        assert (first.met, second.met) == (False, True), "asked in the conversation, it does so"
        assert second.message == first.response
        shown = [views.turn(reader, one.turn) for one in (first, second)]
        assert shown[0]["session"] == shown[1]["session"]
        assert [one["verdict"]["score"] for one in shown] == [-1, 1]


@pytest.mark.anyio
async def test_what_is_asked_to_measure_is_never_trained_on(tmp_path: Path) -> None:
    async with learning(tmp_path) as (app, client, reader):
        replies = await sample_replies(client, ["What is tea?", "What is ice?"], max_tokens=40)
        await app.finish()
        assert [reply.text for reply in replies] == ["What is tea: yes.", "What is ice: yes."]
        assert {reader.turn(reply.turn).trainable for reply in replies} == {False}
        again = await sample_replies(client, ["What is tea?"], max_tokens=40)
        seeds = [reader.turn(reply.turn).completion.sampling.seed for reply in (replies[0], again[0])]
        assert seeds[0] == seeds[1] is not None, "asked again, it samples alike"


@pytest.mark.anyio
async def test_a_user_may_ask_for_a_temperature_or_a_penalty_and_else_gets_the_servers(tmp_path: Path) -> None:
    async with learning(tmp_path, "policy.sampling.temperature=0.6") as (_, client, reader):
        [plain] = await run_session(client, SimulatedUser(PREFERENCES["short"]), 0)
        [warmer] = await run_session(
            client, SimulatedUser(replace(PREFERENCES["short"], sampling={"temperature": 0.9})), 0
        )
        [probe] = await sample_replies(client, ["What is tea?"], max_tokens=40, sampling={"presence_penalty": 0.5})
        turns = [reader.turn(one.turn) for one in (plain, warmer, probe)]
        assert [turn.completion.sampling.temperature for turn in turns] == [0.6, 0.9, 0.6]
        assert [turn.completion.sampling.presence_penalty for turn in turns] == [0.0, 0.0, 0.5]


@pytest.mark.anyio
async def test_users_can_be_slowed_down_and_sent_home(tmp_path: Path) -> None:
    async with learning(tmp_path) as (_, client, _reader):
        begun = 0

        async def ready() -> bool:
            nonlocal begun
            begun += 1
            return begun <= 3

        turns = await run_sessions(client, SimulatedUser(PREFERENCES["closing"]), range(50), concurrency=2, ready=ready)
        assert len(turns) == 3


@pytest.mark.anyio
async def test_a_refusal_is_told_in_the_servers_words(tmp_path: Path) -> None:
    async with learning(tmp_path) as (_, client, _reader):
        with pytest.raises(ExceptionGroup) as caught:
            await sample_replies(client, ["x"], max_tokens=0)
        assert caught.group_contains(RequestError, match="max_tokens")
