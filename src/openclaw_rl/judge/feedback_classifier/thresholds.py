"""Fits the combination on held-out annotator personas at real conversations' rates: weights and thresholds.

Most lines were written to be distinguishable, with as many complaints as errands. So each line is weighted by its
kind's frequency in real conversations, and lines by personas written at real rates weigh most.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from openclaw_rl.errors import ConfigError
from openclaw_rl.judge.base_rate import BASE
from openclaw_rl.judge.channel import Channel
from openclaw_rl.judge.feedback_classifier.combination import (
    BAD,
    GOOD,
    KINDS,
    PLACES,
    MessageKind,
    Place,
    Thresholds,
    Weights,
)
from openclaw_rl.judge.reaction import read

# L-BFGS minimisation of a smooth loss with numpy alone. Deterministic.

Array = np.ndarray[Any, Any]


def softmax(logits: Array) -> Array:
    """Return each row's softmax."""
    raised: Array = np.exp(logits - logits.max(1, keepdims=True))
    total: Array = raised.sum(1, keepdims=True)
    return raised / total


def minimised(loss: Callable[[Array], tuple[float, Array]], start: Array, *, steps: int, memory: int = 8) -> Array:
    """Minimise by L-BFGS with a halving line search; stop if a step gains under a thousandth of a percent."""
    at, (value, slope) = start, loss(start)
    pairs: list[tuple[Array, Array, float]] = []
    for _ in range(steps):
        direction = -_curved(slope, pairs)
        length = 1.0 if pairs else min(1.0, 1.0 / (np.abs(slope).sum() + 1e-12))
        downhill = float(slope @ direction)
        for _ in range(20):
            ahead = at + length * direction
            new_value, new_slope = loss(ahead)
            if new_value <= value + 1e-4 * length * downhill:
                break
            length *= 0.5
        else:
            break
        step, change = ahead - at, new_slope - slope
        if (curve := float(step @ change)) > 1e-10:
            pairs = [*pairs[-memory + 1 :], (step, change, 1.0 / curve)]
        gained = value - new_value
        at, value, slope = ahead, new_value, new_slope
        if gained < 1e-5 * abs(value):
            break
    return at


def _curved(slope: Array, pairs: Sequence[tuple[Array, Array, float]]) -> Array:
    """Return the slope times the inverse curvature that the last steps showed."""
    direction, factors = slope.copy(), []
    for step, change, inverse in reversed(pairs):
        factor = inverse * float(step @ direction)
        direction -= factor * change
        factors.append(factor)
    if pairs:
        step, change, inverse = pairs[-1]
        direction *= 1.0 / (inverse * float(change @ change))
    for (step, change, inverse), factor in zip(pairs, reversed(factors), strict=True):
        direction += (factor - inverse * float(change @ direction)) * step
    return direction


# Labelled lines of `data/voices` and `data/phrases`; folds hold out whole annotator personas, never single lines.


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One labelled exchange: line ``index`` (from 0) of the persona ``voice``.

    The files name the kind mixed ``praise_rule``. ``channel`` is set for a persona written at real conversations'
    rates, None for others.
    """

    voice: str
    index: int
    language: str
    request: str
    reply: str
    next: str
    kind: MessageKind
    hint: str | None
    tags: tuple[str, ...]
    channel: Channel | None = None


def read_voices(folder: Path) -> dict[str, list[Line]]:
    """Return every persona's lines, sorted by persona; raises ConfigError with the faulty file and line."""
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise ConfigError(f"no voices in {folder}", remedy="give the folder data/voices of the source: a .jsonl each")
    return {file.stem: _voice(file) for file in files}


def _voice(file: Path) -> list[Line]:
    try:
        head, *rows = [json.loads(text) for text in file.read_text(encoding="utf-8").splitlines() if text.strip()]
        about = {"file": file, "language": head["language"], "channel": head.get("channel")}
        return [_line(row, index=index, **about) for index, row in enumerate(rows)]
    except (ValueError, KeyError, TypeError) as error:
        remedy = "the first line has voice and language, every other one request, reply, next, kind, hint, tags"
        raise ConfigError(f"{file}: {error}", remedy=remedy) from error


def _line(row: Mapping[str, Any], *, file: Path, index: int, language: str, channel: Channel | None = None) -> Line:
    kind = "mixed" if row["kind"] == "praise_rule" else str(row["kind"])
    hint = None if row["hint"] is None else str(row["hint"])
    text = str(row["next"])
    if kind not in KINDS or (hint is not None and hint not in text):
        raise ConfigError(
            f"{file}: exchange {index}: kind {kind!r}, hint {hint!r}", remedy="a known kind, and a part of the text"
        )
    return Line(
        voice=file.stem,
        index=index,
        language=language,
        request=str(row["request"]),
        reply=str(row["reply"]),
        next=text,
        kind=kind,
        hint=hint,
        tags=tuple(str(tag) for tag in row["tags"]),
        channel=channel,
    )


PHRASEBOOK = "phrases-"
"""start of a phrasebook line's persona: the lines have many speakers, so each counts as a separate persona"""


def read_phrases(folder: Path, voices: Mapping[str, Sequence[Line]], *, seed: int = 0) -> list[Line]:
    """Return every phrasebook's lines.

    About half the lines without a request and a reply get these from a line in ``voices`` in that language.
    """
    phrases = []
    for file in sorted(folder.glob("*.tsv")):
        rng = random.Random(f"{seed} {file.stem}")
        candidates = [line for lines in voices.values() for line in lines if line.language == file.stem]
        for index, text in enumerate(file.read_text(encoding="utf-8").splitlines()):
            kind, message, hint, *before = text.split("\t")
            if not before:
                line = rng.choice(candidates) if candidates and rng.random() < 0.5 else None
                before = [line.request, line.reply] if line else ["", ""]
            row = {"kind": kind, "next": message, "hint": hint or None, "tags": ["phrase"]}
            row |= {"request": before[0], "reply": before[1]}
            spoken = _line(row, file=file, index=index, language=file.stem)
            phrases.append(replace(spoken, voice=f"{PHRASEBOOK}{file.stem}-{index}"))
    return phrases


def dealt(voices: Mapping[str, Sequence[Line]], folds: int, *, seed: int) -> dict[str, int]:
    """Return each persona's fold: languages, and the personas at real rates, are spread as evenly as possible."""
    rng = random.Random(seed)
    by_language: dict[tuple[str, str], list[str]] = {}
    for voice, lines in voices.items():
        by_language.setdefault((lines[0].channel or "", lines[0].language), []).append(voice)
    order = [voice for _, names in sorted(by_language.items()) for voice in rng.sample(sorted(names), len(names))]
    return {voice: place % folds for place, voice in enumerate(order)}


def some_voices(voices: Mapping[str, Sequence[Line]], count: int, *, seed: int) -> list[str]:
    """Return ``count`` of the personas, cycling through the languages."""
    rank = dealt(voices, len(voices), seed=seed)
    stride = max(1, len(rank) // max(1, count))
    order = sorted(rank, key=lambda voice: (rank[voice] % stride, rank[voice]))
    return order[:count]


PRECISION = 0.85
"""required precision for complaints and praise at real rates"""
FLOOR = 0.8
"""precision on personas that set no threshold, below which a place is silent"""
SPARE = 0.5
"""false alarms added to the observed ones"""
RULES = 0.02
"""share of rules among messages, in either channel"""
REAL = 0.5
"""weight of lines at real rates within their kind, if there are any"""
FEWEST = 100
"""minimum lines for a threshold at a place"""
UNWANTED = 0.003
"""allowed share of messages without a rule that are mistaken for one"""
FACT_PRECISION = 0.75
FEWEST_RIGHT = 5
"""minimum true alarms for a threshold"""
PULL = 30.0
"""pull on a place's weights towards the pooled weights, in lines"""
_IS_BAD = np.array([kind in BAD for kind in KINDS])
_IS_GOOD = np.array([kind in GOOD for kind in KINDS])
_RULE, _FACT = KINDS.index("rule"), KINDS.index("fact")


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """Out-of-fold answers to the same lines: log-probs `[N, 6]`, the rules' scores (0: silent), the correct kinds.

    ``channels`` is set for personas at real rates; "" for others.
    """

    ngrams: Array
    classifier: Array | None
    rules: Array
    target: Array
    groups: Array
    voices: Array
    channels: Array

    def only(self, chosen: Array) -> Heard:
        """Return the chosen lines."""
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
    """Return the rules' score of a line; a wish alone scores 0."""
    reaction = read(line.next, request=line.request, reply=line.reply)
    return 0 if reaction.wish else reaction.score or 0


def real_weights(heard: Heard, channel: Channel) -> Array:
    """Return each line's weight `[N]`: its kind's share in real conversations, scaled to the effective line count.

    Without a line from the channel at real rates, chat rates apply, with fewer complaints.
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
    """Return the combined probabilities `[N, 6]`."""
    return softmax(_logits(heard, _flat(weights)))


def _flat(weights: Weights) -> Array:
    return np.array([weights.ngrams, weights.classifier, weights.rules_bad, weights.rules_good, *weights.bias])


def _parts(heard: Heard) -> list[Array]:
    """Return the factors for the first four weights `[N, 6]`."""
    return [
        heard.ngrams,
        np.zeros_like(heard.ngrams) if heard.classifier is None else heard.classifier,
        (heard.rules == -1)[:, None] * _IS_BAD[None, :],
        (heard.rules == 1)[:, None] * _IS_GOOD[None, :],
    ]


def _logits(heard: Heard, flat: Array) -> Array:
    logits: Array = sum(weight * part for weight, part in zip(flat[:4], _parts(heard), strict=True)) + flat[4:]
    return logits


def combination_weights(heard: Heard, counts: Array, prior: Array, *, pull: float) -> Array:
    """Return logistic combination weights for lines with these counts, pulled towards ``prior``."""
    parts, one_hot = _parts(heard), np.eye(len(KINDS))[heard.target]

    def loss(flat: Array) -> tuple[float, Array]:
        estimate = softmax(sum(w * part for w, part in zip(flat[:4], parts, strict=True)) + flat[4:])
        gap, off = (estimate - one_hot) * counts[:, None], flat - prior
        missed = -np.log(estimate[np.arange(len(one_hot)), heard.target] + 1e-12)
        slope = np.array([*(float((gap * part).sum()) for part in parts), *gap.sum(0)])
        return float((counts * missed).sum() + 0.5 * pull * (off**2).sum()), slope + pull * off

    return minimised(loss, prior.copy(), steps=200)


def threshold(score: Array, right: Array, counts: Array, *, precision: float) -> float | None:
    """Return the lowest value that keeps ``precision`` with `SPARE` false alarms added to those observed; else None."""
    order = np.argsort(-score, kind="stable")
    order = order[(counts[order] > 0) & (score[order] > 0)]
    wrong = counts * ~right
    if not len(order) or not wrong.any():
        return None
    unit = (wrong**2).sum() / wrong.sum()
    true, false = np.cumsum((counts * right)[order]), np.cumsum(wrong[order])
    fine = np.flatnonzero(
        (np.cumsum(right[order]) >= FEWEST_RIGHT) & (true >= precision * (true + false + SPARE * unit))
    )
    return float(score[order[fine[-1]]]) if len(fine) else None


def rule_threshold(score: Array, wanted: Array, counts: Array, *, unwanted: float) -> float | None:
    """Return the lowest value that mistakes at most the share ``unwanted`` of messages without a rule for one."""
    without_rule = np.flatnonzero(~wanted & (counts > 0))
    if not len(without_rule):
        return None
    order = without_rule[np.argsort(-score[without_rule], kind="stable")]
    taken = np.cumsum(counts[order]) / counts[order].sum()
    allowed = int((taken <= unwanted).sum())
    return float(max(0.35, score[order[allowed]] + 1e-6)) if allowed < len(order) else 0.35


def thresholds(found: Array, heard: Heard, counts: Array) -> Thresholds:
    """Return the thresholds that keep the precision on these lines."""
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
    """Return weights and thresholds for every place; one with too few lines gets the pooled weights and is silent."""
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
    """Return the table without thresholds at places whose ``scores`` are below the floor at real rates.

    Each line's score is by a table fitted on other personas.
    """
    result = dict(table)
    for (group, channel), weights in table.items():
        here = np.flatnonzero((heard.groups == group) & ((heard.channels == channel) | (heard.channels == "")))
        counts = real_weights(heard.only(here), channel)
        kinds, limits = np.array(KINDS)[heard.target[here]], weights.thresholds
        for sign, right in ((-1, np.isin(kinds, BAD)), (1, np.isin(kinds, GOOD))):
            alarmed = counts * (scores[here] == sign)
            if (alarmed * right).sum() < FLOOR * alarmed.sum() or not alarmed.any():
                never = {"bad": None, "bad_with_rules": None} if sign < 0 else {"good": None, "good_with_rules": None}
                limits = replace(limits, **never)
        result[group, channel] = replace(weights, thresholds=limits)
    return result


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
