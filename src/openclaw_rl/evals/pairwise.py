"""Pairwise comparison: two versions on the same prompts, side by side, with rates that a program checks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from openclaw_rl.evals.suites import CONCURRENCY, Model
from openclaw_rl.gate.checks import flaw
from openclaw_rl.gate.probes import plain
from openclaw_rl.stats import difference, wilson
from openclaw_rl.tasks.everyday import Task, held_out, is_relevant
from openclaw_rl.tasks.preferences import PREFERENCES
from openclaw_rl.text import word_count
from openclaw_rl.types import Sampling


def choose_tasks(prompts: Sequence[str], *, count: int, seed: int) -> list[Task]:
    """The given prompts; without any, ``count`` held-out ones that the seed samples."""
    if prompts:
        return [Task(prompt=prompt, mentions=(), about="everyday") for prompt in prompts]
    return random.Random(seed).sample(held_out(), count)


async def sample_replies(model: Model, tasks: Sequence[Task], *, sampling: Sampling, seed: int) -> list[str]:
    """One reply to each task, each with its own seed, the same for every model."""
    room = asyncio.Semaphore(CONCURRENCY)

    async def one(number: int, task: Task) -> str:
        async with room:
            return (await model(plain(task.prompt), replace(sampling, seed=seed * 1000 + number))).text

    return list(await asyncio.gather(*(one(number, task) for number, task in enumerate(tasks))))


def report(tasks: Sequence[Task], versions: Sequence[int], replies: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Plain JSON: each prompt with both replies, and each measure as two rates and their paired difference."""
    first, second = replies
    measures = {
        "sound": [
            [flaw(reply, prompt=task.prompt) is None for task, reply in zip(tasks, each, strict=True)]
            for each in replies
        ]
    }
    if all(task.mentions for task in tasks):
        measures["names what was asked about"] = [
            [is_relevant(task, reply) for task, reply in zip(tasks, each, strict=True)] for each in replies
        ]
    for preference in PREFERENCES.values():
        measures[f"meets {preference.name}"] = [[preference.met_by(reply) for reply in each] for each in replies]
    return {
        "versions": list(versions),
        "replies": [
            {"prompt": task.prompt, "first": one, "second": two}
            for task, one, two in zip(tasks, first, second, strict=True)
        ],
        "words": [round(sum(map(word_count, each)) / max(len(each), 1), 1) for each in replies],
        "rates": {name: _rates(*met) for name, met in measures.items()},
    }


def _rates(first: Sequence[bool], second: Sequence[bool]) -> dict[str, Any]:
    gap = difference(first, second)
    return {
        "first": {"held": sum(first), "of": len(first), "interval": _interval(first)},
        "second": {"held": sum(second), "of": len(second), "interval": _interval(second)},
        "difference": round(gap.mean, 3),
        "low": round(gap.low, 3),
        "high": round(gap.high, 3),
    }


def _interval(met: Sequence[bool]) -> list[float]:
    return [round(end, 3) for end in wilson(sum(met), len(met))]


def lines(found: dict[str, Any], *, width: int = 100) -> Iterator[str]:
    """The report for a terminal: replies side by side, then the rates."""
    one, two = found["versions"]
    for row in found["replies"]:
        yield f"{row['prompt']}"
        yield f"  version {one:<3} {_cut(row['first'], width)}"
        yield f"  version {two:<3} {_cut(row['second'], width)}"
    yield f"{'':<28} {f'version {one}':>12} {f'version {two}':>12}   difference (95 % interval)"
    yield f"{'words a reply':<28} {found['words'][0]:>12} {found['words'][1]:>12}"
    for name, rate in found["rates"].items():
        first, second = (f"{rate[each]['held']} of {rate[each]['of']}" for each in ("first", "second"))
        gap = f"{rate['difference']:+.2f} ({rate['low']:+.2f} to {rate['high']:+.2f})"
        yield f"{name:<28} {first:>12} {second:>12}   {gap}"


def _cut(text: str, most: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
