"""Is judging healthy? Collapse, starvation and drift, as alarms with their remedy. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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
