"""Fit the combination on held-out voices at the rates of real talk: weights, and thresholds that keep a precision.

Most lines were written to be told apart, with as many complaints as errands. So each line counts as often as its kind
is met in real talk, and lines of voices that were written at real rates count most.
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
from openclaw_rl.judge.reaction import read
from openclaw_rl.judge.reader.combination import BAD, GOOD, KINDS, PLACES, MessageKind, Place, Thresholds, Weights

# A smooth loss made small: L-BFGS with numpy alone. Deterministic.

Array = np.ndarray[Any, Any]


def softmax(logits: Array) -> Array:
    """Of each row."""
    raised: Array = np.exp(logits - logits.max(1, keepdims=True))
    total: Array = raised.sum(1, keepdims=True)
    return raised / total


def minimised(loss: Callable[[Array], tuple[float, Array]], start: Array, *, steps: int, memory: int = 8) -> Array:
    """L-BFGS with a halving line search; ends where a step gains under a thousandth of a percent."""
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
    """The slope times the inverse curvature that the last steps showed."""
    found, factors = slope.copy(), []
    for step, change, inverse in reversed(pairs):
        factor = inverse * float(step @ found)
        found -= factor * change
        factors.append(factor)
    if pairs:
        step, change, inverse = pairs[-1]
        found *= 1.0 / (inverse * float(change @ change))
    for (step, change, inverse), factor in zip(pairs, reversed(factors), strict=True):
        found += (factor - inverse * float(change @ found)) * step
    return found


# The labelled lines of `data/voices` and `data/phrases`, and how voices are held out: whole, never by lines.


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One labelled exchange: line ``index`` (from 0) of ``voice``. The files call the kind mixed ``praise_rule``.

    ``channel`` is that of a voice written at the rates of real talk, None of any other.
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
    """Every voice's lines, sorted by voice; raises ConfigError naming the file and line that is wrong."""
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise ConfigError(f"no voices in {folder}", remedy="give the folder data/voices of the source: a .jsonl each")
    return {file.stem: _voice(file) for file in files}


def _voice(file: Path) -> list[Line]:
    try:
        head, *rest = [json.loads(text) for text in file.read_text(encoding="utf-8").splitlines() if text.strip()]
        about = {"file": file, "language": head["language"], "channel": head.get("channel")}
        return [_line(row, index=index, **about) for index, row in enumerate(rest)]
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
"""how the voice of a phrasebook's lines begins: many speakers, so each line counts as a voice of its own"""


def read_phrases(folder: Path, voices: Mapping[str, Sequence[Line]], *, seed: int = 0) -> list[Line]:
    """The lines of every phrasebook. Of those without a request and a reply of their own every other one is put after
    those of a line of ``voices`` in that language."""
    found = []
    for file in sorted(folder.glob("*.tsv")):
        rng = random.Random(f"{seed} {file.stem}")
        known = [line for lines in voices.values() for line in lines if line.language == file.stem]
        for index, text in enumerate(file.read_text(encoding="utf-8").splitlines()):
            kind, said, hint, *before = text.split("\t")
            if not before:
                line = rng.choice(known) if known and rng.random() < 0.5 else None
                before = [line.request, line.reply] if line else ["", ""]
            row = {"kind": kind, "next": said, "hint": hint or None, "tags": ["phrase"]}
            row |= {"request": before[0], "reply": before[1]}
            spoken = _line(row, file=file, index=index, language=file.stem)
            found.append(replace(spoken, voice=f"{PHRASEBOOK}{file.stem}-{index}"))
    return found


def dealt(voices: Mapping[str, Sequence[Line]], folds: int, *, seed: int) -> dict[str, int]:
    """The fold of each voice: every language, and the voices of real rates, are spread over the folds as evenly as it
    goes."""
    rng = random.Random(seed)
    by_language: dict[tuple[str, str], list[str]] = {}
    for voice, lines in voices.items():
        by_language.setdefault((lines[0].channel or "", lines[0].language), []).append(voice)
    order = [voice for _, names in sorted(by_language.items()) for voice in rng.sample(sorted(names), len(names))]
    return {voice: place % folds for place, voice in enumerate(order)}


def some_voices(voices: Mapping[str, Sequence[Line]], count: int, *, seed: int) -> list[str]:
    """``count`` of the voices, the languages in turn."""
    rank = dealt(voices, len(voices), seed=seed)
    stride = max(1, len(rank) // max(1, count))
    order = sorted(rank, key=lambda voice: (rank[voice] % stride, rank[voice]))
    return order[:count]


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
