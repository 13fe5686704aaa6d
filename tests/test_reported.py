"""A described next state is read in a recorded conversation, and never in a chat."""

from __future__ import annotations

from dataclasses import replace

import pytest

from openclaw_rl.judge.custom import reaction_of
from openclaw_rl.judge.reported import read_report
from openclaw_rl.testing.rows import make_case

EXAMPLE = "User accepted the change and said 'perfect, thanks!'"


def score(text: str) -> int | None:
    found = read_report(text, request="Help me refactor this", reply="Here's the refactored version: ...")
    assert found is not None
    return found.score


@pytest.mark.parametrize(
    "text",
    [
        EXAMPLE,
        "The user accepted the change.",
        "user approved it",
        'The customer replied: "Perfect, that is exactly what I wanted."',
        "She thanked the assistant and merged the branch.",
        "They said “great, thank you!”",
        "All tests passed.",
        "The user ran the code and the tests passed.",
        "The user was very happy with the answer.",
    ],
)
def test_what_was_accepted_is_good(text: str) -> None:
    assert score(text) == 1


@pytest.mark.parametrize(
    "text",
    [
        "User rejected the change.",
        "The user did not accept the change.",
        "The user never approved it.",
        "The user said 'that's wrong, it doesn't compile'",
        "the test failed",
        "Tests failed with an AssertionError.",
        "The user reverted the commit and complained.",
        "The user ran the script and the script crashed.",
        "The user was frustrated.",
        "The customer asked to make it shorter.",
    ],
)
def test_what_was_rejected_is_bad(text: str) -> None:
    assert score(text) == -1


@pytest.mark.parametrize(
    "text",
    [
        "The user asked how to deploy it.",
        "The user asked 'and what is the capital of Peru?'",
        "The user did not complain.",
        "The user accepted one file and rejected the other.",
        "The user would have accepted a shorter one.",
        "No one knows.",
        "The user has not accepted or rejected it yet.",
        "The tests were not run.",
        "The user asked to write a poem about dogs.",
    ],
)
def test_what_does_not_say_is_left_open(text: str) -> None:
    found = read_report(text, request="x", reply="y")
    assert found is None or found.score is None


def test_what_the_user_is_reported_to_want_is_a_hint() -> None:
    found = read_report("User said 'please answer in one sentence'", request="What is tea?", reply="Tea is a plant.")
    assert found is not None
    assert (found.score, [hint.kind for hint in found.hints]) == (-1, ["rule"])


@pytest.mark.parametrize(
    "text", ["I accepted the offer, what next?", "What did the user say?", "User guide, please", ""]
)
def test_a_users_own_words_are_no_description(text: str) -> None:
    found = read_report(text, request="x", reply="y")
    assert found is None or found.score is None


def test_a_chat_user_cannot_describe_themself_into_a_score() -> None:
    live = make_case(EXAMPLE)
    recorded = replace(live, turn=replace(live.turn, completion=replace(live.turn.completion, scored=True)))
    assert reaction_of(live).score is None
    assert reaction_of(recorded).score == 1
