"""The worker processes of a trainer as one: they start, are asked and end together."""

from __future__ import annotations

import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol

from openclaw_rl.backends.local.training.messages import RankPlace, StepRequest, WorkerFailure
from openclaw_rl.backends.local.training.process import serve
from openclaw_rl.backends.local.training.settings import TrainerArgs

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
