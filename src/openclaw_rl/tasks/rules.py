"""What a rule asks of a reply, where its words say so plainly enough for a program to check. Pure.

    checker_of("Please answer in under 30 words.")("Yes, it is.")     True
    checker_of("Please answer in under 30 words.")("Yes, it is", cut=True)    False: nobody knows how long it would be
    checker_of("Be more like a pirate.")                              None: nobody knows how to check it

A rule that asks for the opposite ("no lists", "not so short") is told from one that asks for the thing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from openclaw_rl.tasks.preferences import PREFERENCES
from openclaw_rl.text import NUMBER, items, number_of, sentence_count, word_count

_NUMBER = rf"({NUMBER}|a)"
_NOT = re.compile(r"\b(?:no|not|never|without|don't|do not|avoid|stop|skip|less|fewer|instead of)\b[^.!?]{0,40}$", re.I)
_FEWER = re.compile(
    rf"\b(?:under|below|at most|no more than|not more than|fewer than|less than|max(?:imum)?(?: of)?|up to|within)"
    rf"\s+(?:about\s+)?{_NUMBER}\s+words?\b|\b{_NUMBER}\s+words?\s+(?:or (?:less|fewer)|at (?:the )?most|max)",
    re.I,
)
_MORE = re.compile(rf"\b(?:at least|more than|over|minimum(?: of)?)\s+{_NUMBER}\s+words?\b", re.I)
_SENTENCES = re.compile(rf"\b{_NUMBER}(?:\s+(?:short|single|full|complete|plain))?\s+sentences?\b", re.I)
_SINGLE = re.compile(r"\b(?:single|just one|only one) sentence\b", re.I)
_LISTS = re.compile(r"\b(?:bullet(?:ed)?(?: points?| lists?)?|bullets|lists?|numbered)\b", re.I)
_STRICT = re.compile(r"\b(?:under|below|fewer than|less than)\b", re.I)


@dataclass(frozen=True, slots=True)
class RuleChecker:
    """Finds out whether a reply does what a rule asks. ``short``: a reply that was cut off does not, it was longer."""

    met_by: Callable[[str], bool]
    short: bool = False

    def __call__(self, reply: str, /, *, cut: bool = False) -> bool:
        return not (cut and self.short) and self.met_by(reply)


_SHORT = frozenset({"short", "one_sentence"})
"""the preferences that ask for a short reply"""


def checker_of(rule: str) -> RuleChecker | None:
    """What finds out whether a reply does what a rule asks; None for a rule that no program knows."""
    for name, preference in PREFERENCES.items():
        if rule.strip() == preference.hint:
            return RuleChecker(preference.met_by, short=name in _SHORT)
    for find in (_fewer_words, _more_words, _sentences, _lists):
        if (found := find(rule)) is not None:
            return found
    return None


def _fewer_words(rule: str) -> RuleChecker | None:
    match = _FEWER.search(rule)
    if match is None:
        return None
    most = _number(match[1] or match[2]) - (1 if _STRICT.search(match[0]) else 0)
    return RuleChecker(lambda reply: 0 < word_count(reply) <= most, short=True)


def _more_words(rule: str) -> RuleChecker | None:
    match = _MORE.search(rule)
    if match is None:
        return None
    least = _number(match[1])
    return RuleChecker(lambda reply: word_count(reply) >= least)


def _sentences(rule: str) -> RuleChecker | None:
    match = _SENTENCES.search(rule)
    if _SINGLE.search(rule) or (match is not None and _number(match[1]) == 1):
        return RuleChecker(PREFERENCES["one_sentence"].met_by, short=True)
    if match is None:
        return None
    most = _number(match[1])
    return RuleChecker(lambda reply: 0 < sentence_count(reply) <= most, short=True)


def _lists(rule: str) -> RuleChecker | None:
    match = _LISTS.search(rule)
    if match is None:
        return None
    if _NOT.search(rule[: match.start()]):
        return RuleChecker(lambda reply: word_count(reply) > 0 and not items(reply))
    return RuleChecker(PREFERENCES["list"].met_by)


def _number(text: str) -> int:
    return 1 if text.lower() == "a" else number_of(text)
