"""Loads versions beside the running ones in a separate thread; the engine installs them between two steps."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from openclaw_rl.backends.hf.adapters import version_model
from openclaw_rl.backends.hf.models import LoadedModel, available, release
from openclaw_rl.backends.local.engine.engine import Engine
from openclaw_rl.backends.local.engine.messages import (
    AdmitRequest,
    CallResult,
    EngineFailure,
    EngineMessage,
    JobEvent,
    LoadRequest,
)
from openclaw_rl.backends.local.engine.model_runner import ModelRunner, version_bytes
from openclaw_rl.backends.local.engine.runner_choice import model_runner_of
from openclaw_rl.errors import BackendError, RequestError
from openclaw_rl.machine import GIB

SETTLED = 0.15
"""seconds after which freed memory can be returned to the system"""

EngineAction = Callable[[Engine], list[JobEvent]]
"""an action of the engine's thread between two steps"""


@dataclass(frozen=True, slots=True)
class _VersionRequest:
    """The engine's own request for a version that jobs wait for."""

    version: int
    id: None = None


class VersionLoader:
    """``post`` passes an action to the engine's thread, ``send`` a message to the parent."""

    def __init__(
        self,
        base: LoadedModel,
        runner: ModelRunner,
        *,
        post: Callable[[EngineAction], None],
        send: Callable[[EngineMessage], None],
    ) -> None:
        self._base = base
        self._runner = runner
        self._post = post
        self._send = send
        self._adapters: dict[int, str | None] = {0: None}
        self._requests: SimpleQueue[LoadRequest | AdmitRequest | _VersionRequest | None] = SimpleQueue()
        self._unused: deque[ModelRunner] = deque()
        self.copies_made = self.copies_freed = 0

    def stats(self) -> dict[str, int]:
        """Copies of weights made for versions, and copies freed since."""
        return {"copies_made": self.copies_made, "copies_freed": self.copies_freed}

    def register(self, adapters: Mapping[int, str | None]) -> None:
        """Add loadable versions and their adapter folders."""
        self._adapters.update(adapters)

    def load(self, request: LoadRequest | AdmitRequest) -> None:
        """Load a version for the parent, which receives the version's number or the error."""
        self._requests.put(request)

    def load_for_jobs(self, version: int) -> None:
        """Load a version that jobs wait for and the engine does not have."""
        self._requests.put(_VersionRequest(version))

    def free(self, runners: list[ModelRunner]) -> None:
        """Free unused versions in the thread that made them: see `release`."""
        while runners:
            self._unused.append(runners.pop())
        self._requests.put(None)

    def run(self, held: Mapping[int, ModelRunner]) -> None:
        """Load requested versions forever; ``held`` are the engine's versions."""
        while True:
            request = self._requests.get()
            self._unused.clear()
            if request is None:
                release(wait=SETTLED if self._requests.empty() else 0.0)
                continue
            try:
                self._install(request, self._runner_of(request, held))
            except Exception as error:  # these weights fail alone; running versions continue
                self._refuse(request, error)

    def _runner_of(
        self, request: LoadRequest | AdmitRequest | _VersionRequest, held: Mapping[int, ModelRunner]
    ) -> ModelRunner:
        version = request.version
        if version not in self._adapters:
            raise BackendError(f"no version {version}; known: {sorted(self._adapters)}")
        adapter = self._adapters[version]
        runner = held.get(version)
        if runner is not None:
            return runner
        if adapter is None:
            return held[0]
        if request.id is None and not Path(adapter).is_dir():
            raise RequestError(f"the weights of version {version} are no longer kept", field="model", status=404)
        self._check_room()
        model = version_model(self._base.model, adapter)
        self.copies_made += 1
        weakref.finalize(model, self._count_freed).atexit = False
        return model_runner_of(model, like=self._runner)

    def _count_freed(self) -> None:
        self.copies_freed += 1

    def _install(self, request: LoadRequest | AdmitRequest | _VersionRequest, runner: ModelRunner) -> None:
        def action(engine: Engine) -> list[JobEvent]:
            if isinstance(request, AdmitRequest):
                engine.admit(request.version, runner)
            else:
                engine.install(request.version, runner, live=isinstance(request, LoadRequest))
            if request.id is not None:
                self._send(CallResult(request.id, request.version))
            return []

        self._post(action)

    def _refuse(self, request: LoadRequest | AdmitRequest | _VersionRequest, error: Exception) -> None:
        failure = EngineFailure.of(request.id, error)
        if request.id is not None:
            self._send(failure)
        else:
            self._post(lambda engine: engine.refuse(request.version, failure.error()))

    def _check_room(self) -> None:
        """Raise `BackendError` if a version might not fit beside the running ones."""
        needed, free = version_bytes(self._base.model, self._runner), available(self._base.device)
        if needed > free:
            raise BackendError(
                f"a further version needs up to {needed / GIB:.1f} GiB, {free / GIB:.1f} GiB are available",
                remedy="lower cache_tokens, or choose a smaller model",
            )
