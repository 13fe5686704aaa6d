"""Client of a classifier process: starts it, sends requests, and restarts it after its end."""

from __future__ import annotations

import logging
import multiprocessing
import signal
from collections.abc import Callable
from functools import wraps
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

import anyio
import anyio.to_thread

from openclaw_rl.backends.local.classifier.messages import ClassifierArgs, ClassifierReady, ClassifyRequest
from openclaw_rl.backends.local.engine.messages import EngineFailure, LoadProgress
from openclaw_rl.errors import BackendDown
from openclaw_rl.machine import end_with_parent, show_name
from openclaw_rl.ports import ClassifierOpinion

# The classifier process: loads its model, then answers one request at a time.


def serve(pipe: Connection, args: ClassifierArgs) -> None:
    """Send progress, then the facts, then an answer per request; a failure to load is sent and ends the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles an interrupt at the terminal
    end_with_parent()
    show_name()
    try:
        from openclaw_rl.backends.local.classifier.model import ClassifierModel

        model = ClassifierModel(args, lambda text: pipe.send(LoadProgress(text)))
    except Exception as error:  # report any failure to the parent; the process cannot continue
        pipe.send(EngineFailure.of(None, error))
        return
    pipe.send(model.facts)
    while True:
        try:
            request = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(model.classify(request))
        except Exception as error:  # one exchange's failure is its own: the model continues
            pipe.send(EngineFailure.of(0, error))


log = logging.getLogger(__name__)

_GRACE = 5.0  # seconds that a process gets to end before it is killed


class LocalClassifier:
    """A `Classifier` on this machine. The process starts with `start`, and restarts with the first request after its
    end."""

    def __init__(self, args: ClassifierArgs, *, progress: Callable[[str], None] | None = None) -> None:
        self.name = args.model
        self._args = args
        self._progress = progress or (lambda text: log.info("classifier.progress %s", text))
        self._facts: ClassifierReady | None = None
        self._process: SpawnProcess | None = None
        self._pipe: Connection | None = None
        self._lock = anyio.Lock()

    @property
    def health(self) -> dict[str, Any]:
        """The process's state, and its weights' memory."""
        alive = self._process is not None and self._process.is_alive()
        facts = self._facts
        return {
            "state": "stopped" if self._process is None else "ready" if alive and facts else "starting",
            "pid": self._process.pid if self._process is not None and alive else None,
            "device": facts.device if facts else None,
            "memory": facts.memory if facts else None,
        }

    async def start(self) -> None:
        """Load the model; raise `ModelRefused` with the remedy."""
        async with self._lock:
            await self._ensure()

    async def stop(self) -> None:
        """End the process. Safe to call twice."""
        process, pipe = self._process, self._pipe
        self._process = self._pipe = None
        if pipe is not None:
            pipe.close()
        if process is not None:
            await anyio.to_thread.run_sync(_end, process)

    async def classify(self, *, request: str, reply: str, after: str) -> ClassifierOpinion:
        """Classify one exchange; raise `BackendDown` if the process ends, `BackendError` if the model fails."""
        async with self._lock:
            pipe = await self._ensure()
            answer = await self._exchange(pipe, ClassifyRequest(request=request, reply=reply, after=after))
            if isinstance(answer, EngineFailure):
                raise answer.error()
            assert isinstance(answer, ClassifierOpinion)
            return answer

    async def _ensure(self) -> Connection:
        if self._pipe is not None and self._process is not None and self._process.is_alive():
            return self._pipe
        await self.stop()
        spawn = multiprocessing.get_context("spawn")
        pipe, child_pipe = spawn.Pipe()
        process = spawn.Process(target=serve, args=(child_pipe, self._args), daemon=True, name="openclaw-judge")
        process.start()
        child_pipe.close()
        self._process, self._pipe = process, pipe
        answer = await self._exchange(pipe, None)
        while isinstance(answer, LoadProgress):
            self._progress(answer.text)
            answer = await self._exchange(pipe, None)
        if isinstance(answer, EngineFailure):
            await self.stop()
            raise answer.error()
        assert isinstance(answer, ClassifierReady)
        self._facts, self.name = answer, answer.name
        return pipe

    async def _exchange(self, pipe: Connection, request: ClassifyRequest | None) -> Any:
        """Send a request (None to a starting process) and wait for the answer; on any failure, end the process."""
        try:
            return await anyio.to_thread.run_sync(_ask, pipe, request, abandon_on_cancel=True)
        except (EOFError, OSError) as error:
            code = await self._exit_code()
            await self.stop()
            raise BackendDown(f"the classifier's process died (exit code {code})") from error
        except BaseException:  # cancelled: its answer would be taken for the next request's
            with anyio.CancelScope(shield=True):
                await self.stop()
            raise

    async def _exit_code(self) -> int | None:
        process = self._process
        if process is None:
            return None
        await anyio.to_thread.run_sync(process.join, _GRACE)
        return process.exitcode


def _ask(pipe: Connection, request: ClassifyRequest | None) -> Any:
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


@wraps(ClassifierArgs, assigned=(), updated=())
def local_classifier(**settings: Any) -> LocalClassifier:
    """Build the classifier of ``judge.models.score`` from the settings that `ClassifierArgs` declares."""
    return LocalClassifier(ClassifierArgs(**settings))
