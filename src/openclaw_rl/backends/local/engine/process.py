"""The parent's end of an engine process: starts it, passes messages without blocking the loop, detects its end."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from queue import SimpleQueue

from openclaw_rl.backends.local.engine.heartbeat import Heartbeats
from openclaw_rl.backends.local.engine.messages import (
    EngineArgs,
    EngineFailure,
    EngineMessage,
    EngineRequest,
    StopRequest,
)
from openclaw_rl.errors import RequestError
from openclaw_rl.machine import show_name

GRACE = 5.0
"""seconds that a process gets to end before it is killed"""


def _begin(conn: Connection, args: EngineArgs, heartbeats: Heartbeats) -> None:
    """Entry point of the new process. Heavy packages are imported there, not here."""
    from openclaw_rl.backends.local.engine.worker import main

    show_name()
    main(conn, args, heartbeats)


def _refused(error: Exception) -> RequestError:
    return RequestError(f"the request cannot be handed to the engine: {type(error).__name__}: {error}"[:300])


class EngineProcess:
    """One engine process. ``received`` and ``ended`` run on the event loop; ``ended`` runs once, with the exit code."""

    def __init__(
        self,
        args: EngineArgs,
        *,
        received: Callable[[EngineProcess, EngineMessage], None],
        ended: Callable[[EngineProcess, int | None], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._received, self._ended = received, ended
        context = multiprocessing.get_context("spawn")
        self._conn, child_conn = context.Pipe()
        self.heartbeats = Heartbeats.shared(context)
        arguments = (child_conn, args, self.heartbeats)
        self._process = context.Process(target=_begin, args=arguments, daemon=True, name=args.process)
        self._process.start()
        child_conn.close()
        self._outbox: SimpleQueue[EngineRequest | None] = SimpleQueue()
        self._threads = [threading.Thread(target=part, daemon=True) for part in (self._read, self._write)]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int | None:
        """Process id."""
        return self._process.pid

    def send(self, request: EngineRequest) -> None:
        """Queue a request without blocking. If the process has ended, do nothing: ``ended`` reports it."""
        self._outbox.put(request)

    def kill(self) -> None:
        """Kill a process that no longer answers, without blocking; ``ended`` is called as usual."""
        self._process.kill()

    def close(self) -> None:
        """End the process and its threads. Blocks, so call it off the event loop."""
        self._outbox.put(StopRequest())
        self._process.join(GRACE)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._outbox.put(None)
        for thread in self._threads:
            thread.join(GRACE)
        self._conn.close()

    def _write(self) -> None:
        while (request := self._outbox.get()) is not None:
            try:
                self._conn.send(request)
            except OSError:
                return  # the reading thread sees the same end and reports it
            except (
                Exception
            ) as error:  # cannot be pickled, such as an object nested too deep: the request's own failure
                self._call(self._received, EngineFailure.of(getattr(request, "id", None), _refused(error)))

    def _read(self) -> None:
        while True:
            try:
                reply: EngineMessage = self._conn.recv()
            except (EOFError, OSError):
                break
            if not self._call(self._received, reply):
                return
        self._process.join()
        self._call(self._ended, self._process.exitcode)

    def _call(self, target: Callable[..., None], value: object) -> bool:
        """Pass a value to the event loop; return False if the loop is closed."""
        try:
            self._loop.call_soon_threadsafe(target, self, value)
        except RuntimeError:
            return False
        return True
