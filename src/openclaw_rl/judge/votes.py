"""The vote rule: several answers in, one score or no opinion out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from openclaw_rl.errors import InvalidValue

Vote = int | None
"""+1, -1 or 0; None where no answer could be had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The count of a ballot. ``score`` None is "no opinion", and ``note`` says why."""

    score: int | None
    note: str


def majority(n: int) -> int:
    """The default quorum: more than half of ``n``."""
    return n // 2 + 1


def tally(votes: Sequence[Vote], *, threshold: float = 0.5, quorum: int | None = None) -> Tally:
    """The most frequent answer, if enough answered, its share reaches ``threshold`` and nothing else has as many.

    Votes without an answer are dropped first; ``quorum`` None is more than half of all votes.
    """
    if not 0.0 < threshold <= 1.0:
        raise InvalidValue("threshold", f"{threshold!r} is not in (0, 1]")
    answers = [vote for vote in votes if vote is not None]
    need = majority(len(votes)) if quorum is None else quorum
    if not answers or len(answers) < need:
        return Tally(score=None, note=f"{len(answers)} of {len(votes)} votes answered, {need} needed")
    ranked = Counter(answers).most_common(2)
    best, count = ranked[0]
    if len(ranked) > 1 and ranked[1][1] == count:
        return Tally(score=None, note=f"a tie: {count} votes each for {best:+d} and {ranked[1][0]:+d}")
    if count < threshold * len(answers) - 1e-9:
        return Tally(score=None, note=f"{count} of {len(answers)} for {best:+d} is below the threshold {threshold}")
    return Tally(score=best, note=f"{count} of {len(answers)} for {best:+d}")
