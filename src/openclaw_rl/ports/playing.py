"""Environments, and how their rollouts talk to the policy."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from openclaw_rl.types import Message, Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What an environment returns after a reply: the next messages, a reward in -1 .. 1 or None, whether it is over."""

    messages: tuple[Message, ...]
    reward: float | None = None
    done: bool = False
    info: Mapping[str, Any] | None = None


@runtime_checkable
class Env(Protocol):
    """An environment: a client whose reply is the next state."""

    name: str

    def tasks(self) -> Sequence[str]:
        """The ids of its tasks."""
        ...

    async def reset(self, task: str, *, seed: int) -> Prompt:
        """Begin ``task``: the first prompt, tools included."""
        ...

    async def step(self, reply: Message) -> Observation:
        """Act on the policy's reply."""
        ...

    async def close(self) -> None:
        """End it and clean up. Safe to call twice."""
        ...


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


class Rollout(Protocol):
    """Runs one episode of a task: ``async (env, chat, *, task, seed, group, max_steps) -> total reward``."""

    def __call__(
        self, env: Env, chat: ChatClient, *, task: str, seed: int, group: str | None, max_steps: int
    ) -> Awaitable[float]: ...
