"""Softmax regression on hashed features with numpy alone: sparse rows, L-BFGS, int8 weights. Deterministic."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from openclaw_rl.judge.feedback_classifier import ngrams
from openclaw_rl.judge.feedback_classifier.combination import KINDS
from openclaw_rl.judge.feedback_classifier.ngrams import NgramModel, families, pack, unpack
from openclaw_rl.judge.feedback_classifier.thresholds import Array, Line, minimised, softmax
from openclaw_rl.preferences.features import place

SLOTS = 131_072
"""of the table: with its check and six weights of one byte each it has 0.9 MB"""
STRENGTH = 1.0
"""of the data against the penalty on large weights"""
REAL = 4.0
"""times that a line of real rates weighs in a fit: there are few, and life is like them"""
LEAST_VOICES = 2
"""voices that must have used a feature: what one person alone says is theirs"""

CACHE = Path(__file__).parents[2] / ".cache" / "feedback-classifier"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The features of every line: names by number, and per line the numbers with their values."""

    names: list[str]
    shared: Array
    numbers: list[Array]
    values: list[Array]


def see(lines: Sequence[Line]) -> Seen:
    """Extract all features once; fits choose among them."""
    known: dict[str, int] = {}
    shared: list[bool] = []
    numbers, values = [], []
    for line in lines:
        row: list[int] = []
        weights: list[float] = []
        for family in families(line.request, line.reply, line.next):
            names = dict.fromkeys(family.names)
            for name in names:
                if name not in known:
                    known[name] = len(known)
                    shared.append(family.shared)
                row.append(known[name])
                weights.append(family.weight / len(names) ** 0.5)
        numbers.append(np.array(row, np.int64))
        values.append(np.array(weights, np.float32))
    return Seen(names=list(known), shared=np.array(shared), numbers=numbers, values=values)


def columns(seen: Seen, lines: Sequence[Line], rows: Sequence[int], *, context: bool) -> Array:
    """The features that at least two voices among ``rows`` used."""
    users: dict[int, set[str]] = defaultdict(set)
    for row in rows:
        for number in seen.numbers[row].tolist():
            users[number].add(lines[row].voice)
    kept = sorted(number for number, voices in users.items() if len(voices) >= LEAST_VOICES)
    return np.array([number for number in kept if context or not seen.shared[number]], np.int64)


class Rows:
    """Some lines' features as a sparse matrix whose products numpy can form in one go."""

    def __init__(self, seen: Seen, rows: Sequence[int], kept: Array) -> None:
        place_of = np.full(len(seen.names), -1, np.int64)
        place_of[kept] = np.arange(len(kept))
        column = np.concatenate([place_of[seen.numbers[row]] for row in rows])
        value = np.concatenate([seen.values[row] for row in rows])
        line = np.repeat(np.arange(len(rows)), [len(seen.numbers[row]) for row in rows])
        there = column >= 0
        column, value, line = column[there], value[there], line[there]
        self.size, self.width = len(rows), len(kept)
        order = np.argsort(column, kind="stable")
        self._by_line = _chunks(line, column, value)
        self._by_column = _chunks(column[order], line[order], value[order])

    def times(self, weights: Array) -> Array:
        """`[lines, 6]` of `[features, 6]`."""
        return _products(self._by_line, weights, self.size)

    def transposed_times(self, gradient: Array) -> Array:
        """`[features, 6]` of `[lines, 6]`."""
        return _products(self._by_column, gradient, self.width)


Chunk = tuple[Array, Array, Array, Array]


def _chunks(into: Array, out_of: Array, value: Array, size: int = 32_768) -> list[Chunk]:
    """Entries ordered by ``into``, in pieces that fit a processor's cache, each with where its runs begin."""
    pieces = []
    for at in range(0, len(into), size):
        part = into[at : at + size]
        starts = np.flatnonzero(np.r_[True, part[1:] != part[:-1]])
        scale = value[at : at + size, None].astype(np.float32)
        pieces.append((part[starts], starts, out_of[at : at + size].astype(np.int32), scale))
    return pieces


def _products(chunks: Sequence[Chunk], factors: Array, size: int) -> Array:
    out = np.zeros((size, factors.shape[1]))
    factors = factors.astype(np.float32)
    for into, starts, out_of, scale in chunks:
        out[into] += np.add.reduceat(scale * factors[out_of], starts)
    return out


def fitted(
    rows: Rows, target: Array, weight: Array, *, strength: float = STRENGTH, steps: int = 60
) -> tuple[Array, Array]:
    """Weights `[features, 6]` and bias `[6]`; each line counts as its ``weight`` says."""
    wanted, kinds = np.eye(len(KINDS))[target], len(KINDS)

    def loss(flat: Array) -> tuple[float, Array]:
        weights, bias = flat[:-kinds].reshape(-1, kinds), flat[-kinds:]
        found = softmax(rows.times(weights) + bias)
        gap = (found - wanted) * weight[:, None]
        missed = -np.log(found[np.arange(len(target)), target] + 1e-12)
        value = (weight * missed).sum() + 0.5 / strength * (weights**2).sum()
        return float(value), np.concatenate([(rows.transposed_times(gap) + weights / strength).ravel(), gap.sum(0)])

    flat = minimised(loss, np.zeros(rows.width * kinds + kinds), steps=steps)
    return flat[:-kinds].reshape(-1, kinds), flat[-kinds:]


def packed(names: Sequence[str], weights: Array, bias: Array, *, context: bool) -> NgramModel:
    """The model as it ships. Of two features with one slot the heavier stays."""
    scale = np.abs(weights).max(0) / 127.0
    scale[scale == 0] = 1.0
    whole = np.rint(weights / scale).astype(np.int8)
    checks, table = bytearray(SLOTS), np.zeros((SLOTS, len(KINDS)), np.int8)
    for number in np.argsort((weights**2).sum(1), kind="stable").tolist():
        slot, check = place(names[number], SLOTS)
        checks[slot] = check if whole[number].any() else checks[slot]
        if whole[number].any():
            table[slot] = whole[number]
    return NgramModel(
        checks=bytes(checks),
        table=memoryview(table.tobytes()).cast("b"),
        scale=tuple(scale.tolist()),
        bias=tuple(bias.tolist()),
        context=context,
    )


def train(seen: Callable[[], Seen], lines: Sequence[Line], rows: Sequence[int], *, context: bool = True) -> NgramModel:
    """The n-gram model of the lines ``rows``, from the cache where the same was built before."""
    file = CACHE / f"{_digest(lines, rows, context=context)}.bin"
    if not file.is_file():
        CACHE.mkdir(parents=True, exist_ok=True)
        file.write_bytes(pack(_train(seen(), lines, rows, context=context)))
    return unpack(file.read_bytes(), name=str(file))


def _digest(lines: Sequence[Line], rows: Sequence[int], *, context: bool) -> str:
    """Of the lines and of the code that learns from them."""
    found = hashlib.sha256(Path(__file__).read_bytes() + Path(ngrams.__file__).read_bytes())
    found.update(repr((context, [lines[row] for row in rows])).encode())
    return found.hexdigest()[:24]


def _train(seen: Seen, lines: Sequence[Line], rows: Sequence[int], *, context: bool) -> NgramModel:
    kept = columns(seen, lines, rows, context=context)
    target = np.array([KINDS.index(lines[row].kind) for row in rows])
    weight = np.array([1.0 if lines[row].channel is None else REAL for row in rows])
    weights, bias = fitted(Rows(seen, rows, kept), target, weight)
    return packed([seen.names[number] for number in kept.tolist()], weights, bias, context=context)
