"""One GPU for two: the engine sleeps while a step is trained, and the trainer gives its memory back after it."""

from __future__ import annotations

from collections.abc import Sequence

from openclaw_rl.app.factories import build_trainer
from openclaw_rl.config import Config
from openclaw_rl.errors import ConfigError
from openclaw_rl.ports import Policy, ReportsRunner, StepResult, SupportsSleep, Trainer
from openclaw_rl.types import Sample, Version


class TurnTakingTrainer:
    """A `Trainer` that runs while the policy sleeps. It starts with each step and ends with it: what it would keep in
    memory is the engine's between steps."""

    def __init__(self, trainer: Trainer, policy: SupportsSleep) -> None:
        self._trainer, self._policy = trainer, policy

    @property
    def runner(self) -> str | None:
        """How batches are computed, and when."""
        found = self._trainer.runner if isinstance(self._trainer, ReportsRunner) else None
        return f"{found}, in turns with the engine" if found else None

    async def start(self) -> None:
        """Nothing: the engine has the GPU."""

    async def stop(self) -> None:
        """Give everything back. Safe to call twice."""
        await self._trainer.stop()

    async def step(self, samples: Sequence[Sample], *, number: int, parent: Version, target: str) -> StepResult:
        """One step; requests that come meanwhile wait for its end."""
        async with self._policy.asleep():
            try:
                return await self._trainer.step(samples, number=number, parent=parent, target=target)
            finally:
                await self._trainer.stop()


def trainer_of(config: Config, policy: Policy | None) -> Trainer:
    """The trainer of a process; ``policy`` is the one that it serves, if it does."""
    trainer = build_trainer(config)
    if not config.gpus.turns:
        return trainer
    if not isinstance(policy, SupportsSleep):
        raise ConfigError(
            "gpus.turns is on, but this process does not serve: nobody would hold requests while the engine sleeps",
            remedy="serve and train in one process, with 'openclaw-rl up', or take gpus.turns out",
        )
    return TurnTakingTrainer(trainer, policy)
