"""A next state that somebody describes: "User accepted the change and said 'perfect, thanks!'". Pure.

Only a recorded conversation may describe what came after a reply; in a chat such words are the user's own, quotes and
all, and are read as such. A description is read where it begins with who did something, or with what a test did.
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
"""characters: a description is short; what is longer is matter"""


def read_report(text: str, *, request: str, reply: str) -> Reaction | None:
    """What a description says of ``reply``; None where the text is no description, and may be the user's own words."""
    text = text.strip()
    if len(text) > _LONGEST or not (_BEGINS.match(text) or _TEST_BEGINS.match(text)):
        return None
    heard = [read(words, request=request, reply=reply) for words in _words(text)]
    bare = _ASKED.sub(" ", _SAID.sub(" ", text))
    scores = {reaction.score for reaction in heard} | set(_deeds(bare))
    hints = tuple(hint for reaction in heard for hint in reaction.hints)
    if {1, -1} <= scores:
        return Reaction(score=None, note="a description of good and bad", hints=hints)
    score = next(iter(scores - {None}), None)
    if score is None:
        return Reaction(score=None, note="a description that says nothing of the reply")
    return Reaction(score=score, note=f"described as {'accepted' if score > 0 else 'not accepted'}", hints=hints)


def _words(text: str) -> Iterator[str]:
    """What the user is reported to have said, in their words, or to have asked for."""
    for found in _SAID.finditer(text):
        yield found["quote"][1:-1].strip()
    for found in _ASKED.finditer(_SAID.sub(" ", text)):
        yield found["order"].strip()


def _deeds(text: str) -> Iterator[int]:
    """+1 or -1 for each thing that was done; what was not done counts only where that says enough."""
    for found in _GOOD.finditer(text):
        before = text[: found.start()]
        if _NO_PRAISE.search(before) and not re.search(r"\byet\b", text, re.IGNORECASE):
            yield -1
        elif not _NOT.search(before):
            yield 1
    for pattern, score in ((_BAD, -1), (_FAILED, -1), (_PASSED, 1)):
        for found in pattern.finditer(text):
            before = text[: found.start()]
            if not _NOT.search(before) and not re.search(r"\bno (?:\w+ )?\Z", before, re.IGNORECASE):
                yield score


# Is judging healthy? Collapse, starvation and drift, as alarms with their remedy. Pure.

Scored = tuple[str, float | None, str]
"""user, score, source of one verdict"""
Pair = tuple[str, float, float]
"""user, the judge's score, the user's explicit score"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """Something is wrong: its name, what was seen, and what to do. ``user`` None concerns all."""

    name: str
    what: str
    remedy: str
    user: str | None = None


def collapse(scores: Sequence[Scored], *, least: int = 32, share: float = 0.95) -> Alarm | None:
    """Scores all alike: nothing tells a good reply from a bad one."""
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
    """Too few verdicts that say anything: training has nothing to go on."""
    if len(scores) < least:
        return None
    telling = sum(1 for _, score, _ in scores if score)
    if telling >= floor * len(scores):
        return None
    return Alarm(
        name="starvation",
        what=f"only {telling} of the last {len(scores)} verdicts score for or against",
        remedy="set judge.llm.base_url and judge.llm.model: a model judges what the rules cannot; or give feedback",
    )


def backlog(waiting: int, *, most: int = 200, reason: str = "") -> Alarm | None:
    """Turns wait for a judge that does not keep up or cannot be reached."""
    if waiting <= most:
        return None
    why = f" ({reason})" if reason else ""
    return Alarm(
        name="judge behind",
        what=f"{waiting} turns wait for the judge{why}",
        remedy="check the judge's endpoint, raise judge.workers, or lower judge.llm.votes; nothing is lost meanwhile",
    )


def drift(pairs: Iterable[Pair], *, least: int = 8, floor: float = 0.7) -> tuple[Alarm, ...]:
    """Users whose explicit feedback the judge agrees with too seldom; ties and zeros do not count."""
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
    """Per user: how many of how many explicit scores the judge agrees with in sign."""
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
    """All that is wrong now."""
    found = (collapse(scores), starvation(scores), backlog(waiting, reason=reason))
    return (*(alarm for alarm in found if alarm is not None), *drift(pairs))
