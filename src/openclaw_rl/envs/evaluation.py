"""Measures a model's success in an environment, task by task, without storing or training on the episodes."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from openclaw_rl.envs.episodes import failing_alone
from openclaw_rl.errors import ConfigError, EnvFailed
from openclaw_rl.ports import Env, SupportsOutcome, SupportsTaskSets
from openclaw_rl.types import Message, Prompt, Sampling

log = logging.getLogger(__name__)

Ask = Callable[[Prompt, Sampling], Awaitable[Message]]
"""a function that requests one reply from the model under evaluation"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedTask:
    """An episode: its outcome from -1 to 1, or None if it failed for a reason outside the model."""

    task: str
    level: str
    seed: int
    outcome: float | None
    replies: tuple[str, ...]
    error: str = ""

    @property
    def solved(self) -> bool:
        return self.outcome == 1.0


def chosen_tasks(env: Env, *, split: str, count: int | None) -> list[tuple[str, str]]:
    """Return ids and levels of the tasks to play, ``count`` per level; a task without a level is its own."""
    sets = env if isinstance(env, SupportsTaskSets) else None
    if split == "held-out" and sets is None:
        raise ConfigError(f"environment {env.name} holds no tasks out", remedy="take --split train")
    ids = sets.held_out() if sets is not None and split == "held-out" else env.tasks()
    by_level: dict[str, list[str]] = {}
    for task in ids:
        by_level.setdefault(sets.level(task) if sets is not None else task, []).append(task)
    return [(task, level) for level, tasks in by_level.items() for task in tasks[:count]]


async def play_each(
    ask: Ask,
    make_env: Callable[[], Env],
    tasks: Sequence[tuple[str, str]],
    *,
    seeds: Sequence[int],
    sampling: Sampling,
    max_steps: int,
    parallel: int,
    done: Callable[[PlayedTask], None] = lambda _: None,
) -> list[PlayedTask]:
    """Play each task once per seed, ``parallel`` at once; return the results in task order."""
    room = asyncio.Semaphore(parallel)

    async def one(task: str, level: str, seed: int) -> PlayedTask:
        async with room:
            played = await _play(ask, make_env(), task, level, replace(sampling, seed=seed), max_steps)
        done(played)
        return played

    return list(await asyncio.gather(*(one(task, level, seed) for task, level in tasks for seed in seeds)))


async def _play(ask: Ask, env: Env, task: str, level: str, sampling: Sampling, max_steps: int) -> PlayedTask:
    replies: list[str] = []
    seed = sampling.seed or 0
    try:
        outcome = await _episode(ask, env, task, sampling, max_steps, replies)
    except EnvFailed as error:
        log.warning("episode failed task=%s: %s", task, error, exc_info=error.__cause__)
        return PlayedTask(task=task, level=level, seed=seed, outcome=None, replies=tuple(replies), error=str(error))
    finally:
        await _closed(env, task)
    return PlayedTask(task=task, level=level, seed=seed, outcome=outcome, replies=tuple(replies))


def _drawn(task: str, seed: int, step: int) -> int:
    """Return the seed of one reply; a seed shared by tasks would make them succeed or fail together."""
    return random.Random(f"{seed} {task} {step}").getrandbits(31)


async def _closed(env: Env, task: str) -> None:
    try:
        with failing_alone():
            await env.close()
    except EnvFailed as error:
        log.warning("environment not closed task=%s: %s", task, error, exc_info=error.__cause__)


async def _episode(ask: Ask, env: Env, task: str, sampling: Sampling, max_steps: int, replies: list[str]) -> float:
    with failing_alone():
        prompt = await env.reset(task, seed=sampling.seed or 0)
    for step in range(max_steps):
        message = await ask(prompt, replace(sampling, seed=_drawn(task, sampling.seed or 0, step)))
        replies.append(message.content or " ".join(f"{call.name}({call.arguments})" for call in message.tool_calls))
        with failing_alone():
            observation = await env.step(message)
        if observation.done:
            return observation.reward or 0.0
        prompt = replace(prompt, messages=(*prompt.messages, message, *observation.messages))
    with failing_alone():
        return await env.outcome() if isinstance(env, SupportsOutcome) else 0.0
