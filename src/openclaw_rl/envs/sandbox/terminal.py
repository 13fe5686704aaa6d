"""A shell at a terminal inside a sandbox.

Commands and exit codes use separate pipes, so the terminal carries only the output a person would see.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import signal
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from openclaw_rl.envs.sandbox.contract import HOME, BoundedOutput, CommandResult, SandboxLimits
from openclaw_rl.envs.sandbox.execution import GRACE, ProcessNamespace, entered, in_time, readable, to_its_end
from openclaw_rl.types import new_id

_INTERRUPT = "\x03"
_PATIENCE = 1.0
"""seconds after Ctrl-C before the shell is restarted"""
_LOOP = r"""
trap : INT
while :; do
  IFS= read -r -d '' -u {take} __command || {{ [ $? -gt 128 ] && continue; exit 0; }}
  eval "$__command" {take}<&- {tell}>&-
  __code=$?
  printf '\036{mark}\036'
  printf '%s\n' "$__code" >&{tell}
done
"""


class CommandLine(Protocol):
    """A function that turns a command into the full command line that runs it in a sandbox."""

    def __call__(
        self,
        command: Sequence[str],
        inside: ProcessNamespace,
        *,
        cwd: str,
        env: Mapping[str, str],
    ) -> list[str]: ...


class TerminalShell:
    """See `Shell`. Runs one command at a time; a second waits for the first."""

    def __init__(self, command_line: CommandLine, *, limits: SandboxLimits, filtered: bytes, shown: int) -> None:
        self._command_line = command_line
        self._limits = limits
        self._filtered = filtered
        self._shown = shown
        self._mark = f"\x1e{new_id()}\x1e".encode()
        self._turn = asyncio.Lock()
        self._session: _Session | None = None
        self._closed = False

    async def begin(self) -> None:
        """Start bash; raise NoSandbox if it is not installed."""
        self._session = await _Session.open(self._command_line, mark=self._mark, filtered=self._filtered)

    async def run(self, command: str, *, seconds: float | None = None) -> CommandResult:
        async with self._turn:
            began = time.monotonic()
            if self._session is None:
                await self.begin()
            session = self._session
            assert session is not None
            output = BoundedOutput(most=self._limits.output, shown=self._shown)
            limit = self._limits.seconds if seconds is None else seconds
            code, why = await session.run(command, output, seconds=limit)
            if session.ended:
                self._session = None
                code = await session.close() if why == "" else None
                if why:
                    await session.close()
                    why += "; the shell did not come back and is begun anew"
            return CommandResult(code=code, output=output.text(), seconds=time.monotonic() - began, stopped=why)

    async def type(self, keys: str) -> None:
        if self._session is not None:
            self._session.type(keys)

    async def seen(self) -> str:
        if self._session is None:
            return ""
        output = BoundedOutput(most=self._limits.output, shown=self._shown)
        self._session.take(output)
        return output.text()

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()


class _Session:
    """One bash process and its terminal. ``ended`` is True once it accepts no more commands."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        inside: ProcessNamespace,
        *,
        terminal: int,
        give: int,
        told: int,
        mark: bytes,
    ) -> None:
        self._process = process
        self._inside = inside
        self._terminal = terminal
        self._give = give
        self._told = told
        self._mark = mark
        self._end = os.pidfd_open(process.pid)
        self._code: int | None = None
        self._pending = b""
        self.ended = False

    @classmethod
    async def open(cls, command_line: CommandLine, *, mark: bytes, filtered: bytes) -> _Session:
        session = cls._begin(command_line, mark=mark, filtered=filtered)
        try:
            await entered(session._inside)
        except BaseException:  # bash waits for the signal to continue, which is now never sent
            await to_its_end(session.close())
            raise
        return session

    @classmethod
    def _begin(cls, command_line: CommandLine, *, mark: bytes, filtered: bytes) -> _Session:
        terminal, inner = pty.openpty()
        take, give = os.pipe()
        code_read, code_write = os.pipe()
        _quiet(inner)
        inside = ProcessNamespace(filtered=filtered)
        script = _LOOP.format(take=take, tell=code_write, mark=mark.decode().strip("\x1e"))
        bash = ["setsid", "--ctty", "bash", "--noprofile", "--norc", "-c", script]
        try:
            process = subprocess.Popen(
                command_line(bash, inside, cwd=HOME, env={}),
                stdin=inner,
                stdout=inner,
                stderr=inner,
                env={},
                cwd="/",
                pass_fds=(*inside.given, take, code_write),
                start_new_session=True,
            )
        finally:
            for fd in (inner, take, code_write):
                os.close(fd)
        inside.begun()
        for fd in (terminal, code_read):
            os.set_blocking(fd, False)
        return cls(process, inside, terminal=terminal, give=give, told=code_read, mark=mark)

    async def run(self, command: str, output: BoundedOutput, *, seconds: float) -> tuple[int | None, str]:
        """Return the exit code and "", or None and the reason for the stop ("" if bash has ended)."""
        try:
            await self._write(command.encode(errors="replace").replace(b"\0", b"") + b"\0")
        except OSError:
            self.ended = True
            return None, ""
        if await self._until_told(output, seconds):
            return self._code, ""
        why = f"stopped after printing more than {output.most} bytes" if output.over else f"stopped after {seconds:g} s"
        if self.ended:
            return None, ""
        self.type(_INTERRUPT)
        ignored = BoundedOutput(most=1 << 62, shown=2)
        if not await self._until_told(ignored, _PATIENCE):
            self.ended = True
        return None, why

    async def _write(self, data: bytes) -> None:
        """Write to bash, which may read slowly; return when bash ends."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, _write_all, self._give, data)

    async def _until_told(self, output: BoundedOutput, seconds: float) -> bool:
        """Read the terminal until the command's end (True), or a limit or bash's end (False)."""
        loop, happened = asyncio.get_running_loop(), asyncio.Event()
        fds = (self._terminal, self._told, self._end)
        until = time.monotonic() + seconds
        for fd in fds:
            loop.add_reader(fd, happened.set)
        try:
            while True:
                happened.clear()
                marked = self.take(output)
                if marked and self._take_code():
                    return True
                if output.over or self._has_ended():
                    return False
                async with asyncio.timeout(until - time.monotonic()):
                    await happened.wait()
        except TimeoutError:
            return False
        finally:
            for fd in fds:
                loop.remove_reader(fd)

    def take(self, output: BoundedOutput) -> bool:
        """Add the pending terminal output to ``output``, up to the mark; return True if the mark is there."""
        with contextlib.suppress(OSError):  # no output yet, or the other end is closed
            while len(self._pending) < 1 << 20 and (part := os.read(self._terminal, 65536)):
                self._pending += part
        before, mark, after = self._pending.partition(self._mark)
        partial = 0 if mark else _beginning_of(self._mark, before)
        output.add(before[: len(before) - partial])
        self._pending = after if mark else before[len(before) - partial :]
        return bool(mark)

    def _take_code(self) -> bool:
        """Read the exit code, which bash sends right after it prints the mark."""
        os.set_blocking(self._told, True)
        try:
            line = os.read(self._told, 64)
        finally:
            os.set_blocking(self._told, False)
        self._code = int(line) if line.strip().isdigit() else None
        self.ended = not line
        return bool(line)

    def _has_ended(self) -> bool:
        if self._process.poll() is not None:
            self.ended = True
        return self.ended

    def type(self, keys: str) -> None:
        with contextlib.suppress(OSError):
            os.write(self._terminal, keys.encode(errors="replace"))

    async def close(self) -> int | None:
        """End every process in the session; return the shell's exit code if it had already ended."""
        code = self._process.poll()
        try:
            self._inside.kill()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            if self._inside.first is not None:
                await in_time(readable(self._inside.first), "a shell could not be ended", GRACE)
            await in_time(readable(self._end), "a shell could not be ended", GRACE)
            self._process.wait()
        finally:
            self._inside.__exit__()
            for fd in (self._terminal, self._give, self._told, self._end):
                os.close(fd)
        return code


def _quiet(terminal: int) -> None:
    """Turn off the echo of input and the carriage returns in output."""
    state = termios.tcgetattr(terminal)
    state[1] &= ~termios.ONLCR
    state[3] &= ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSANOW, state)


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _beginning_of(mark: bytes, text: bytes) -> int:
    """Return the size of the longest end of ``text`` that is a prefix of the mark."""
    return next((size for size in range(min(len(mark), len(text)), 0, -1) if mark.startswith(text[-size:])), 0)
