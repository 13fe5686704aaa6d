"""The trainer on this machine: a port before worker processes of lower priority, so that serving keeps its pace."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import wraps
from typing import Any

import anyio
import anyio.to_thread

from openclaw_rl.backends.local.training.messages import StepRequest, WorkerFailure
from openclaw_rl.backends.local.training.settings import TrainerArgs
from openclaw_rl.backends.local.training.workers import Workers, WorkersDied
from openclaw_rl.errors import BackendDown, BackendError, ModelRefused
from openclaw_rl.ports import StepResult
from openclaw_rl.types import Sample, Version

log = logging.getLogger(__name__)


class LocalTrainer:
    """LoRA or full fine-tuning of a Hugging Face model, as a `Trainer`.

    The workers, one or one for each rank, start with `start` or with the first step. When one dies, all end; the step
    at hand raises BackendError with the end of its traceback and the next one starts new workers: a step needs only its
    parent's directory. Raises ConfigError for several nodes outside a cluster.
    """

    def __init__(self, args: TrainerArgs) -> None:
        if args.nodes > 1:
            from openclaw_rl.backends.local.training.nodes import ray_of_cluster

            ray_of_cluster(args.nodes)
        self.args = args
        self._workers: Workers | None = None
        self._lock = anyio.Lock()
        self.runner: str | None = None
        """how batches are computed; None before the workers have started"""

    @property
    def process_id(self) -> int | None:
        """The worker's, of several the first one's; None while there is none."""
        return next(iter(self.process_ids), None)

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Those of all workers, by rank."""
        return () if self._workers is None else self._workers.process_ids

    async def start(self) -> None:
        """Start the workers and load the model; raises ModelRefused with the memory plan when it cannot fit."""
        async with self._lock:
            await self._ensure()

    async def stop(self) -> None:
        """End the workers. Safe to call twice; a step in flight is broken off and leaves nothing behind."""
        workers, self._workers = self._workers, None
        if workers is not None:
            await anyio.to_thread.run_sync(workers.end)

    async def step(self, samples: Sequence[Sample], *, number: int, parent: Version, target: str) -> StepResult:
        """One step from ``parent`` into ``target``; see `ports.Trainer`."""
        async with self._lock:
            workers = await self._ensure()
            answer = await self._ask(
                workers, StepRequest(samples=tuple(samples), number=number, parent=parent, target=target)
            )
            if not isinstance(answer, StepResult):
                raise BackendError(f"the training worker answered with {type(answer).__name__}")
            return answer

    async def _ensure(self) -> Workers:
        if self._workers is not None and self._workers.alive:
            return self._workers
        await self.stop()
        self._workers = workers = Workers(self.args)
        plan, note = await self._ask(workers, None)
        ranks = len(workers.process_ids)
        log.info("trainer ready: %s%s", plan, f", on each of {ranks} ranks" if ranks > 1 else "")
        how = "a packed prefix tree" if note is None else f"one sequence per turn: {note}"
        self.runner = how if ranks == 1 else f"{how}, over {ranks} ranks"
        if note is not None:
            log.warning("the token tree is not used for %s: %s; one sequence per turn", self.args.model, note)
        return workers

    async def _ask(self, workers: Workers, request: StepRequest | None) -> Any:
        """Send (nothing, to workers that are starting) and wait; whatever goes wrong, no worker is left behind."""
        try:
            answer = await anyio.to_thread.run_sync(workers.exchange, request, abandon_on_cancel=True)
        except WorkersDied as error:
            await self.stop()
            raise BackendError(f"{error}; the next step starts a new one") from error
        except BaseException:  # cancelled: its answer would be taken for that of the next request
            with anyio.CancelScope(shield=True):
                await self.stop()
            raise
        if isinstance(answer, WorkerFailure):
            await self.stop()
            kind = ModelRefused if answer.refused else BackendDown if answer.outside else BackendError
            raise kind(answer.what, remedy=answer.remedy)
        return answer


@wraps(TrainerArgs, assigned=(), updated=())
def local_trainer(**settings: Any) -> LocalTrainer:
    """The trainer of ``train.backend = "local"``: called with the settings that `TrainerArgs` names."""
    return LocalTrainer(TrainerArgs(**settings))
