"""What a rule asks, as a program can check it."""

from __future__ import annotations

import pytest

from openclaw_rl.preferences import checker_of
from openclaw_rl.tasks.preferences import PREFERENCES

LIST = "Points:\n- one thing\n- another thing"


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        ("Please answer in under twenty-nine words.", " ".join(["a"] * 28), " ".join(["a"] * 29)),
        ("Please keep it under 5 words.", "Yes, it is.", "Five words are too many."),
        ("At most five words, please.", "Five words are not many.", "These are six words or more."),
        ("20 words or less", "word " * 20, "word " * 21),
        ("Answer in one sentence.", "It is a comet.", "It is a comet. It is cold."),
        ("Two sentences at most.", "One. Two.", "One. Two. Three."),
        ("Use bullet points.", LIST, "Just a line."),
        ("Please stop using bullet lists.", "Just a line.", LIST),
        ("No lists, write prose.", "Just a line.", LIST),
        ("Write at least 4 words.", "These are four words.", "Too few."),
    ],
)
def test_a_plain_rule_can_be_checked(rule: str, good: str, bad: str) -> None:
    check = checker_of(rule)
    assert check is not None
    assert (check(good), check(bad)) == (True, False)


@pytest.mark.parametrize("rule", ["Be more like a pirate.", "Explain it to a child.", "Say please.", "shorter"])
def test_what_nobody_can_check_is_left_to_the_kl(rule: str) -> None:
    assert checker_of(rule) is None


def test_every_shipped_preference_is_checked_as_it_is_everywhere() -> None:
    for preference in PREFERENCES.values():
        check = checker_of(preference.hint)
        assert check is not None
        assert check == preference.met_by


def test_a_reply_that_was_cut_off_is_not_known_to_be_short() -> None:
    for rule in ("Under 30 words, please.", "Please answer in one sentence.", "At most two sentences."):
        check = checker_of(rule)
        assert check is not None
        assert check("Tea is a drink.")
        assert not check("Tea is a drink.", cut=True)
    for rule, reply in (("Use bullet points.", LIST), ("Write at least 4 words.", "These are four words.")):
        check = checker_of(rule)
        assert check is not None
        assert check(reply, cut=True), "what is there is there"
