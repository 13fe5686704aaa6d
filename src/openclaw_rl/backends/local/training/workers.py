"""The worker processes of a trainer as one: they start, are asked and end together."""

from __future__ import annotations

import multiprocessing
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from openclaw_rl.backends.local.training.messages import RankPlace, StepRequest, WorkerFailure
from openclaw_rl.backends.local.training.process import serve
from openclaw_rl.backends.local.training.settings import TrainerArgs

_GRACE = 5.0
"""seconds a worker has to end before it is killed"""
_BLAME = 1.0
"""seconds in which a worker that has died is found, when another one complains of it first"""


class WorkersDied(Exception):
    """A worker has ended without a word."""


class Workers:
    """One worker for each of ``args.devices``, or a single one for ``args.device``. Blocking: call it from a thread."""

    def __init__(self, args: TrainerArgs) -> None:
        self._meeting = tempfile.mkdtemp(prefix="openclaw-ranks-")
        self._processes: list[SpawnProcess] = []
        self._pipes: list[Connection] = []
        for place in _places(len(args.devices), self._meeting):
            self._begin(args, place)

    def _begin(self, args: TrainerArgs, place: RankPlace | None) -> None:
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=serve, args=(theirs, args, place), daemon=True, name="openclaw-train")
        process.start()
        theirs.close()
        self._processes.append(process)
        self._pipes.append(ours)

    @property
    def process_ids(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self._processes if process.pid is not None)

    @property
    def alive(self) -> bool:
        """Whether all of them are."""
        return all(process.is_alive() for process in self._processes)

    def exchange(self, request: StepRequest | None) -> Any:
        """Send to all, nothing where they are starting; the first one's answer once all have answered, or a failure.

        Raises WorkersDied.
        """
        if request is not None:
            for pipe in self._pipes:
                with suppress(OSError):  # it has died: reading says so
                    pipe.send(request)
        answers: dict[int, Any] = {}
        while len(answers) < len(self._pipes):
            for rank, answer in self._heard(set(range(len(self._pipes))) - answers.keys()):
                if isinstance(answer, WorkerFailure):
                    return self._cause(rank, answer)
                answers[rank] = answer
        return answers[0]

    def _heard(self, ranks: set[int]) -> Iterator[tuple[int, Any]]:
        """Answers as soon as there are some."""
        ready = wait([self._pipes[rank] for rank in ranks])
        for rank in sorted(rank for rank in ranks if self._pipes[rank] in ready):
            try:
                yield rank, self._pipes[rank].recv()
            except (EOFError, OSError) as error:
                raise WorkersDied(self._died(rank)) from error

    def _cause(self, rank: int, failure: WorkerFailure) -> WorkerFailure:
        """A rank that loses another one complains of its connection: the one that died is the cause."""
        if failure.remedy is None and not failure.refused:
            others = [process.sentinel for at, process in enumerate(self._processes) if at != rank]
            for sentinel in wait(others, timeout=_BLAME) if others else ():
                at = next(at for at, process in enumerate(self._processes) if process.sentinel == sentinel)
                if self._silent(at):
                    raise WorkersDied(self._died(at))
        return failure

    def _silent(self, rank: int) -> bool:
        """Whether it ended without saying why."""
        try:
            return not self._pipes[rank].poll()
        except OSError:
            return True

    def _died(self, rank: int) -> str:
        process, count = self._processes[rank], len(self._processes)
        process.join(_GRACE)
        who = "the training worker" if count == 1 else f"rank {rank} of the {count} training workers"
        return f"{who} died (exit code {process.exitcode})"

    def end(self) -> None:
        """End all of them, and what they left on disk to find each other."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join(_GRACE)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        shutil.rmtree(self._meeting, ignore_errors=True)


def _places(count: int, folder: str) -> Iterator[RankPlace | None]:
    """None for a worker that is alone."""
    if count < 2:
        yield None
    else:
        for number in range(count):
            yield RankPlace(number=number, count=count, meeting=(Path(folder) / "meeting").as_uri())
