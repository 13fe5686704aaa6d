"""The client of a classifier's process: starts it, asks it, and starts it anew when it has died."""

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

# The process of a classifier: loads its model, then answers one request after the other.


def serve(pipe: Connection, args: ClassifierArgs) -> None:
    """Send progress, then the facts, then an answer to each request; a failure to load is sent and ends the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt at the terminal is the parent's to handle
    end_with_parent()
    show_name()
    try:
        from openclaw_rl.backends.local.classifier.model import ClassifierModel

        model = ClassifierModel(args, lambda text: pipe.send(LoadProgress(text)))
    except Exception as error:  # the parent must know why, whatever it is; nothing is left to go on with
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
        except Exception as error:  # what one exchange fails with is its own: the model goes on
            pipe.send(EngineFailure.of(0, error))


log = logging.getLogger(__name__)

_GRACE = 5.0  # seconds a process has to end before it is killed


class LocalClassifier:
    """A `Classifier` on this machine. The process starts with `start`, and again with the request after its death."""

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
        """How the process is, and what its weights take."""
        alive = self._process is not None and self._process.is_alive()
        facts = self._facts
        return {
            "state": "stopped" if self._process is None else "ready" if alive and facts else "starting",
            "pid": self._process.pid if self._process is not None and alive else None,
            "device": facts.device if facts else None,
            "memory": facts.memory if facts else None,
        }

    async def start(self) -> None:
        """Load the model; raises ModelRefused with the remedy."""
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
        """One exchange; raises BackendDown when the process died of it, BackendError when the model failed at it."""
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
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=serve, args=(theirs, self._args), daemon=True, name="openclaw-judge")
        process.start()
        theirs.close()
        self._process, self._pipe = process, ours
        answer = await self._exchange(ours, None)
        while isinstance(answer, LoadProgress):
            self._progress(answer.text)
            answer = await self._exchange(ours, None)
        if isinstance(answer, EngineFailure):
            await self.stop()
            raise answer.error()
        assert isinstance(answer, ClassifierReady)
        self._facts, self.name = answer, answer.name
        return ours

    async def _exchange(self, pipe: Connection, request: ClassifyRequest | None) -> Any:
        """Send (nothing, to a process that is starting) and wait; whatever goes wrong, no process is left behind."""
        try:
            return await anyio.to_thread.run_sync(_ask, pipe, request, abandon_on_cancel=True)
        except (EOFError, OSError) as error:
            code = await self._exit_code()
            await self.stop()
            raise BackendDown(f"the classifier's process died (exit code {code})") from error
        except BaseException:  # cancelled: its answer would be taken for that of the next request
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
    """The classifier of ``judge.models.score``: called with the settings that `ClassifierArgs` names."""
    return LocalClassifier(ClassifierArgs(**settings))
