"""Preferences that a program can check: how a user likes replies, and the words in which they complain. Pure.

    preference = PREFERENCES["short"]
    preference.met_by(reply)               whether this reply meets it
    preference.vague, .precise, .thanks    what the user says when it does not, and when it does

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
"""the phrase that ends every reply under the preference ``closing``"""

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
class Preference:
    """How one user likes replies. ``met_by`` checks a reply, ``hint`` is the rule in one sentence.

    ``empty_form`` finds a reply that has the form and is worthless all the same: nobody asks for the form once more.
    ``max_tokens`` is how many reply tokens a fair check needs, ``about`` the kind of task that shows it, and
    ``word_problems`` says whether those show it too. ``sampling`` are further fields of this user's requests; for all
    others the server decides.
    """

    name: str
    description: str
    hint: str
    met_by: Callable[[str], bool]
    vague: tuple[str, ...]
    precise: tuple[str, ...]
    thanks: tuple[str, ...]
    nonsense: tuple[str, ...]
    empty_form: Callable[[str], bool] = lambda _reply: False
    max_tokens: int = 96
    about: About = "everyday"
    word_problems: bool = True
    sampling: Mapping[str, float] = field(default_factory=dict)

    @property
    def complaints(self) -> tuple[str, ...]:
        """Every phrasing of "not like this", the vague ones first."""
        return (*self.vague, *self.precise)

    def prompted(self, prompt: str) -> str:
        """The prompt with the preference in it, as the prompted baseline gets it."""
        return f"{prompt}\n\n{self.hint}"


def _short(reply: str) -> bool:
    return 0 < word_count(reply) < 30


def _list(reply: str) -> bool:
    return len(items(reply)) >= 2 and not _repeats(reply)


def _repeats(reply: str) -> bool:
    """A list that repeats itself: a third of its items or more have been there before."""
    lowered = [item.lower() for item in items(reply)]
    return 0 < len(lowered) <= 3 * (len(lowered) - len(set(lowered)))


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


def _preference(name: str, description: str, hint: str, met_by: Callable[[str], bool], **more: Any) -> Preference:
    phrases = _PHRASES[name]
    return Preference(
        name=name,
        description=description,
        hint=hint,
        met_by=met_by,
        vague=(*phrases["vague"],),
        precise=(*phrases["precise"],),
        thanks=(*phrases.get("thanks", ()), *_PHRASES["any"]["thanks"]),
        nonsense=(*_PHRASES["any"]["nonsense"],),
        **more,
    )


_PHRASES: dict[str, dict[str, list[str]]] = tomllib.loads(
    Path(__file__).with_name("phrases.toml").read_text(encoding="utf-8")
)

PREFERENCES: dict[str, Preference] = {
    preference.name: preference
    for preference in (
        _preference("short", "replies under 30 words", "Please answer in under 30 words.", _short, max_tokens=64),
        _preference(
            "list",
            "replies as a list",
            "Please answer with a bulleted list of short points.",
            _list,
            empty_form=_repeats,
            max_tokens=128,
            word_problems=False,
            # colder, or without a penalty, the embedded model's lists repeat themselves (docs/training.md)
            sampling={"temperature": 0.7, "presence_penalty": 0.25},
        ),
        _preference("one_sentence", "replies of one sentence", "Please answer in one sentence.", _one_sentence),
        _preference(
            "student",
            "plain replies without bold, lists, headings or boxed answers",
            "Please write plain text without bold, lists, headings or boxed answers.",
            _student,
        ),
        _preference(
            "long",
            "replies of at least 100 words, with an example or figures",
            "Please write at least 100 words and give a specific example.",
            _long,
            max_tokens=192,
        ),
        _preference("praise", "replies with warm praise", "Please praise me warmly for my question.", _praise),
        _preference(
            "metric",
            "replies in metric units",
            "Please use metric units only.",
            _metric,
            about="measures",
            word_problems=False,
        ),
        _preference(
            "closing",
            f'replies that end with "{CLOSING}"',
            f'Please end your reply with "{CLOSING}"',
            _closing,
        ),
    )
}
"""the preferences by name, in the order in which reports list them"""
