"""Where the tasks of the gui environment come from, and what one is while it is played."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from openclaw_rl.envs.gui.page import GuiPage
from openclaw_rl.envs.gui.screen import Screen
from openclaw_rl.envs.ladders import TaskSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One action of a solution."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskState:
    """How a task stands: whether its page has ended it, and what it is worth now, from -1 to 1."""

    over: bool
    worth: float


class BegunTask(Protocol):
    """A task on an open page."""

    @property
    def instruction(self) -> str: ...

    @property
    def ignored(self) -> str:
        """A selector of what is no part of the screen; "" for nothing."""
        ...

    @property
    def steps(self) -> int:
        """Most replies."""
        ...

    async def state(self, page: GuiPage, answer: str | None) -> TaskState:
        """How it stands. ``answer`` is what the agent said at the end, None before."""
        ...

    def solve(self, screen: Screen, made: int) -> Move | None:
        """The next action of a scripted solution after so many; None where it has no more."""
        ...


class PageSource(TaskSet, Protocol):
    """A set of tasks on pages."""

    size: tuple[int, int]
    """width and height of the screen"""
    folders: tuple[Path, ...]
    """folders with their pages"""
    origins: frozenset[str]
    """origins of pages that have an address"""
    forgetful: bool
    """whether its pages keep nothing beyond themselves: no cookie, no storage, no program that goes on"""

    def instruction(self, task: str) -> str:
        """What is known of it before its page is open."""
        ...

    def examples(self, task: str, count: int) -> Sequence[str]:
        """Tasks of the same kind that are in no split: what a prompt may show solved."""
        ...

    def excluded(self) -> Mapping[str, str]:
        """Pages that give no task, with the reason."""
        ...

    def gold(self, task: str) -> Sequence[Move]:
        """A solution that is known before the page is open; empty where `BegunTask.solve` finds it."""
        ...

    async def begin(self, page: GuiPage, task: str) -> BegunTask:
        """Open the page of a task."""
        ...
