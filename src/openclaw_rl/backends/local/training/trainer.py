"""The trainer on this machine: a port before a worker process of lower priority, so that serving keeps its pace."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Sequence
from functools import wraps
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

import anyio
import anyio.to_thread

from openclaw_rl.backends.local.training.messages import StepRequest, WorkerFailure
from openclaw_rl.backends.local.training.process import serve
from openclaw_rl.backends.local.training.settings import TrainerArgs
from openclaw_rl.errors import BackendDown, BackendError, ModelRefused
from openclaw_rl.ports import StepResult
from openclaw_rl.types import Sample, Version

log = logging.getLogger(__name__)

_GRACE = 5.0  # seconds a worker has to end before it is killed


class LocalTrainer:
    """LoRA or full fine-tuning of a Hugging Face model, as a `Trainer`.

    The worker starts with `start` or with the first step. When it dies, the step at hand raises BackendError with the
    end of its traceback and the next one starts a new worker: a step needs only its parent's directory.
    """

    def __init__(self, args: TrainerArgs) -> None:
        self.args = args
        self._process: SpawnProcess | None = None
        self._pipe: Connection | None = None
        self._lock = anyio.Lock()
        self.runner: str | None = None
        """how batches are computed; None before the worker has started"""

    @property
    def process_id(self) -> int | None:
        """The worker's, None while there is none."""
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Start the worker and load the model; raises ModelRefused with the memory plan when it cannot fit."""
        async with self._lock:
            await self._ensure()

    async def stop(self) -> None:
        """End the worker. Safe to call twice; a step in flight is broken off and leaves nothing behind."""
        process, pipe = self._process, self._pipe
        self._process = self._pipe = None
        if pipe is not None:
            pipe.close()
        if process is not None:
            await anyio.to_thread.run_sync(_end, process)

    async def step(self, samples: Sequence[Sample], *, number: int, parent: Version, target: str) -> StepResult:
        """One step from ``parent`` into ``target``; see `ports.Trainer`."""
        async with self._lock:
            pipe = await self._ensure()
            answer = await self._ask(
                pipe, StepRequest(samples=tuple(samples), number=number, parent=parent, target=target)
            )
            if not isinstance(answer, StepResult):
                raise BackendError(f"the training worker answered with {type(answer).__name__}")
            return answer

    async def _ensure(self) -> Connection:
        if self._pipe is not None and self._process is not None and self._process.is_alive():
            return self._pipe
        await self.stop()
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=serve, args=(theirs, self.args), daemon=True, name="openclaw-train")
        process.start()
        theirs.close()
        self._process, self._pipe = process, ours
        plan, note = await self._ask(ours, None)
        log.info("trainer ready: %s", plan)
        self.runner = "a packed prefix tree" if note is None else f"one sequence per turn: {note}"
        if note is not None:
            log.warning("the token tree is not used for %s: %s; one sequence per turn", self.args.model, note)
        return ours

    async def _ask(self, pipe: Connection, request: StepRequest | None) -> Any:
        """Send (nothing, to a worker that is starting) and wait; whatever goes wrong, no worker is left behind."""
        try:
            answer = await anyio.to_thread.run_sync(_exchange, pipe, request, abandon_on_cancel=True)
        except (EOFError, OSError) as error:
            code = await self._reap()
            raise BackendError(
                f"the training worker died (exit code {code}); the next step starts a new one"
            ) from error
        except BaseException:  # cancelled: its answer would be taken for that of the next request
            with anyio.CancelScope(shield=True):
                await self.stop()
            raise
        if isinstance(answer, WorkerFailure):
            await self._reap()
            kind = ModelRefused if answer.refused else BackendDown if answer.outside else BackendError
            raise kind(answer.what, remedy=answer.remedy)
        return answer

    async def _reap(self) -> int | None:
        process = self._process
        if process is not None:
            await anyio.to_thread.run_sync(process.join, _GRACE)
        code = process.exitcode if process is not None else None
        await self.stop()
        return code


@wraps(TrainerArgs, assigned=(), updated=())
def local_trainer(**settings: Any) -> LocalTrainer:
    """The trainer of ``train.backend = "local"``: called with the settings that `TrainerArgs` names."""
    return LocalTrainer(TrainerArgs(**settings))


def _exchange(pipe: Connection, request: StepRequest | None) -> Any:
    if request is not None:
        pipe.send(request)
    return pipe.recv()


def _end(process: SpawnProcess) -> None:
    process.terminate()
    process.join(_GRACE)
    if process.is_alive():
        process.kill()
        process.join()
    process.close()
