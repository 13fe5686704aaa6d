"""Runs one command inside bubblewrap: starts it, reads its output, enforces its limits and ends all its processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from openclaw_rl.envs.sandbox.contract import BoundedOutput, CommandResult, SandboxLimits
from openclaw_rl.errors import NoSandbox

# A process namespace of bubblewrap's: it ends, with every process in it, when its first process does.

BEGIN_SECONDS = 60.0
"""seconds for a sandbox to start, on a machine where many others start"""
GRACE = 5.0
"""seconds for a program to end after its kill"""


class ProcessNamespace:
    """``arguments`` are for bubblewrap, which must inherit ``given``. The caller waits until a file descriptor is
    readable: ``status`` before `enter`, ``first`` after `kill`.
    """

    def __init__(self, *, filtered: bytes) -> None:
        """``filtered`` is the seccomp filter for the programs inside."""
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
        """Close our copies of the descriptors that bubblewrap has inherited."""
        for fd in self.given:
            os.close(fd)
        self.given = ()

    def enter(self) -> bool:
        """Open the waiting first process, then let it continue; if bubblewrap failed, there is no first process.

        Return False if bubblewrap's report is incomplete: wait for ``status`` again.
        """
        ended = self._hear()
        line, end, _ = self._said.partition(b"\n")
        if end and b"child-pid" in line:
            with contextlib.suppress(ProcessLookupError, BrokenPipeError):  # bubblewrap has failed in the meantime
                self.first = os.pidfd_open(int(json.loads(line)["child-pid"]))
                os.write(self._go, b"!")
        return bool(end) or ended

    def kill(self) -> None:
        """Kill the first process; the others end with it."""
        if self.first is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.first, signal.SIGKILL)

    def finished(self) -> bool:
        """Return True if the program ran to its end, False if bubblewrap failed first; valid after bubblewrap's end."""
        self._hear()
        return b"exit-code" in self._said

    def _hear(self) -> bool:
        """Read the available part of bubblewrap's report; return True at its end."""
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self.status, 4096):
                self._said += part
            return True
        return False


def content(data: bytes) -> int:
    """Return a file descriptor from which ``data`` can be read."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        return os.dup(file.fileno())


T = TypeVar("T")


class NotBegun(NoSandbox):
    """Bubblewrap failed before the command started: the machine refuses, or an agent has removed files it needs."""


async def readable(fd: int) -> None:
    """Wait until the descriptor is readable; a process descriptor is readable when the process has ended."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(fd, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(fd)


async def in_time(work: Awaitable[T], what: str, seconds: float) -> T:
    """Return the result of the work; raise NoSandbox with the text ``what`` if it takes longer than ``seconds``."""
    try:
        return await asyncio.wait_for(work, seconds)
    except TimeoutError as error:
        raise NoSandbox(f"{what} within {seconds:g} s") from error


async def entered(namespace: ProcessNamespace) -> None:
    """Wait until the namespace's first process continues, or bubblewrap has failed before it started one."""

    async def begun() -> None:
        await readable(namespace.status)
        while not namespace.enter():
            await readable(namespace.status)

    await in_time(begun(), "bubblewrap did not begin", BEGIN_SECONDS)


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of the work. If the caller is cancelled, even twice, the work still finishes first."""
    task, cancelled = asyncio.ensure_future(work), False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        task.exception()  # marks the exception as retrieved: a cancelled caller does not receive it
        raise asyncio.CancelledError
    return task.result()


async def execute(
    command: Sequence[str],
    *,
    within: ProcessNamespace | None,
    limits: SandboxLimits,
    shown: int,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = MappingProxyType({}),
) -> CommandResult:
    """Run ``command`` to its end or its limit; no process remains after the return, even on cancellation.

    ``env`` is the complete environment; None passes on our own.
    """
    began = time.monotonic()
    output = BoundedOutput(most=limits.output, shown=shown)
    running = _RunningProcess(command, within=within, output=output, stdin=stdin, env=env)
    try:
        await running.enter()
        why = await running.until_end(limits.seconds)
    finally:
        await to_its_end(running.kill())
    code = running.code
    if within is not None and not why and not within.finished():
        raise NotBegun(f"bubblewrap failed: {output.text().strip()[-300:]}")
    return CommandResult(
        code=None if why else code, output=output.text(), seconds=time.monotonic() - began, stopped=why
    )


class _RunningProcess:
    """A process whose output is read as it arrives; processes that it leaves behind do not delay its end."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        within: ProcessNamespace | None,
        output: BoundedOutput,
        stdin: bytes,
        env: Mapping[str, str] | None,
    ) -> None:
        self._within = within
        self._output = output
        source = content(stdin) if stdin else os.open(os.devnull, os.O_RDONLY)
        self._pipe, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(write, True)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=source,
                stdout=write,
                stderr=subprocess.STDOUT,
                env=env,
                cwd="/",
                pass_fds=within.given if within else (),
                start_new_session=True,
            )
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(source)
            os.close(write)
        self._end = os.pidfd_open(self._process.pid)
        loop = asyncio.get_running_loop()
        self._enough = loop.create_future()
        loop.add_reader(self._pipe, self._take)

    @property
    def code(self) -> int | None:
        return self._process.returncode

    def _take(self) -> None:
        """Read the available output, until it ends or exceeds the limit."""
        with contextlib.suppress(BlockingIOError):
            while not self._output.over and (part := os.read(self._pipe, 65536)):
                self._output.add(part)
            asyncio.get_running_loop().remove_reader(self._pipe)
        if self._output.over and not self._enough.done():
            self._enough.set_result(None)

    async def enter(self) -> None:
        if self._within is not None:
            self._within.begun()
            await entered(self._within)

    async def until_end(self, seconds: float) -> str:
        """Wait for the end; return "" or the reason to stop the process."""
        ending = asyncio.ensure_future(readable(self._end))
        ended, _ = await asyncio.wait([ending, self._enough], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)
        self._take()
        if self._output.over:
            return f"stopped after printing more than {self._output.most} bytes"
        return "" if ended else f"stopped after {seconds:g} s"

    async def kill(self) -> None:
        """Kill the process and its descendants; they have ended on return."""
        try:
            if self._within is not None and self._within.first is not None:
                self._within.kill()
                await in_time(readable(self._within.first), "a program could not be ended", GRACE)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            try:
                await in_time(readable(self._end), "a program could not be ended", GRACE)
            finally:
                self._take()
                asyncio.get_running_loop().remove_reader(self._pipe)
                os.close(self._end)
                os.close(self._pipe)
                self._process.poll()
