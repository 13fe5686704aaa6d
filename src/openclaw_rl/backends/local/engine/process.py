"""The parent's end of an engine process: starts it, passes messages without blocking the event loop, sees it die."""

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
"""seconds a process has to end before it is killed"""


def _begin(conn: Connection, args: EngineArgs, heartbeats: Heartbeats) -> None:
    """The first thing in the new process. Heavy packages are imported there, never here."""
    from openclaw_rl.backends.local.engine.worker import main

    show_name()
    main(conn, args, heartbeats)


def _refused(error: Exception) -> RequestError:
    return RequestError(f"the request cannot be handed to the engine: {type(error).__name__}: {error}"[:300])


class EngineProcess:
    """One engine process. ``received`` and ``ended`` are called on the event loop, ``ended`` once, with the code."""

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
        self._conn, theirs = context.Pipe()
        self.heartbeats = Heartbeats.shared(context)
        given = (theirs, args, self.heartbeats)
        self._process = context.Process(target=_begin, args=given, daemon=True, name=args.process)
        self._process.start()
        theirs.close()
        self._outbox: SimpleQueue[EngineRequest | None] = SimpleQueue()
        self._threads = [threading.Thread(target=part, daemon=True) for part in (self._read, self._write)]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int | None:
        """The process's id."""
        return self._process.pid

    def send(self, request: EngineRequest) -> None:
        """Queue a request; never blocks. Nothing happens when the process is gone: ``ended`` says so."""
        self._outbox.put(request)

    def kill(self) -> None:
        """End a process that answers no more; ``ended`` is called as for any other end. Never blocks."""
        self._process.kill()

    def close(self) -> None:
        """End the process and the threads. Blocks, so call it off the event loop."""
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
                return  # the reader sees the same end and reports it
            except (
                Exception
            ) as error:  # it cannot be pickled, such as an object that is nested too deep: its own failure
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
        """Pass a value to the event loop; False when that is closed, and nobody is left to tell."""
        try:
            self._loop.call_soon_threadsafe(target, self, value)
        except RuntimeError:
            return False
        return True
