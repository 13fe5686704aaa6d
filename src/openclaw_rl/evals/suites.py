"""Evaluation on shipped task sets with answers that a program checks: conversation, coding, tool-use.

    conversation   each wish said in the prompt (does the reply hold to it?), and held-out prompts without any
                   (does it name what was asked about? which wishes does it hold to unasked?)
    coding         small functions, run in a sandbox against checks
    tool-use       function calls, checked by schema and by value

Whoever answers is an `Ask`: a version, a folder of weights or any server. All draws are settled by the seed.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openclaw_rl.envs import sandbox
from openclaw_rl.gate.checks import flaw
from openclaw_rl.stats import difference, wilson
from openclaw_rl.tasks import coding
from openclaw_rl.tasks import tool_use as calling
from openclaw_rl.tasks.everyday import Task, held_out, sense
from openclaw_rl.tasks.preferences import WISHES, About, Wish
from openclaw_rl.text import word_count
from openclaw_rl.types import Message, Prompt, Sampling, ToolCall

SETS = ("conversation", "coding", "tool-use")
PER_WISH = 3
UNASKED = 16
TOGETHER = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What came back: text, and calls where tools were offered. ``broken``: a call that could not be read."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    broken: bool = False


Ask = Callable[[Prompt, Sampling], Awaitable[Answered]]
Tell = Callable[["Result"], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One task: whether it passed, and why not. ``marks`` are further yes-and-no measures of the reply."""

    name: str
    passed: bool
    why: str
    reply: str
    marks: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One task as it is put, and how its answer is checked."""

    name: str
    prompt: Prompt
    tokens: int
    check: Callable[[Answered], Awaitable[tuple[str | None, Mapping[str, bool]]]]


def questions(task_set: str, *, seed: int, unsafe: bool = False) -> list[Question]:
    """The questions of a set; the seed settles which held-out prompts are drawn. ``unsafe``: see `sandbox`."""
    if task_set == "coding":
        return [_function(one, unsafe=unsafe) for one in coding.FUNCTIONS]
    if task_set == "tool-use":
        return [_errand(one) for one in calling.ERRANDS]
    return [*_told(seed), *_unasked(seed)]


def _told(seed: int) -> list[Question]:
    found = []
    for wish in WISHES.values():
        about: About = "measures" if wish.about == "measures" else "facts"
        drawn = random.Random(f"{wish.name} {seed}").sample(held_out(about), PER_WISH)
        found += [_wish(wish, task) for task in drawn]
    return found


def _wish(wish: Wish, task: Task) -> Question:
    async def check(answer: Answered) -> tuple[str | None, Mapping[str, bool]]:
        held = wish.holds(answer.text)
        why = flaw(answer.text, prompt=task.prompt) or (None if held else f"not {wish.description}")
        return why, {f"told {wish.name}": why is None}

    prompt = Prompt(messages=(Message(role="user", content=task.prompt),)).hinted(wish.hint)
    return Question(name=f"{wish.name}: {task.prompt}", prompt=prompt, tokens=wish.room, check=check)


def _unasked(seed: int) -> list[Question]:
    return [_plain(task) for task in random.Random(f"unasked {seed}").sample(held_out("facts"), UNASKED)]


def _plain(task: Task) -> Question:
    async def check(answer: Answered) -> tuple[str | None, Mapping[str, bool]]:
        bad = flaw(answer.text, prompt=task.prompt)
        marks = {f"holds to {wish.name}": wish.holds(answer.text) for wish in WISHES.values() if wish.name != "metric"}
        return bad or (None if sense(task, answer.text) else "does not name what was asked about"), marks

    prompt = Prompt(messages=(Message(role="user", content=task.prompt),))
    return Question(name=f"unasked: {task.prompt}", prompt=prompt, tokens=96, check=check)


def _function(one: coding.Function, *, unsafe: bool) -> Question:
    async def check(answer: Answered) -> tuple[str | None, Mapping[str, bool]]:
        ran = await sandbox.run(coding.program(one, answer.text), unsafe=unsafe)
        return None if ran.ok else (ran.output.strip().splitlines() or ["it ended without a word"])[-1], {}

    prompt = Prompt(messages=(Message(role="user", content=one.prompt),))
    return Question(name=one.name, prompt=prompt, tokens=160, check=check)


def _errand(one: calling.Errand) -> Question:
    async def check(answer: Answered) -> tuple[str | None, Mapping[str, bool]]:
        why = "a call that cannot be read" if answer.broken else calling.wrong(one, answer.calls)
        return why, {"makes a call": bool(answer.calls)}

    return Question(name=one.said, prompt=one.prompt, tokens=96, check=check)


async def sit(
    ask: Ask,
    sets: Sequence[str],
    *,
    seed: int = 0,
    temperature: float = 0.0,
    unsafe: bool = False,
    tell: Tell = lambda _: None,
) -> dict[str, list[Result]]:
    """Put every question of the sets, several at once; the results by set, in the order of the questions."""
    room = asyncio.Semaphore(TOGETHER)

    async def one(question: Question) -> Result:
        async with room:
            sampling = Sampling(temperature=temperature, max_tokens=question.tokens, seed=seed)
            answer = await ask(question.prompt, sampling)
        why, marks = await question.check(answer)
        shown = answer.text or " ".join(f"{call.name}({call.arguments})" for call in answer.calls)
        result = Result(name=question.name, passed=why is None, why=why or "", reply=shown, marks=marks)
        tell(result)
        return result

    return {name: list(await asyncio.gather(*map(one, questions(name, seed=seed, unsafe=unsafe)))) for name in sets}


def report(
    model: str, results: Mapping[str, Sequence[Result]], *, seed: int, began: float, isolation: str | None = None
) -> dict[str, Any]:
    """The figures as plain JSON, each rate with its 95 % interval. ``isolation``: what kept programs apart."""
    return {
        "model": model,
        "seed": seed,
        "isolation": isolation,
        "seconds": round(time.monotonic() - began, 1),
        "sets": {name: _summary(found) for name, found in results.items()},
    }


def _summary(found: Sequence[Result]) -> dict[str, Any]:
    marks: dict[str, list[bool]] = {}
    for result in found:
        for name, held in result.marks.items():
            marks.setdefault(name, []).append(held)
    replies = [word_count(result.reply) for result in found if result.name.startswith("unasked: ")]
    return {
        **_rate([result.passed for result in found]),
        "rates": {name: _rate(held) for name, held in marks.items()},
        "words": round(sum(replies) / len(replies), 1) if replies else None,
        "results": [
            {"name": one.name, "passed": one.passed, "why": one.why, "reply": one.reply, "marks": dict(one.marks)}
            for one in found
        ],
    }


def _rate(held: Sequence[bool]) -> dict[str, Any]:
    low, high = wilson(sum(held), len(held))
    rate = sum(held) / len(held) if held else None
    return {"passed": sum(held), "of": len(held), "rate": rate, "low": round(low, 3), "high": round(high, 3)}


def compare(first: Mapping[str, Sequence[Result]], second: Mapping[str, Sequence[Result]]) -> dict[str, Any]:
    """The paired difference of two on the same questions, first less second, with its 95 % interval."""
    found: dict[str, Any] = {}
    for name, mine in first.items():
        passed = [[one.passed for one in each] for each in (second[name], mine)]
        gap = difference(*passed)
        sure = "better" if gap.low > 0 else "worse" if gap.high < 0 else "no difference beyond noise"
        ends = {"low": round(gap.low, 3), "high": round(gap.high, 3)}
        found[name] = {"difference": round(gap.mean, 3), **ends, "pairs": gap.count, "said": sure}
    return found
