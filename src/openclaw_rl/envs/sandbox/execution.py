"""One command inside bubblewrap: begun, read, limited, and gone with all its processes when it is over."""

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

# A process namespace of bubblewrap's: it ends, with all that is in it, when its first process does.

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


T = TypeVar("T")


class NotBegun(NoSandbox):
    """Bubblewrap failed before the command began: for want of the machine, or of files that an agent has removed."""


async def readable(fd: int) -> None:
    """Returns when there is something to read; of a process, when it has ended."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(fd, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(fd)


async def in_time(work: Awaitable[T], what: str, seconds: float) -> T:
    """What the work gives, if it comes soon enough. Raises NoSandbox with ``what`` went wrong."""
    try:
        return await asyncio.wait_for(work, seconds)
    except TimeoutError as error:
        raise NoSandbox(f"{what} within {seconds:g} s") from error


async def entered(namespace: ProcessNamespace) -> None:
    """Returns when its first process has been let go on, or bubblewrap has failed before there was one."""

    async def begun() -> None:
        await readable(namespace.status)
        while not namespace.enter():
            await readable(namespace.status)

    await in_time(begun(), "bubblewrap did not begin", BEGIN_SECONDS)


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """What the work gives, once it is done; whoever is cancelled meanwhile, even twice, is so afterwards."""
    task, cancelled = asyncio.ensure_future(work), False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        task.exception()  # whoever is cancelled does not hear of it
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
    """Run ``command`` to its end or its limit. When this returns, or is cancelled, no process of it is left.

    ``env`` is all that it has of an environment; None is ours.
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
    """A process whose output is read as it comes; nothing waits for what it may have left behind."""

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
        """What there is now, until it ends or is too much."""
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
        """Waits until it has ended; why it must be stopped, or ""."""
        ending = asyncio.ensure_future(readable(self._end))
        done, _ = await asyncio.wait([ending, self._enough], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)
        self._take()
        if self._output.over:
            return f"stopped after printing more than {self._output.most} bytes"
        return "" if done else f"stopped after {seconds:g} s"

    async def kill(self) -> None:
        """It and whatever it started; they are gone when this returns."""
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
