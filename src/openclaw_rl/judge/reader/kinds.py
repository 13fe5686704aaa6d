"""What a message can be, and the group of languages whose thresholds it is held against. Pure."""
# ruff: noqa: SIM905  (a list of words is read as a text)

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

from openclaw_rl.text import script

MessageKind: TypeAlias = Literal["complaint", "rule", "fact", "neutral", "praise", "mixed"]
KINDS: tuple[MessageKind, ...] = get_args(MessageKind)
"""in the order of every table; mixed is praise with a wish for later"""
KindLogprobs: TypeAlias = tuple[float, ...]
"""one log-prob per kind `[6]`"""
BAD: tuple[MessageKind, ...] = ("complaint", "fact")
"""a rule alone is no bad news: a wish for replies to come, or a plain next task taken for one"""
GOOD: tuple[MessageKind, ...] = ("praise", "mixed")

LanguageGroup: TypeAlias = Literal["english", "latin", "chinese", "japanese", "korean", "arabic", "hindi", "other"]
GROUPS: tuple[LanguageGroup, ...] = get_args(LanguageGroup)
_SCRIPTS: dict[str, LanguageGroup] = {
    "CJK": "chinese",
    "HIRAGANA": "japanese",
    "KATAKANA": "japanese",
    "HANGUL": "korean",
    "ARABIC": "arabic",
    "DEVANAGARI": "hindi",
}
_KANA = re.compile(r"[぀-ヿ]")
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
_ENGLISH = frozenset(
    "the of and to a in is it you that for on with this was are be i have not but what can my me your from at do if"
    " so just please thanks no yes it's don't i'm that's would how which about need make give all or as we there when"
    " did does why more too only one out up get like they he she their his her an by has had were been will good"
    " great wrong again next time one ok okay now write use want than then them these those some into after before"
    " first last right still never always also any much very really here where who thank could should got i've".split()
)


def group_of(message: str, *, request: str = "") -> LanguageGroup:
    """By the letters; Latin ones are English where its small words are a third of all, the request's included."""
    named = script(message * 4) or script(request)  # a word of two characters has a script too
    if named is None:
        return "other" if not request else group_of(request)
    if named == "CJK" and _KANA.search(message + request):
        return "japanese"
    if named == "LATIN":
        return "english" if _is_english(message, request) else "latin"
    return _SCRIPTS.get(named, "other")


def _is_english(message: str, request: str) -> bool:
    found = [word.lower().replace("’", "'") for word in _WORD.findall(message)]
    if len(found) < 8:
        found += [word.lower().replace("’", "'") for word in _WORD.findall(request)[:24]]
    return sum(word in _ENGLISH for word in found) >= 0.25 * max(1, len(found))


def normalised(logits: Sequence[float]) -> KindLogprobs:
    """Logits as log-probs."""
    top = max(logits)
    total = top + math.log(sum(math.exp(value - top) for value in logits))
    return tuple(value - total for value in logits)


def mass(logprobs: Sequence[float], kinds: Sequence[MessageKind]) -> float:
    """The probability that the message is of one of these kinds."""
    return sum(math.exp(logprobs[KINDS.index(kind)]) for kind in kinds)
