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


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRule:
    """How many votes are asked for and when they make a score.

    The most frequent answer wins if ``needed`` votes answered, its share of them reaches ``threshold`` and nothing else
    has as many. ``quorum`` None is more than half of ``votes``.
    """

    votes: int
    threshold: float
    quorum: int | None

    def __post_init__(self) -> None:
        if not 0.0 < self.threshold <= 1.0:
            raise InvalidValue("threshold", f"{self.threshold!r} is not in (0, 1]")

    @property
    def needed(self) -> int:
        """Answers without which there is no score."""
        return self.votes // 2 + 1 if self.quorum is None else self.quorum

    def tally(self, votes: Sequence[Vote]) -> Tally:
        """The score of these votes; those without an answer are dropped first."""
        answers = [vote for vote in votes if vote is not None]
        if not answers or len(answers) < self.needed:
            return Tally(score=None, note=f"{len(answers)} of {len(votes)} votes answered, {self.needed} needed")
        ranked = Counter(answers).most_common(2)
        best, count = ranked[0]
        if len(ranked) > 1 and ranked[1][1] == count:
            return Tally(score=None, note=f"a tie: {count} votes each for {best:+d} and {ranked[1][0]:+d}")
        share = f"{count} of {len(answers)} for {best:+d}"
        if count < self.threshold * len(answers) - 1e-9:
            return Tally(score=None, note=f"{share} is below the threshold {self.threshold}")
        return Tally(score=best, note=share)
