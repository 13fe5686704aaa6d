"""Requests whose reply is held to a format: their grammars are compiled beside the requests that come after them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

from openclaw_rl.backends.hf.guidance import HeldCalls, HeldReply
from openclaw_rl.backends.local.engine.constraint import ConstraintCompiler
from openclaw_rl.backends.local.engine.sequences import Generation


class FormatQueue:
    """Compiles one new format after another in a thread of its own. A format that is compiled already never waits."""

    def __init__(
        self,
        compiler: ConstraintCompiler,
        *,
        submit: Callable[[Generation], None],
        refuse: Callable[[int, Exception], None],
    ) -> None:
        """``submit`` takes a request that is held to its format, ``refuse`` one whose format cannot be used."""
        self._compiler = compiler
        self._submit = submit
        self._refuse = refuse
        self._waiting: SimpleQueue[tuple[Generation, HeldReply | HeldCalls]] = SimpleQueue()
        self._open: set[int] = set()
        self._lock = threading.Lock()

    def put(self, job: Generation, held: HeldReply | HeldCalls) -> None:
        """Take a request; raises RequestError at once for a format that was refused before."""
        constraint = self._compiler.known(held)
        if constraint is not None:
            job.hold(constraint)
            self._submit(job)
            return
        self._open.add(job.id)
        self._waiting.put((job, held))

    def cancel(self, job_id: int, cancel: Callable[[], None]) -> None:
        """Forget a request that waits here; ``cancel`` ends it where it has left already."""
        with self._lock:
            self._open.discard(job_id)
            cancel()

    def run(self) -> None:
        """Compile one after another, for ever."""
        while True:
            self.next()

    def next(self) -> None:
        """Wait for a request and hand it on or refuse it."""
        job, held = self._waiting.get()
        if job.id not in self._open:
            return
        try:
            job.hold(self._compiler.constraint(held))
        except Exception as error:  # a format that cannot be used is its own request's fault
            self._leave(job.id, partial(self._refuse, job.id, error))
        else:
            self._leave(job.id, partial(self._submit, job))

    def _leave(self, job_id: int, then: Callable[[], None]) -> None:
        with self._lock:
            if job_id in self._open:
                self._open.discard(job_id)
                then()
