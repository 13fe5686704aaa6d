"""Wording of a note in a prompt, the same in serving, training and measurement. Pure, and without a model.

    wording("shorter answers please")            "Please answer in under 30 words."
    wording("Keep it under 50 words.")           "Please answer in under 50 words."
    wording("Trim it till 30 words are left.")   "Please answer in under 30 words."
    wording("30 words tops, and name the price") "30 words tops, and name the price. Please answer in under 30 words."
    wording("Titles under six words.")           unchanged: it is not about the whole reply

If a rule asks only for a length or a list, a plain sentence with a measure replaces it: the embedded model follows such
a sentence far more often than people's own phrasings (docs/notes.md). If it may ask for more, the plain sentence
follows the rule's own words, so nothing is lost. Every other rule, and every fact, keeps its own words.
"""

from __future__ import annotations

import re

from openclaw_rl.text import NUMBER, number_of
from openclaw_rl.types import Note

SHORT = "Please answer in under 30 words."
"""the measure for "short" if the user names none"""
ONE_SENTENCE = "Please answer in one sentence."
LIST = "Please answer with a bulleted list of short points."
NO_LIST = "Please answer in plain sentences, without a list."
PLAIN_SENTENCES = (SHORT, ONE_SENTENCE, LIST, NO_LIST)

_NUMBER = rf"(?P<number>{NUMBER})"
_FEW = 4
"""maximum number worded as "at most": "under two words" hardly leaves a reply"""
_MOST = (
    r"(?:at (?:the )?most|no more than|not more than|up to|within|max(?:imum)?(?: of)?"
    r"|under|below|fewer than|less than)"
)
_BULLETS = r"(?:bullet(?:ed)?(?:[ -]?points?|[ -]?lists?)?|bullets|dot[ -]?points?|lists?)"


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.IGNORECASE)


# --- requested measures and forms

_WORDS = _pattern(rf"(?:\b{_MOST} (?:about )?)?\b{_NUMBER} words?\b")
_SENTENCE = _pattern(
    r"\b(?:one|1|single|lone|solitary)(?: (?:short|single|lone|solitary|plain|full|simple)){0,3} sentence\b"
)
_SENTENCES = _pattern(rf"(?:\b{_MOST} )?\b{_NUMBER}(?: short)? sentences\b")
_WITHOUT_LIST = _pattern(
    r"\b(?:no|not|never|without|don't|dont|do not|stop|avoid|quit|drop|ditch|skip|lose|hate|enough|instead of"
    rf"|rather than)\b(?:(?!\bbut\b)[^.,;:!?]){{0,30}}\b{_BULLETS}\b(?:(?:,? (?:no|or|and)|,) {_BULLETS}\b){{0,3}}"
)
_AS_LIST = _pattern(
    r"\b(?:(?:with (?:an? )?)?(?:bullets|bulleted(?: lists?)?|dot[ -]?points?|bullet[ -]?(?:points?|lists?))"
    r"|(?:as|in|into|like|use|me|want|prefer) an? (?:\w+ )?list)\b(?: of short points\b)?(?! of)"
)
_SHORTER = _pattern(
    r"\b(?:(?:too|so) (?:long|wordy|verbose)|(?:more )?(?:brief(?:ly)?|concise(?:ly)?|succinct(?:ly)?|terse)"
    r"|briefer|short(?:er)?|to the point|fewer words|less wordy|less text)\b"
)
_TOO_LONG = _pattern(
    r"\b(?:too (?:long|wordy|verbose)|too much text|shorter (?:answers?|repl(?:y|ies)|responses?|please|next time)"
    r"|(?:keep|make|cut) (?:it|them|this|that|your \w+) (?:\w+ )?(?:short(?:er)?|brief(?:er)?|concise)"
    r"|be (?:more )?(?:brief(?:er)?|concise|succinct|terse))\b"
)

# --- their scope and manner

_ELSEWHERE = _pattern(
    r"""["“”]|\b(?:when(?:ever)?|unless|except|while|if (?!you (?:would|could|can|please|don't mind)|it\b|that\b)"""
    r"|for (?:the|any|\w+s(?<!this))"
    r"|titles?|head(?:ing|line|er)s?|captions?|comments?|subjects?|intro(?:duction)?s?|summar(?:y|ies)|quotes?|opening"
    r"|e-?mails?|letters?|notices?|tweets?|posts?|stor(?:y|ies)|poems?|essays?|reports?|slides?|descriptions?|names?|code"
    r"|docstrings?|commits?|labels?|emojis?|tables?|numbered)\b"
)
"""signs that a rule applies to one text kind, to a part of the reply, or under a condition"""
_EACH = _pattern(
    r"\b(?:(?:each|per|every)\b(?! (?:time|answer|reply|response|message|single time))"
    r"|first|last|lines?|steps?|rows?|columns?)\b"
)
"""signs that a measure applies to a part"""
_LIMIT = _pattern(
    rf"\b(?:{_MOST}|past \d|beyond|over|exceed\w*|(?:no|not|never|don't|nothing) \w+"
    r"|more than|most|tops?|max|limit\w*|fewer|less|only|just|ration|cap(?:ped)?|ceiling|budget|cut|trim|boil|squeeze"
    r"|shrink|shorten|keep|stay|stick|stop|down to|enough|plenty|lot|get)\b"
)
"""a word that makes a number a limit"""
_COUNTED = _pattern(
    r"\b(?:counted|i count|(?:that|this|it|there|reply|answer) w(?:as|ere)|sent|wrote|used|took)\b[^,.;:!?]{0,20}\Z"
)
"""words before a number that describes the past reply"""
_LEAST = _pattern(
    r"\b(?:at least|minimum|min|upwards|or more|longer|(?:not|no|never) (?:under|below|less|fewer)"
    r"|(?<!no )(?<!not )(?<!never )(?<!'t )(?<!anything )more than)\b"
)
_OTHERWISE = _pattern(r"\b(?:not|n't|never|no|and|but|bit|little|slightly)\b|n't\b")
_FILLER = frozenset(
    re.findall(
        r"\S+",
        "a an the please to of in on at as is are be it its it's this that these those your you my me i i'd i'm we our"
        " for with and or from now next time always just so very really should must would like want prefer answer"
        " answers reply replies response responses future only all every again any can could do keep give make put say"
        " write use using things enough thanks thank ok okay hey about",
    )
)
"""words around "shorter" that ask for nothing more"""

# --- further wishes

_FURTHER = _pattern(
    r"\b(?:and|but)\b(?! (?:not|no|nothing|never|that's|that|then|stop|i|i'd|i'm|my|we|you|it)\b)"
    r"|\b(?:also|plus|with(?:out)?|mention|includ\w+|add|explain|describ\w+|translat\w+|cite|sources?|examples?|details?"
    r"|formal\w*|polite\w*|friendly|casual|simple|plain|english|german|french|spanish|chinese|start|begin|end|call|show"
    r"|avoid|tell|or)\b(?! (?:less|fewer|under|so)\b)"
    r"|\b(?:use|using|write) (?!in\b|it\b|your\b|them\b|to\b|me\b|only\b|just\b)\w"
)
"""signs that a rule asks for more than its measure"""
_LONG = 25
"""rule length in words beyond which it is kept in full"""
_TERSE = 8
"""maximum words in a rule whose text between commas is a separate wish"""


def put(note: Note) -> str:
    """Return a note's words for a prompt; a fact stays unchanged."""
    return wording(note.text) if note.kind == "rule" else _sentence(note.text)


def wording(text: str) -> str:
    """Return a rule's words for a prompt."""
    sentence, straight = _sentence(text), text.replace("’", "'")
    plain, remainder = _measure(straight)
    if plain is None:
        return sentence
    if not _may_ask_more(straight.removesuffix(plain), remainder):
        return plain
    return sentence if sentence.endswith(plain) else f"{sentence[0].upper()}{sentence[1:]} {plain}"


def is_plain(text: str) -> bool:
    """Check if a text is one of the plain sentences here, without a person's own words."""
    return _measure(text)[0] == text


def _measure(text: str) -> tuple[str | None, str]:
    """Return the plain sentence for a rule's length or list of a whole reply, and the rule's other words."""
    if _ELSEWHERE.search(text):
        return None, text
    if match := _WITHOUT_LIST.search(text):
        return NO_LIST, _besides(text, match)
    if match := _AS_LIST.search(text):
        return LIST, _besides(text, match)
    if _EACH.search(text):
        return None, text
    if _LEAST.search(text):
        return None, text
    limited = _LIMIT.search(text) is not None
    if match := _WORDS.search(text):
        return _words(match["number"]) if limited and not _counts(text, match) else None, _besides(text, match)
    if match := _SENTENCE.search(text):
        return ONE_SENTENCE, _besides(text, match)
    if match := _SENTENCES.search(text):
        plain = f"Please answer in {'at most ' if limited else ''}{match['number']} sentences."
        return None if _counts(text, match) else plain, _besides(text, match)
    bare = _SHORTER.search(text) is not None and _is_filler(_SHORTER.sub(" ", text))
    wants_short = bare or (_TOO_LONG.search(text) is not None and _OTHERWISE.search(text) is None)
    return SHORT if wants_short else None, _TOO_LONG.sub(" ", text)


def _counts(text: str, found: re.Match[str]) -> bool:
    return _COUNTED.search(text[: found.start()]) is not None


def _words(number: str) -> str:
    """Return a request for under this many words, which the embedded model keeps more often than "at most"."""
    most = number_of(number)
    return f"Please answer in {'at most' if most <= _FEW else 'under'} {number} {'word' if most == 1 else 'words'}."


def _may_ask_more(text: str, rest: str) -> bool:
    """Check for signs of a further wish; other words only add a reason or emphasis."""
    count = len(text.split())
    terse = count <= _TERSE and text.count(",") >= 2  # "sober, past tense, two sentences"
    return terse or count > _LONG or _FURTHER.search(rest) is not None


def _besides(text: str, found: re.Match[str]) -> str:
    return f"{text[: found.start()]}\n{text[found.end() :]}"


def _is_filler(rest: str) -> bool:
    return all(word in _FILLER for word in re.findall(r"[^\W_]+(?:'[^\W_]+)?", rest.casefold()))


def _sentence(text: str) -> str:
    return text if text[-1] in '.!?…。！？"”' else f"{text}."
