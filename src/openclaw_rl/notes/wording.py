"""In which words a note is put into a prompt: served, taught and measured alike. Pure, and without a model.

    wording("shorter answers please")            "Please answer in under 30 words."
    wording("Keep it under 50 words.")           "Please answer in under 50 words."
    wording("Be brief and mention the price.")   as it is: a plain sentence would lose the price

Where a rule asks for nothing but a length or a list, a plain sentence with a measure says it: the embedded model keeps
to such a sentence far more often than to people's own phrasings (docs/notes.md). Every other rule, and every fact,
stays in the words in which it was heard.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from openclaw_rl.types import Note

SHORT = "Please answer in under 30 words."
"""what "short" is where its user gives no measure"""

_NUMBER = r"(?P<number>\d{1,4}|one|two|three|four|five|six|seven|eight|nine|ten|twenty|thirty|forty|fifty|a hundred)"
_MOST = r"(?:at (?:the )?most|no more than|not more than|up to|within|max(?:imum)?(?: of)?)"
_LIST = r"(?:bullet(?:ed)?(?:[ -]?points?|[ -]?lists?)?|bullets|lists?)"
_FILLER = frozenset(
    re.findall(
        r"\S+",
        "a an the please to of in on at as is are be it its it's this that these those your you my me i i'd i'm we our"
        " for with and or from now next time always just so very really should must would like want prefer answer"
        " answers reply replies response responses future only all every again any can could do keep give make put say"
        " write use using things enough thanks thank ok okay hey about",
    )
)
"""words that may stand around what a rule asks for without asking for anything more"""

_SHORTER = re.compile(
    r"\b(?:(?:too|so) (?:long|wordy|verbose)|(?:more )?(?:brief(?:ly)?|concise(?:ly)?|succinct(?:ly)?|terse)"
    r"|briefer|short(?:er)?|to the point|fewer words|less wordy|less text)\b",
    re.IGNORECASE,
)


class _Shape(NamedTuple):
    """What a rule may consist of, besides filler, and the sentence that says it."""

    pattern: re.Pattern[str]
    sentence: Callable[[re.Match[str]], str]


def _shape(pattern: str, sentence: str | Callable[[re.Match[str]], str]) -> _Shape:
    say = sentence if callable(sentence) else lambda _found, text=sentence: text
    return _Shape(re.compile(pattern, re.IGNORECASE), say)


def _sentences(found: re.Match[str]) -> str:
    if found["number"].lower() in ("one", "1"):
        return "Please answer in one sentence."
    return f"Please answer in {'at most ' if found['most'] else ''}{found['number']} sentences."


_SHAPES = (
    _shape(
        rf"\b(?:under|below|fewer than|less than) (?:about )?{_NUMBER} words?\b",
        lambda found: f"Please answer in under {found['number']} words.",
    ),
    _shape(rf"\b{_MOST} {_NUMBER} words?\b", lambda found: f"Please answer in at most {found['number']} words."),
    _shape(
        rf"\b{_NUMBER} words? (?:or (?:less|fewer)|at (?:the )?most|max(?:imum)?)\b",
        lambda found: f"Please answer in at most {found['number']} words.",
    ),
    _shape(r"\b(?:(?:a|one) )?(?:single|just one|only one) sentence\b", "Please answer in one sentence."),
    _shape(rf"(?:\b(?P<most>{_MOST}) )?\b{_NUMBER}(?: short)? sentences?\b", _sentences),
    _shape(
        rf"\b(?:no|without(?: any)?|don't use|do not use|stop using|never use|avoid)(?: more)? {_LIST}\b"
        rf"(?:(?:,? (?:no|or|and)|,) {_LIST}\b)*",
        "Please answer in plain sentences, without a list.",
    ),
    _shape(
        rf"\b{_LIST}(?: (?:of|with) short (?:points|items))?(?! of)\b",
        "Please answer with a bulleted list of short points.",
    ),
    _Shape(_SHORTER, lambda _found: SHORT),
)
"""in the order in which they are tried"""


def wording(text: str) -> str:
    """The words that go into a prompt for a rule that was heard so."""
    for shape in _SHAPES:
        found = shape.pattern.search(text.replace("’", "'"))
        if found is not None:
            rest = f"{text[: found.start()]} {text[found.end() :]}"
            said = shape.sentence(found)
            if _asks_nothing_more(_SHORTER.sub(" ", rest) if "list" not in said else rest):  # "too long, one sentence"
                return said
    return _sentence(text)


def put(note: Note) -> str:
    """The words that go into a prompt for a note; a fact is what it is."""
    return wording(note.text) if note.kind == "rule" else _sentence(note.text)


def _asks_nothing_more(rest: str) -> bool:
    return all(word in _FILLER for word in re.findall(r"[^\W_]+(?:'[^\W_]+)?", rest.casefold().replace("’", "'")))


def _sentence(text: str) -> str:
    return text if text[-1] in '.!?…。！？"”' else f"{text}."
