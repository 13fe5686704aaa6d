"""What a terminal task is checked by: the sandbox's files and what its last command printed, never the reply's text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from openclaw_rl.envs.sandbox import Sandbox

LARGEST = 1 << 20
"""bytes of a file that are compared"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalState:
    """What there is to look at: the sandbox, and what the last command printed there."""

    sandbox: Sandbox
    printed: str


class StateCheck(Protocol):
    """One condition on the state."""

    async def met(self, state: FinalState) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """The last command printed these lines and nothing else; ``any_order``: in whatever order."""

    text: str
    any_order: bool = False

    async def met(self, state: FinalState) -> bool:
        found, wanted = (_lines(text) for text in (state.printed, self.text))
        return sorted(found) == sorted(wanted) if self.any_order else found == wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHolds:
    """A file with these lines."""

    path: str
    text: str

    async def met(self, state: FinalState) -> bool:
        try:
            found = await state.sandbox.read(self.path, most=LARGEST)
        except OSError:
            return False
        return _lines(found.decode(errors="replace")) == _lines(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holds:
    """A folder holds exactly these names; with none, it is there and empty."""

    path: str
    names: Sequence[str]

    async def met(self, state: FinalState) -> bool:
        done = await state.sandbox.run(["find", self.path, "-mindepth", "1", "-maxdepth", "1", "-printf", "%f\\n"])
        folder = await state.sandbox.run(["test", "-d", self.path])
        return folder.ok and done.ok and sorted(done.output.split()) == sorted(self.names)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


async def all_met(checks: Sequence[StateCheck], state: FinalState) -> bool:
    """Whether every condition is met; the first that is not ends it."""
    for check in checks:
        if not await check.met(state):
            return False
    return True
