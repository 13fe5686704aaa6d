"""Fit the combination on held-out voices: weights, and thresholds that keep the precision asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from openclaw_rl.judge.reader.combination import Thresholds, Weights
from openclaw_rl.judge.reader.descent import Array, minimised, softmax
from openclaw_rl.judge.reader.kinds import BAD, GOOD, GROUPS, KINDS, LanguageGroup

PRECISION = 0.9
"""asked of complaints and praise on held-out voices, with a standard error to spare, and more where voices are few"""
STAND = 0.3
"""what n-grams alone must find likely of what the rules say, so that it stands: they were not made for these voices"""
FEW = 3.0
"""voices that say as little of the next one as a standard error of their lines"""
RULES_KNOW: tuple[LanguageGroup, ...] = ("english", "chinese")
"""the languages that the rules were written for"""
UNWANTED = 0.01
"""share of messages without a rule that may be given one"""
FACT_PRECISION = 0.75
LEAST_SAID = 25
"""messages above a threshold below which its precision is no figure"""
PULL = 30.0
"""how strongly a group's weights are held to those of all languages together, in lines"""
_IS_BAD = np.array([kind in BAD for kind in KINDS])
_IS_GOOD = np.array([kind in GOOD for kind in KINDS])


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """Out-of-fold answers to the same lines: log-probs `[N, 6]`, the rules' scores (0: silent), the right kinds."""

    ngrams: Array
    classifier: Array | None
    rules: Array
    target: Array
    groups: Array
    voices: Array

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
        )


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


def combination_weights(heard: Heard, prior: Array, *, pull: float) -> Array:
    """Logistic combination, held to ``prior``."""
    parts, wanted = _parts(heard), np.eye(len(KINDS))[heard.target]
    scale = np.ones(len(prior)) * pull

    def loss(flat: Array) -> tuple[float, Array]:
        found = softmax(sum(w * part for w, part in zip(flat[:4], parts, strict=True)) + flat[4:])
        gap, off = found - wanted, flat - prior
        value = -np.log(found[np.arange(len(wanted)), heard.target] + 1e-12).sum() + 0.5 * (scale * off**2).sum()
        slope = np.array([*(float((gap * part).sum()) for part in parts), *gap.sum(0)])
        return float(value), slope + scale * off

    return minimised(loss, prior.copy(), steps=200)


def threshold(
    score: Array, right: Array, *, precision: float, errors: float = 1.0, least: int = LEAST_SAID
) -> float | None:
    """The lowest value from which on ``precision`` is kept with so many standard errors to spare; None without one."""
    order = np.argsort(-score, kind="stable")
    count = np.arange(1, len(order) + 1)
    share = np.cumsum(right[order]) / count
    kept = share - errors * np.sqrt(share * (1 - share) / count)
    fine = np.flatnonzero(kept[least - 1 :] >= precision) + least - 1 if len(order) >= least else np.array([], int)
    return float(score[order[fine[-1]]]) if len(fine) else None


def rule_threshold(score: Array, wanted: Array, *, unwanted: float) -> float | None:
    """The lowest value at which at most ``unwanted`` of the lines without a rule are taken for one."""
    others = np.sort(score[~wanted])[::-1]
    allowed = int(unwanted * len(others))
    return float(max(0.35, others[allowed] + 1e-6)) if len(others) > allowed else None


def thresholds(found: Array, heard: Heard) -> Thresholds:
    """What keeps the precision on these lines."""
    kinds, rules = np.array(KINDS)[heard.target], heard.rules
    errors = 1.0 + FEW / len(set(heard.voices.tolist()))
    bad, good = found[:, _IS_BAD].sum(1), found[:, _IS_GOOD].sum(1)
    rule = found[:, KINDS.index("rule")] + found[:, KINDS.index("mixed")]
    fact = found[:, KINDS.index("fact")]
    surely_fact = fact > rule
    is_bad, is_good = np.isin(kinds, BAD), np.isin(kinds, GOOD)
    low, high = np.where((bad > good) & (rules != 1), bad, 0), np.where((good > bad) & (rules != -1), good, 0)
    return Thresholds(
        bad=threshold(low, is_bad, precision=PRECISION, errors=errors),
        good=threshold(high, is_good, precision=PRECISION, errors=errors),
        bad_with_rules=threshold(low[rules == -1], is_bad[rules == -1], precision=PRECISION, least=15),
        good_with_rules=threshold(high[rules == 1], is_good[rules == 1], precision=PRECISION, least=15),
        rule=rule_threshold(rule, np.isin(kinds, ("rule", "mixed")), unwanted=UNWANTED),
        fact=threshold(np.where(surely_fact, fact, 0), kinds == "fact", precision=FACT_PRECISION),
    )


def calibrated(heard: Heard) -> dict[LanguageGroup, Weights]:
    """Weights and thresholds for every group; one with too few lines has the weights of all and is silent."""
    start = np.array([0.5, 0.0 if heard.classifier is None else 0.7, 1.0, 1.0, *np.zeros(len(KINDS))])
    pooled = combination_weights(heard, start, pull=1.0)
    table: dict[LanguageGroup, Weights] = {}
    for group in GROUPS:
        chosen = heard.groups == group
        here = heard.only(chosen)
        flat = combination_weights(here, pooled, pull=PULL) if chosen.sum() >= 100 else pooled
        weights = _weights(flat)
        if chosen.sum() >= 100:
            weights = replace(weights, thresholds=thresholds(estimates(here, weights), here))
        if heard.classifier is None and group in RULES_KNOW:
            limits = replace(weights.thresholds, bad_with_rules=STAND, good_with_rules=STAND)
            weights = replace(weights, thresholds=limits)
        table[group] = weights
    return table


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
