"""The trainer on this machine: a port before worker processes of lower priority, so that serving keeps its pace."""

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

# The worker processes of a trainer as one: they start, are asked and end together.

_GRACE = 5.0
"""seconds a worker has to end before it is killed"""
_BLAME = 1.0
"""seconds in which a worker that has died is found, when another one complains of it first"""
_LOOK = 5.0
"""seconds without an answer after which it is seen whether all workers are still there"""


class WorkersDied(Exception):
    """A worker has ended without a word."""


class WorkerHandle(Protocol):
    """A worker process, here or on another node: it reads requests from ``pipe`` and answers there."""

    pipe: Connection

    @property
    def process_id(self) -> int: ...

    @property
    def alive(self) -> bool: ...

    @property
    def fate(self) -> str:
        """How one that is no longer alive has ended."""
        ...


class WorkerGroup(Protocol):
    """Workers that have been started, one for each rank."""

    @property
    def workers(self) -> Sequence[WorkerHandle]:
        """Those that can be asked, in the order of their ranks."""
        ...

    def meet(self) -> None:
        """Wait until all of them can be asked."""
        ...

    def end(self) -> None:
        """End all of them, also while somebody waits for them."""
        ...


class Workers:
    """One worker for each of ``args.devices``, or a single one for ``args.device``. Blocking: call it from a thread."""

    def __init__(self, args: TrainerArgs) -> None:
        self._group = _group(args)

    @property
    def _workers(self) -> Sequence[WorkerHandle]:
        return self._group.workers

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Each on its own machine."""
        return tuple(worker.process_id for worker in self._workers)

    @property
    def alive(self) -> bool:
        """Whether all of them are."""
        return all(worker.alive for worker in self._workers)

    def exchange(self, request: StepRequest | None) -> Any:
        """Send to all, nothing where they are starting; the first one's answer once all have answered, or a failure.

        Raises WorkersDied, and BackendDown where some cannot start.
        """
        if request is None:
            self._group.meet()
        else:
            for worker in self._workers:
                with suppress(OSError):  # it has died: reading says so
                    worker.pipe.send(request)
        answers: dict[int, Any] = {}
        while len(answers) < len(self._workers):
            for rank, answer in self._heard(set(range(len(self._workers))) - answers.keys()):
                if isinstance(answer, WorkerFailure):
                    return self._cause(rank, answer)
                answers[rank] = answer
        return answers[0]

    def _heard(self, ranks: set[int], timeout: float = _LOOK) -> Iterator[tuple[int, Any]]:
        """Answers as soon as there are some; none where nobody has spoken in time. Raises WorkersDied."""
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
        """A rank that loses another one complains of its connection: the one that died is the cause."""
        if failure.remedy is None and not failure.refused:
            others = set(range(len(self._workers))) - {rank}
            until = time.monotonic() + _BLAME
            while others and (left := until - time.monotonic()) > 0:
                others -= {other for other, _ in self._heard(others, left)}
        return failure

    def _died(self, rank: int) -> str:
        count = len(self._workers)
        who = "the training worker" if count == 1 else f"rank {rank} of the {count} training workers"
        return f"{who} died ({self._workers[rank].fate})"

    def end(self) -> None:
        """End all of them, and what they left to find each other."""
        for worker in self._workers:
            worker.pipe.close()
        self._group.end()


def _group(args: TrainerArgs) -> WorkerGroup:
    if args.nodes == 1:
        return _Spawned(args)
    from openclaw_rl.backends.local.training.nodes import NodeWorkers

    return NodeWorkers(args)


class _SpawnedWorker:
    """A process of this machine."""

    def __init__(self, args: TrainerArgs, place: RankPlace | None) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        self.process = spawn.Process(target=serve, args=(theirs, args, place), daemon=True, name="openclaw-train")
        self.process.start()
        theirs.close()

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
    """The workers of this machine."""

    def __init__(self, args: TrainerArgs) -> None:
        self._meeting = tempfile.mkdtemp(prefix="openclaw-ranks-")
        self.workers = [_SpawnedWorker(args, place) for place in _places(len(args.devices), self._meeting)]

    def meet(self) -> None:
        """They can be asked as soon as they are started."""

    def end(self) -> None:
        """Also what they left on disk to find each other."""
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
    """None for a worker that is alone."""
    if count < 2:
        yield None
    else:
        for number in range(count):
            yield RankPlace(number=number, count=count, meeting=(Path(folder) / "meeting").as_uri())


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
