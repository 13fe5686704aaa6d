"""What a terminal task is checked by: the sandbox's files and what its last command printed, never the reply's text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol

from openclaw_rl.envs.sandbox import Sandbox

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
