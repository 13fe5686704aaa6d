"""Fit the model of standing orders, and say how it does on strangers.

    python scripts/feedback_classifier/fit_orders.py      three minutes; part of `make feedback-classifier`

Learns from data/orders (written sentences, and wishes of the voices that were labelled S standing, M a wish for replies
without a sign, O of one reply) and, as what is no order, from what the voices say otherwise. Measures on
data/orders/strangers.jsonl and on the strangers at real rates, none of which is learned from. Writes
preferences/orders.bin; the same lines give the same file, to the byte.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from fit import Rows, Seen

from openclaw_rl.judge.feedback_classifier.thresholds import Array, minimised
from openclaw_rl.judge.text import own_words
from openclaw_rl.preferences import orders
from openclaw_rl.preferences.features import place
from openclaw_rl.preferences.orders import OrderModel, order_families, pack, standing_orders
from openclaw_rl.preferences.standing import sentences_of

ROOT = Path(__file__).parents[2]
DATA = ROOT / "data" / "orders"
SLOTS = 65_536
STRENGTH = 3.0
"""of the data against the penalty on large weights"""
OTHERWISE = 60_000
"""sentences of the voices that are no order"""
UNSIGNED = 0.5
"""what a wish without a sign of standing weighs as one that does not stand"""
LEAST = 2
"""sentences that must have a feature"""


def main() -> None:
    """Fit, write and measure."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--measure", action="store_true", help="only measure the model that is there")
    if not arguments.parse_args().measure:
        orders.SHIPPED.write_bytes(pack(fitted()))
        orders.shipped_orders.cache_clear()
    for line in measured():
        print(line)


def fitted() -> OrderModel:
    """The model of all sentences."""
    lines = list(examples())
    seen = _see([text for text, _, _ in lines])
    counts = np.bincount(np.concatenate(seen.numbers), minlength=len(seen.names))
    kept = np.flatnonzero(counts >= LEAST)
    rows = Rows(seen, range(len(lines)), kept)
    target = np.array([standing for _, standing, _ in lines], np.float64)
    weight = np.array([weight for _, _, weight in lines])

    def loss(flat: Array) -> tuple[float, Array]:
        weights, bias = flat[:-1, None], flat[-1]
        odds = rows.times(weights)[:, 0] + bias
        value = (weight * (np.logaddexp(0, odds) - target * odds)).sum() + 0.5 / STRENGTH * (weights**2).sum()
        gap = (1 / (1 + np.exp(-odds)) - target) * weight
        return float(value), np.append(rows.transposed_times(gap[:, None])[:, 0] + weights[:, 0] / STRENGTH, gap.sum())

    flat = minimised(loss, np.zeros(len(kept) + 1), steps=80)
    return _packed([seen.names[number] for number in kept.tolist()], flat[:-1], float(flat[-1]))


def examples() -> Iterator[tuple[str, bool, float]]:
    """Sentences to learn from: text, whether it is a standing order, weight."""
    for name in ("english", "languages"):
        for row in _rows(DATA / f"{name}.jsonl"):
            yield row["text"], row["standing"], 1.0
    for line in (DATA / "wishes.tsv").read_text(encoding="utf-8").splitlines():
        label, _, text = line.partition("\t")
        yield text, label == "S", UNSIGNED if label == "M" else 1.0
    otherwise = [
        sentence
        for file in sorted((ROOT / "data" / "voices").glob("*.jsonl"))
        for row in _rows(file)
        if row.get("next") and row["kind"] not in ("rule", "praise_rule")
        for sentence in sentences_of(own_words(row["next"])[:1500])[: orders.MOST_SENTENCES]
    ]
    random.Random(0).shuffle(otherwise)
    for sentence in otherwise[:OTHERWISE]:
        yield sentence, False, 1.0


def measured() -> Iterator[str]:
    """What the model makes of strangers' messages."""
    rows = list(_rows(DATA / "strangers.jsonl"))
    for true in (True, False):
        of = [row for row in rows if row["standing"] is true]
        taken = sum(bool(standing_orders(own_words(row["next"]))) for row in of)
        yield f"{taken} of {len(of)} messages {'with' if true else 'that only look as if they had'} a standing order"
    for name in ("e", "f", "g", "h"):
        lines = [row for row in _rows(ROOT / "data" / "strangers" / f"{name}.jsonl") if "next" in row]
        others = [row for row in lines if row["kind"] not in ("rule", "praise_rule")]
        wrong = sum(bool(standing_orders(own_words(row["next"]))) for row in others)
        rules = [row for row in lines if "standing" in row["tags"] or (name in "ef" and row not in others)]
        taken = sum(bool(standing_orders(own_words(row["next"]))) for row in rules)
        yield f"strangers {name}: {taken} of {len(rules)} orders, and {wrong} of {len(others)} messages without a rule"


def _rows(file: Path) -> Iterator[dict]:
    for line in file.read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


def _see(texts: Sequence[str]) -> Seen:
    known: dict[str, int] = {}
    numbers, values = [], []
    for text in texts:
        row, weights = [], []
        for family in order_families(text):
            names = dict.fromkeys(family.names)
            row += [known.setdefault(name, len(known)) for name in names]
            weights += [family.weight / max(len(names), 1) ** 0.5] * len(names)
        numbers.append(np.array(row, np.int64))
        values.append(np.array(weights, np.float32))
    return Seen(names=list(known), shared=np.zeros(len(known), bool), numbers=numbers, values=values)


def _packed(names: Sequence[str], weights: Array, bias: float) -> OrderModel:
    """The model as it ships. Of two features with one slot the heavier stays."""
    scale = float(np.abs(weights).max()) / 127
    whole = np.rint(weights / scale).astype(np.int8)
    checks, table = bytearray(SLOTS), np.zeros(SLOTS, np.int8)
    for number in np.argsort(np.abs(weights), kind="stable").tolist():
        if whole[number]:
            slot, checks_as = place(names[number], SLOTS)
            checks[slot], table[slot] = checks_as, whole[number]
    return OrderModel(checks=bytes(checks), table=memoryview(table.tobytes()).cast("b"), scale=scale, bias=bias)


if __name__ == "__main__":
    main()
