"""The user's own sentence that carries an instruction or a fact, verbatim. Pure.

Only of a message that is surely all the user's own: no address, code, quotes, brackets, colon or dash in it, one line,
no words that point at what follows or report what somebody said, no question beside the sentence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from openclaw_rl.judge.text import Sentence

LONGEST = 6
"""sentences in which an instruction is looked for; a longer message is a text, not a remark"""
_POINTS = re.compile(
    r"(?i)\b(?:these|following|below(?! (?:it|that)\b)|above|attached|copied|pasted)\b"
    r"|\bthis\s*(?:[.!?]|\Z)|\A\W*here\b"
    r"|\b(?:say(?! it\b)|says|said|wrote|writes|reads|texted|claims|goes like|was like|contains|notes?)\b"
    r"|\btold (?:me|us|him|her|them)\b"
)
_FOREIGN = re.compile(
    r"(?i)https?://|www\.|[\w.+-]@[\w-]+\.\w|^\s*(?:\$|#!|//|/\*)|\A[-*•]\s|\A\d+[.)]\s"
    r"|[:：=\[\](){}<>|`\"“”„«»「」『』\n]|(?<!\w)'|'(?!\w)|\s[-–—]+\s|[–—]|\s--"
)
_LEADS = re.compile(
    r"(?i)\A[^\w]*(?:(?:ok|okay|and|also|but|so|well|no|nope|hm+|ah|oh|aber|und|nein|mais|non|et|pero|no|y|mas|não|e|ma|但是|不过|不是|不对)"
    r"[,，.!。:\s]+)+"
)


def carrier(own: str, sentences: Sequence[Sentence], weigh: Callable[[str], float]) -> str | None:
    """The sentence of ``own`` that weighs most, as it was written; None where it may be somebody else's words."""
    if not sentences or len(sentences) > LONGEST or may_be_foreign(own):
        return None
    if len(sentences) > 1 and any(sentence.asks for sentence in sentences):
        return None
    weights = [weigh(sentence.text) for sentence in sentences]
    return stripped(sentences[weights.index(max(weights))].text)


def may_be_foreign(own: str) -> bool:
    """Whether somebody else's words may be in a message."""
    return _FOREIGN.search(own) is not None or _POINTS.search(own) is not None


def stripped(sentence: str) -> str:
    """Without the words that only lead over to it."""
    bare = _LEADS.sub("", sentence).strip()
    return bare if len(bare) >= 0.4 * len(sentence) else sentence.strip()
