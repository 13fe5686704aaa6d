"""A policy that takes a rule to heart once it is trained on it or told it: it ends its replies as asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from openclaw_rl.backends.fake import FakePolicy, FakeTrainer
from openclaw_rl.errors import BackendError, ModelRefused
from openclaw_rl.ports import StepResult
from openclaw_rl.types import Prompt, Sample, Version, texts

BACKEND = f"{Path(__file__)}:Learner"
BROKEN = f"{Path(__file__)}:Broken"
FAILING = f"{Path(__file__)}:Failing"


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


class Failing(FakeTrainer):
    async def step(self, samples: Sequence[Sample], *, number: int, parent: Version, target: str) -> StepResult:
        raise BackendError("out of memory")
