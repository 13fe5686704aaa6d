"""What an environment offers an agent program: a task in a sandbox, and what the files are worth when it has ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from openclaw_rl.envs.sandbox import Sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTask:
    """A task begun: what the program is told, the sandbox with the task's files, and the folder to work in.

    The sandbox belongs to the environment, which closes it.
    """

    instruction: str
    sandbox: Sandbox
    cwd: str


@runtime_checkable
class SupportsAgents(Protocol):
    """An environment whose tasks a program can do by itself: all that counts is in the sandbox when it has ended."""

    async def hand_over(self, task: str, *, seed: int) -> AgentTask:
        """Begin ``task`` for a program, in place of `reset`. Raises TaskRefused for one that files cannot decide."""
        ...

    async def outcome(self) -> float:
        """What the state is worth, in -1 .. 1."""
        ...
