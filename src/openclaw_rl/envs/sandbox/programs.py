"""Runs a Python program that nobody has read, apart from the machine.

Inside bubblewrap there is the interpreter (its standard library and the shared libraries it loads) read-only, a small
folder in memory to write to, and nothing else: no network, no host files, no /proc, no environment, its own process
ids. The program runs as nobody where we are root, under limits on time, processor, memory, processes, files and output,
and without the system calls that get round them (`seccomp`). Whatever it does, `run` returns within its seconds and a
short grace, and no process of it is left. The kernel is shared: who has a way to break it breaks out.

Where bubblewrap is missing or not allowed, `run` raises `NoSandbox`. ``unsafe`` runs the program all the same, as this
user with the limits alone; the interpreter then refuses sockets, processes and writing elsewhere, which stops
accidents, not malice.
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
"""characters of output that are kept"""
LIMITS = SandboxLimits(seconds=5.0, cpu=2, memory=512 << 20, processes=1, disk=16 << 20, output=1 << 20)
"""what a short program may use; here memory is of each process"""
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
"""what the interpreter itself refuses where nothing else does"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramResult:
    """How a program ended. ``code`` None: it was stopped, for the reason that ``output`` gives."""

    code: int | None
    output: str

    @property
    def ok(self) -> bool:
        return self.code == 0


def isolation(*, unsafe: bool = False) -> Isolation:
    """What keeps programs apart on this machine, found out by trying. Raises NoSandbox where nothing does."""
    try:
        _bubblewrap()
    except NoSandbox:
        if unsafe:
            return "none"
        raise
    return "bubblewrap"


async def run(program: str, *, limits: SandboxLimits | None = None, unsafe: bool = False) -> ProgramResult:
    """Run a Python program; how it ended, and the last of what it printed."""
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
    """The command in front of the interpreter's, once it has been seen to work."""
    if (bwrap := shutil.which("bwrap")) is None:
        raise NoSandbox("programs cannot be run apart from this machine: bubblewrap is not installed", remedy=REMEDY)
    try:
        command = (bwrap, *_namespaces(), *_interpreter(), *_devices())
        tried = _RunningProgram("", limits=replace(LIMITS, seconds=30.0), wrapper=command, folder="/").wait_for_end()
        why = "" if tried.ok else tried.output.strip()[-300:]
    except (OSError, subprocess.SubprocessError, NoSandbox) as error:
        why = f"{type(error).__name__}: {error}"
    if why:
        raise NoSandbox(
            f"programs cannot be run apart from this machine: bubblewrap does not work here ({why})",
            remedy="allow user namespaces, or run where they are allowed; " + REMEDY,
        )
    return command


def _namespaces() -> Sequence[str]:
    """All of its own. Root needs no user namespace, in which it would stay root to the host: it becomes nobody."""
    own = ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try")
    if os.getuid() == 0:
        return (*own, "--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
    return (*own, "--unshare-user")


def _interpreter() -> list[str]:
    """The interpreter, its standard library and the shared libraries of both, at the paths they have outside."""
    ask = [_executable(), "-I", "-S", "-c", "import sys; print(*sys.path, sep='\\n')"]
    library = [Path(line) for line in _output_of(ask).splitlines() if Path(line).exists()]
    modules = [
        str(path) for place in library for path in place.glob("*.so") if not path.name.startswith(("_test", "_tk"))
    ]
    loaded = _loaded([_executable(), *modules])
    parts = _bound([_executable(), *map(str, library), *loaded])
    for place in library:  # packages that lie inside the standard library are not part of it
        for inside in (place / "site-packages", place / "dist-packages"):
            parts += ["--tmpfs", str(inside), "--remount-ro", str(inside)] if inside.is_dir() else []
    folders = dict.fromkeys(str(Path(path).parent) for path in loaded)
    return [*parts, "--setenv", "LD_LIBRARY_PATH", ":".join(folders)]


def _bound(files: Sequence[str]) -> list[str]:
    """These files read-only, in folders that anybody may look into (bubblewrap's own are for root alone)."""
    above = {str(place) for path in files for place in Path(path).parents}
    folders = [part for place in sorted(above - {"/"}) for part in ("--perms", "0755", "--dir", place)]
    return folders + [part for path in files for part in ("--ro-bind", path, path)]


def _loaded(files: Sequence[str]) -> list[str]:
    """The shared libraries that these load, and the loader itself."""
    found = re.findall(r"(?:=>|^)\s+(/\S+) \(0x", _output_of(["ldd", *files]), re.MULTILINE)
    return list(dict.fromkeys(found))


def _output_of(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout


def _devices() -> Sequence[str]:
    """/dev/null and the place for a folder; the rest is read-only. It ends when we do, however we end."""
    devices = ("--perms", "0755", "--dir", "/dev", "--dev-bind", "/dev/null", "/dev/null")
    words = ("--setenv", "HOME", "/work", "--setenv", "LANG", "C.UTF-8")
    return (*devices, *words, "--dir", "/work", "--remount-ro", "/", "--die-with-parent")


def _executable() -> str:
    """The interpreter itself, not a virtual environment's link to it."""
    return str(Path(sys.executable).resolve())


def _python(limits: SandboxLimits, *, unsafe: bool) -> Sequence[str]:
    guard = _GUARD.format(refused=_REFUSED) if unsafe else ""
    return (_executable(), "-I", "-S", "-c", _START.format(limits=asdict(limits), unsafe=unsafe, guard=guard))


# --- one program ------------------------------------------------------------------------------------------------------


class _RunningProgram:
    """A program under way. `wait_for_end` returns when it has ended; `stop` may come from another thread."""

    def __init__(self, program: str, *, limits: SandboxLimits, wrapper: Sequence[str], folder: str) -> None:
        self._limits = limits
        self._output = _OutputTail(limits.output)
        self._unwanted = False
        self._namespace = ProcessNamespace(filtered=cgroups.program()) if wrapper else None
        own = ("--perms", "0777", "--size", str(limits.disk), "--tmpfs", "/work", "--chdir", "/work")
        inside = (*own, *self._namespace.arguments) if self._namespace else ()
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
        """Nobody waits for it any more."""
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
        """Reads on until the program has ended; why it must be stopped, or ""."""
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
        """The program and whatever it started; they are gone when this returns."""
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
    """The last of what a program prints; however much it prints, no more is held."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen = 0
        self._last = b""
        self.open = True

    @property
    def over(self) -> bool:
        return self._seen > self._most

    def take(self, pipe: io.FileIO) -> None:
        """What there is now, until there is no more or it is too much."""
        while self.open and not self.over:
            part = pipe.read(65536)
            if part is None:
                return
            self.open = bool(part)
            self._seen += len(part)
            self._last = (self._last + part)[-4 * SHOWN :]

    def text(self) -> str:
        return self._last.decode(errors="replace")[-SHOWN:]
