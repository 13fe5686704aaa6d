"""An environment with fixed rewards, and an API client without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from openclaw_rl.ports import Observation, TurnReply
from openclaw_rl.types import Message, Prompt, Tool


class FakeEnv:
    """An `Env` that pays ``rewards``, one per step, and is done after the last; tasks in ``fails`` raise in `step`.

    >>> import asyncio
    >>> from openclaw_rl.testing import make_message
    >>> async def episode():
    ...     env = FakeEnv(rewards=(None, 1.0))
    ...     await env.reset("a", seed=5)
    ...     return [await env.step(make_message("assistant", reply)) for reply in ("knock", "knock")]
    >>> [(seen.messages[0].content, seen.reward, seen.done) for seen in asyncio.run(episode())]
    [('1 left after knock', None, False), ('0 left after knock', 1.0, True)]
    """

    name = "fake"

    def __init__(self, *, rewards: Sequence[float | None] = (1.0, 1.0), fails: Sequence[str] = ()) -> None:
        self.rewards = tuple(rewards)
        self.fails = fails
        self.task = ""
        self.steps = 0
        self.closed = 0
        """number of `close` calls"""

    def tasks(self) -> Sequence[str]:
        return ("a", "b")

    async def reset(self, task: str, *, seed: int) -> Prompt:
        self.task, self.steps = task, 0
        message = Message(role="user", content=f"{task} from {len(self.rewards)} with {seed}")
        return Prompt(messages=(message,), tools=(Tool(name="t"),))

    async def step(self, reply: Message) -> Observation:
        if self.task in self.fails:
            raise RuntimeError(f"the floor gave way under {self.task}")
        reward = self.rewards[self.steps]
        self.steps += 1
        remaining = len(self.rewards) - self.steps
        message = Message(role="user", content=f"{remaining} left after {reply.content}")
        return Observation(messages=(message,), reward=reward, done=remaining == 0)

    async def close(self) -> None:
        self.closed += 1


class FakeChatClient:
    """A `ChatClient` that replies ``r1``, ``r2`` ... or the same ``reply`` each time, and records all requests.

    ``gate`` delays every reply until it is set; ``full`` is set when ``seats`` requests have arrived.

    >>> import asyncio
    >>> from openclaw_rl.testing import make_prompt
    >>> asyncio.run(FakeChatClient().ask(make_prompt("hello"), session="s")).message.content
    'r1'
    """

    def __init__(self, *, reply: str | None = None, gate: asyncio.Event | None = None, seats: int = 0) -> None:
        self.requests: list[tuple[Prompt, str, str | None]] = []
        """prompt, session, group"""
        self.scores: list[tuple[str, float | None]] = []
        """turn, score"""
        self.rewards: list[tuple[str, float | str | None]] = []
        """session, score or the reason for its failure"""
        self.ended: list[str] = []
        """sessions"""
        self.full = asyncio.Event()
        self._reply, self._gate, self._seats = reply, gate, seats

    async def ask(self, prompt: Prompt, *, session: str, group: str | None = None, done: bool = False) -> TurnReply:
        self.requests.append((prompt, session, group))
        number = len(self.requests)
        if number == self._seats:
            self.full.set()
        if self._gate is not None:
            await self._gate.wait()
        message = Message(role="assistant", content=self._reply or f"r{number}")
        return TurnReply(turn=f"t{number}", message=message, version=3)

    async def feedback(self, turn: str, *, score: float | None = None, hint: str | None = None) -> None:
        self.scores.append((turn, score))

    async def reward(self, session: str, *, score: float | None = None, failed: str | None = None) -> None:
        self.rewards.append((session, failed if score is None else score))

    async def end(self, session: str) -> None:
        self.ended.append(session)
