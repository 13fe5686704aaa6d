"""Which notes say otherwise than an older one: by a small table of aspects and by their words, in doubt not."""

from __future__ import annotations

import pytest

from openclaw_rl.preferences.comparison import Saying, aspects, contradicts, says_again, says_less


def rule(text: str, *, vague: bool = False) -> Saying:
    return Saying(text, "rule", vague)


def fact(text: str) -> Saying:
    return Saying(text, "fact")


@pytest.mark.parametrize(
    ("newer", "older"),
    [
        ("Please answer in full detail.", "Please answer in one sentence."),
        ("Keep it under 50 words.", "Please answer in under 30 words."),
        ("Please use bullet points.", "Please don't use any lists."),
        ("No more lists, please.", "Answer with a bulleted list of short points."),
        ("Please answer in German.", "From now on, answer in French."),
        ("以后请用英文回答。", "以后请用中文回答。"),
        ("Please write in a more formal tone.", "Please be more casual."),
        ("Use imperial units.", "Please use metric units."),
        ("Please don't use emojis.", "Please use emojis."),
        ("Never mention prices.", "Always mention prices."),
        ("Call me Max.", "Please call me Doctor Smith."),
        ("Write it in Rust.", "Please write in Python."),
        ("Please use a bulleted list.", "Please write plain text without bold, lists or headings."),
    ],
)
def test_the_newer_rule_replaces_the_older(newer: str, older: str) -> None:
    assert contradicts(rule(newer), rule(older))


@pytest.mark.parametrize(
    ("newer", "older"),
    [
        ("Please answer in one sentence.", "Please use metric units."),
        ("Please answer in French.", "Please answer in under 30 words."),
        ("Please don't use bold.", "Please don't use headings."),
        ("Never mention the competition.", "Never mention prices."),
        ("Check the file before you edit it.", "Run the tests after each change."),
        ("Please use bullet points.", "Please be more formal."),
        ("Give a specific example.", "Please answer in at least 100 words."),
        ("Please answer with a bulleted list of short points.", "Please write at least 100 words."),
        ("PLEASE answer in one sentence!", "Please answer in one sentence."),
    ],
)
def test_rules_about_different_things_stand_beside_each_other(newer: str, older: str) -> None:
    assert not contradicts(rule(newer), rule(older))


def test_a_vague_rule_gives_way_to_one_with_a_measure_and_not_the_other_way_round() -> None:
    measured, vague = rule("Please answer in under 30 words."), rule("Please keep it shorter.", vague=True)
    assert (contradicts(vague, measured), says_less(vague, measured)) == (False, True)
    assert (contradicts(measured, vague), says_less(measured, vague)) == (True, False)
    longer = rule("Please write longer answers.", vague=True)
    assert (contradicts(longer, measured), says_less(longer, measured)) == (True, False)


def test_other_words_that_are_put_alike_say_it_again_unless_one_lacks_the_measure() -> None:
    asked, again = rule("I prefer a bulleted list."), rule("Please answer with a bulleted list.")
    assert says_again(again, asked)
    assert not says_again(rule("Please answer with a numbered list."), asked)
    measured, vague = rule("Please answer in under 30 words."), rule("Please keep it shorter.", vague=True)
    assert says_again(vague, measured)
    assert not says_again(measured, vague)


@pytest.mark.parametrize(
    ("newer", "older", "replaced"),
    [
        ("The file is c.txt.", "The file is b.txt.", True),
        ("My dog is called Rex.", "My dog is called Bello.", True),
        ("I live in Rome.", "I live in Paris.", False),  # "I" alone is no subject: who moves may say so by hand
        ("My dog is three years old.", "My dog is called Rex.", False),
        ("I am vegetarian.", "I am 35 years old.", False),
        ("The file is b.txt.", "The folder is data.", False),
        ("The meeting is on Monday.", "The meeting is on Friday.", True),
    ],
)
def test_a_newer_fact_about_the_same_thing_replaces_the_older(newer: str, older: str, replaced: bool) -> None:
    assert contradicts(fact(newer), fact(older)) is replaced


def test_a_fact_and_a_rule_never_replace_each_other() -> None:
    assert not contradicts(rule("Use metric units."), fact("Use imperial units."))


def test_a_rule_may_speak_of_several_aspects() -> None:
    assert aspects("Answer in French, in one sentence, without emojis.") == {
        "length": "short",
        "language": "french",
        "emojis": "no",
    }
