"""In which words a note is put into a prompt: served, taught and measured alike. Pure, and without a model.

    wording("shorter answers please")            "Please answer in under 30 words."
    wording("Keep it under 50 words.")           "Please answer in under 50 words."
    wording("Trim it till 30 words are left.")   "Please answer in under 30 words."
    wording("30 words tops, and name the price") "30 words tops, and name the price. Please answer in under 30 words."
    wording("Titles under six words.")           as it is: it is not about the whole reply

Where a rule asks for nothing but a length or a list, a plain sentence with a measure says it: the embedded model keeps
to such a sentence far more often than to people's own phrasings (docs/notes.md). Where it may ask for more, the plain
sentence comes after its own words: nothing is lost. Every other rule, and every fact, stays in the words in which it
was heard.
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


def _words(found: re.Match[str]) -> str:
    """Who asks for at most 30 words is given under 30: the embedded model keeps to that more often."""
    few = found["number"].lower() in ("one", "two", "three", "four", "1", "2", "3", "4")
    return f"Please answer in {'at most' if few else 'under'} {found['number']} words."


def _sentences(found: re.Match[str]) -> str:
    if found["number"].lower() in ("one", "1"):
        return "Please answer in one sentence."
    return f"Please answer in {'at most ' if found['most'] else ''}{found['number']} sentences."


_SHAPES = (
    _shape(rf"\b(?:{_MOST}|under|below|fewer than|less than) (?:about )?{_NUMBER} words?\b", _words),
    _shape(rf"\b{_NUMBER} words? (?:or (?:less|fewer)|at (?:the )?most|max(?:imum)?)\b", _words),
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


_ELSEWHERE = re.compile(
    r"""["“”]|\b(?:when(?:ever)?|unless|except|while|if (?!you (?:would|could|can|please|don't mind)|it\b|that\b)"""
    r"|for (?:the|any|\w+s(?<!this))"
    r"|titles?|head(?:ing|line|er)s?|captions?|comments?|subjects?|intro(?:duction)?s?|summar(?:y|ies)|quotes?|opening"
    r"|e-?mails?|letters?|notices?|tweets?|posts?|stor(?:y|ies)|poems?|essays?|reports?|slides?|descriptions?|names?|code"
    r"|docstrings?|commits?|labels?|emojis?|tables?|numbered)\b",
    re.IGNORECASE,
)
"""signs that a rule holds for one kind of text, for a part of the reply, or under a condition"""
_EACH = re.compile(
    r"\b(?:(?:each|per|every)\b(?! (?:time|answer|reply|response|message|single time))"
    r"|first|last|lines?|steps?|rows?|columns?)\b",
    re.IGNORECASE,
)
"""signs that a measure is that of a part"""
_BOUND = re.compile(
    rf"\b(?:{_MOST}|under|below|past|beyond|over|exceed\w*|(?:no|not|never|don't|nothing) \w+"
    r"|more than|most|tops?|max|limit\w*|fewer|less|only|just|ration|cap(?:ped)?|ceiling|budget|cut|trim|boil|squeeze"
    r"|shrink|shorten|keep|stay|stick|stop|down to|enough|plenty|lot|get)\b",
    re.IGNORECASE,
)
"""a word by which a number is a limit"""
_LEAST = re.compile(
    r"\b(?:at least|minimum|min|upwards|or more|longer|(?:not|no|never) (?:under|below|less|fewer)"
    r"|(?<!no )(?<!not )(?<!never )(?<!'t )(?<!anything )more than)\b",
    re.IGNORECASE,
)
_WORDS = re.compile(rf"\b{_NUMBER} words\b", re.IGNORECASE)
_ONE = re.compile(
    r"\b(?:one|1|single|lone|solitary)(?: (?:short|single|lone|solitary|plain|full|simple)){0,3} sentence\b",
    re.IGNORECASE,
)
_SOME = re.compile(rf"\b{_NUMBER}(?: short)? sentences\b", re.IGNORECASE)
_NO_LIST = re.compile(
    r"\b(?:no|not|never|without|don't|dont|do not|stop|avoid|quit|drop|ditch|skip|lose|hate|enough|instead of"
    rf"|rather than)\b(?:(?!\bbut\b)[^.,;:!?]){{0,30}}\b{_LIST}\b",
    re.IGNORECASE,
)
_AS_LIST = re.compile(
    r"\b(?:bullets|bulleted|bullet[ -]?(?:points?|lists?)"
    r"|(?:as|in|into|like|use|me|want|prefer) an? (?:\w+ )?list)\b(?! of)",
    re.IGNORECASE,
)
_TOO_LONG = re.compile(
    r"\b(?:too (?:long|wordy|verbose)|too much text|shorter (?:answers?|repl(?:y|ies)|responses?|please|next time)"
    r"|(?:keep|make|cut) (?:it|them|this|that|your \w+) (?:\w+ )?(?:short(?:er)?|brief(?:er)?|concise)"
    r"|be (?:more )?(?:brief(?:er)?|concise|succinct|terse))\b",
    re.IGNORECASE,
)
_FURTHER = re.compile(
    r"\b(?:and|but)\b(?! (?:not|no|nothing|never|that's|that|then|stop|i|i'd|i'm|my|we|you|it)\b)"
    r"|\b(?:also|plus|with(?:out)?|mention|includ\w+|add|explain|describ\w+|translat\w+|cite|sources?|examples?|details?"
    r"|formal\w*|polite\w*|friendly|casual|simple|plain|english|german|french|spanish|chinese|use|using|write|start|begin"
    r"|end|call|show|avoid|tell|or)\b(?! (?:less|fewer|under|so)\b)",
    re.IGNORECASE,
)
"""signs that a rule asks for more than the measure in it"""
_LONG = 25
"""words of a rule from which on nothing of it is left out"""
_TERSE = 8
"""words of a rule up to which what stands between commas is a wish of its own"""
_OTHERWISE = re.compile(r"\b(?:not|n't|never|no|and|but|bit|little|slightly)\b|n't\b", re.IGNORECASE)


def wording(text: str) -> str:
    """The words that go into a prompt for a rule that was heard so."""
    straight = text.replace("’", "'")
    for shape in _SHAPES:
        found = shape.pattern.search(straight)
        if found is not None:
            rest = f"{straight[: found.start()]} {straight[found.end() :]}"
            said = shape.sentence(found)
            if _asks_nothing_more(_SHORTER.sub(" ", rest) if "list" not in said else rest):  # "too long, one sentence"
                return said
    own, plain = _sentence(text), _measure(straight)
    if plain is None or own.endswith(plain):
        return own
    return f"{own[0].upper()}{own[1:]} {plain}" if _may_ask_more(straight) else plain


def _may_ask_more(text: str) -> bool:
    """Whether there are signs of a further wish; what is without any only says why, or how dearly."""
    terse = len(text.split()) <= _TERSE and text.count(",") >= 2  # "sober, past tense, two sentences"
    return terse or len(text.split()) > _LONG or _FURTHER.search(text) is not None


def _measure(text: str) -> str | None:
    """The plain sentence for the length or the list that a rule asks of a whole reply, among other words."""
    if _ELSEWHERE.search(text):
        return None
    if _NO_LIST.search(text):
        return "Please answer in plain sentences, without a list."
    if _AS_LIST.search(text):
        return "Please answer with a bulleted list of short points."
    if _EACH.search(text):
        return None
    if (found := _WORDS.search(text)) is not None:
        return _words(found) if _is_limit(text) else None
    if _ONE.search(text):
        return "Please answer in one sentence."
    if (found := _SOME.search(text)) is not None:
        return f"Please answer in at most {found['number']} sentences." if _is_limit(text) else None
    return SHORT if _TOO_LONG.search(text) and not _OTHERWISE.search(text) else None


def _is_limit(text: str) -> bool:
    return _BOUND.search(text) is not None and _LEAST.search(text) is None


def put(note: Note) -> str:
    """The words that go into a prompt for a note; a fact is what it is."""
    return wording(note.text) if note.kind == "rule" else _sentence(note.text)


def _asks_nothing_more(rest: str) -> bool:
    return all(word in _FILLER for word in re.findall(r"[^\W_]+(?:'[^\W_]+)?", rest.casefold()))


def _sentence(text: str) -> str:
    return text if text[-1] in '.!?…。！？"”' else f"{text}."
