"""Environments, and how their rollouts talk to the policy."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from openclaw_rl.types import Message, Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What an environment returns after a reply: the next messages, a reward in -1 .. 1 or None, whether it is over.

    The reward of the last step (``done``) is the outcome of the whole episode and reaches every step of it; one before
    that is the step's own, and counts there as a judge's vote does; so does ``vote``, which the last step may have too.
    """

    messages: tuple[Message, ...]
    reward: float | None = None
    done: bool = False
    info: Mapping[str, Any] | None = None
    vote: float | None = None


@runtime_checkable
class Env(Protocol):
    """An environment: a client whose reply is the next state. One object plays one episode at a time.

    What goes wrong for a reason that is not the policy's (the sandbox, the network, a task that is broken) is raised,
    best as EnvFailed: such an episode is in no statistic and never trains. What the policy did wrong is an observation.
    """

    name: str

    def tasks(self) -> Sequence[str]:
        """The ids of its tasks."""
        ...

    async def reset(self, task: str, *, seed: int) -> Prompt:
        """Begin ``task``: the first prompt, tools included. The same task and seed begin the same way."""
        ...

    async def step(self, reply: Message) -> Observation:
        """Act on the policy's reply. Called once for each reply, never again for the same one."""
        ...

    async def close(self) -> None:
        """End it and clean up. Safe to call twice."""
        ...


@runtime_checkable
class SupportsOutcome(Protocol):
    """An environment that can say what the state is worth before it is over."""

    async def outcome(self) -> float:
        """The outcome, in -1 .. 1, if it ended now. Asked once, when an episode has used up its steps."""
        ...


@runtime_checkable
class SupportsTaskSets(Protocol):
    """An environment whose tasks can be audited, and some of which are kept for evaluation alone."""

    def held_out(self) -> Sequence[str]:
        """The ids of the tasks that never train; none of them is among `tasks`."""
        ...

    def rung(self, task: str) -> str:
        """The group of tasks, of about one difficulty, that this one is counted with."""
        ...

    def instruction(self, task: str) -> str:
        """What the task asks."""
        ...

    def gold(self, task: str) -> Sequence[Message]:
        """Replies that solve it."""
        ...


@runtime_checkable
class SupportsSolution(Protocol):
    """An environment whose tasks show how they are solved only while they are played."""

    async def solution(self) -> Message | None:
        """The next reply of a solution, in the state that the episode is in; None where there is none."""
        ...


@runtime_checkable
class SupportsExclusions(Protocol):
    """An environment that leaves out some of what its source holds."""

    def excluded(self) -> Mapping[str, str]:
        """What gives no task, with the reason."""
        ...


AGENT_HOME = "/home/agent"
"""the home of an agent program in its sandbox: what it keeps there is no part of a task"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCommand:
    """How an agent program is started on a task: its words, its environment, and its files by path below its home."""

    words: tuple[str, ...]
    env: Mapping[str, str]
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnReply:
    """What an API client gets back: the message and the id of the turn behind it."""

    turn: str
    message: Message
    version: int


class ChatClient(Protocol):
    """The public API as a client sees it: how rollouts talk to the policy."""

    async def ask(self, prompt: Prompt, *, session: str, group: str | None = None, done: bool = False) -> TurnReply: ...

    async def feedback(self, turn: str, *, score: float | None = None, hint: str | None = None) -> None: ...

    async def reward(self, session: str, *, score: float | None = None, failed: str | None = None) -> None: ...


class Rollout(Protocol):
    """Runs one episode of a task: ``async (env, chat, *, task, seed, group, max_steps) -> total reward``."""

    def __call__(
        self, env: Env, chat: ChatClient, *, task: str, seed: int, group: str | None, max_steps: int
    ) -> Awaitable[float]: ...
