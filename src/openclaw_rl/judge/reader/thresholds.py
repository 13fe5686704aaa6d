"""Fit the combination on held-out voices at the rates of real talk: weights, and thresholds that keep a precision.

Most lines were written to be told apart, with as many complaints as errands. So each line counts as often as its kind
is met in real talk, and lines of voices that were written at real rates count most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from openclaw_rl.judge.base_rate import BASE
from openclaw_rl.judge.channel import Channel
from openclaw_rl.judge.reaction import read
from openclaw_rl.judge.reader.combination import PLACES, Place, Thresholds, Weights
from openclaw_rl.judge.reader.descent import Array, minimised, softmax
from openclaw_rl.judge.reader.kinds import BAD, GOOD, KINDS
from openclaw_rl.judge.reader.voices import Line

PRECISION = 0.85
"""asked of complaints and praise at real rates"""
FLOOR = 0.8
"""precision of voices that set no threshold themselves, below which a place is silent"""
SPARE = 0.5
"""false alarms that are counted beside those that were seen"""
RULES = 0.02
"""share of messages that are a rule, in either channel"""
REAL = 0.5
"""what lines of real rates count for among those of their kind, where there are any"""
FEWEST = 100
"""lines without which a place has no threshold"""
UNWANTED = 0.003
"""share of messages without a rule that may be given one"""
FACT_PRECISION = 0.75
FEWEST_RIGHT = 5
"""true alarms without which there is no threshold"""
PULL = 30.0
"""how strongly a place's weights are held to those of all together, in lines"""
_IS_BAD = np.array([kind in BAD for kind in KINDS])
_IS_GOOD = np.array([kind in GOOD for kind in KINDS])
_RULE, _FACT = KINDS.index("rule"), KINDS.index("fact")


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """Out-of-fold answers to the same lines: log-probs `[N, 6]`, the rules' scores (0: silent), the right kinds.

    ``channels`` are those of voices at real rates; "" of any other.
    """

    ngrams: Array
    classifier: Array | None
    rules: Array
    target: Array
    groups: Array
    voices: Array
    channels: Array

    def only(self, chosen: Array) -> Heard:
        """The chosen lines."""
        classifier = None if self.classifier is None else self.classifier[chosen]
        return Heard(
            ngrams=self.ngrams[chosen],
            classifier=classifier,
            rules=self.rules[chosen],
            target=self.target[chosen],
            groups=self.groups[chosen],
            voices=self.voices[chosen],
            channels=self.channels[chosen],
        )


def rules_score(line: Line) -> int:
    """What the rules say of a line; a wish alone says nothing."""
    found = read(line.next, request=line.request, reply=line.reply)
    return 0 if found.wish else found.score or 0


def real_weights(heard: Heard, channel: Channel) -> Array:
    """How often each line counts `[N]`: kinds as often as in real talk, and together as many as they speak for.

    Without a line of the channel at real rates, the rates are those of chats, where complaints are rarer.
    """
    real = heard.channels == channel
    base = BASE[channel if real.any() else "chat"]
    counted = real | (heard.channels == "")
    weight = np.zeros(len(heard.target))
    shares = {BAD: base[-1], GOOD: base[1], ("rule",): RULES, ("neutral",): 1 - base[-1] - base[1] - RULES}
    for kinds, share in shares.items():
        inside = counted & np.isin(heard.target, [KINDS.index(kind) for kind in kinds])
        parts = [(inside & real, REAL), (inside & ~real, 1 - REAL)]
        there = [(rows, part) for rows, part in parts if rows.any()]
        for rows, part in there:
            weight[rows] = share * part / sum(part for _, part in there) / rows.sum()
    spoken_for = weight.sum() ** 2 / (weight**2).sum() if weight.any() else 0.0
    scaled: Array = weight / max(weight.sum(), 1e-12) * spoken_for
    return scaled


def estimates(heard: Heard, weights: Weights) -> Array:
    """The combined probabilities `[N, 6]`."""
    return softmax(_logits(heard, _flat(weights)))


def _flat(weights: Weights) -> Array:
    return np.array([weights.ngrams, weights.classifier, weights.rules_bad, weights.rules_good, *weights.bias])


def _parts(heard: Heard) -> list[Array]:
    """What each of the first four weights multiplies `[N, 6]`."""
    return [
        heard.ngrams,
        np.zeros_like(heard.ngrams) if heard.classifier is None else heard.classifier,
        (heard.rules == -1)[:, None] * _IS_BAD[None, :],
        (heard.rules == 1)[:, None] * _IS_GOOD[None, :],
    ]


def _logits(heard: Heard, flat: Array) -> Array:
    found: Array = sum(weight * part for weight, part in zip(flat[:4], _parts(heard), strict=True)) + flat[4:]
    return found


def combination_weights(heard: Heard, counts: Array, prior: Array, *, pull: float) -> Array:
    """Logistic combination of lines that count so often, held to ``prior``."""
    parts, wanted = _parts(heard), np.eye(len(KINDS))[heard.target]

    def loss(flat: Array) -> tuple[float, Array]:
        found = softmax(sum(w * part for w, part in zip(flat[:4], parts, strict=True)) + flat[4:])
        gap, off = (found - wanted) * counts[:, None], flat - prior
        missed = -np.log(found[np.arange(len(wanted)), heard.target] + 1e-12)
        slope = np.array([*(float((gap * part).sum()) for part in parts), *gap.sum(0)])
        return float((counts * missed).sum() + 0.5 * pull * (off**2).sum()), slope + pull * off

    return minimised(loss, prior.copy(), steps=200)


def threshold(score: Array, right: Array, counts: Array, *, precision: float) -> float | None:
    """The lowest value from which on ``precision`` is kept, `SPARE` false alarms beside those seen; else None."""
    order = np.argsort(-score, kind="stable")
    order = order[(counts[order] > 0) & (score[order] > 0)]
    wrong = counts * ~right
    if not len(order) or not wrong.any():
        return None
    one = (wrong**2).sum() / wrong.sum()
    true, false = np.cumsum((counts * right)[order]), np.cumsum(wrong[order])
    fine = np.flatnonzero(
        (np.cumsum(right[order]) >= FEWEST_RIGHT) & (true >= precision * (true + false + SPARE * one))
    )
    return float(score[order[fine[-1]]]) if len(fine) else None


def rule_threshold(score: Array, wanted: Array, counts: Array, *, unwanted: float) -> float | None:
    """The lowest value at which at most ``unwanted`` of the messages without a rule are taken for one."""
    others = np.flatnonzero(~wanted & (counts > 0))
    if not len(others):
        return None
    order = others[np.argsort(-score[others], kind="stable")]
    taken = np.cumsum(counts[order]) / counts[order].sum()
    allowed = int((taken <= unwanted).sum())
    return float(max(0.35, score[order[allowed]] + 1e-6)) if allowed < len(order) else 0.35


def thresholds(found: Array, heard: Heard, counts: Array) -> Thresholds:
    """What keeps the precision on these lines."""
    kinds, rules = np.array(KINDS)[heard.target], heard.rules
    bad, good = found[:, _IS_BAD].sum(1), found[:, _IS_GOOD].sum(1)
    rule, fact = found[:, _RULE] + found[:, KINDS.index("mixed")], found[:, _FACT]
    is_bad, is_good = np.isin(kinds, BAD), np.isin(kinds, GOOD)
    low, high = np.where((bad > good) & (rules != 1), bad, 0), np.where((good > bad) & (rules != -1), good, 0)

    def kept(score: Array, right: Array, agreed: Array) -> float | None:
        return threshold(np.where(agreed, score, 0), right, counts, precision=PRECISION)

    everything = np.ones(len(rules), bool)
    facts = np.where(fact > rule, fact, 0)
    return Thresholds(
        bad=kept(low, is_bad, everything),
        good=kept(high, is_good, everything),
        bad_with_rules=kept(low, is_bad, rules == -1),
        good_with_rules=kept(high, is_good, rules == 1),
        rule=rule_threshold(rule, np.isin(kinds, ("rule", "mixed")), counts, unwanted=UNWANTED),
        fact=threshold(facts, kinds == "fact", counts, precision=FACT_PRECISION),
    )


def calibrated(heard: Heard) -> dict[Place, Weights]:
    """Weights and thresholds for every place; one with too few lines has the weights of all and is silent."""
    start = np.array([0.5, 0.0 if heard.classifier is None else 0.7, 1.0, 1.0, *np.zeros(len(KINDS))])
    pooled = combination_weights(heard, real_weights(heard, "chat"), start, pull=1.0)
    table: dict[Place, Weights] = {}
    for group, channel in PLACES:
        here = heard.only(heard.groups == group)
        weights = _weights(pooled)
        if len(here.target) >= FEWEST:
            counts = real_weights(here, channel)
            weights = _weights(combination_weights(here, counts, pooled, pull=PULL))
            weights = replace(weights, thresholds=thresholds(estimates(here, weights), here, counts))
        table[group, channel] = weights
    return table


def silenced(table: Mapping[Place, Weights], heard: Heard, scores: Array) -> dict[Place, Weights]:
    """The table without the thresholds of a place in which ``scores``, given by those of other voices, are below the
    floor at real rates."""
    found = dict(table)
    for (group, channel), weights in table.items():
        here = np.flatnonzero((heard.groups == group) & ((heard.channels == channel) | (heard.channels == "")))
        counts = real_weights(heard.only(here), channel)
        kinds, limits = np.array(KINDS)[heard.target[here]], weights.thresholds
        for sign, right in ((-1, np.isin(kinds, BAD)), (1, np.isin(kinds, GOOD))):
            said = counts * (scores[here] == sign)
            if (said * right).sum() < FLOOR * said.sum() or not said.any():
                never = {"bad": None, "bad_with_rules": None} if sign < 0 else {"good": None, "good_with_rules": None}
                limits = replace(limits, **never)
        found[group, channel] = replace(weights, thresholds=limits)
    return found


def _weights(flat: Array) -> Weights:
    rounded: Sequence[float] = [round(float(value), 4) for value in flat]
    never = Thresholds(bad=None, good=None, bad_with_rules=None, good_with_rules=None, rule=None, fact=None)
    return Weights(
        ngrams=rounded[0],
        classifier=rounded[1],
        rules_bad=rounded[2],
        rules_good=rounded[3],
        bias=tuple(rounded[4:]),
        thresholds=never,
    )
