"""Evaluation suites whose answers a program checks: conversation, coding, tool-use.

    conversation   each preference stated in the prompt (does the reply meet it?), and held-out prompts without any
                   (does the reply name the topic? which preferences does it meet unprompted?)
    coding         small functions, run in a sandbox against checks
    tool-use       function calls, checked by schema and by value

A `Model` answers: a version, a folder of weights or any server. The seed determines everything random.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openclaw_rl.envs import sandbox
from openclaw_rl.envs.evaluation import PlayedTask, chosen_tasks, play_each
from openclaw_rl.gate.checks import flaw
from openclaw_rl.ports import Env
from openclaw_rl.stats import difference, wilson
from openclaw_rl.tasks import coding
from openclaw_rl.tasks.everyday import Task, held_out, is_relevant
from openclaw_rl.tasks.preferences import PREFERENCES, About, Preference
from openclaw_rl.text import word_count
from openclaw_rl.types import Message, Prompt, Sampling, ToolCall

SUITES = ("conversation", "coding", "tool-use")
PER_PREFERENCE = 3
"""held-out prompts per stated preference"""
UNPROMPTED = 16
"""held-out prompts without any preference"""
CONCURRENCY = 8
"""requests to a model at once"""
FORMER = {
    "suites": "sets",
    "conclusion": "said",
    **{f"prompted {name}": f"told {name}" for name in PREFERENCES},
    **{f"meets {name}": f"holds to {name}" for name in PREFERENCES},
}
"""former names of renamed fields in the reports of `eval` and `compare`"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """A model's reply: text, and calls if tools were offered; ``broken`` is True for an unreadable call."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    broken: bool = False


Model = Callable[[Prompt, Sampling], Awaitable[ModelReply]]
Checked = tuple[str | None, Mapping[str, bool]]
"""the reason why a reply fails, None if it passes; and further yes-and-no measures"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """Result of one task, with the reason for a failure; ``marks`` are further yes-and-no measures of the reply."""

    name: str
    passed: bool
    why: str
    reply: str
    marks: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteTask:
    """One task of a suite: its prompt, its reply limit and its check."""

    name: str
    prompt: Prompt
    max_tokens: int
    check: Callable[[ModelReply], Awaitable[Checked]]


def suite_tasks(suite: str, *, seed: int, unsafe: bool) -> list[SuiteTask]:
    """Return a suite's tasks; the seed samples the held-out prompts. ``unsafe``: see `sandbox`."""
    if suite == "coding":
        return [_coding(task, unsafe=unsafe) for task in coding.CODING_TASKS]
    if suite == "tool-use":
        return [_tool_use(task) for task in coding.TOOL_TASKS]
    return [*_prompted(seed), *_unprompted(seed)]


def _prompted(seed: int) -> list[SuiteTask]:
    tasks = []
    for preference in PREFERENCES.values():
        about: About = "measures" if preference.about == "measures" else "facts"
        sampled = random.Random(f"{preference.name} {seed}").sample(held_out(about), PER_PREFERENCE)
        tasks += [_preference(preference, task) for task in sampled]
    return tasks


def _preference(preference: Preference, task: Task) -> SuiteTask:
    async def check(reply: ModelReply) -> Checked:
        met = preference.met_by(reply.text)
        why = flaw(reply.text, prompt=task.prompt) or (None if met else f"not {preference.description}")
        return why, {f"prompted {preference.name}": why is None}

    prompt = _plain(task.prompt).hinted(preference.hint)
    name = f"{preference.name}: {task.prompt}"
    return SuiteTask(name=name, prompt=prompt, max_tokens=preference.max_tokens, check=check)


def _unprompted(seed: int) -> list[SuiteTask]:
    sampled = random.Random(f"unasked {seed}").sample(held_out("facts"), UNPROMPTED)
    return [_everyday(task) for task in sampled]


def _everyday(task: Task) -> SuiteTask:
    async def check(reply: ModelReply) -> Checked:
        bad = flaw(reply.text, prompt=task.prompt)
        marks = {
            f"meets {name}": preference.met_by(reply.text)
            for name, preference in PREFERENCES.items()
            if name != "metric"
        }
        return bad or (None if is_relevant(task, reply.text) else "does not name what was asked about"), marks

    return SuiteTask(name=f"unprompted: {task.prompt}", prompt=_plain(task.prompt), max_tokens=96, check=check)


def _coding(task: coding.CodingTask, *, unsafe: bool) -> SuiteTask:
    async def check(reply: ModelReply) -> Checked:
        ran = await sandbox.run(coding.program(task, reply.text), unsafe=unsafe)
        return None if ran.ok else (ran.output.strip().splitlines() or ["it ended without any output"])[-1], {}

    return SuiteTask(name=task.name, prompt=_plain(task.prompt), max_tokens=160, check=check)


def _tool_use(task: coding.ToolTask) -> SuiteTask:
    async def check(reply: ModelReply) -> Checked:
        why = "a call that cannot be read" if reply.broken else coding.mistake(task, reply.calls)
        return why, {"makes a call": bool(reply.calls)}

    return SuiteTask(name=task.request, prompt=task.prompt, max_tokens=96, check=check)


def _plain(text: str) -> Prompt:
    return Prompt(messages=(Message(role="user", content=text),))


async def run(
    model: Model,
    suites: Sequence[str],
    *,
    seed: int,
    temperature: float,
    unsafe: bool,
    done: Callable[[TaskResult], None] = lambda _: None,
) -> dict[str, list[TaskResult]]:
    """Run every task of the suites once, several at a time; return the results by suite, in task order."""
    room = asyncio.Semaphore(CONCURRENCY)

    async def one(task: SuiteTask) -> TaskResult:
        async with room:
            sampling = Sampling(temperature=temperature, max_tokens=task.max_tokens, seed=seed)
            reply = await model(task.prompt, sampling)
        why, marks = await task.check(reply)
        text = reply.text or " ".join(f"{call.name}({call.arguments})" for call in reply.calls)
        result = TaskResult(name=task.name, passed=why is None, why=why or "", reply=text, marks=marks)
        done(result)
        return result

    return {
        suite: list(await asyncio.gather(*map(one, suite_tasks(suite, seed=seed, unsafe=unsafe)))) for suite in suites
    }


def report(
    model: str, results: Mapping[str, Sequence[TaskResult]], *, seed: int, began: float, isolation: str | None
) -> dict[str, Any]:
    """Return the figures as plain JSON, each rate with its 95 % interval; ``isolation`` names the sandbox."""
    return {
        "model": model,
        "seed": seed,
        "isolation": isolation,
        "seconds": round(time.monotonic() - began, 1),
        "suites": {suite: _summary(task_results) for suite, task_results in results.items()},
    }


def _summary(results: Sequence[TaskResult]) -> dict[str, Any]:
    marks: dict[str, list[bool]] = {}
    for result in results:
        for name, met in result.marks.items():
            marks.setdefault(name, []).append(met)
    replies = [word_count(result.reply) for result in results if result.name.startswith("unprompted: ")]
    return {
        **_rate([result.passed for result in results]),
        "rates": {name: _rate(met) for name, met in marks.items()},
        "words": round(sum(replies) / len(replies), 1) if replies else None,
        "results": [
            {"name": row.name, "passed": row.passed, "why": row.why, "reply": row.reply, "marks": dict(row.marks)}
            for row in results
        ],
    }


def _rate(passed: Sequence[bool]) -> dict[str, Any]:
    low, high = wilson(sum(passed), len(passed))
    rate = sum(passed) / len(passed) if passed else None
    return {"passed": sum(passed), "of": len(passed), "rate": rate, "low": round(low, 3), "high": round(high, 3)}


def compare(first: Mapping[str, Sequence[TaskResult]], second: Mapping[str, Sequence[TaskResult]]) -> dict[str, Any]:
    """Return the paired difference of two models on the same tasks, first minus second, with its 95 % interval."""
    differences: dict[str, Any] = {}
    for suite, first_results in first.items():
        passed = [[result.passed for result in task_results] for task_results in (second[suite], first_results)]
        gap = difference(*passed)
        conclusion = "better" if gap.low > 0 else "worse" if gap.high < 0 else "no difference beyond noise"
        ends = {"low": round(gap.low, 3), "high": round(gap.high, 3)}
        differences[suite] = {"difference": round(gap.mean, 3), **ends, "pairs": gap.count, "conclusion": conclusion}
    return differences


# Success in an environment by curriculum level, for a model under evaluation.

_WIDTH = 44
"""columns per temperature"""

__all__ = ["PlayedTask", "by_level", "chosen_tasks", "lines", "play_tasks", "rate"]


async def play_tasks(
    model: Model,
    make_env: Callable[[], Env],
    tasks: Sequence[tuple[str, str]],
    *,
    seeds: Sequence[int],
    sampling: Sampling,
    max_steps: int,
    parallel: int,
    done: Callable[[PlayedTask], None],
) -> list[PlayedTask]:
    """Play tasks with a model under evaluation; see `play_each`."""

    async def ask(prompt: Prompt, sampling: Sampling) -> Message:
        reply = await model(prompt, sampling)
        return Message(role="assistant", content=reply.text, tool_calls=reply.calls)

    return await play_each(
        ask, make_env, tasks, seeds=seeds, sampling=sampling, max_steps=max_steps, parallel=parallel, done=done
    )


def by_level(played: Sequence[PlayedTask]) -> dict[str, dict[str, Any]]:
    """Return success by level and in total, with 95 % intervals; failed episodes are counted separately."""
    groups: dict[str, list[PlayedTask]] = {}
    for episode in played:
        groups.setdefault(episode.level, []).append(episode)
    return {**{level: rate(episodes) for level, episodes in groups.items()}, "all": rate(played)}


def rate(played: Sequence[PlayedTask]) -> dict[str, Any]:
    """Return the number of solved tasks, with its 95 % interval."""
    counted = [episode.solved for episode in played if episode.outcome is not None]
    low, high = wilson(sum(counted), len(counted))
    return {
        "solved": sum(counted),
        "of": len(counted),
        "low": round(low, 3),
        "high": round(high, 3),
        "failed": len(played) - len(counted),
    }


def lines(found: Mapping[float, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """Format the table of `by_level` at each temperature, side by side."""
    names = [_named(temperature) for temperature in found]
    rows = [f"  {'':<20} {''.join(f'{name:<{_WIDTH}}' for name in names)}".rstrip()]
    for level in next(iter(found.values())):
        cells = [f"{_cell(at[level]):<{_WIDTH}}" for at in found.values()]
        rows.append(f"  {level:<20} {''.join(cells)}".rstrip())
    return rows


def _named(temperature: float) -> str:
    return "greedy" if temperature == 0 else f"temperature {temperature:g}"


def _cell(rate: Mapping[str, Any]) -> str:
    share = rate["solved"] / max(rate["of"], 1)
    failed = f", {rate['failed']} failed" if rate["failed"] else ""
    return f"{rate['solved']:>4} of {rate['of']:<4} {share:>4.0%}  ({rate['low']:.0%} to {rate['high']:.0%}){failed}"
