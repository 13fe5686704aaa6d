"""Two versions on the same prompts, side by side, with rates that a program checks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from openclaw_rl.evals.suites import TOGETHER, Ask
from openclaw_rl.gate.checks import flaw
from openclaw_rl.gate.probes import plain
from openclaw_rl.stats import difference, wilson
from openclaw_rl.tasks.everyday import Task, held_out, sense
from openclaw_rl.tasks.preferences import WISHES
from openclaw_rl.text import word_count
from openclaw_rl.types import Sampling


def tasks(prompts: Sequence[str], *, count: int, seed: int) -> list[Task]:
    """The given prompts; without any, ``count`` held-out ones that the seed draws."""
    if prompts:
        return [Task(prompt=prompt, mentions=(), about="everyday") for prompt in prompts]
    return random.Random(seed).sample(held_out(), count)


async def ask_all(ask: Ask, asked: Sequence[Task], *, sampling: Sampling, seed: int) -> list[str]:
    """One reply to each task, each with its own seed, the same for whoever is asked."""
    room = asyncio.Semaphore(TOGETHER)

    async def one(number: int, task: Task) -> str:
        async with room:
            return (await ask(plain(task.prompt), replace(sampling, seed=seed * 1000 + number))).text

    return list(await asyncio.gather(*(one(number, task) for number, task in enumerate(asked))))


def view(asked: Sequence[Task], versions: Sequence[int], said: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Plain JSON: each prompt with both replies, and each measure as two rates and their paired difference."""
    first, second = said
    measures = {
        "sound": [
            [flaw(reply, prompt=task.prompt) is None for task, reply in zip(asked, each, strict=True)] for each in said
        ]
    }
    if all(task.mentions for task in asked):
        measures["names what was asked about"] = [
            [sense(task, reply) for task, reply in zip(asked, each, strict=True)] for each in said
        ]
    for wish in WISHES.values():
        measures[f"holds to {wish.name}"] = [[wish.holds(reply) for reply in each] for each in said]
    return {
        "versions": list(versions),
        "replies": [
            {"prompt": task.prompt, "first": one, "second": two}
            for task, one, two in zip(asked, first, second, strict=True)
        ],
        "words": [round(sum(map(word_count, each)) / max(len(each), 1), 1) for each in said],
        "rates": {name: _rates(*held) for name, held in measures.items()},
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


def _interval(held: Sequence[bool]) -> list[float]:
    return [round(end, 3) for end in wilson(sum(held), len(held))]


def tell(found: dict[str, Any], *, width: int = 100) -> Iterator[str]:
    """Side by side, in lines."""
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
