"""Runs a program that a model wrote: with limits always, and apart from the machine where the system allows it.

    bubblewrap   no network, the system read-only, homes hidden, only the program's own folder to write to
    unshare      no network; files as the user may see them
    limits       neither: only limits on time, memory, files and processes

In all of them the interpreter refuses to open sockets, start processes, and write or remove files elsewhere.
`isolation` says which of them this machine has; every report names the one that was used.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Isolation = Literal["bubblewrap", "unshare", "limits"]

_LIMITS = """
import os, resource, sys
program = open({program!r}).read()
def limit(name, most):
    resource.setrlimit(name, (most, most))
limit(resource.RLIMIT_CPU, {cpu})
limit(resource.RLIMIT_FSIZE, 1 << 20)
limit(resource.RLIMIT_CORE, 0)
limit(resource.RLIMIT_NOFILE, 32)
if sys.platform != "darwin":  # which has neither as a process may set them
    limit(resource.RLIMIT_AS, {memory})
    limit(resource.RLIMIT_NPROC, 64)
def guard(event, told, here=os.path.realpath("."), at=os.path.realpath):
    writes = event == "open" and (not isinstance(told[1], str) or set(told[1]) & set("wax+"))
    if writes and isinstance(told[0], (str, bytes)) and (told[2] & 3 or told[2] & 64):
        writes = not at(os.fsdecode(told[0])).startswith(here)
    else:
        writes = False
    if writes or event.startswith({refused!r}):
        raise PermissionError(event + " is refused here")
sys.addaudithook(guard)
exec(compile(program, "program", "exec"), {{"__name__": "__main__"}})
"""
_REFUSED = (
    *("socket.", "subprocess.", "ctypes.", "shutil.", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.system"),
    *("os.chmod", "os.chown", "os.kill", "os.link", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.truncate"),
    "signal.pthread_kill",
)
"""what the interpreter itself refuses: no wall against malice, but against a small model's accidents"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a program ended. ``code`` None: it was stopped for taking too long."""

    code: int | None
    output: str

    @property
    def ok(self) -> bool:
        return self.code == 0


@functools.cache
def isolation() -> Isolation:
    """The strongest way that works here, found out by trying."""
    ways: tuple[Isolation, ...] = ("bubblewrap", "unshare")
    for way in ways:
        with tempfile.TemporaryDirectory() as folder:
            command = [*_apart(way, Path(folder)), _python(), "-I", "-S", "-c", "pass"]
            try:
                if subprocess.run(command, capture_output=True, timeout=10, check=False).returncode == 0:
                    return way
            except (OSError, subprocess.TimeoutExpired):  # not installed, not allowed: the next way, then
                continue
    return "limits"


async def run(program: str, *, seconds: float = 5.0, cpu: int = 2, memory: int = 512 << 20) -> Ran:
    """Run a Python program; what it printed, cut to its last 2,000 characters."""
    way = await asyncio.to_thread(isolation)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "program.py").write_text(program, encoding="utf-8")
        limits = _LIMITS.format(cpu=cpu, memory=memory, program=str(place / "program.py"), refused=_REFUSED)
        command = [*_apart(way, place), _python(), "-I", "-S", "-c", limits]
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=place,
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            output, _ = await asyncio.wait_for(process.communicate(), seconds)
        except TimeoutError:
            return Ran(code=None, output=f"stopped after {seconds:g} s")
        finally:
            _end(process)
            await process.wait()
    return Ran(code=process.returncode, output=output.decode(errors="replace")[-2000:])


def _end(process: asyncio.subprocess.Process) -> None:
    """The program and whatever it started: they share a group of their own."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _python() -> str:
    """The interpreter itself, not a virtual environment's link to it."""
    return str(Path(sys.executable).resolve())


def _apart(way: Isolation, place: Path) -> Sequence[str]:
    if way == "unshare":
        return ("unshare", "--user", "--map-root-user", "--net", "--")
    if way == "limits":
        return ()
    bind = [part for path in _homes() for part in ("--tmpfs", str(path))]
    again = ("--ro-bind", sys.base_prefix, sys.base_prefix)  # the interpreter may lie in a home
    own = ("--bind", str(place), str(place), "--chdir", str(place))
    system = ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp")
    return (shutil.which("bwrap") or "bwrap", *system, *bind, *again, *own, "--unshare-all", "--die-with-parent")


def _homes() -> list[Path]:
    return [path for path in (Path("/home"), Path("/root"), Path("/run/user")) if path.is_dir()]
