"""Runs an untrusted Python program, isolated from the machine.

Inside bubblewrap there is the interpreter (its standard library and the shared libraries it loads) read-only, a small
writable folder in memory, and nothing else: no network, host files, /proc or environment, and a separate process
namespace. If we are root, the program runs as the user nobody. Limits apply to time, processor, memory, processes,
files and output, and a `seccomp` filter blocks the system calls that would bypass them. In every case `run` returns
within the program's seconds and a short grace, and no process remains. The kernel is shared: a kernel exploit escapes
the sandbox.

If bubblewrap is missing or not permitted, `run` raises `NoSandbox`. ``unsafe`` runs the program anyway, as this user
with the limits alone; the interpreter then refuses sockets, processes and writes outside its folder, which prevents
accidents but does not resist attacks.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from openclaw_rl.envs.sandbox import cgroups
from openclaw_rl.envs.sandbox.contract import SandboxLimits
from openclaw_rl.envs.sandbox.execution import GRACE, ProcessNamespace, content
from openclaw_rl.errors import NoSandbox

Isolation = Literal["bubblewrap", "none"]

SHOWN = 2000
"""output characters that are kept"""
LIMITS = SandboxLimits(seconds=5.0, cpu=2, memory=512 << 20, processes=1, disk=16 << 20, output=1 << 20)
"""limits for a short program; memory is per process here"""
REMEDY = "apt-get install bubblewrap (0.7 or later), as root"

_START = """
import os, resource, sys
limits = {limits!r}
if os.getuid() == 0 and not {unsafe!r}:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
program = sys.stdin.buffer.read()
os.close(0)
os.open("/dev/null", os.O_RDONLY)
def limit(name, most):
    resource.setrlimit(name, (most, most))
limit(resource.RLIMIT_CPU, limits["cpu"])
limit(resource.RLIMIT_FSIZE, limits["disk"])
limit(resource.RLIMIT_CORE, 0)
limit(resource.RLIMIT_NOFILE, 32)
if sys.platform != "darwin":  # which has neither as a process may set them
    limit(resource.RLIMIT_AS, limits["memory"])
    limit(resource.RLIMIT_NPROC, limits["processes"])
{guard}
exec(compile(program, "program", "exec"), {{"__name__": "__main__"}})
"""
_GUARD = """
def guard(event, args, here=os.path.realpath("."), at=os.path.realpath):
    writes = event == "open" and (not isinstance(args[1], str) or set(args[1]) & set("wax+"))
    if writes and isinstance(args[0], (str, bytes)) and (args[2] & 3 or args[2] & 64):
        writes = not at(os.fsdecode(args[0])).startswith(here)
    else:
        writes = False
    if writes or event.startswith({refused!r}):
        raise PermissionError(event + " is refused here")
sys.addaudithook(guard)
"""
_REFUSED = (
    *("socket.", "subprocess.", "ctypes.", "shutil.", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.system"),
    *("os.chmod", "os.chown", "os.kill", "os.link", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.truncate"),
    "signal.pthread_kill",
)
"""audit events that the interpreter refuses if there is no other isolation"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramResult:
    """The result of a program. ``code`` is None if it was stopped, for the reason in ``output``."""

    code: int | None
    output: str

    @property
    def ok(self) -> bool:
        return self.code == 0


def isolation(*, unsafe: bool = False) -> Isolation:
    """Return the isolation that works on this machine, determined by a trial; raise NoSandbox if there is none."""
    try:
        _bubblewrap()
    except NoSandbox:
        if unsafe:
            return "none"
        raise
    return "bubblewrap"


async def run(program: str, *, limits: SandboxLimits | None = None, unsafe: bool = False) -> ProgramResult:
    """Run a Python program; return its exit code and the end of its output."""
    way = await asyncio.to_thread(isolation, unsafe=unsafe)
    with tempfile.TemporaryDirectory() as folder:
        wrapper = _bubblewrap() if way == "bubblewrap" else ()
        running = _RunningProgram(program, limits=limits or LIMITS, wrapper=wrapper, folder=folder)
        work = asyncio.ensure_future(asyncio.to_thread(running.wait_for_end))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            running.stop()
            await asyncio.wait([work])
            raise


# --- bubblewrap -----------------------------------------------------------------------------------------------------


@functools.cache
def _bubblewrap() -> tuple[str, ...]:
    """Return the command prefix for the interpreter, after a successful trial run."""
    if (bwrap := shutil.which("bwrap")) is None:
        raise NoSandbox("cannot isolate programs from this machine: bubblewrap is not installed", remedy=REMEDY)
    try:
        command = (bwrap, *_namespaces(), *_interpreter(), *_devices())
        tried = _RunningProgram("", limits=replace(LIMITS, seconds=30.0), wrapper=command, folder="/").wait_for_end()
        why = "" if tried.ok else tried.output.strip()[-300:]
    except (OSError, subprocess.SubprocessError, NoSandbox) as error:
        why = f"{type(error).__name__}: {error}"
    if why:
        raise NoSandbox(
            f"cannot isolate programs from this machine: bubblewrap does not work here ({why})",
            remedy="allow user namespaces, or run where they are allowed; " + REMEDY,
        )
    return command


def _namespaces() -> Sequence[str]:
    """Return the namespace options. Root needs no user namespace, which would leave it root to the host."""
    namespaces = ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try")
    if os.getuid() == 0:
        return (*namespaces, "--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
    return (*namespaces, "--unshare-user")


def _interpreter() -> list[str]:
    """Return options that bind the interpreter, its standard library and their shared libraries at their host paths."""
    ask = [_executable(), "-I", "-S", "-c", "import sys; print(*sys.path, sep='\\n')"]
    library = [Path(line) for line in _output_of(ask).splitlines() if Path(line).exists()]
    modules = [
        str(path) for place in library for path in place.glob("*.so") if not path.name.startswith(("_test", "_tk"))
    ]
    loaded = _loaded([_executable(), *modules])
    parts = _bound([_executable(), *map(str, library), *loaded])
    for place in library:  # packages inside the standard library's folder are not part of it
        for inside in (place / "site-packages", place / "dist-packages"):
            parts += ["--tmpfs", str(inside), "--remount-ro", str(inside)] if inside.is_dir() else []
    folders = dict.fromkeys(str(Path(path).parent) for path in loaded)
    return [*parts, "--setenv", "LD_LIBRARY_PATH", ":".join(folders)]


def _bound(files: Sequence[str]) -> list[str]:
    """Bind the files read-only, in folders that every user may read (bubblewrap's own are for root only)."""
    above = {str(place) for path in files for place in Path(path).parents}
    folders = [part for place in sorted(above - {"/"}) for part in ("--perms", "0755", "--dir", place)]
    return folders + [part for path in files for part in ("--ro-bind", path, path)]


def _loaded(files: Sequence[str]) -> list[str]:
    """Return the shared libraries that the files load, and the loader itself."""
    libraries = re.findall(r"(?:=>|^)\s+(/\S+) \(0x", _output_of(["ldd", *files]), re.MULTILINE)
    return list(dict.fromkeys(libraries))


def _output_of(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout


def _devices() -> Sequence[str]:
    """Return options for /dev/null, a writable folder and a read-only root; the sandbox always ends with us."""
    devices = ("--perms", "0755", "--dir", "/dev", "--dev-bind", "/dev/null", "/dev/null")
    words = ("--setenv", "HOME", "/work", "--setenv", "LANG", "C.UTF-8")
    return (*devices, *words, "--dir", "/work", "--remount-ro", "/", "--die-with-parent")


def _executable() -> str:
    """Return the interpreter itself, not a virtual environment's link to it."""
    return str(Path(sys.executable).resolve())


def _python(limits: SandboxLimits, *, unsafe: bool) -> Sequence[str]:
    guard = _GUARD.format(refused=_REFUSED) if unsafe else ""
    return (_executable(), "-I", "-S", "-c", _START.format(limits=asdict(limits), unsafe=unsafe, guard=guard))


# --- one program ------------------------------------------------------------------------------------------------------


class _RunningProgram:
    """A running program. `wait_for_end` blocks until it has ended; another thread may call `stop`."""

    def __init__(self, program: str, *, limits: SandboxLimits, wrapper: Sequence[str], folder: str) -> None:
        self._limits = limits
        self._output = _OutputTail(limits.output)
        self._unwanted = False
        self._namespace = ProcessNamespace(filtered=cgroups.program()) if wrapper else None
        folder_options = ("--perms", "0777", "--size", str(limits.disk), "--tmpfs", "/work", "--chdir", "/work")
        inside = (*folder_options, *self._namespace.arguments) if self._namespace else ()
        source = content(program.encode(errors="replace"))
        try:
            self._process = subprocess.Popen(
                [*wrapper, *inside, *_python(limits, unsafe=not wrapper)],
                cwd=folder,
                env={},
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                pass_fds=self._namespace.given if self._namespace else (),
                start_new_session=True,
            )
        finally:
            os.close(source)

    def stop(self) -> None:
        """Make `wait_for_end` stop the program."""
        self._unwanted = True

    def wait_for_end(self) -> ProgramResult:
        pipe = self._process.stdout
        assert isinstance(pipe, io.FileIO)
        os.set_blocking(pipe.fileno(), False)
        with pipe, self._namespace or contextlib.nullcontext():
            try:
                self._enter()
                why = self._until_end(pipe)
            finally:
                self._kill()
            code = self._process.returncode
            self._output.take(pipe)
            if self._namespace is not None and not why and not self._namespace.finished():
                raise NoSandbox(f"bubblewrap failed: {self._output.text().strip()[-300:]}")
        return ProgramResult(code=None, output=why) if why else ProgramResult(code=code, output=self._output.text())

    def _enter(self) -> None:
        if self._namespace is not None:
            self._namespace.begun()
            while select.select([self._namespace.status], [], [], GRACE)[0] and not self._namespace.enter():
                pass

    def _until_end(self, pipe: io.FileIO) -> str:
        """Read output until the program has ended; return "" or the reason to stop it."""
        until = time.monotonic() + self._limits.seconds
        ended = False
        while not ended:
            ended = self._process.poll() is not None
            select.select([pipe] if self._output.open else [], [], [], 0 if ended else 0.02)
            self._output.take(pipe)
            if self._output.over:
                return f"stopped after printing more than {self._limits.output} bytes"
            if self._unwanted or (not ended and time.monotonic() > until):
                return f"stopped after {self._limits.seconds:g} s"
        return ""

    def _kill(self) -> None:
        """Kill the program and its descendants; they have ended on return."""
        if self._namespace is not None and self._namespace.first is not None:
            self._namespace.kill()
            if not select.select([self._namespace.first], [], [], GRACE)[0]:
                raise NoSandbox(f"the program could not be ended within {GRACE:g} s of its kill")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        try:
            self._process.wait(GRACE)
        except subprocess.TimeoutExpired as error:
            raise NoSandbox(f"the program could not be ended within {GRACE:g} s of its kill") from error


class _OutputTail:
    """The end of a program's output, in bounded memory."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen = 0
        self._last = b""
        self.open = True

    @property
    def over(self) -> bool:
        return self._seen > self._most

    def take(self, pipe: io.FileIO) -> None:
        """Read the available output, until it ends or exceeds the limit."""
        while self.open and not self.over:
            part = pipe.read(65536)
            if part is None:
                return
            self.open = bool(part)
            self._seen += len(part)
            self._last = (self._last + part)[-4 * SHOWN :]

    def text(self) -> str:
        return self._last.decode(errors="replace")[-SHOWN:]
