"""Which turn follows which: small stories, and random chats by a simulator that knows the truth."""

from __future__ import annotations

import random
from typing import Any

import pytest
from conversations import CHANGES, UUID, Story, bot, call, result, simulate, system, turn, user
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_rl.collect.threads import conversation_name


def test_the_next_request_says_what_came_after() -> None:
    story = Story()
    story.add(turn("t1", [user("hi")], "hello"), turn("t2", [user("hi"), bot("hello"), user("shorter")], "ok", at=5.0))
    assert story.said("t1") == [("user", "shorter")]
    first = story.outcomes["t1"]
    assert (first.session, first.index, first.parent, first.ended, first.at) == ("thread-t1", 0, None, None, 5.0)
    story.expire(1806.0)
    last = story.outcomes["t2"]
    assert (last.session, last.index, last.parent, last.ended, last.next_state) == ("thread-t1", 1, "t1", "idle", ())
    assert last.at == 1805.0


def test_a_session_of_an_environment_ends_with_its_lease_not_with_the_patience_for_people() -> None:
    story = Story(env_idle=150.0)
    story.add(turn("t1", [user("hi")], "hello", session="a"), turn("t2", [user("go")], "ls", session="b", user="env:x"))
    story.expire(151.0)
    assert (list(story.outcomes), story.outcomes["t2"].ended, story.outcomes["t2"].at) == (["t2"], "idle", 150.0)
    story.expire(1801.0)
    assert story.outcomes["t1"].at == 1800.0


def test_all_tool_results_are_the_next_state() -> None:
    calls = bot("", call("ls", "{}", "a"), call("pwd", "{}", "b"))
    results = [result("f", "a"), result("/", "b")]
    story = Story()
    story.add(turn("t1", [user("look")], calls), turn("t2", [user("look"), calls, *results], "a file"))
    assert story.said("t1") == [("tool", "f"), ("tool", "/")]


def test_a_retry_of_the_same_request_judges_nothing() -> None:
    story = Story()
    story.add(turn("t1", [user("hi")], "hello", session="s"), turn("t2", [user("hi")], "hello", session="s", at=3.0))
    assert story.outcomes == {}
    story.add(turn("t3", [user("hi"), bot("hello"), user("go")], "gone", session="s", at=9.0))
    assert story.said("t2") == [("user", "go")]
    assert (story.outcomes["t1"].ended, story.outcomes["t1"].evidence) == ("superseded", ())


QUEUED = "[Queued user message from a previous active turn; preserved as context only. Continue below.]"


def test_words_that_a_client_sent_again_after_a_failure_still_count() -> None:
    again = f"{QUEUED}\nshorter\n\nContinue the current task from the existing transcript."
    story = Story()
    story.add(turn("t1", [user("hi")], "hello"), turn("t2", [user("hi"), bot("hello"), user(again)], "shorter\n\nCon"))
    assert story.said("t1") == [("user", "shorter")]
    assert (story.outcomes["t2"].kind, story.outcomes["t2"].parent) == ("side", "t1")
    # the client has taken the echo out of the reply, and its own words out of the request
    later = [user("hi"), bot("hello"), user("shorter"), bot("short"), user("thanks")]
    story.add(turn("t3", later, "welcome"), turn("t4", [*later, bot("welcome"), user("bye")], "bye"))
    assert (story.outcomes["t3"].kind, story.said("t3")) == ("main", [("user", "bye")])


def test_a_retry_whose_prompt_shows_the_same_words_is_not_judged_by_its_own_prompt() -> None:
    prompt = [user("say it"), bot("it"), user("say it")]
    story = Story()
    story.add(turn("t1", prompt, "it"), turn("t2", prompt, "it", at=2.0))
    story.add(turn("t3", [user("say it"), bot("it"), user("now this")], "this", at=4.0))
    assert all(not outcome.next_state for outcome in story.outcomes.values())


def test_the_abandoned_reply_was_regenerated() -> None:
    before = [user("hi"), bot("hello"), user("a poem")]
    story = Story()
    story.add(
        turn("t1", [user("hi")], "hello"), turn("t2", before, "bad poem", at=1.0), turn("t3", before, "good", at=8.0)
    )
    story.add(turn("t4", [*before, bot("good"), user("thanks")], "welcome", at=9.0))
    assert (story.outcomes["t2"].ended, story.outcomes["t2"].evidence) == ("superseded", ("regenerated",))
    assert story.outcomes["t2"].next_state == ()
    assert (story.said("t3"), story.outcomes["t3"].parent) == ([("user", "thanks")], "t1")


@pytest.mark.parametrize(("second", "finish"), [(1.2, "stop"), (8.0, "aborted")])
def test_parallel_calls_and_broken_replies_are_not_regenerations(second: float, finish: Any) -> None:
    story = Story()
    story.add(turn("t1", [user("hi")], "a", session="s", at=1.0, finish=finish))
    story.add(turn("t2", [user("hi")], "b", session="s", at=second))
    story.add(turn("t3", [user("hi"), bot("b"), user("go")], "gone", session="s", at=9.0))
    assert (story.outcomes["t1"].ended, story.outcomes["t1"].evidence) == ("superseded", ())


def test_two_unnamed_talks_that_open_alike_are_no_regeneration() -> None:
    story = Story()
    story.add(turn("t1", [user("hi")], "hello"), turn("t2", [user("hi")], "hey", at=60.0))
    story.add(turn("t3", [user("hi"), bot("hey"), user("you")], "yes", at=70.0))
    story.expire(5000.0)
    assert (story.outcomes["t1"].ended, story.outcomes["t1"].evidence) == ("idle", ())


def test_an_edited_question_is_a_branch() -> None:
    story = Story()
    story.add(
        turn("t1", [user("hi")], "hello"),
        turn("t2", [user("hi"), bot("hello"), user("red")], "crimson", at=1.0),
        turn("t3", [user("hi"), bot("hello"), user("blue")], "navy", at=2.0),
        turn("t4", [user("hi"), bot("hello"), user("blue"), bot("navy"), user("fine")], "good", at=3.0),
    )
    story.expire(9000.0)
    assert story.said("t1") == [("user", "red")]
    assert (story.outcomes["t3"].parent, story.outcomes["t3"].index) == ("t1", 1)
    assert (story.outcomes["t2"].ended, story.outcomes["t2"].evidence) == ("superseded", ())


def test_a_reply_that_the_client_rewrote_matches_nothing_and_the_talk_goes_on() -> None:
    story = Story()
    story.add(
        turn("t1", [user("hi")], "hello"),
        turn("t2", [user("hi"), bot("hello"), user("red")], "crimson", at=1.0),
        turn("t3", [user("hi"), bot("hello"), user("red"), bot("REWRITTEN"), user("ok?")], "yes", at=2.0),
    )
    story.expire(9000.0)
    assert story.outcomes["t2"].next_state == ()
    assert (story.outcomes["t3"].session, story.outcomes["t3"].parent) == ("thread-t1", None)


def test_replies_of_somebody_else_end_the_next_state() -> None:
    story = Story()
    story.add(turn("t1", [user("hi")], "hello"))
    story.add(turn("t2", [user("hi"), bot("hello"), user("a"), bot("not ours"), user("b")], "yes", at=1.0))
    assert story.said("t1") == [("user", "a")]


def test_sessions_that_are_named_apart_never_join() -> None:
    opening, more = [user("hi")], [user("hi"), bot("hello"), user("more")]
    story = Story()
    story.add(turn("t1", opening, "hello", session="s1"), turn("t2", opening, "hello", session="s2", at=1.0))
    story.add(turn("t3", more, "x", session="s1", at=2.0), turn("t4", more, "y", session="s3", at=3.0))
    assert set(story.outcomes) == {"t1"}
    story.expire(9000.0)
    assert (story.outcomes["t3"].parent, story.outcomes["t4"].parent) == ("t1", None)


def test_users_never_join() -> None:
    story = Story()
    story.add(turn("t1", [user("hi")], "hello"), turn("t2", [user("hi"), bot("hello"), user("x")], "y", user="u2"))
    assert story.outcomes == {}


def test_twins_of_unnamed_talks_are_answered_once_each() -> None:
    story = Story()
    story.add(turn("t1", [user("hi")], "hello"), turn("t2", [user("hi")], "hello", at=1.0))
    story.add(turn("t3", [user("hi"), bot("hello"), user("x")], "1", at=2.0))
    story.add(turn("t4", [user("hi"), bot("hello"), user("y")], "2", at=3.0))
    assert (story.said("t2"), story.said("t1")) == ([("user", "x")], [("user", "y")])


def test_twins_under_other_system_prompts_are_told_apart_or_left_alone() -> None:
    story = Story()
    story.add(turn("t1", [system("pirate"), user("hi")], "hello"), turn("t2", [system("poet"), user("hi")], "hello"))
    story.add(turn("t3", [system("clown"), user("hi"), bot("hello"), user("x")], "1"))
    assert story.outcomes == {}
    story.add(turn("t4", [system("pirate"), user("hi"), bot("hello"), user("y")], "2"))
    assert set(story.outcomes) == {"t1"}


def test_a_history_that_may_be_the_tail_of_another_talk_matches_neither() -> None:
    story = Story()
    story.add(turn("t1", [user("a"), bot("b"), user("hi")], "hello"), turn("t2", [user("hi")], "hello", at=1.0))
    story.add(turn("t3", [user("hi"), bot("hello"), user("x")], "y", at=2.0))
    assert story.outcomes == {}


LONG = "the capital of France is Paris, on the Seine"


def test_a_client_that_drops_old_messages_is_still_followed() -> None:
    story = Story()
    story.add(
        turn("t1", [user("hi")], "hello"),
        turn("t2", [user("hi"), bot("hello"), user("capital?")], LONG, at=1.0),
        turn("t3", [user("capital?"), bot(LONG), user("thanks")], "welcome", at=2.0),
    )
    assert story.said("t2") == [("user", "thanks")]
    story.expire(9000.0)
    assert (story.outcomes["t3"].index, story.outcomes["t3"].session) == (2, "thread-t1")


def test_a_summary_in_place_of_old_messages_is_still_followed() -> None:
    story = Story()
    story.add(
        turn("t1", [user("hi")], "hello"),
        turn("t2", [user("hi"), bot("hello"), user("capital?")], LONG, at=1.0),
        turn("t3", [user("Summary of the conversation: hi."), user("capital?"), bot(LONG), user("ok")], "!", at=2.0),
    )
    assert story.said("t2") == [("user", "ok")]


def test_a_named_talk_goes_on_after_a_summary_that_kept_no_reply() -> None:
    story = Story()
    story.add(
        turn("t1", [user("hi")], "hello", session="s"),
        turn("t2", [user("hi"), bot("hello"), user("go on")], "well", session="s", at=1.0),
        turn("t3", [user("<summary>they met</summary>"), user("and?")], "so", session="s", at=2.0),
    )
    assert (story.outcomes["t2"].ended, story.outcomes["t2"].next_state) == ("compacted", ())
    story.end("s", at=3.0)
    assert (story.outcomes["t3"].index, story.outcomes["t3"].ended) == (2, "done")


def test_a_new_epoch_ends_what_the_old_one_left() -> None:
    assert conversation_name(turn("x", [user("hi")], "a", session=f"{UUID}:3")).base == UUID  # type: ignore[union-attr]
    assert conversation_name(turn("x", [user("hi")], "a", session="user:3")).base == "user:3"  # type: ignore[union-attr]
    story = Story()
    story.add(turn("t1", [user("hi")], "hello", session=f"{UUID}:1"))
    story.add(turn("t2", [user("new talk")], "sure", session=f"{UUID}:2", at=1.0))
    assert (story.outcomes["t1"].ended, story.outcomes["t1"].session) == ("superseded", f"{UUID}:1")
    story.end(UUID, at=2.0)
    assert (story.outcomes["t2"].ended, story.outcomes["t2"].session) == ("done", f"{UUID}:2")


def test_a_kept_reply_joins_two_epochs_of_one_session() -> None:
    story = Story()
    story.add(turn("t1", [user("hi")], "hello", session=f"{UUID}:1"))
    story.add(turn("t2", [user("Summary of the chat."), user("hi"), bot("hello"), user("x")], "y", session=f"{UUID}:2"))
    assert story.said("t1") == [("user", "x")]


def test_a_heartbeat_is_neither_an_answer_nor_a_loss() -> None:
    beat = user("Follow the heartbeat monitor instructions.")
    talk = [user("hi"), bot("hello")]
    story = Story()
    story.add(turn("t1", talk[:1], "hello"), turn("t2", [*talk, beat], "HEARTBEAT_OK", at=1.0))
    assert (story.outcomes["t2"].kind, story.outcomes["t2"].ended, story.outcomes["t2"].parent) == (
        "side",
        "side",
        "t1",
    )
    assert "t1" not in story.outcomes
    story.add(turn("t3", [*talk, beat, bot("HEARTBEAT_OK"), user("how are you")], "fine", at=2.0))
    assert story.said("t1") == [("user", "how are you")]
    story.expire(9000.0)
    assert story.outcomes["t3"].parent == "t1"


def test_a_declared_end_closes_the_session_up_to_then() -> None:
    story = Story()
    story.add(turn("t1", [user("hi")], "hello", session="s", at=1.0), turn("t2", [user("b")], "c", session="s", at=5.0))
    story.end("s", at=3.0)
    assert {id: outcome.ended for id, outcome in story.outcomes.items()} == {"t1": "done"}
    story.add(turn("t3", [user("b"), bot("c"), user("bye")], "bye", session="s", at=6.0, done=True))
    assert story.said("t2") == [("user", "bye")]
    assert story.outcomes["t3"].ended == "done"


def test_hours_of_silence_end_a_turn_before_the_answer_comes() -> None:
    story = Story()
    story.add(turn("t1", [user("hi")], "hello"))
    story.add(turn("t2", [user("hi"), bot("hello"), user("back again")], "welcome", at=3000.0))
    assert (story.outcomes["t1"].ended, story.outcomes["t1"].next_state) == ("idle", ())
    story.expire(9000.0)
    assert story.outcomes["t2"].parent == "t1"


def test_memory_is_bounded_by_time_and_by_number() -> None:
    story = Story(capacity=100)
    for n in range(250):
        story.add(turn(f"t{n}", [user(f"question {n}")], f"answer {n}", at=float(n)))
    assert len(story.threads) == 100
    assert len(story.outcomes) == 150
    assert {outcome.ended for outcome in story.outcomes.values()} == {"evicted"}
    story.expire(249.0 + 3601.0)
    assert (len(story.threads), story.threads.open, len(story.outcomes)) == (0, 0, 250)
    kept = vars(story.threads)
    assert [name for name in ("_entries", "_threads", "_bases", "_due", "_old") if kept[name]] == []
    assert (kept["_index"].paths, kept["_index"].requests, kept["_index"].tails) == ({}, {}, {})


def test_a_repeated_call_is_marked() -> None:
    ls = bot("", call("ls", '{"p": 1}'))
    story = Story()
    story.add(turn("t1", [user("look")], ls), turn("t2", [user("look"), ls, result("f")], ls, at=1.0))
    story.add(turn("t3", [user("look"), ls, result("f"), ls, result("f")], "f", at=2.0))
    assert (story.outcomes["t1"].evidence, story.outcomes["t2"].evidence) == ((), ("repeated_call",))


STEPS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(CHANGES)), min_size=1, max_size=40)


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), steps=STEPS, unique=st.booleans())
def test_a_reply_is_matched_to_its_true_parent_or_to_none(
    seed: int, steps: list[tuple[int, str]], unique: bool
) -> None:
    assert simulate(seed, steps, unique=unique).truth, "every step checks its own matches against the truth"


def test_nearly_every_reply_is_matched_when_replies_differ() -> None:
    rng = random.Random(7)
    shown = matched = 0
    for seed in range(40):
        steps = [(rng.randrange(4), rng.choice([c for c in CHANGES if c != "rewrite"])) for _ in range(40)]
        simulator = simulate(seed, steps, unique=True)
        shown += sum(truth.parent is not None for truth in simulator.truth.values())
        matched += simulator.matched
    assert shown > 800
    assert matched / shown > 0.95
