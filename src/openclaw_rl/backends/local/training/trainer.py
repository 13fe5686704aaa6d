"""The trainer on this machine: a port over worker processes of lower priority, so that serving keeps its speed."""

from __future__ import annotations

import logging
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import wraps
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol

import anyio
import anyio.to_thread

from openclaw_rl.backends.local.training.nodes import serve
from openclaw_rl.backends.local.training.settings import RankPlace, StepRequest, TrainerArgs, WorkerFailure
from openclaw_rl.errors import BackendDown, BackendError, ModelRefused
from openclaw_rl.ports import StepResult
from openclaw_rl.types import Sample, Version

# A trainer's worker processes as a unit: they start, answer and end together.

_GRACE = 5.0
"""seconds that a worker gets to end before it is killed"""
_BLAME = 1.0
"""seconds for detecting a dead worker after another one reports a failure"""
_LOOK = 5.0
"""seconds without an answer before the workers are checked"""


class WorkersDied(Exception):
    """A worker ended without an answer."""


class WorkerHandle(Protocol):
    """A worker process, here or on another node: it reads requests from ``pipe`` and answers there."""

    pipe: Connection

    @property
    def process_id(self) -> int: ...

    @property
    def alive(self) -> bool: ...

    @property
    def fate(self) -> str:
        """The way in which a dead worker ended."""
        ...


class WorkerGroup(Protocol):
    """Started workers, one per rank."""

    @property
    def workers(self) -> Sequence[WorkerHandle]:
        """Workers that are ready for requests, by rank."""
        ...

    def meet(self) -> None:
        """Wait until all workers are ready for requests."""
        ...

    def end(self) -> None:
        """End all workers, even during a request."""
        ...


class Workers:
    """One worker per entry in ``args.devices``, or a single one for ``args.device``. Blocking: call from a thread."""

    def __init__(self, args: TrainerArgs) -> None:
        self._group = _group(args)

    @property
    def _workers(self) -> Sequence[WorkerHandle]:
        return self._group.workers

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Each worker's process id on its own machine."""
        return tuple(worker.process_id for worker in self._workers)

    @property
    def alive(self) -> bool:
        """True if all workers are alive."""
        return all(worker.alive for worker in self._workers)

    def exchange(self, request: StepRequest | None) -> Any:
        """Send a request to all workers, or None while they start; return rank 0's answer once all have answered, or a
        failure.

        Raise `WorkersDied`, and `BackendDown` if a worker cannot start.
        """
        if request is None:
            self._group.meet()
        else:
            for worker in self._workers:
                with suppress(OSError):  # a dead worker: reading reports it
                    worker.pipe.send(request)
        answers: dict[int, Any] = {}
        while len(answers) < len(self._workers):
            for rank, answer in self._heard(set(range(len(self._workers))) - answers.keys()):
                if isinstance(answer, WorkerFailure):
                    return self._cause(rank, answer)
                answers[rank] = answer
        return answers[0]

    def _heard(self, ranks: set[int], timeout: float = _LOOK) -> Iterator[tuple[int, Any]]:
        """Yield answers as they arrive, nothing after the timeout; raise `WorkersDied` if a worker ended."""
        ready = wait([self._workers[rank].pipe for rank in ranks], timeout)
        for rank in sorted(rank for rank in ranks if self._workers[rank].pipe in ready):
            try:
                yield rank, self._workers[rank].pipe.recv()
            except (EOFError, OSError) as error:
                raise WorkersDied(self._died(rank)) from error
        if not ready:
            for rank in sorted(ranks):
                if not self._workers[rank].alive and not self._workers[rank].pipe.poll():
                    raise WorkersDied(self._died(rank))

    def _cause(self, rank: int, failure: WorkerFailure) -> WorkerFailure:
        """Check the other ranks for a death first: a rank that loses another one reports only its broken connection."""
        if failure.remedy is None and not failure.refused:
            pending = set(range(len(self._workers))) - {rank}
            until = time.monotonic() + _BLAME
            while pending and (remaining := until - time.monotonic()) > 0:
                pending -= {answered for answered, _ in self._heard(pending, remaining)}
        return failure

    def _died(self, rank: int) -> str:
        count = len(self._workers)
        who = "the training worker" if count == 1 else f"rank {rank} of the {count} training workers"
        return f"{who} died ({self._workers[rank].fate})"

    def end(self) -> None:
        """End all workers, and remove their rendezvous files."""
        for worker in self._workers:
            worker.pipe.close()
        self._group.end()


def _group(args: TrainerArgs) -> WorkerGroup:
    if args.nodes == 1:
        return _Spawned(args)
    from openclaw_rl.backends.local.training.nodes import NodeWorkers

    return NodeWorkers(args)


class _SpawnedWorker:
    """A process on this machine."""

    def __init__(self, args: TrainerArgs, place: RankPlace | None) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, child_pipe = spawn.Pipe()
        self.process = spawn.Process(target=serve, args=(child_pipe, args, place), daemon=True, name="openclaw-train")
        self.process.start()
        child_pipe.close()

    @property
    def process_id(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.is_alive()

    @property
    def fate(self) -> str:
        self.process.join(_GRACE)
        return f"exit code {self.process.exitcode}"


class _Spawned:
    """This machine's workers."""

    def __init__(self, args: TrainerArgs) -> None:
        self._meeting = tempfile.mkdtemp(prefix="openclaw-ranks-")
        self.workers = [_SpawnedWorker(args, place) for place in _places(len(args.devices), self._meeting)]

    def meet(self) -> None:
        """Return at once: started workers can read requests."""

    def end(self) -> None:
        """End all workers, and remove their rendezvous folder."""
        for worker in self.workers:
            worker.process.terminate()
        for worker in self.workers:
            worker.process.join(_GRACE)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.process.close()
        shutil.rmtree(self._meeting, ignore_errors=True)


def _places(count: int, folder: str) -> Iterator[RankPlace | None]:
    """Yield each rank's place; None for a single worker."""
    if count < 2:
        yield None
    else:
        for number in range(count):
            yield RankPlace(number=number, count=count, meeting=(Path(folder) / "meeting").as_uri())


log = logging.getLogger(__name__)


class LocalTrainer:
    """LoRA or full fine-tuning of a Hugging Face model, as a `Trainer`.

    The workers, one or one per rank, start with `start` or with the first step. If one dies, all end; the current step
    raises `BackendError` with the end of its traceback, and the next step starts new workers: a step needs only its
    parent's directory. Raises `ConfigError` for several nodes outside a cluster.
    """

    def __init__(self, args: TrainerArgs) -> None:
        if args.nodes > 1:
            from openclaw_rl.backends.local.training.nodes import ray_of_cluster

            ray_of_cluster(args.nodes)
        self.args = args
        self._workers: Workers | None = None
        self._lock = anyio.Lock()
        self.runner: str | None = None
        """the batch computation's description; None before the workers have started"""

    @property
    def process_id(self) -> int | None:
        """The worker's process id, or rank 0's; None without workers."""
        return next(iter(self.process_ids), None)

    @property
    def process_ids(self) -> tuple[int, ...]:
        """All workers' process ids, by rank."""
        return () if self._workers is None else self._workers.process_ids

    async def start(self) -> None:
        """Start the workers and load the model; raise `ModelRefused` with the memory plan if it cannot fit."""
        async with self._lock:
            await self._ensure()

    async def stop(self) -> None:
        """End the workers. Safe to call twice; a step in flight is aborted and leaves nothing behind."""
        workers, self._workers = self._workers, None
        if workers is not None:
            await anyio.to_thread.run_sync(workers.end)

    async def step(self, samples: Sequence[Sample], *, number: int, parent: Version, target: str) -> StepResult:
        """Run one step from ``parent`` into ``target``; see `ports.Trainer`."""
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
        """Send a request (None to starting workers) and wait for the answer; on any failure, end all workers."""
        try:
            answer = await anyio.to_thread.run_sync(workers.exchange, request, abandon_on_cancel=True)
        except WorkersDied as error:
            await self.stop()
            raise BackendError(f"{error}; the next step starts a new one") from error
        except BaseException:  # cancelled: its answer would be taken for the next request's
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
    """Build the trainer of ``train.backend = "local"`` from the settings that `TrainerArgs` declares."""
    return LocalTrainer(TrainerArgs(**settings))
