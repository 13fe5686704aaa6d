"""Where the tasks of the tool-call environment come from: the ladder, or a user's own file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from openclaw_rl.envs.ladders import Split, TaskSet
from openclaw_rl.envs.toolcall import tasks_file
from openclaw_rl.envs.toolcall.ladder import LADDER, CallTask
from openclaw_rl.envs.toolcall.tools_config import (
    INTERPRETER,
    KNOWN,
    LadderWorld,
    ToolWorld,
    WantedCall,
    as_call,
    read_tools_config,
)
from openclaw_rl.errors import ConfigError
from openclaw_rl.types import Tool

_SEARCHED: Final = 40
"""tasks among which examples are chosen"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEpisode:
    """A task begun: what is asked, with what, and the world that its calls act on."""

    instruction: str
    tools: tuple[Tool, ...]
    world: ToolWorld
    steps: int
    answered: bool
    """whether it ends with an answer, not with its calls"""
    examples: tuple[tuple[str, str], ...]
    """requests, and how they are done as text"""


class TaskSource(TaskSet, Protocol):
    """Where the tasks of an environment come from."""

    def gold(self, task: str) -> Sequence[WantedCall | str]:
        """Calls and, at the end where there is one, the answer."""
        ...

    def begin(self, task: str, *, examples: int) -> ToolEpisode: ...


class LadderSource:
    """Generated tasks."""

    def __init__(self, *, rungs: Sequence[str], per_rung: int) -> None:
        self._rungs, self._per_rung = rungs, per_rung

    def ids(self, split: Split) -> Sequence[str]:
        count = self._per_rung if split == "train" else max(1, self._per_rung // 2)
        return LADDER.ids(split, rungs=self._rungs, per_rung=count)

    def rung(self, task: str) -> str:
        return task.partition("/")[0]

    def instruction(self, task: str) -> str:
        return LADDER.task(task).instruction

    def gold(self, task: str) -> Sequence[WantedCall | str]:
        return LADDER.task(task).gold

    def begin(self, task: str, *, examples: int) -> ToolEpisode:
        found = LADDER.task(task)
        return ToolEpisode(
            instruction=found.instruction,
            tools=tuple(KNOWN[name] for name in found.tools),
            world=LadderWorld(wanted=found.wanted, facts=found.facts, printed=found.printed),
            steps=found.steps,
            answered=False,
            examples=tuple((each.instruction, _solved(each)) for each in _examples(task, found, examples)),
        )


def _examples(task: str, asked: CallTask, count: int) -> Sequence[CallTask]:
    """Solved tasks that call nothing but what this one offers; first one for each tool, so that there is a choice."""
    fit = [each for each in LADDER.examples(task, _SEARCHED) if each.called <= set(asked.tools)]
    firsts = list({each.called: each for each in reversed(fit)}.values())
    return sorted(fit, key=lambda each: each not in firsts)[:count]


class FileSource:
    """Tasks and tools of a user's own."""

    def __init__(self, config: Path, *, rungs: Sequence[str]) -> None:
        self._config = read_tools_config(config)
        self._tasks = tasks_file.read_tasks(self._config.tasks)
        self._rungs = rungs

    def ids(self, split: Split) -> Sequence[str]:
        return tasks_file.ids(self._tasks, split, self._rungs)

    def _task(self, task: str) -> tasks_file.FileTask:
        if task not in self._tasks:
            raise ConfigError(f"no task {task!r} in {self._config.tasks}", remedy="'openclaw-rl envs list' shows them")
        return self._tasks[task]

    def rung(self, task: str) -> str:
        return self._task(task).rung

    def instruction(self, task: str) -> str:
        return self._task(task).instruction

    def gold(self, task: str) -> Sequence[WantedCall | str]:
        gold = self._task(task).gold
        return () if gold is None else (gold,)

    def begin(self, task: str, *, examples: int) -> ToolEpisode:
        """``examples`` are the ladder's alone: a file's tasks would show their answers."""
        found = self._task(task)
        return ToolEpisode(
            instruction=found.instruction,
            tools=tuple(each.tool for each in self._config.tools),
            world=tasks_file.FileWorld(tools={each.tool.name: each for each in self._config.tools}, task=found),
            steps=self._config.steps,
            answered=True,
            examples=(),
        )


def _solved(task: CallTask) -> str:
    """How a task is done, as text; of one that looks something up first, what it found beside it."""
    shown = []
    for call in task.gold:
        found = task.facts.get(call.tool)
        result = "" if found is None else f"\n{found[str(next(iter(call.arguments.values()))).casefold()]}"
        shown.append(fenced(call) + result)
    return "\n".join(shown)


def fenced(call: WantedCall) -> str:
    """A call as the text form writes it."""
    if call.tool == INTERPRETER:
        return f"```\n{call.arguments['code']}\n```"
    return f"```\n{as_call(call.tool, call.arguments)}\n```"
