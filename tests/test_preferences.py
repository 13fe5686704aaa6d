"""Wishes for replies: what they ask for, and whether a reply does it."""

from __future__ import annotations

import pytest

from openclaw_rl.preferences import Demand, check, meets, parse
from openclaw_rl.preferences.checking import language_of
from openclaw_rl.preferences.comparison import Saying, contradicts

NUMBERED = "Do this:\n1. Fill the kettle.\n2. Boil it."
BULLETS = "Points:\n- one thing\n- another thing"


def demands(text: str) -> list[tuple[str, str, int | None, str | None]]:
    return [(demand.aspect, demand.relation, demand.number, demand.text) for demand in parse(text).demands]


@pytest.mark.parametrize(
    ("text", "aspect", "relation", "number"),
    [
        ("Please answer in under 30 words.", "words", "most", 29),
        ("20 words or less", "words", "most", 20),
        ("not more than 3 paragraphs", "paragraphs", "most", 3),
        ("Please answer in at least 70 words.", "words", "least", 70),
        ("more than two sentences please", "sentences", "least", 3),
        ("Höchstens 30 Wörter, bitte.", "words", "most", 30),
        ("Antworte bitte mit mindestens drei Sätzen.", "sentences", "least", 3),
        ("en une phrase svp", "sentences", "most", 1),
        ("pas plus de 40 mots", "words", "most", 40),
        ("máximo dos frases", "sentences", "most", 2),
        ("al massimo 20 parole", "words", "most", 20),
        ("no máximo 25 palavras", "words", "most", 25),
        ("maximaal 30 woorden graag", "words", "most", 30),
        ("不超过50字", "words", "most", 50),
        ("用一句话回答", "sentences", "most", 1),
        ("in 50 words", "words", "about", 50),
        ("three bullet points", "items", "about", 3),
    ],
)
def test_a_measure_is_read_in_the_language_it_is_written_in(text: str, aspect: str, relation: str, number: int) -> None:
    assert demands(text)[0] == (aspect, relation, number, None)


@pytest.mark.parametrize(
    ("text", "demand"),
    [
        ("Number the points.", Demand(aspect="numbering")),
        ("Please use a numbered list.", Demand(aspect="numbering")),
        ("No lists, write prose.", Demand(aspect="list", relation="no")),
        ("réponds en français", Demand(aspect="language", text="french")),
        ("auf Deutsch bitte", Demand(aspect="language", text="german")),
        ("用中文回答", Demand(aspect="language", text="chinese")),
        ("Not in English, please.", Demand(aspect="language", relation="no", text="english")),
        ("Call me Max.", Demand(aspect="name", text="Max")),
        ("End every reply with a question.", Demand(aspect="question at the end")),
        ('Please end your reply with "Hope that helps!"', Demand(aspect="ending", text="Hope that helps!")),
        ('Beginne mit "Klar"', Demand(aspect="opening", text="Klar")),
        ('never say "sorry"', Demand(aspect="words in it", relation="no", text="sorry")),
        ("don't use the word basically", Demand(aspect="words in it", relation="no", text="basically")),
        ("no emojis please", Demand(aspect="emoji", relation="no")),
        ("Use metric units only.", Demand(aspect="units", text="metric")),
        ("all caps please", Demand(aspect="case", text="upper")),
        ("Never use tables", Demand(aspect="table", relation="no")),
        ("shorter please", Demand(aspect="words", relation="less")),
        ("Zu kurz!", Demand(aspect="words", relation="more")),
    ],
)
def test_a_form_a_language_and_words_are_demands(text: str, demand: Demand) -> None:
    wish = parse(text)
    assert wish.demands == (demand,)
    assert wish.known


def test_demands_of_one_wish_hold_together() -> None:
    wish = parse("In French, in one sentence, with an example.")
    assert {demand.aspect for demand in wish.demands} == {"language", "sentences", "example"}
    reply = "Un chat est, par exemple 2 fois par jour, un animal qui dort beaucoup."
    assert check(wish, reply) is True
    assert check(wish, "A cat is, for example, an animal that sleeps a lot of the time.") is False


@pytest.mark.parametrize(
    "text",
    ["Be more like a pirate.", "Explain it to a child.", "Say please.", "mention the price", "write it in Rust"],
)
def test_a_wish_that_no_table_knows_is_said_to_be_unknown(text: str) -> None:
    wish = parse(text)
    assert (wish.demands, wish.known) == ((), False)
    assert check(wish, "Any reply.") is None


@pytest.mark.parametrize(
    "text", ["Titles under six words.", "Keep each point to 10 words.", "When I ask for code, 5 lines."]
)
def test_a_measure_of_a_part_is_no_measure_of_the_reply(text: str) -> None:
    assert not any(demand.number for demand in parse(text).demands)


def test_a_wish_with_a_part_that_cannot_be_checked_fails_only_by_the_other_part() -> None:
    wish = parse("At most 10 words, and sound like a grumpy old sailor.")
    assert wish.rest
    assert check(wish, "Arr.") is None
    assert check(wish, "word " * 11) is False


@pytest.mark.parametrize(
    ("text", "good", "bad"),
    [
        ("At least 5 words.", "These are five whole words.", "Too few."),
        ("Number the steps.", NUMBERED, BULLETS),
        ("Use bullet points.", BULLETS, "Just a line."),
        ("Call me Max.", "Sure, Max, it is a comet.", "Sure, it is a maximum."),
        ("End with a question.", "It is a comet. Shall I go on?", "Shall I go on? It is a comet."),
        ('Start with "Sure".', "Sure, it is a comet.", "It is a comet, sure."),
        ("all caps", "IT IS A COMET.", "It is a comet."),
        ("no emojis", "It is a comet.", "It is a comet \u2604 \U0001f600"),
        ("no bold", "It is a comet.", "It is a **comet**."),
        ("Use a table.", "| a | b |\n| --- | --- |\n| 1 | 2 |", "a is 1, b is 2"),
        ("Use metric units.", "It is 5 km away.", "It is 3 miles away."),
        ("in 10 words", "One two three four five six seven eight nine.", "One two."),
        ("不超过5字", "很好吃。", "这个菜真的非常好吃。"),
    ],
)
def test_a_reply_is_checked_by_computation(text: str, good: str, bad: str) -> None:
    wish = parse(text)
    assert (check(wish, good), check(wish, bad)) == (True, False)


def test_a_reply_in_another_language_is_told_apart() -> None:
    pytest.importorskip("py3langid")
    german, english = "Der Mond umkreist die Erde in einem Monat.", "The moon circles the earth in a month."
    assert (language_of(german), language_of(english), language_of("月亮绕着地球转。")) == ("de", "en", "zh")
    wish = parse("Answer in German.")
    assert (check(wish, german), check(wish, english), check(wish, "OK")) == (True, False, None)


def test_a_reply_without_any_unit_says_nothing_about_units() -> None:
    assert check(parse("Use metric units."), "It is far away.") is None


def test_a_reply_cut_off_by_its_limit_keeps_no_upper_limit_and_has_no_end() -> None:
    for text in ("Under 30 words.", "End with a question.", 'End with "Bye".'):
        assert [meets(demand, "Bye? Bye", cut=True) for demand in parse(text).demands] == [False]
    assert meets(parse("At least 2 words.").demands[0], "Two words", cut=True) is True


def test_wishes_in_two_languages_contradict_each_other() -> None:
    longer, shorter = "Antworte mit mindestens 70 Wörtern.", "Please answer in under 30 words."
    assert contradicts(Saying(longer, "rule"), Saying(shorter, "rule"))
    assert not contradicts(Saying("Appelle-moi Max.", "rule"), Saying(shorter, "rule"))
