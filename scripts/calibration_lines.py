"""Writes the lines on which a self-judge is measured: a small, balanced, seeded sample of `data/voices`.

    python scripts/calibration_lines.py

It is package data, so that an installed program has it. The same voices give the same file.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "src" / "openclaw_rl" / "judge" / "calibration.jsonl"
BAD = {"complaint": 8, "rule": 10, "fact": 6}
GOOD = {"praise": 18, "praise_rule": 6}
NEUTRAL = {"neutral": 48}
"""lines of each kind; half of all is no feedback, as most messages are none"""
TEXTS = ("request", "reply", "next")
LONGEST = 600
"""characters of an exchange: long ones cost time and say no more about a judge"""
PER_VOICE = 4
"""most lines of one voice"""
ENGLISH = 0.5
"""the share of English lines"""


def read_lines(folder: Path) -> list[dict[str, Any]]:
    """Every short exchange, with its voice and language."""
    found = []
    for file in sorted(folder.glob("*.jsonl")):
        head, *rest = [json.loads(text) for text in file.read_text("utf-8").splitlines() if text.strip()]
        about = {"voice": head["voice"], "language": head["language"]}
        found += [{**row, **about} for row in rest if sum(len(row[part]) for part in TEXTS) <= LONGEST]
    return found


def choose(lines: list[dict[str, Any]], wanted: dict[str, int], rng: random.Random, used: Counter[str]) -> list[Any]:
    """So many lines of each kind, few of one voice, half of them English."""
    chosen: list[Any] = []
    for kind, count in wanted.items():
        pool = [line for line in lines if line["kind"] == kind]
        rng.shuffle(pool)
        english = [line for line in pool if line["language"] == "en"]
        others = [line for line in pool if line["language"] != "en"]
        for group, most in ((english, round(count * ENGLISH)), (others, count - round(count * ENGLISH))):
            taken = 0
            for line in sorted(group, key=lambda line: used[line["voice"]]):
                if taken < most and used[line["voice"]] < PER_VOICE:
                    chosen.append(line)
                    used[line["voice"]] += 1
                    taken += 1
    rng.shuffle(chosen)
    return chosen


def sample(voices: Path, *, seed: int) -> str:
    """The lines, as JSONL: every four hold one complaint, one praise and two that are neither."""
    lines, rng, used = read_lines(voices), random.Random(seed), Counter[str]()
    bad, good, neutral = (choose(lines, wanted, rng, used) for wanted in (BAD, GOOD, NEUTRAL))
    order = [line for at, pair in enumerate(zip(bad, good, strict=True)) for line in (*neutral[2 * at :][:2], *pair)]
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in order)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--voices", type=Path, default=ROOT / "data" / "voices", help="folder of labelled voices")
    parser.add_argument("--out", type=Path, default=TARGET, help="file to write")
    parser.add_argument("--seed", type=int, default=0, help="seed of the choice")
    args = parser.parse_args()
    text = sample(args.voices, seed=args.seed)
    args.out.write_text(text, "utf-8")
    kinds = Counter(json.loads(line)["kind"] for line in text.splitlines())
    print(f"{args.out}: {kinds.total()} lines, {len(text.encode()):,} bytes, {dict(kinds)}")


if __name__ == "__main__":
    main()
