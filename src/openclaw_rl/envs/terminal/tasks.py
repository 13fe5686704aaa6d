"""A task of the terminal environment, and the sources of tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Protocol

from openclaw_rl.envs.curricula import Split, TaskCurriculum, TaskSet
from openclaw_rl.envs.sandbox import HOME, Sandbox

# The checks of a terminal task: they examine the sandbox's files and the last command's output, never the reply's text.

LARGEST = 1 << 20
"""most bytes of a file that are compared"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalState:
    """The state to check: the sandbox, the last command's output, and the answer if the task has one.

    The sandbox is sealed before a score counts; while the agent still works, checks read files and run nothing.
    ``shown`` are host folders visible in the sandbox, which checks ignore.
    """

    sandbox: Sandbox
    printed: str
    shown: tuple[str, ...] = ()
    answer: str | None = None


class StateCheck(Protocol):
    """A condition on the state."""

    async def met(self, state: FinalState) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """The last command printed exactly these lines; ``any_order`` ignores their order."""

    text: str
    any_order: bool = False

    async def met(self, state: FinalState) -> bool:
        return _same_lines(state.printed, self.text, any_order=self.any_order)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHolds:
    """A file contains exactly these lines; ``any_order`` ignores their order."""

    path: str
    text: str
    any_order: bool = False

    async def met(self, state: FinalState) -> bool:
        try:
            content = await state.sandbox.read(self.path, most=LARGEST)
        except OSError:
            return False
        return _same_lines(content.decode(errors="replace"), self.text, any_order=self.any_order)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holds:
    """A folder contains exactly these names; without names, it exists and is empty."""

    path: str
    names: Sequence[str]

    async def met(self, state: FinalState) -> bool:
        try:
            names = await state.sandbox.names(self.path)
        except OSError:
            return False
        shown = {PurePosixPath(folder).relative_to(self.path).parts[0] for folder in state.shown if self._holds(folder)}
        return sorted(set(names) - shown) == sorted(self.names)

    def _holds(self, path: str) -> bool:
        return path != self.path and PurePosixPath(path).is_relative_to(self.path)


def _same_lines(found: str, wanted: str, *, any_order: bool) -> bool:
    lines = [[line.strip() for line in text.strip().splitlines()] for text in (found, wanted)]
    actual, expected = map(sorted, lines) if any_order else lines
    return actual == expected


async def all_met(checks: Sequence[StateCheck], state: FinalState) -> bool:
    """Return True if every condition is met; stop at the first that is not."""
    for check in checks:
        if not await check.met(state):
            return False
    return True


Scorer = Callable[[FinalState], Awaitable[float]]
"""a function from the final state to its score, from 0 to 1"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalTask:
    """A terminal task and its checks. ``steps`` is the most replies it may take.

    ``files`` are texts by path below the home folder, ``placed`` host files by path in the sandbox. ``setup`` scripts
    run before the agent starts, ``start`` starts background programs in the agent's shell, ``gold`` are commands that
    solve the task. An ``answered`` task ends with a reply that is its answer. ``scorer`` replaces ``checks`` and is
    called only at the end; ``by_output``: it also uses the output of the agent's commands.
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
        """True if the task ends as soon as its checks are met."""
        return self.scorer is None and not self.answered

    async def score(self, state: FinalState) -> float:
        """Return the scorer's result, from 0 to 1; without a scorer, 1 if every check is met."""
        if self.scorer is not None:
            return await self.scorer(state)
        return float(await all_met(self.checks, state))


class TerminalSource(TaskSet, Protocol):
    """A source of an environment's tasks."""

    def task(self, task: str) -> TerminalTask:
        """Return the task with this id; raise ConfigError if it does not exist."""
        ...

    def examples(self, task: str, count: int) -> Sequence[TerminalTask]:
        """Return other, training-split tasks that a prompt may show with their solution."""
        ...


class CurriculumTasks:
    """The tasks of a curriculum: ``per_level`` of each level train, half as many are held out."""

    def __init__(self, curriculum: TaskCurriculum[TerminalTask], *, levels: Sequence[str], per_level: int) -> None:
        self._curriculum, self._levels, self._per_level = curriculum, tuple(levels), per_level

    def ids(self, split: Split) -> Sequence[str]:
        count = self._per_level if split == "train" else max(1, self._per_level // 2)
        return self._curriculum.ids(split, levels=self._levels, per_level=count)

    def level(self, task: str) -> str:
        return task.partition("/")[0]

    def instruction(self, task: str) -> str:
        return self.task(task).instruction

    def task(self, task: str) -> TerminalTask:
        return self._curriculum.task(task)

    def examples(self, task: str, count: int) -> Sequence[TerminalTask]:
        return self._curriculum.examples(task, count)
