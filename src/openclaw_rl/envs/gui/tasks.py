"""Task sources for the gui environment, and a task during an episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from openclaw_rl.envs.curricula import TaskSet
from openclaw_rl.envs.gui.page import GuiPage
from openclaw_rl.envs.gui.screen import Screen


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One action in a solution."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskState:
    """A task's state: whether its page has ended it, and its current worth, from -1 to 1."""

    over: bool
    worth: float


class BegunTask(Protocol):
    """A task on an open page."""

    @property
    def instruction(self) -> str: ...

    @property
    def ignored(self) -> str:
        """Return a selector for elements to leave out of the screen; "" for none."""
        ...

    @property
    def steps(self) -> int:
        """Return the maximum number of replies."""
        ...

    async def state(self, page: GuiPage, answer: str | None) -> TaskState:
        """Return the task's state. ``answer`` is the agent's final answer, None before it."""
        ...

    def solve(self, screen: Screen, made: int) -> Move | None:
        """Return a scripted solution's next action after ``made`` actions; None if it has no more."""
        ...


class PageSource(TaskSet, Protocol):
    """A set of tasks on pages."""

    size: tuple[int, int]
    """the screen's width and height"""
    folders: tuple[Path, ...]
    """the folders with their pages"""
    origins: frozenset[str]
    """the origins of pages on a server"""
    forgetful: bool
    """True if its pages keep no state beyond themselves: no cookie, no storage, no background program"""

    def instruction(self, task: str) -> str:
        """Return the part of the instruction that is known before the page is open."""
        ...

    def examples(self, task: str, count: int) -> Sequence[str]:
        """Return similar tasks that are in no split, which a prompt may show solved."""
        ...

    def excluded(self) -> Mapping[str, str]:
        """Return the pages without tasks, with the reason."""
        ...

    def gold(self, task: str) -> Sequence[Move]:
        """Return a solution known before the page is open; empty if `BegunTask.solve` finds it."""
        ...

    async def begin(self, page: GuiPage, task: str) -> BegunTask:
        """Open a task's page."""
        ...
