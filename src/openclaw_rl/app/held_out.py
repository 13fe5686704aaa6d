"""Held-out tasks of the environment that trains, played by the versions that the gate compares."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

from openclaw_rl.app.environments import build_env
from openclaw_rl.app.factories import default_sampling
from openclaw_rl.config import Config
from openclaw_rl.formats.parts import Assembly
from openclaw_rl.formats.tools import tool_call_reader
from openclaw_rl.gate.examiner import answer
from openclaw_rl.ports import Policy, SupportsTaskSets
from openclaw_rl.types import Message, Prompt, Sampling, Version

AT_ONCE = 16
"""episodes of an examination at once, unless env.parallel allows fewer"""
KEPT = 4
"""versions whose results are kept, the live one among them"""


class HeldOutTasks:
    """See `PlaysTasks`: the same tasks for every version, spread over the rungs, sampled greedily."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.tasks = _chosen(config)
        self._sampling = replace(default_sampling(config), temperature=0.0, seed=config.run.seed)
        self._solved: dict[str, Mapping[str, bool]] = {}

    async def solved(self, policy: Policy, version: Version) -> Mapping[str, bool]:
        weights = version.adapter or "base"
        if weights not in self._solved:
            self._solved[weights] = await self._played(policy, version)
            for old in list(self._solved)[:-KEPT]:
                del self._solved[old]
        return self._solved[weights]

    async def _played(self, policy: Policy, version: Version) -> Mapping[str, bool]:
        from openclaw_rl.envs.evaluation import play_each

        async def ask(prompt: Prompt, sampling: Sampling) -> Message:
            done = await answer(policy, prompt, sampling, version=version.number)
            return read_reply(done.reply.content, policy.tool_format if prompt.tools else "none")

        played = await play_each(
            ask,
            lambda: build_env(self._config),
            self.tasks,
            seeds=(self._config.run.seed,),
            sampling=self._sampling,
            max_steps=self._config.env.max_steps,
            parallel=min(AT_ONCE, self._config.env.parallel),
        )
        return {one.task: one.solved for one in played if one.outcome is not None}


def held_out_tasks(config: Config) -> HeldOutTasks | None:
    """The tasks that the gate has played; None where no environment trains or it holds no tasks out."""
    if config.env.type is None or not config.gate.tasks:
        return None
    return HeldOutTasks(config) if isinstance(build_env(config), SupportsTaskSets) else None


def _chosen(config: Config) -> list[tuple[str, str]]:
    """So many tasks, of each rung in turn, the same for every version."""
    env = build_env(config)
    assert isinstance(env, SupportsTaskSets)
    by_rung: dict[str, list[str]] = {}
    for task in env.held_out():
        by_rung.setdefault(env.rung(task), []).append(task)
    for tasks in by_rung.values():
        random.Random(config.run.seed).shuffle(tasks)
    ranked = sorted((place, rung, task) for rung, tasks in by_rung.items() for place, task in enumerate(tasks))
    return [(task, rung) for _, rung, task in ranked[: config.gate.tasks]]


def read_reply(raw: str, tool_format: str) -> Message:
    """A raw reply as the API would give it out."""
    found, whole = tool_call_reader(tool_format), Assembly()
    for part in (*found.feed(raw), *found.end(cut=False)):
        whole.add(part)
    return whole.message()
