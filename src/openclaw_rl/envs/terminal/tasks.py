"""A task of the terminal environment, and where tasks come from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from openclaw_rl.envs.ladders import Ladder, Split
from openclaw_rl.envs.sandbox import HOME
from openclaw_rl.envs.sourced import TaskSet
from openclaw_rl.envs.terminal.checks import FinalState, StateCheck, all_met

Scorer = Callable[[FinalState], Awaitable[float]]
"""what the state is worth at the end, from 0 to 1"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalTask:
    """What to do in a terminal, and how it is told that it is done. ``steps`` is how many replies it may take.

    ``files`` are texts by their place below the home folder, ``placed`` files of this machine by their place there.
    ``setup`` are scripts that run before the agent comes, ``start`` begins programs in its own shell that go on beside
    it, ``gold`` are commands that do the task. An ``answered`` task ends with a reply that is its answer. ``scorer`` in
    place of ``checks`` is asked at the end alone; ``by_output``: of what the agent's commands printed too.
    """

    instruction: str
    gold: tuple[str, ...]
    checks: tuple[StateCheck, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    placed: Mapping[str, Path] = field(default_factory=dict)
    steps: int = 1
    setup: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
    folder: str = HOME
    answered: bool = False
    scorer: Scorer | None = None
    by_output: bool = False

    @property
    def watched(self) -> bool:
        """Whether it is over as soon as its checks are met."""
        return self.scorer is None and not self.answered

    async def score(self, state: FinalState) -> float:
        """From 0 to 1: what the scorer says, else whether every check is met."""
        if self.scorer is not None:
            return await self.scorer(state)
        return float(await all_met(self.checks, state))


class TerminalSource(TaskSet, Protocol):
    """Where the tasks of an environment come from."""

    def task(self, task: str) -> TerminalTask:
        """The task of this id. Raises ConfigError where there is none."""
        ...

    def examples(self, task: str, count: int) -> Sequence[TerminalTask]:
        """Other tasks that a prompt may show solved; none of them is held out."""
        ...


class LadderTasks:
    """The tasks of a ladder: ``per_rung`` of each rung train, half as many are held out."""

    def __init__(self, ladder: Ladder[TerminalTask], *, rungs: Sequence[str], per_rung: int) -> None:
        self._ladder, self._rungs, self._per_rung = ladder, tuple(rungs), per_rung

    def ids(self, split: Split) -> Sequence[str]:
        count = self._per_rung if split == "train" else max(1, self._per_rung // 2)
        return self._ladder.ids(split, rungs=self._rungs, per_rung=count)

    def rung(self, task: str) -> str:
        return task.partition("/")[0]

    def instruction(self, task: str) -> str:
        return self.task(task).instruction

    def task(self, task: str) -> TerminalTask:
        return self._ladder.task(task)

    def examples(self, task: str, count: int) -> Sequence[TerminalTask]:
        return self._ladder.examples(task, count)
