"""A task of the terminal environment, and where tasks come from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Protocol

from openclaw_rl.envs.ladders import Ladder, Split, TaskSet
from openclaw_rl.envs.sandbox import HOME, Sandbox

# What a terminal task is checked by: the sandbox's files and what its last command printed, never the reply's text.

LARGEST = 1 << 20
"""bytes of a file that are compared"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalState:
    """What there is to look at: the sandbox, what the last command printed there, and the answer, if one was given.

    It is sealed before a score counts; while the agent still works, files are read and nothing is run. ``shown`` are
    folders of this machine that can be seen in it: no part of anything.
    """

    sandbox: Sandbox
    printed: str
    shown: tuple[str, ...] = ()
    answer: str | None = None


class StateCheck(Protocol):
    """One condition on the state."""

    async def met(self, state: FinalState) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """The last command printed these lines and nothing else; ``any_order``: in whatever order."""

    text: str
    any_order: bool = False

    async def met(self, state: FinalState) -> bool:
        return _same_lines(state.printed, self.text, any_order=self.any_order)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHolds:
    """A file with these lines; ``any_order``: in whatever order."""

    path: str
    text: str
    any_order: bool = False

    async def met(self, state: FinalState) -> bool:
        try:
            found = await state.sandbox.read(self.path, most=LARGEST)
        except OSError:
            return False
        return _same_lines(found.decode(errors="replace"), self.text, any_order=self.any_order)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holds:
    """A folder holds exactly these names; with none, it is there and empty."""

    path: str
    names: Sequence[str]

    async def met(self, state: FinalState) -> bool:
        try:
            names = await state.sandbox.names(self.path)
        except OSError:
            return False
        shown = {PurePosixPath(each).relative_to(self.path).parts[0] for each in state.shown if self._holds(each)}
        return sorted(set(names) - shown) == sorted(self.names)

    def _holds(self, path: str) -> bool:
        return path != self.path and PurePosixPath(path).is_relative_to(self.path)


def _same_lines(found: str, wanted: str, *, any_order: bool) -> bool:
    lines = [[line.strip() for line in text.strip().splitlines()] for text in (found, wanted)]
    mine, theirs = map(sorted, lines) if any_order else lines
    return mine == theirs


async def all_met(checks: Sequence[StateCheck], state: FinalState) -> bool:
    """Whether every condition is met; the first that is not ends it."""
    for check in checks:
        if not await check.met(state):
            return False
    return True


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
