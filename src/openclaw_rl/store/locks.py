"""One writer per role: a lock that the operating system lets go when its holder dies, however it dies."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from pathlib import Path
from typing import IO

from openclaw_rl.errors import LedgerHeld
from openclaw_rl.store.troubles import PRIVATE_FILE, file_errors


class WriterLock:
    """Holds ``<ledger>.<role>.lock`` until `release`, or until the process ends."""

    def __init__(self, ledger: Path, role: str) -> None:
        self.role = role
        self.path = ledger.with_name(f"{ledger.name}.{role}.lock")
        with file_errors(self.path):
            file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, PRIVATE_FILE)
        self._file: IO[str] | None = os.fdopen(file, "a+", encoding="utf-8")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held_by = self._holder()
            self.release()
            raise LedgerHeld(
                f"another process already writes as {role!r} to {ledger}: {held_by}",
                remedy="stop that process, or give this one another run directory (run.dir)",
            ) from None
        try:
            with file_errors(self.path):
                self._sign()
        except BaseException:
            self.release()
            raise

    def _holder(self) -> str:
        try:
            who = json.loads(self.path.read_text())
            since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(who["since"]))
            return f"process {who['pid']} on {who['host']} since {since}"
        except (OSError, ValueError, KeyError):  # it is taken, but has not signed yet
            return "a process that has not signed its name yet"

    def _sign(self) -> None:
        assert self._file is not None
        self._file.truncate(0)
        json.dump({"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}, self._file)
        self._file.flush()

    def release(self) -> None:
        """Let it go. Safe to call twice. The file stays: removing it would race with the next holder."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # a name that found no room is not worth a failure; the lock goes
                self._file.close()
            self._file = None
