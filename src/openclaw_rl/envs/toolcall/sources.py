"""The task sources of the tool-call environment: the generated curriculum, or a user's file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from openclaw_rl.envs.curricula import Split, TaskSet
from openclaw_rl.envs.toolcall import tasks_file
from openclaw_rl.envs.toolcall.curriculum import CURRICULUM, CallTask
from openclaw_rl.envs.toolcall.tools_config import (
    INTERPRETER,
    KNOWN,
    CurriculumWorld,
    ToolWorld,
    WantedCall,
    as_call,
    read_tools_config,
)
from openclaw_rl.errors import ConfigError
from openclaw_rl.types import Tool

_SEARCHED: Final = 40
"""tasks searched for examples"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEpisode:
    """A started task: its instruction, its tools, and the world on which the calls act."""

    instruction: str
    tools: tuple[Tool, ...]
    world: ToolWorld
    steps: int
    answered: bool
    """True if the episode ends with an answer, not with its calls"""
    examples: tuple[tuple[str, str], ...]
    """requests with their solutions as text"""


class TaskSource(TaskSet, Protocol):
    """A source of an environment's tasks."""

    def gold(self, task: str) -> Sequence[WantedCall | str]:
        """Return the solution: calls, and the final answer if the task has one."""
        ...

    def begin(self, task: str, *, examples: int) -> ToolEpisode: ...


class CurriculumSource:
    """Generated tasks."""

    def __init__(self, *, levels: Sequence[str], per_level: int) -> None:
        self._levels, self._per_level = levels, per_level

    def ids(self, split: Split) -> Sequence[str]:
        count = self._per_level if split == "train" else max(1, self._per_level // 2)
        return CURRICULUM.ids(split, levels=self._levels, per_level=count)

    def level(self, task: str) -> str:
        return task.partition("/")[0]

    def instruction(self, task: str) -> str:
        return CURRICULUM.task(task).instruction

    def gold(self, task: str) -> Sequence[WantedCall | str]:
        return CURRICULUM.task(task).gold

    def begin(self, task: str, *, examples: int) -> ToolEpisode:
        definition = CURRICULUM.task(task)
        return ToolEpisode(
            instruction=definition.instruction,
            tools=tuple(KNOWN[name] for name in definition.tools),
            world=CurriculumWorld(wanted=definition.wanted, facts=definition.facts, printed=definition.printed),
            steps=definition.steps,
            answered=False,
            examples=tuple(
                (example.instruction, _solved(example)) for example in _examples(task, definition, examples)
            ),
        )


def _examples(task: str, asked: CallTask, count: int) -> Sequence[CallTask]:
    """Return solved tasks that use only this task's tools, first one per tool, to show the choice between them."""
    fit = [example for example in CURRICULUM.examples(task, _SEARCHED) if example.called <= set(asked.tools)]
    firsts = list({example.called: example for example in reversed(fit)}.values())
    return sorted(fit, key=lambda example: example not in firsts)[:count]


class FileSource:
    """A user's own tasks and tools."""

    def __init__(self, config: Path, *, levels: Sequence[str]) -> None:
        self._config = read_tools_config(config)
        self._tasks = tasks_file.read_tasks(self._config.tasks)
        self._levels = levels

    def ids(self, split: Split) -> Sequence[str]:
        return tasks_file.ids(self._tasks, split, self._levels)

    def _task(self, task: str) -> tasks_file.FileTask:
        if task not in self._tasks:
            raise ConfigError(f"no task {task!r} in {self._config.tasks}", remedy="'openclaw-rl envs list' shows them")
        return self._tasks[task]

    def level(self, task: str) -> str:
        return self._task(task).level

    def instruction(self, task: str) -> str:
        return self._task(task).instruction

    def gold(self, task: str) -> Sequence[WantedCall | str]:
        gold = self._task(task).gold
        return () if gold is None else (gold,)

    def begin(self, task: str, *, examples: int) -> ToolEpisode:
        """Start a task. ``examples`` is ignored: a file's tasks would reveal their answers."""
        definition = self._task(task)
        return ToolEpisode(
            instruction=definition.instruction,
            tools=tuple(own_tool.tool for own_tool in self._config.tools),
            world=tasks_file.FileWorld(
                tools={own_tool.tool.name: own_tool for own_tool in self._config.tools}, task=definition
            ),
            steps=self._config.steps,
            answered=True,
            examples=(),
        )


def _solved(task: CallTask) -> str:
    """Return a solution as text; after a lookup, its result follows."""
    parts = []
    for call in task.gold:
        facts = task.facts.get(call.tool)
        result = "" if facts is None else f"\n{facts[str(next(iter(call.arguments.values()))).casefold()]}"
        parts.append(fenced(call) + result)
    return "\n".join(parts)


def fenced(call: WantedCall) -> str:
    """Return a call in the text form."""
    if call.tool == INTERPRETER:
        return f"```\n{call.arguments['code']}\n```"
    return f"```\n{as_call(call.tool, call.arguments)}\n```"
