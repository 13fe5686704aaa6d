"""Which hints are kept, in which order, and of which kind they are. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from openclaw_rl.judge.preferences_en import COMPARATIVE
from openclaw_rl.judge.reaction import read
from openclaw_rl.judge.text import QUOTED
from openclaw_rl.text import words
from openclaw_rl.types import Hint, HintKind

_READ = 600  # characters of a hint that are looked at for its kind
_RUN = 5  # words in a row that a hint may not borrow from text that is not the user's
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
    """How long a hint may be, in characters (Latin ones, for the shortest), and how many of one turn are kept."""

    shortest: int
    longest: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FilteredHints:
    """What was kept, shortest first, and what was refused with the reason."""

    kept: tuple[Hint, ...]
    refused: tuple[tuple[str, str], ...] = ()


def filter_hints(
    hints: Iterable[Hint], *, reply: str, limits: HintLimits, answer: str = "", user: str = "", others: str = ""
) -> FilteredHints:
    """Keep what may be kept: of the right length, not the reply or answer itself, no duplicate, not too many.

    ``others`` is text of roles that may not instruct: a hint that repeats a run of its words, which ``user`` did not
    say, is refused. Rules take the seats before facts, facts before complaints.
    """
    kept: list[Hint] = []
    refused: list[tuple[str, str]] = []
    seen: set[str] = set()
    for hint in hints:
        text = " ".join(hint.text.split())
        reason = _refusal(text, reply=reply, answer=answer, user=user, others=others, limits=limits)
        if reason is None and _folded(text) in seen:
            reason = "a duplicate"
        if reason is not None:
            refused.append((text, reason))
            continue
        seen.add(_folded(text))
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
    """The length of a text in Latin letters: a character that says more counts for more."""
    return len(text) + 4 * len(_IDEOGRAPH.findall(text)) + 2 * len(_SYLLABLE.findall(text))


def borrowed(text: str, *, user: str = "", others: str) -> bool:
    """Whether ``text`` repeats a run of words of ``others`` that is nowhere in ``user``; it may quote any."""
    if not others:
        return False
    text = QUOTED.sub(" _ ", text)
    theirs, own = _runs(others), _runs(user)
    return any(run in theirs and run not in own for run in _runs(text))


def _runs(text: str) -> set[tuple[str, ...]]:
    found = words(text)
    return {found[at : at + _RUN] for at in range(len(found) - _RUN + 1)}


def is_vague(rule: str) -> bool:
    """Whether a rule says which way, not how far."""
    return bool(_WHICH_WAY.search(rule)) and not _HOW_FAR.search(rule)


def kind_of(text: str) -> HintKind:
    """The kind of a hint that came without one: an order is a rule, a statement a fact, displeasure a complaint."""
    text = text[:_READ]
    found = read(text, request="", reply="").hints
    if found:
        return min((hint.kind for hint in found), key=lambda kind: _SEAT[kind])
    if _OBLIGES.search(text):
        return "rule"
    return "fact" if _STATES.fullmatch(text.strip()) else "rule"
