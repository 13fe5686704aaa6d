"""Wishes that a program can check: how a user would like replies to be, and the words in which they say so. Pure.

    wish = WISHES["short"]
    wish.holds(reply)                      whether this reply is as the user likes it
    wish.vague, wish.precise, wish.thanks  what the user says when it is not, and when it is

The words are in ``phrases.toml``. A vague complaint names no measure ("Hmm, not what I wanted."), a precise one does.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from openclaw_rl.text import BOLD, HEADING, ITEM, items, sentence_count, word_count

About = Literal["everyday", "facts", "advice", "measures"]
"""kinds of task: ``everyday`` is facts and advice together"""

CLOSING = "Hope that helps!"
"""the phrase that ends every reply under the wish ``closing``"""

_BOXED = re.compile(r"\\f?box(?:ed)?\b")
_TERMINAL = re.compile(r"(?<![.!?…。！？])[.!?…。！？]++[\"”’')\]*_]*+$")
_EXAMPLE = re.compile(r"\d|\b(?:for example|for instance|such as|e\.g\.|specifically|in particular|imagine)\b", re.I)
_METRIC = re.compile(
    r"\d\s*(?:thousand |million |billion )?-?(?:k?m|cm|mm|km/h|kph|m/s|kg|g|mg|ml|cl|l|°\s*c|c|hectares?"
    r"|(?:square |cubic )?(?:kilo|centi|milli)?met(?:re|er)s?(?: per \w+)?|(?:kilo|milli)?grams?"
    r"|(?:milli)?lit(?:re|er)s?|tonnes?|kilos?|(?:degrees? )?celsius|degrees c)\b",
    re.IGNORECASE,
)
_IMPERIAL = re.compile(
    r"\b(?:inch(?:es)?|foot tall|feet|foot|yards?|miles?|mph|pounds?|lbs?|ounces?|oz|gallons?|pints?|quarts?|acres?"
    r"|fahrenheit|degrees f)\b|\d\s*°\s*f\b|\d['′]\s?\d|\d\s?(?:ft|in|mi)\b\.?",
    re.IGNORECASE,
)
_PRAISED = r"(?:question|work|job|thinking|idea|choice|start|topic|point|effort|try|curiosity|going|thought|attitude)"
_PRAISE = re.compile(
    r"\b(?:great|good|excellent|wonderful|fantastic|lovely|brilliant|thoughtful|interesting|nice|superb|amazing|terrific"
    rf"|awesome|clever|smart|fine|beautiful|outstanding|impressive) {_PRAISED}\b"
    r"|\b(?:well done|nicely done|bravo|kudos|proud of you|way to go|keep (?:it up|up the|going)|good for you)\b"
    r"|\b(?:i love (?:that|your|how)|so (?:glad|happy) (?:that )?you asked|glad you asked|you(?:'re| are) doing "
    r"(?:great|well|so well|wonderfully|amazing)|you(?:'re| are) (?:so |very |really )?(?:clever|smart|brilliant"
    r"|wonderful|amazing|awesome|curious|thoughtful|on the right track|a star))\b"
    r"|(?:^|[.!?]\s+)(?:wonderful|excellent|fantastic|brilliant|amazing|awesome|superb|terrific|marvell?ous|hooray)!",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """How one user likes replies. ``holds`` checks a reply, ``hint`` is the rule in one sentence.

    ``spoilt`` is a reply that has the form and is worthless all the same: nobody asks for the form once more.
    ``room`` is how many reply tokens a fair check needs, ``about`` the kind of task that shows it, and ``sums`` says
    whether word problems show it too. ``asks`` are further fields of this user's requests; for all others the server
    decides.
    """

    name: str
    description: str
    hint: str
    holds: Callable[[str], bool]
    vague: tuple[str, ...]
    precise: tuple[str, ...]
    thanks: tuple[str, ...]
    nonsense: tuple[str, ...]
    spoilt: Callable[[str], bool] = lambda _reply: False
    room: int = 96
    about: About = "everyday"
    sums: bool = True
    asks: Mapping[str, float] = field(default_factory=dict)

    @property
    def complaints(self) -> tuple[str, ...]:
        """Every phrasing of "not like this", the vague ones first."""
        return (*self.vague, *self.precise)

    def say(self, prompt: str) -> str:
        """The prompt with the wish said in it."""
        return f"{prompt}\n\n{self.hint}"


def _short(reply: str) -> bool:
    return 0 < word_count(reply) < 30


def _list(reply: str) -> bool:
    return len(items(reply)) >= 2 and not _circles(reply)


def _circles(reply: str) -> bool:
    """A list that goes round in circles: a third of its items or more have been there before."""
    said = [item.lower() for item in items(reply)]
    return 0 < len(said) <= 3 * (len(said) - len(set(said)))


def _one_sentence(reply: str) -> bool:
    return (
        word_count(reply) > 0
        and sentence_count(reply) == 1
        and not items(reply)
        and bool(_TERMINAL.search(reply.strip()))
    )


def _student(reply: str) -> bool:
    return word_count(reply) > 0 and not (
        BOLD.search(reply) or items(reply) or HEADING.search(reply) or _BOXED.search(reply)
    )


def _long(reply: str) -> bool:
    return word_count(reply) >= 100 and bool(_EXAMPLE.search(ITEM.sub("", reply)))


def _praise(reply: str) -> bool:
    return bool(_PRAISE.search(reply))


def _metric(reply: str) -> bool:
    return bool(_METRIC.search(reply)) and not _IMPERIAL.search(reply)


def _closing(reply: str) -> bool:
    return _letters(reply).endswith(_letters(CLOSING))


def _letters(text: str) -> str:
    return " ".join(re.sub(r"[^\w\s]|_", " ", text.casefold()).split())


def _wish(name: str, description: str, hint: str, holds: Callable[[str], bool], **more: Any) -> Wish:
    said = _PHRASES[name]
    return Wish(
        name=name,
        description=description,
        hint=hint,
        holds=holds,
        vague=(*said["vague"],),
        precise=(*said["precise"],),
        thanks=(*said.get("thanks", ()), *_PHRASES["any"]["thanks"]),
        nonsense=(*_PHRASES["any"]["nonsense"],),
        **more,
    )


_PHRASES: dict[str, dict[str, list[str]]] = tomllib.loads(
    Path(__file__).with_name("phrases.toml").read_text(encoding="utf-8")
)

WISHES: dict[str, Wish] = {
    wish.name: wish
    for wish in (
        _wish("short", "replies under 30 words", "Please answer in under 30 words.", _short),
        _wish(
            "list",
            "replies as a list",
            "Please answer with a bulleted list of short points.",
            _list,
            spoilt=_circles,
            room=128,
            sums=False,
            # colder, or without a penalty, the embedded model's lists repeat themselves (docs/training.md)
            asks={"temperature": 0.7, "presence_penalty": 0.25},
        ),
        _wish("one_sentence", "replies of one sentence", "Please answer in one sentence.", _one_sentence),
        _wish(
            "student",
            "plain replies without bold, lists, headings or boxed answers",
            "Please write plain text without bold, lists, headings or boxed answers.",
            _student,
        ),
        _wish(
            "long",
            "replies of at least 100 words, with an example or figures",
            "Please write at least 100 words and give a specific example.",
            _long,
            room=192,
        ),
        _wish("praise", "replies with warm praise", "Please praise me warmly for my question.", _praise),
        _wish(
            "metric", "replies in metric units", "Please use metric units only.", _metric, about="measures", sums=False
        ),
        _wish(
            "closing",
            f'replies that end with "{CLOSING}"',
            f'Please end your reply with "{CLOSING}"',
            _closing,
        ),
    )
}
"""The wishes by name, in the order in which they are told of."""
