"""Success in an environment by rung, of a model under evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from openclaw_rl.envs.evaluation import PlayedTask, chosen_tasks, play_each
from openclaw_rl.evals.suites import Model
from openclaw_rl.ports import Env
from openclaw_rl.stats import wilson
from openclaw_rl.types import Message, Prompt, Sampling

_WIDTH = 44
"""columns of one temperature"""

__all__ = ["PlayedTask", "by_rung", "chosen_tasks", "lines", "play_tasks", "rate"]


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
    """See `play_each`, for a model as suites ask it."""

    async def ask(prompt: Prompt, sampling: Sampling) -> Message:
        reply = await model(prompt, sampling)
        return Message(role="assistant", content=reply.text, tool_calls=reply.calls)

    return await play_each(
        ask, make_env, tasks, seeds=seeds, sampling=sampling, max_steps=max_steps, parallel=parallel, done=done
    )


def by_rung(played: Sequence[PlayedTask]) -> dict[str, dict[str, Any]]:
    """Success by rung and in all, with 95 % intervals; episodes that failed are counted beside them."""
    groups: dict[str, list[PlayedTask]] = {}
    for each in played:
        groups.setdefault(each.rung, []).append(each)
    return {**{rung: rate(found) for rung, found in groups.items()}, "all": rate(played)}


def rate(played: Sequence[PlayedTask]) -> dict[str, Any]:
    """How many of these were solved."""
    counted = [each.solved for each in played if each.outcome is not None]
    low, high = wilson(sum(counted), len(counted))
    return {
        "solved": sum(counted),
        "of": len(counted),
        "low": round(low, 3),
        "high": round(high, 3),
        "failed": len(played) - len(counted),
    }


def lines(found: Mapping[float, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """The table of `by_rung` at each temperature, side by side."""
    names = [_named(temperature) for temperature in found]
    shown = [f"  {'':<20} {''.join(f'{name:<{_WIDTH}}' for name in names)}".rstrip()]
    for rung in next(iter(found.values())):
        cells = [f"{_cell(at[rung]):<{_WIDTH}}" for at in found.values()]
        shown.append(f"  {rung:<20} {''.join(cells)}".rstrip())
    return shown


def _named(temperature: float) -> str:
    return "greedy" if temperature == 0 else f"temperature {temperature:g}"


def _cell(rate: Mapping[str, Any]) -> str:
    share = rate["solved"] / max(rate["of"], 1)
    failed = f", {rate['failed']} failed" if rate["failed"] else ""
    return f"{rate['solved']:>4} of {rate['of']:<4} {share:>4.0%}  ({rate['low']:.0%} to {rate['high']:.0%}){failed}"
