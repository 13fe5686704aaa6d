"""A measure of replies that a remark names and says little else ("30 words is my limit"), as a plain sentence.

Pure, and English alone. The sentence is made of the measure and of nothing else that was said, so no words of others
can come in by it. "Write a poem in 30 words" is an errand: what names a thing to be made has no measure of replies.
"""
# ruff: noqa: SIM905  (a list of words is read as a text)

from __future__ import annotations

import re

from openclaw_rl.text import words

LONGEST = 14
"""words of such a remark"""
MOST = 3
"""words in it that are neither of the measure nor filler"""
_NUMBER = (
    r"(?P<number>\d{1,3}|one|two|three|four|five|six|seven|eight|nine|ten|twelve|fifteen|twenty|thirty|forty|fifty"
    r"|a hundred)"
)
_WORDS = (
    re.compile(
        r"(?i)\b(?:under|below|within|fewer than|less than|at (?:the )?most|no more than|not more than|up to"
        r"|max(?:imum)?(?: of)?|over|past|beyond|you get|cap(?:ped)? (?:it |that |them )?at|limit(?: is| of|ed to)?)"
        rf" {_NUMBER} words\b"
    ),
    re.compile(
        rf"(?i)\b{_NUMBER} words,? (?:or (?:fewer|less)|tops|max(?:imum)?|at (?:the )?most|no more|and no more"
        r"|(?:is|are) (?:plenty|enough|(?:my|the) (?:limit|ceiling)))\b"
    ),
)
_STRICT = re.compile(r"(?i)under|below|fewer|less")
_SENTENCE = re.compile(r"(?i)\b(?:one|1|a single|single|the one|only one) sentence\b")
_BULLETS = re.compile(r"(?i)\b(?:bullets|bullet ?points?|bullet(?:ed)? lists?|one bullet per \w+)\b")
_LIMITS = re.compile(
    r"(?i)\b(?:no|not) more(?: than|\W*\Z)|\bnever (?:go|went|gone) (?:over|past|beyond)\b|\bfull stop\b"
)
_AGAINST = re.compile(
    r"(?i)\b(?:no|not|without|don't|do not|stop|instead of|too|enough with|hate|drop|at least|more than|minimum"
    r"|he|she|they|wants|likes|people|asked|said|says|told|wrote|counted|was|were|had|gave|same)\b|[:=;()?\"“”\n]|[.!…]\s"
)
_ERRAND = re.compile(
    r"(?i)\b(?:write|rewrite|draft|compose|describe|explain|summari[sz]e|translate|tell|give|name|define|suggest"
    r"|convert|turn|add|about|(?<!bullet )(?<!bulleted )list)\b"
    r"|\b(?:an?|the) (?!single|one|dear|bullet|max|limit|ceiling|shopping|side)\w+"
)
_FILLER = frozenset(
    "a an the please pls to of in on at as is are be it its it's this that these those your you my me i i'd i'm we our"
    " for with and or so from now here on next time always never ever just very really should must would will like want"
    " prefer answer answers reply replies response responses future forward going only all every any anything can could"
    " do keep make stay stick below over if up out into down back that's how everything per by".split()
)


def named_measure(own: str) -> str | None:
    """The measure as a plain sentence; None where none is named, or one that the reply had, or that is not wanted.

    Only of a short remark that speaks of little else: another may measure a part, or a thing that is to be made.
    """
    bare = _LIMITS.sub(" ", own)
    if len(words(own)) > LONGEST or _AGAINST.search(bare.strip()) or _ERRAND.search(bare):
        return None
    for pattern, say in _SHAPES:
        found = pattern.search(own)
        if found is not None:
            rest = f"{own[: found.start()]} {own[found.end() :]}"
            return say(found) if len([word for word in words(rest) if word not in _FILLER]) <= MOST else None
    return None


def _at_most(found: re.Match[str]) -> str:
    limit = "under" if _STRICT.match(found[0]) else "at most"
    return f"Please answer in {limit} {found['number'].lower()} words."


_SHAPES = (
    *((pattern, _at_most) for pattern in _WORDS),
    (_SENTENCE, lambda _found: "Please answer in one sentence."),
    (_BULLETS, lambda _found: "Please answer in bullet points."),
)
