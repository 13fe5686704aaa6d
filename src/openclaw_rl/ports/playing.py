"""Environments, and the client through which their rollouts call the policy."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from openclaw_rl.types import Message, Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """An environment's response to a reply: the next messages, a reward in -1 .. 1 or None, and whether it is over.

    The last step's reward (``done``) is the whole episode's outcome and reaches every step in it. An earlier reward is
    that step's own, and counts there like a judge's vote; so does ``vote``, which the last step may have too.
    """

    messages: tuple[Message, ...]
    reward: float | None = None
    done: bool = False
    info: Mapping[str, Any] | None = None
    vote: float | None = None


@runtime_checkable
class Env(Protocol):
    """An environment: a client whose reply is the next state. One object plays one episode at a time.

    A failure for a reason that is not the policy's (the sandbox, the network, a broken task) is raised, preferably as
    EnvFailed: such an episode enters no statistics and never trains. A mistake by the policy is an observation.
    """

    name: str

    def tasks(self) -> Sequence[str]:
        """Return the ids of its tasks."""
        ...

    async def reset(self, task: str, *, seed: int) -> Prompt:
        """Begin ``task``: return the first prompt, tools included. The same task and seed begin the same way."""
        ...

    async def step(self, reply: Message) -> Observation:
        """Act on the policy's reply. Called once for each reply, never again for the same one."""
        ...

    async def close(self) -> None:
        """End the episode and clean up. Safe to call twice."""
        ...


@runtime_checkable
class SupportsOutcome(Protocol):
    """An environment that can value its state before the episode is over."""

    async def outcome(self) -> float:
        """Return the outcome, in -1 .. 1, as if it ended now. Called once, when an episode has used up its steps."""
        ...


@runtime_checkable
class SupportsTaskSets(Protocol):
    """An environment with tasks that can be audited, some of them reserved for evaluation."""

    def held_out(self) -> Sequence[str]:
        """Return the ids of the tasks that never train; none of them is among `tasks`."""
        ...

    def level(self, task: str) -> str:
        """Return the task's level: a group of tasks with about the same difficulty, which are counted together."""
        ...

    def instruction(self, task: str) -> str:
        """Return the task's instruction."""
        ...

    def gold(self, task: str) -> Sequence[Message]:
        """Return replies that solve the task."""
        ...


@runtime_checkable
class SupportsSolution(Protocol):
    """An environment whose tasks reveal their solution only while they are played."""

    async def solution(self) -> Message | None:
        """Return the next reply of a solution in the episode's present state; None without one."""
        ...


@runtime_checkable
class SupportsExclusions(Protocol):
    """An environment that leaves out parts of its source."""

    def excluded(self) -> Mapping[str, str]:
        """Return the source's entries that give no task, each with the reason."""
        ...


AGENT_HOME = "/home/agent"
"""an agent program's home in its sandbox: its files there are no part of a task"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCommand:
    """The command that starts an agent program on a task: its words, environment and files by path below its home."""

    words: tuple[str, ...]
    env: Mapping[str, str]
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnReply:
    """An API client's view of a reply: the message, its turn's id, and the version."""

    turn: str
    message: Message
    version: int


class ChatClient(Protocol):
    """The public API from a client's side: the calls through which rollouts reach the policy."""

    async def ask(self, prompt: Prompt, *, session: str, group: str | None = None, done: bool = False) -> TurnReply: ...

    async def feedback(self, turn: str, *, score: float | None = None, hint: str | None = None) -> None: ...

    async def reward(self, session: str, *, score: float | None = None, failed: str | None = None) -> None: ...


class Rollout(Protocol):
    """Runs one episode of a task: ``async (env, chat, *, task, seed, group, max_steps) -> total reward``."""

    def __call__(
        self, env: Env, chat: ChatClient, *, task: str, seed: int, group: str | None, max_steps: int
    ) -> Awaitable[float]: ...
