"""The probabilities that a next message is bad, neutral or good news of a reply. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from openclaw_rl.types.validation import need

WORDS = ("bad", "neutral", "good")
"""the answers of a one-pass judge, in the order of `Odds`"""
_LEAST = 1e-6  # a probability nearer to 0 or 1 has no log-odds worth the name


@dataclass(frozen=True, slots=True, kw_only=True)
class Odds:
    """Three probabilities that sum to one."""

    bad: float
    neutral: float
    good: float

    def __post_init__(self) -> None:
        need(abs(self.bad + self.neutral + self.good - 1) < 1e-6, "bad", "the three probabilities sum to one")

    @classmethod
    def read(cls, logprobs: Sequence[float]) -> Odds:
        """From the log-probs of `WORDS`, normalised among the three."""
        most = max(logprobs)
        bad, neutral, good = (math.exp(value - most) for value in logprobs)
        total = bad + neutral + good
        return cls(bad=bad / total, neutral=neutral / total, good=good / total)

    def of(self, sign: int) -> float:
        """The probability of bad news (-1) or of good news (+1)."""
        return self.bad if sign < 0 else self.good

    def moved(self, by: float) -> Odds:
        """The odds with the log-odds of bad news moved by so much; the other two keep their ratio."""
        bad = min(max(self.bad, _LEAST), 1 - _LEAST)
        moved = 1 / (1 + math.exp(-(math.log(bad / (1 - bad)) + by)))
        rest = (1 - moved) / max(self.neutral + self.good, _LEAST)
        return Odds(bad=moved, neutral=1 - moved - self.good * rest, good=self.good * rest)

    def __str__(self) -> str:
        return f"bad {self.bad:.2f}, neutral {self.neutral:.2f}, good {self.good:.2f}"
