"""A process namespace of bubblewrap's: it ends, with all that is in it, when its first process does."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile

BEGIN_SECONDS = 60.0
"""seconds that a sandbox may take to begin, on a machine where many others do"""
GRACE = 5.0
"""seconds that the end of a program may take after its kill"""


class ProcessNamespace:
    """``arguments`` go to bubblewrap, which must inherit ``given``. The caller waits, in its own way, until a file
    descriptor can be read: ``status`` before `enter`, ``first`` after `kill`.
    """

    def __init__(self, *, filtered: bytes) -> None:
        """``filtered`` is the seccomp filter of what runs inside."""
        self.status, report = os.pipe()
        os.set_blocking(self.status, False)  # as some event loops would
        self._said = b""
        wait, self._go = os.pipe()
        calls = content(filtered)
        self.first: int | None = None
        self.given: tuple[int, ...] = (report, wait, calls)
        self.arguments = ("--json-status-fd", str(report), "--block-fd", str(wait), "--seccomp", str(calls))

    def __enter__(self) -> ProcessNamespace:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in (self.status, self._go, *self.given, *([] if self.first is None else [self.first])):
            os.close(fd)

    def begun(self) -> None:
        """Bubblewrap has inherited what it needs: it alone holds it now."""
        for fd in self.given:
            os.close(fd)
        self.given = ()

    def enter(self) -> bool:
        """Take hold of the first process while it waits, then let it go on. Where bubblewrap failed, there is none.

        False: bubblewrap has not said all of it yet, and ``status`` is to be waited for again.
        """
        ended = self._hear()
        line, end, _ = self._said.partition(b"\n")
        if end and b"child-pid" in line:
            with contextlib.suppress(ProcessLookupError, BrokenPipeError):  # it has failed in the meantime
                self.first = os.pidfd_open(int(json.loads(line)["child-pid"]))
                os.write(self._go, b"!")
        return bool(end) or ended

    def kill(self) -> None:
        """Kill the first process; the others go with it."""
        if self.first is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.first, signal.SIGKILL)

    def finished(self) -> bool:
        """Whether the program ended, and not bubblewrap before it began. To be asked when bubblewrap has ended."""
        self._hear()
        return b"exit-code" in self._said

    def _hear(self) -> bool:
        """What bubblewrap has said by now; whether it will say no more."""
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self.status, 4096):
                self._said += part
            return True
        return False


def content(data: bytes) -> int:
    """A file descriptor that reads as this."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        return os.dup(file.fileno())
