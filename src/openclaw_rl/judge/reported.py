"""Described next states: "User accepted the change and said 'perfect, thanks!'". Pure.

Only a recorded conversation may describe the reaction to a reply; in a chat such words are the user's own, including
quotes. A description starts with a person or a test as its subject.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from openclaw_rl.judge.reaction import Reaction, read

_WHO: Final = r"(?:(?:the|a|our|this) )?(?:user|customer|client|human|person|developer|reviewer|tester|they|he|she)"
_BEGINS: Final = re.compile(rf"{_WHO}\b(?!')", re.IGNORECASE)
_SAID: Final = re.compile(
    r"\b(?:said|says|replied|replies|answered|answers|responded|responds|wrote|writes|commented|added|adds|asked|asks)\b"
    r"[^'\"“‘«]{0,40}?[:,]?\s*(?P<quote>\"[^\"]+\"|“[^”]+”|«[^»]+»|‘[^’]+’|'(?:[^']|'(?=\w))+')",
    re.IGNORECASE,
)
_ASKED: Final = re.compile(
    r"\b(?:asked|asks|told|tells|wants|wanted)(?: (?:me|it|us|the \w+))? to (?P<order>[^.;]{3,200})", re.IGNORECASE
)
_GOOD: Final = re.compile(
    r"\b(?:accept(?:s|ed)|approve[sd]|merge[sd]|thank(?:s|ed)|praise[sd]|like[sd]|love[sd]|appreciate[sd]"
    r"|(?:was|is|were|seems|seemed) (?:very |quite |really )?(?:happy|satisfied|pleased|delighted|content)"
    r"|confirm(?:s|ed) (?:that )?it (?:works|worked)|accept|approve|merge|like|appreciate)\b",
    re.IGNORECASE,
)
_BAD: Final = re.compile(
    r"\b(?:reject(?:s|ed)|decline[sd]|complain(?:s|ed)|revert(?:s|ed)|undid|undoes|dislike[sd]|hate[sd]|correct(?:s|ed)"
    r"|(?:was|is|were|seems|seemed) (?:very |quite |really )?"
    r"(?:unhappy|unsatisfied|dissatisfied|frustrated|annoyed|disappointed|confused)"
    r"|reject|complain|revert|dislike)\b",
    re.IGNORECASE,
)
_NOT: Final = re.compile(
    r"(?:\b(?:not|never|no longer|refused to|without|hardly|neither|nor|cannot|almost|nearly|would|might|may|could|if"
    r"|until|unless|before)|n't)\b[^.;]{0,30}\Z",
    re.IGNORECASE,
)
_NO_PRAISE: Final = re.compile(
    r"(?:\b(?:not|never|refused to)|n't)(?: (?:really|even|ever|want to))? (?:be )?\Z", re.IGNORECASE
)
_TESTED: Final = r"(?:tests?(?: suite| run)?|suite|build|compilation|program|script|command|code|deployment)"
_FAILED: Final = re.compile(
    rf"\b{_TESTED} (?:(?:still|again|then|now) )?(?:fail(?:s|ed)?|crash(?:es|ed)?|broke|errored)\b", re.IGNORECASE
)
_PASSED: Final = re.compile(
    rf"\b{_TESTED} (?:(?:now|then|all|finally) )*(?:pass(?:es|ed)?|succeed(?:s|ed)?|(?:is|was|were) green)\b",
    re.IGNORECASE,
)
_TEST_BEGINS: Final = re.compile(rf"(?:(?:the|a|all|our|unit|every|some) ){{0,4}}{_TESTED}\b", re.IGNORECASE)
_LONGEST: Final = 1_000
"""characters; a longer text is no description"""


def read_report(text: str, *, request: str, reply: str) -> Reaction | None:
    """Return the described reaction to ``reply``; None if the text may be the user's own words."""
    text = text.strip()
    if len(text) > _LONGEST or not (_BEGINS.match(text) or _TEST_BEGINS.match(text)):
        return None
    reactions = [read(words, request=request, reply=reply) for words in _words(text)]
    bare = _ASKED.sub(" ", _SAID.sub(" ", text))
    scores = {reaction.score for reaction in reactions} | set(_deeds(bare))
    hints = tuple(hint for reaction in reactions for hint in reaction.hints)
    if {1, -1} <= scores:
        return Reaction(score=None, note="a description of good and bad", hints=hints)
    score = next(iter(scores - {None}), None)
    if score is None:
        return Reaction(score=None, note="a description without a reaction to the reply")
    return Reaction(score=score, note=f"described as {'accepted' if score > 0 else 'not accepted'}", hints=hints)


def _words(text: str) -> Iterator[str]:
    """Yield the user's reported words, quoted or as a reported request."""
    for match in _SAID.finditer(text):
        yield match["quote"][1:-1].strip()
    for match in _ASKED.finditer(_SAID.sub(" ", text)):
        yield match["order"].strip()


def _deeds(text: str) -> Iterator[int]:
    """Yield +1 or -1 for each described action; a negated action counts only if it is conclusive."""
    for match in _GOOD.finditer(text):
        before = text[: match.start()]
        if _NO_PRAISE.search(before) and not re.search(r"\byet\b", text, re.IGNORECASE):
            yield -1
        elif not _NOT.search(before):
            yield 1
    for pattern, score in ((_BAD, -1), (_FAILED, -1), (_PASSED, 1)):
        for match in pattern.finditer(text):
            before = text[: match.start()]
            if not _NOT.search(before) and not re.search(r"\bno (?:\w+ )?\Z", before, re.IGNORECASE):
                yield score


# Health of judging: alarms for collapse, starvation, backlog and drift, each with a remedy. Pure.

Scored = tuple[str, float | None, str]
"""user, score and source of one verdict"""
Pair = tuple[str, float, float]
"""user, judge score and explicit user score"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A problem: its name, the observation and the remedy. ``user`` None applies to all."""

    name: str
    what: str
    remedy: str
    user: str | None = None


def collapse(scores: Sequence[Scored], *, least: int = 32, share: float = 0.95) -> Alarm | None:
    """Return an alarm if nearly all scores are alike, so that they no longer separate good replies from bad."""
    signs = Counter(_sign(score) for _, score, _ in scores if score is not None)
    total = signs.total()
    if total < least:
        return None
    sign, count = signs.most_common(1)[0]
    if count < share * total:
        return None
    return Alarm(
        name="reward collapse",
        what=f"{count} of the last {total} scores are {sign:+d}",
        remedy="look at some turns with `openclaw-rl judge --explain TURN`; try another judge, or give feedback",
    )


def starvation(scores: Sequence[Scored], *, least: int = 32, floor: float = 0.1) -> Alarm | None:
    """Return an alarm if too few verdicts have a score for training."""
    if len(scores) < least:
        return None
    decisive = sum(1 for _, score, _ in scores if score)
    if decisive >= floor * len(scores):
        return None
    return Alarm(
        name="starvation",
        what=f"only {decisive} of the last {len(scores)} verdicts score for or against",
        remedy="set judge.llm.base_url and judge.llm.model: a model judges what the rules cannot; or give feedback",
    )


def backlog(waiting: int, *, most: int = 200, reason: str = "") -> Alarm | None:
    """Return an alarm if too many turns wait for a slow or unreachable judge."""
    if waiting <= most:
        return None
    why = f" ({reason})" if reason else ""
    return Alarm(
        name="judge behind",
        what=f"{waiting} turns wait for the judge{why}",
        remedy="check the judge's endpoint, raise judge.workers, or lower judge.llm.votes; nothing is lost meanwhile",
    )


def drift(pairs: Iterable[Pair], *, least: int = 8, floor: float = 0.7) -> tuple[Alarm, ...]:
    """Return an alarm for each user whose explicit scores the judge rarely agrees with; zeros do not count."""
    shares = agreement(pairs)
    return tuple(
        Alarm(
            name="judge drift",
            what=f"the judge agrees with {agreed} of {total} explicit scores",
            remedy="read some with `openclaw-rl judge --explain TURN`; adapt judge.llm.prompts_dir or change the judge",
            user=user,
        )
        for user, (agreed, total) in sorted(shares.items())
        if total >= least and agreed < floor * total
    )


def agreement(pairs: Iterable[Pair]) -> dict[str, tuple[int, int]]:
    """Return, per user, the explicit scores whose sign the judge agrees with, and their total."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for user, judged, explicit in pairs:
        if judged and explicit:
            counts[user][0] += _sign(judged) == _sign(explicit)
            counts[user][1] += 1
    return {user: (agreed, total) for user, (agreed, total) in counts.items()}


def _sign(score: float) -> int:
    return (score > 0) - (score < 0)


def alarms(
    scores: Sequence[Scored], pairs: Iterable[Pair] = (), *, waiting: int = 0, reason: str = ""
) -> tuple[Alarm, ...]:
    """Return all current alarms."""
    candidates = (collapse(scores), starvation(scores), backlog(waiting, reason=reason))
    return (*(alarm for alarm in candidates if alarm is not None), *drift(pairs))
