"""Precision at the base rate of real conversations, and the thresholds that reach it. Pure.

About 70 % of real people's next messages do not rate the reply. A set with as many complaints as other messages
overrates a judge, so true and false alarms are counted separately and joined at the real base rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from openclaw_rl.judge.channel import CHANNELS, Channel
from openclaw_rl.stats import wilson
from openclaw_rl.types import Json
from openclaw_rl.types.messages import need

# Probabilities that a next message is bad, neutral or good news about a reply. Pure.

WORDS = ("bad", "neutral", "good")
"""a one-pass judge's answers, ordered as in `Odds`"""
_LEAST = 1e-6  # a probability nearer to 0 or 1 has no meaningful log-odds


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
        """Return the odds from the log-probs of `WORDS`, normalised among the three."""
        most = max(logprobs)
        bad, neutral, good = (math.exp(value - most) for value in logprobs)
        total = bad + neutral + good
        return cls(bad=bad / total, neutral=neutral / total, good=good / total)

    def of(self, sign: int) -> float:
        """Return the probability of bad (-1) or good news (+1)."""
        return self.bad if sign < 0 else self.good

    def moved(self, by: float) -> Odds:
        """Return the odds with the log-odds of bad news moved by this much; the other two keep their ratio."""
        bad = min(max(self.bad, _LEAST), 1 - _LEAST)
        moved = 1 / (1 + math.exp(-(math.log(bad / (1 - bad)) + by)))
        rest = (1 - moved) / max(self.neutral + self.good, _LEAST)
        return Odds(bad=moved, neutral=1 - moved - self.good * rest, good=self.good * rest)

    def __str__(self) -> str:
        return f"bad {self.bad:.2f}, neutral {self.neutral:.2f}, good {self.good:.2f}"


Sign: TypeAlias = Literal[-1, 1]
SIGNS: Mapping[Sign, str] = {-1: "complaints", 1: "praise"}

BASE: Mapping[Channel, Mapping[Sign, float]] = {"chat": {-1: 0.21, 1: 0.03}, "coding": {-1: 0.38, 1: 0.03}}
"""share of complaints and praise among next messages, counted in 617 from public transcripts"""
TARGET: Mapping[Channel, Mapping[Sign, float]] = {"chat": {-1: 0.85, 1: 0.8}, "coding": {-1: 0.9, 1: 0.8}}
"""precision at the base rate that a threshold must reach"""
FLOOR = 0.8
"""precision below which a judge is silent"""
FEWEST = 3
"""minimum true alarms for a threshold"""
LOWEST = 0.34
"""lowest threshold: below a third, another word is likelier"""
PRIOR = 10.0
"""rated turns that the shipped lines count for in the precision on this deployment"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RatedLine:
    """A message with its true class for the reply, bad (-1), neutral (0) or good (1), and its odds.

    ``own`` are the model's odds without signs, None if there were none.
    """

    channel: Channel
    truth: int
    odds: Odds
    own: Odds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarms:
    """A class's detections:  ``right`` among its ``there`` messages, ``false`` among ``rest`` others."""

    right: int
    there: int
    false: int
    rest: int
    base: float

    @property
    def recall(self) -> float:
        """Return the class's detected share."""
        return self.right / self.there if self.there else 0.0

    @property
    def precision(self) -> float | None:
        """Return the true alarms' share at the base rate; None without an alarm, or if either kind has no lines."""
        if not (self.right or self.false) or not self.there or not self.rest:
            return None
        return self._precision(self.recall, self.false / self.rest)

    @property
    def cautious(self) -> float:
        """Return the precision with half a false alarm more, since a few lines without one prove little."""
        return self._precision(self.recall, (self.false + 0.5) / (self.rest + 1)) if self.right else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Return the precision at both shares' 95 % bounds (Wilson)."""
        detected, false = wilson(self.right, self.there), wilson(self.false, self.rest)
        return self._precision(detected[0], false[1]), self._precision(detected[1], false[0])

    def plain(self) -> dict[str, Json]:
        """Return the counts and rates as JSON."""
        low, high = self.interval
        counts: dict[str, Json] = {
            "right": self.right,
            "there": self.there,
            "false": self.false,
            "rest": self.rest,
            "base": self.base,
        }
        return {**counts, "precision": self.precision, "low": low, "high": high, "recall": self.recall}

    def _precision(self, seen: float, false: float) -> float:
        true = self.base * seen
        wrong = (1 - self.base) * false
        return true / (true + wrong) if true + wrong else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """The minimum probability for a score of this class, and its alarms on the lines it was set on."""

    at: float
    alarms: Alarms


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A score, or none, with the reason."""

    score: float | None
    why: str


def threshold(lines: Sequence[RatedLine], sign: Sign, *, channel: Channel) -> Threshold | None:
    """Return the lowest probability whose cautious precision reaches the target; None if none does.

    Complaints use the channel's own lines. Praise is rare and similar everywhere, so all lines count.
    """
    used = [line for line in lines if sign > 0 or line.channel == channel]
    best: Threshold | None = None
    for at in sorted({line.odds.of(sign) for line in used if line.truth == sign}, reverse=True):
        if at < LOWEST:
            break
        alarms = _alarms(used, sign, at=at, base=BASE[channel][sign])
        if alarms.right >= FEWEST and alarms.cautious >= TARGET[channel][sign]:
            best = Threshold(at=at, alarms=alarms)
    return best


def _alarms(lines: Sequence[RatedLine], sign: Sign, *, at: float, base: float) -> Alarms:
    alarmed = [line for line in lines if line.odds.of(sign) >= at]
    right = sum(line.truth == sign for line in alarmed)
    there = sum(line.truth == sign for line in lines)
    return Alarms(right=right, there=there, false=len(alarmed) - right, rest=len(lines) - there, base=base)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseRates:
    """Thresholds per channel and class; a class without one is silent.

    ``rated`` turns from this deployment count as lines beside the shipped ones, which are the prior. A class whose
    precision on both together falls below `FLOOR` is silent too.
    """

    thresholds: Mapping[tuple[Channel, Sign], Threshold] = field(default_factory=dict)
    rated: tuple[int, int] = (0, 0)
    """correct scores, and all scores, on rated turns"""

    @classmethod
    def silent(cls) -> BaseRates:
        """Return an unmeasured model's rates, without thresholds."""
        return cls()

    @classmethod
    def of(cls, lines: Sequence[RatedLine], rated: Sequence[RatedLine] = ()) -> BaseRates:
        """Set thresholds on ``lines`` and a deployment's ``rated`` turns.

        Signs alone are not trusted: a class that the model's own odds do not separate has no threshold.
        """
        every = [*lines, *rated]
        own = [replace(line, odds=line.own or line.odds) for line in every]
        pairs = ((channel, sign) for channel in CHANNELS for sign in SIGNS)
        chosen = {pair: bound for pair in pairs if (bound := threshold(every, pair[1], channel=pair[0])) is not None}
        separable = {pair for pair in chosen if threshold(own, pair[1], channel=pair[0]) is not None}
        selected = {
            pair: choice for pair, choice in chosen.items() if pair in separable and _holds(choice, rated, *pair)
        }
        first = cls(thresholds=selected)
        scores = [(score, line.truth) for line in rated if (score := first.decide(line.odds, line.channel).score)]
        return cls(thresholds=selected, rated=(sum(score == truth for score, truth in scores), len(scores)))

    @property
    def heard(self) -> bool:
        """Return True if any class has a threshold."""
        return bool(self.thresholds)

    def decide(self, odds: Odds, channel: Channel) -> Decision:
        """Return the score for these odds: the likelier of the classes above their thresholds."""
        over = [
            sign
            for sign in SIGNS
            if (bound := self.thresholds.get((channel, sign))) is not None and odds.of(sign) >= bound.at
        ]
        if not over:
            return Decision(score=None, why="nothing sure about the reply")
        sign = max(over, key=odds.of)
        bound = self.thresholds[channel, sign]
        return Decision(score=float(sign), why=f"{SIGNS[sign]}: {odds.of(sign):.2f} reaches {bound.at:.2f}")

    def plain(self) -> dict[str, Json]:
        """Return the thresholds and rated turns as JSON, for `status`."""
        entries: dict[str, Json] = {
            f"{channel} {SIGNS[sign]}": {"at": bound.at, **bound.alarms.plain()}
            for (channel, sign), bound in self.thresholds.items()
        }
        return {"thresholds": entries, "rated": list(self.rated)}

    def __str__(self) -> str:
        if not self.heard:
            return "silent: no threshold reaches its precision at base rate"
        entries = [
            f"{channel} {SIGNS[sign]} {bound.alarms.precision or 0:.2f} / {bound.alarms.recall:.2f}"
            for (channel, sign), bound in self.thresholds.items()
        ]
        right, of = self.rated
        here = f"; right in {right} of {of} rated turns" if of else ""
        return f"{', '.join(entries)} (precision at base rate / recall){here}"


def _holds(bound: Threshold, rated: Iterable[RatedLine], channel: Channel, sign: Sign) -> bool:
    """Check that rated turns leave the precision above the floor; the shipped lines count for `PRIOR` turns."""
    alarmed = [line for line in rated if line.channel == channel and line.odds.of(sign) >= bound.at]
    right = sum(line.truth == sign for line in alarmed)
    return ((bound.alarms.precision or 0.0) * PRIOR + right) / (PRIOR + len(alarmed)) >= FLOOR


def at_base_rate(alarms: Iterable[tuple[int, float | None]], *, channel: Channel, sign: Sign) -> Alarms:
    """Return the alarms in pairs of truth and score, at a channel's base rate."""
    pairs = [(truth, score if score is not None else 0.0) for truth, score in alarms]
    there = [score for truth, score in pairs if truth == sign]
    rest = [score for truth, score in pairs if truth != sign]
    return Alarms(
        right=sum(score * sign > 0 for score in there),
        there=len(there),
        false=sum(score * sign > 0 for score in rest),
        rest=len(rest),
        base=BASE[channel][sign],
    )
