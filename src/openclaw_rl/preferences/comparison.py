"""Compares a newer note with an older one. Pure, and without a model.

A rule is about aspects of a reply (its length, its language, lists ...), each with a value (short, French, no). A newer
rule replaces an older one if they give an aspect different values, or if it covers all the older one's aspects. Rules
without a known aspect, and facts, are compared by their words. In doubt both stay.
"""
# ruff: noqa: E501, SIM905  (each pattern and word list stays on one line)

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from openclaw_rl.preferences.parsing import parse
from openclaw_rl.preferences.vocabulary import LENGTHS, Demand
from openclaw_rl.preferences.wording import wording
from openclaw_rl.text import words
from openclaw_rl.types import NoteKind


class Saying(NamedTuple):
    """A note's text and kind; ``vague``: a direction without a measure."""

    text: str
    kind: NoteKind
    vague: bool = False


class _Value(NamedTuple):
    name: str
    pattern: re.Pattern[str]


def _values(**patterns: str) -> tuple[_Value, ...]:
    return tuple(_Value(name, re.compile(pattern, re.IGNORECASE)) for name, pattern in patterns.items())


_UNIT = r"(?:words?|sentences?|lines?|paragraphs?|characters?)"
_SMALL = r"(?:one|two|three|four|five|six|seven|eight|nine|ten|twenty|thirty|fifty|a (?:single|few|couple of)|\d+)"
_MANNERS = r"formal|informal|casual|friendly|warm|polite|professional|playful|serious|funny|neutral|blunt|humorous"
_LANGUAGES = (
    "english|german|french|spanish|italian|chinese|japanese|portuguese|russian|korean|dutch|hindi|arabic|polish"
    "|turkish|swedish|danish|norwegian|finnish|greek|czech|hungarian|ukrainian|vietnamese|thai|hebrew|latin"
)
_CODE = "python|javascript|typescript|rust|java|bash|go|kotlin|swift|ruby|php"

_ASPECTS: dict[str, tuple[_Value, ...]] = {
    "length": _values(
        long=rf"\b(?:at least|more than|over|minimum of) (?:about )?{_SMALL} {_UNIT}\b"
        r"|\b(?:longer|in (?:more )?(?:full )?detail|more detail(?:ed|s)?|detailed|elaborate|thorough|in depth|at length"
        r"|long (?:answer|repl|response)\w*)\b|详细|长一点",
        short=rf"\b(?:under|at most|up to|fewer than|less than|no more than|max(?:imum)?(?: of)?|within|only|in|to|use)"
        rf" (?:about )?{_SMALL} {_UNIT}\b"
        rf"|\b{_SMALL} {_UNIT} (?:or less|or fewer|max|only|at most)\b"
        r"|\b(?:short(?:er)?(?! (?:points?|lists?|items?|bullets?))|brief(?:er|ly)?|concise(?:ly)?|succinct|terse|to the point|fewer words|less text|less wordy"
        r"|too (?:long|wordy|verbose))\b|简短|简洁|短一点|一句话",
    ),
    "lists": _values(
        no=r"\b(?:no|without(?: any)?|don't use|do not use|stop using|never use|avoid|not (?:a|as a|in)|skip)"
        r"(?: [\w,]+){0,4}? (?:bullet(?:s|ed)?|lists?|bullet ?points?|numbered)\b|\bprose\b|不要再?(?:用|使用)?列表",
        yes=r"\b(?:bullet(?:s|ed)?|bullet ?points?|(?:numbered|bulleted|as a|in a|ordered) lists?|a list)\b|列表",
    ),
    "language": tuple(
        _Value(name, re.compile(rf"\bin {name}\b|\b(?:speak|use|write) {name}\b", re.IGNORECASE))
        for name in _LANGUAGES.split("|")
    )
    + _values(chinese_=r"用中文", english_=r"用英[文语]"),
    "programming language": tuple(
        _Value(name, re.compile(rf"\b(?:in|use|write) {name}\b", re.IGNORECASE)) for name in _CODE.split("|")
    ),
    "tone": tuple(
        _Value(name, re.compile(rf"(?<!not )(?<!less )\b{name}(?:er|ier)?\b", re.IGNORECASE))
        for name in _MANNERS.split("|")
    ),
    "emojis": _values(
        no=r"\b(?:no|without(?: any)?|don't use|do not use|stop using|never use|avoid|drop)(?: [\w,]+){0,3}? emo(?:jis?"
        r"|ticons)\b|不要再?(?:用|使用)表情",
        yes=r"\bemo(?:jis?|ticons)\b|表情符号",
    ),
    "units": _values(
        metric=r"\b(?:metric|kilomet(?:er|re)s?|celsius|si units|kilos?|kilograms?)\b",
        imperial=r"\b(?:imperial|miles|fahrenheit|feet|pounds)\b",
    ),
    "markdown": _values(
        no=r"\b(?:plain text|(?:no|without(?: any)?|don't use|do not use|stop using|never use|avoid)(?: [\w,]+){0,3}? "
        r"(?:markdown|formatting))\b",
        yes=r"\bmarkdown\b",
    ),
    "headings": _values(
        no=r"\b(?:no|without(?: any)?|don't use|do not use|stop using|never use|avoid)(?: [\w,]+){0,5}? head(?:ings?|ers)",
        yes=r"\bhead(?:ings?|ers)\b",
    ),
    "bold": _values(
        no=r"\b(?:no|without(?: any)?|don't use|do not use|stop using|never use|avoid)(?: [\w,]+){0,5}? bold\b",
        yes=r"\bbold\b",
    ),
    "ending": tuple(_values(no=r"\b(?:don't|do not|never|stop) end(?:ing)?\b", yes=r"\bend (?:\w+ ){0,3}with\b")),
    "opening": tuple(
        _values(
            no=r"\b(?:don't|do not|never|stop) (?:start|begin)(?:ing|ning)?\b",
            yes=r"\b(?:start|begin) (?:\w+ ){0,3}with\b",
        )
    ),
    "form of address": _values(yes=r"\b(?:call|address) me\b"),
}
"""by aspect, its values in search order: the first match counts"""

_FILLER = frozenset(
    "a an the please to of in on at as is are be it its this that these those your you my me i we our for with and or"
    " from now next time always just so very really should must would like want answer answers reply replies response"
    " responses future instead only all every again more any does do".split()
)
_NEGATION = frozenset("not don't never no stop without avoid cannot can't isn't aren't".split())
_STATES = re.compile(
    r"\A(?P<subject>.{1,60}?)\s(?P<verb>(?:is|are|was|were) (?:called|named|located|spelled|in|at|on)|is|are|live in|lives in"
    r"|work at|work for|works at|speak|means)\s(?P<value>.+)",
    re.IGNORECASE,
)
_ALIKE = 0.6
_REMEMBERED = 4096
"""texts with cached aspects and words: a note is compared with every new one by its user"""


def contradicts(newer: Saying, older: Saying) -> bool:
    """Check if the newer note replaces the older one."""
    if newer.kind != older.kind or same_words(newer.text, older.text):
        return False
    if newer.kind == "fact":
        return _same_subject(newer.text, older.text)
    new, old = aspects(newer.text), aspects(older.text)
    shared = new.keys() & old.keys()
    if not shared:
        return not new and not old and _overlap(newer.text, older.text) >= _ALIKE
    if any(new[aspect] != old[aspect] for aspect in shared):
        return True
    return old.keys() <= new.keys() and not (newer.vague and not older.vague)


def opposes(one: str, other: str) -> str | None:
    """Return an aspect for which two rules want different values; None without one."""
    first, second = aspects(one), aspects(other)
    return next((aspect for aspect in first if aspect in second and first[aspect] != second[aspect]), None)


def says_same(one: str, other: str) -> bool:
    """Check if two rules want the same value for an aspect or, without known aspects, share most words."""
    first, second = aspects(one), aspects(other)
    if first and second:
        return any(second.get(aspect) == value for aspect, value in first.items())
    return not first and not second and _overlap(one, other) >= _ALIKE


def says_again(newer: Saying, older: Saying) -> bool:
    """Check if the newer note repeats the older one: in its words, with less of a measure, or in the same wording."""
    if newer.kind != older.kind:
        return False
    if same_words(newer.text, older.text) or says_less(newer, older):
        return True
    return newer.kind == "rule" and newer.vague == older.vague and _put(newer.text) == _put(older.text)


def says_less(newer: Saying, older: Saying) -> bool:
    """Check if the newer note restates the older one's measure vaguely."""
    new, old = aspects(newer.text), aspects(older.text)
    within = bool(new) and all(old.get(aspect) == value for aspect, value in new.items())
    return newer.kind == older.kind == "rule" and newer.vague and not older.vague and within


def same_words(one: str, other: str) -> bool:
    """Check if two notes have the same words in the same order."""
    return _folded(one) == _folded(other)


@lru_cache(maxsize=_REMEMBERED)
def aspects(text: str) -> Mapping[str, str]:
    """Return the reply aspects in a rule, each with the requested value."""
    plain = wording(text)
    values = {
        aspect: next((value.name.rstrip("_") for value in options if value.pattern.search(plain)), None)
        for aspect, options in _ASPECTS.items()
    }
    for demand in parse(text).demands:
        aspect, value = _of_demand(demand)
        if values.get(aspect) is None:
            values[aspect] = value
    return MappingProxyType({aspect: value for aspect, value in values.items() if value is not None})


_NAMES = {"list": "lists", "numbering": "lists", "emoji": "emojis", "name": "form of address"}
"""demand aspects with another name in this table"""


def _of_demand(demand: Demand) -> tuple[str, str | None]:
    if demand.aspect in LENGTHS:
        return "length", {"most": "short", "less": "short", "least": "long", "more": "long"}.get(demand.relation)
    if demand.aspect in ("language", "units", "case"):
        return demand.aspect, demand.text if demand.relation != "no" else None
    if demand.aspect in ("items", "words in it", "example", "praise"):
        return demand.aspect, None
    return _NAMES.get(demand.aspect, demand.aspect), "no" if demand.relation == "no" else "yes"


def _overlap(one: str, other: str) -> float:
    """Return the share of common content words; "mention prices" and "never mention prices" have all in common."""
    first, second = _content(one), _content(other)
    return len(first & second) / len(first | second) if first and second else 0.0


@lru_cache(maxsize=_REMEMBERED)
def _content(text: str) -> frozenset[str]:
    return frozenset(word for word in _folded(text) if word not in _FILLER and word not in _NEGATION)


@lru_cache(maxsize=_REMEMBERED)
def _folded(text: str) -> tuple[str, ...]:
    return words(text.casefold().replace("’", "'"))


@lru_cache(maxsize=_REMEMBERED)
def _put(text: str) -> str:
    return wording(text)


def _same_subject(one: str, other: str) -> bool:
    """Check if two facts define the same subject by the same verb: "is a.txt" and "is called b.txt" do not."""
    first, second = _STATES.match(one), _STATES.match(other)
    if first is None or second is None:
        return False
    subject, again = _content(first["subject"]), _content(second["subject"])
    short = all(len(words(match["value"])) <= 4 for match in (first, second))
    return bool(subject) and subject == again and first["verb"].casefold() == second["verb"].casefold() and short
