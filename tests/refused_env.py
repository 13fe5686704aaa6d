"""An environment none of whose tasks is worth training on: its gold solution fails."""

from __future__ import annotations

from collections.abc import Sequence

from openclaw_rl.ports import Observation
from openclaw_rl.testing import FakeEnv
from openclaw_rl.types import Message


class Refused(FakeEnv):
    name = "refused"

    def tasks(self) -> Sequence[str]:
        return ("one", "two")

    def held_out(self) -> Sequence[str]:
        return ()

    def level(self, task: str) -> str:
        return task

    def instruction(self, task: str) -> str:
        return task

    def gold(self, task: str) -> Sequence[Message]:
        return (Message(role="assistant", content=task),)

    async def step(self, reply: Message) -> Observation:
        return Observation(messages=(), reward=0.0, done=True)
