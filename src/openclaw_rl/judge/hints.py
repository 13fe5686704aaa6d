"""Selection of hints: their limits, their order and their kinds. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from openclaw_rl.judge.preferences_en import COMPARATIVE
from openclaw_rl.judge.reaction import read
from openclaw_rl.judge.text import QUOTED
from openclaw_rl.text import words
from openclaw_rl.types import Hint, HintKind

_READ = 600  # characters of a hint that determine its kind
_RUN = 5  # words in a row that a hint may not borrow from text by others
_IDEOGRAPH = re.compile(r"[㐀-䶿一-鿿]")
_SYLLABLE = re.compile(r"[぀-ヿ가-힣]")
_STATES = re.compile(
    r"(?i)(?:the|my|our|his|her|their|its|it|this|that|these|there) (?:[\w'.-]+ ){0,6}?"
    r"(?:is|are|was|were|has|have|lies|lives|means|starts|ends|costs)\b.*"
    r"|.*\bis (?:called|named|located|spelled|in|at|on)\b.*"
)
_OBLIGES = re.compile(
    r"(?i)\b(?:should|must|always|never|need to|please|prefer|avoid|don't|do not)\b|请|不要|别|应|必须"
)
_WHICH_WAY = re.compile(rf"(?i)\b(?:more|less|fewer|brief\w*|{COMPARATIVE}|to the point|elaborate)\b|更|一点|一些")
_HOW_FAR = re.compile(r"(?i)\d|\b(?:one|two|three|four|five|six|ten|twenty|thirty|fifty|single)\b|[\"“「]")


@dataclass(frozen=True, slots=True, kw_only=True)
class HintLimits:
    """A hint's length limits in characters (Latin ones, for the shortest), and the maximum kept per turn."""

    shortest: int
    longest: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FilteredHints:
    """Kept hints, shortest first, and refused ones with the reason."""

    kept: tuple[Hint, ...]
    refused: tuple[tuple[str, str], ...] = ()


def filter_hints(
    hints: Iterable[Hint], *, reply: str, limits: HintLimits, answer: str = "", user: str = "", others: str = ""
) -> FilteredHints:
    """Keep the permitted hints: within the length limits, not the reply or answer itself, no duplicate, not too many.

    ``others`` is text by roles that may not instruct: a hint that repeats a word run from it, absent in ``user``, is
    refused. Rules take precedence over facts, facts over complaints.
    """
    kept: list[Hint] = []
    refused: list[tuple[str, str]] = []
    distinct: set[str] = set()
    for hint in hints:
        text = " ".join(hint.text.split())
        reason = _refusal(text, reply=reply, answer=answer, user=user, others=others, limits=limits)
        if reason is None and _folded(text) in distinct:
            reason = "a duplicate"
        if reason is not None:
            refused.append((text, reason))
            continue
        distinct.add(_folded(text))
        kept.append(Hint(text=text, kind=hint.kind, vague=hint.kind == "rule" and is_vague(text)))
    seats = sorted(kept, key=lambda hint: (_SEAT[hint.kind], len(hint.text), hint.text))
    refused.extend((hint.text, f"more than {limits.most} hints") for hint in seats[limits.most :])
    return FilteredHints(
        kept=tuple(sorted(seats[: limits.most], key=lambda hint: (len(hint.text), hint.text))), refused=tuple(refused)
    )


_SEAT: dict[HintKind, int] = {"rule": 0, "fact": 1, "complaint": 2}


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def _refusal(text: str, *, reply: str, answer: str, user: str, others: str, limits: HintLimits) -> str | None:
    if substance(text) < limits.shortest:
        return f"shorter than {limits.shortest} characters"
    if len(text) > limits.longest:
        return f"longer than {limits.longest} characters"
    if _folded(text) in (_folded(reply), _folded(answer)):
        return "it is the reply or the answer itself"
    if borrowed(text, user=user, others=others):
        return "its words come from text that may not instruct"
    return None


def substance(text: str) -> int:
    """Return a text's length in Latin letters; a character with more meaning counts for more."""
    return len(text) + 4 * len(_IDEOGRAPH.findall(text)) + 2 * len(_SYLLABLE.findall(text))


def borrowed(text: str, *, user: str = "", others: str) -> bool:
    """Check if ``text`` repeats a run of words in ``others`` that is absent in ``user``; it may quote any."""
    if not others:
        return False
    text = QUOTED.sub(" _ ", text)
    foreign_runs, user_runs = _runs(others), _runs(user)
    return any(run in foreign_runs and run not in user_runs for run in _runs(text))


def _runs(text: str) -> set[tuple[str, ...]]:
    tokens = words(text)
    return {tokens[at : at + _RUN] for at in range(len(tokens) - _RUN + 1)}


def is_vague(rule: str) -> bool:
    """Check if a rule names a direction without a measure."""
    return bool(_WHICH_WAY.search(rule)) and not _HOW_FAR.search(rule)


def kind_of(text: str) -> HintKind:
    """Return an unlabelled hint's kind: an order is a rule, a statement a fact, displeasure a complaint."""
    text = text[:_READ]
    hints = read(text, request="", reply="").hints
    if hints:
        return min((hint.kind for hint in hints), key=lambda kind: _SEAT[kind])
    if _OBLIGES.search(text):
        return "rule"
    return "fact" if _STATES.fullmatch(text.strip()) else "rule"
