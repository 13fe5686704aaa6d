"""A policy that takes a rule to heart once it is trained on it or told it: it ends its replies as asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from openclaw_rl.backends.fake import FakePolicy
from openclaw_rl.errors import ModelRefused
from openclaw_rl.types import Prompt, texts

BACKEND = f"{Path(__file__)}:Learner"
BROKEN = f"{Path(__file__)}:Broken"


def answer(prompt: Prompt, rules: Sequence[str]) -> str:
    said = texts(prompt.messages, "user")
    told = any("Hope that helps" in one for one in (*rules, *said))
    return f"{said[0][:40].rstrip('?')}: yes." + (" Hope that helps!" if told else "")


class Learner(FakePolicy):
    def __init__(self) -> None:
        super().__init__(answer=answer)


class Broken(Learner):
    async def start(self) -> None:
        raise ModelRefused("it needs 64 GiB")
