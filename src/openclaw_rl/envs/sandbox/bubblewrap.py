"""A sandbox that needs only bubblewrap: no daemon, no image, no root."""

from __future__ import annotations

import asyncio
import functools
import os
import shlex
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from openclaw_rl.envs.sandbox import cgroups
from openclaw_rl.envs.sandbox.cgroups import ControlGroup
from openclaw_rl.envs.sandbox.contract import HOME, SYSTEM, CommandResult, SandboxLimits, SandboxSettings, Shell
from openclaw_rl.envs.sandbox.execution import NotBegun, ProcessNamespace, execute
from openclaw_rl.envs.sandbox.holder import CLEAN, NICE, PATH, ROOT, SHOWN, Holder, hold, restoring
from openclaw_rl.envs.sandbox.outside import OutsideFiles
from openclaw_rl.envs.sandbox.terminal import TerminalShell
from openclaw_rl.errors import NoSandbox

KEPT = 64 << 10
"""output bytes kept per command"""
_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE")
_FOR_MANY = ("SETUID", "SETGID", "SETFCAP")
_NOT_STARTED = 127
"""exit code for a command whose program, library or folder is missing in the sandbox, as in a shell"""
View = Literal["own", "sealed", "clean"]
"""files that a command sees: the current ones, those with the initial `SYSTEM`, or only the initial ones"""


class BubblewrapSandbox:
    """See `Sandbox`. Commands run as root of a user namespace, without privileges outside it."""

    def __init__(self, holder: Holder, group: ControlGroup, settings: SandboxSettings) -> None:
        self._holder = holder
        self._group = group
        self._groups: list[ControlGroup] = []
        self._settings = settings
        self._filter = cgroups.program(sockets=True)
        self._shells: list[TerminalShell] = []
        self._running: set[asyncio.Task[CommandResult]] = set()
        self._sealed = self._closed = False

    @classmethod
    async def open(cls, settings: SandboxSettings) -> BubblewrapSandbox:
        """Open a new, empty sandbox; raise NoSandbox, with the remedy, if this machine cannot isolate it."""
        limits = settings.limits
        group = cgroups.make_group(memory=limits.memory, processes=limits.processes)
        try:
            _check(settings, group)
            return cls(await hold(settings), group, settings)
        except BaseException:
            group.close()
            raise

    async def run(
        self,
        command: Sequence[str],
        *,
        seconds: float | None = None,
        stdin: bytes = b"",
        cwd: str = HOME,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        limits = self._settings.limits
        if seconds is not None:
            limits = replace(limits, seconds=seconds)
        return await self._tracked(command, limits=limits, shown=KEPT, stdin=stdin, cwd=cwd, env=env or {})

    async def _tracked(
        self,
        command: Sequence[str],
        *,
        limits: SandboxLimits,
        shown: int,
        stdin: bytes = b"",
        cwd: str = HOME,
        env: Mapping[str, str] = MappingProxyType({}),
    ) -> CommandResult:
        """Run the command as a separate task, so that `close` can end it."""
        self._check_open()
        task = asyncio.ensure_future(self._execute(command, limits=limits, shown=shown, stdin=stdin, cwd=cwd, env=env))
        self._running.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if (self._closed or self._sealed) and not _cancelled():
                raise NoSandbox("this sandbox was closed while a command ran") from None
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise
        finally:
            self._running.discard(task)

    async def _execute(
        self,
        command: Sequence[str],
        *,
        limits: SandboxLimits,
        shown: int,
        stdin: bytes,
        cwd: str,
        env: Mapping[str, str],
    ) -> CommandResult:
        begin = functools.partial(self._begin, limits=limits, shown=shown, stdin=stdin)
        try:
            return await begin(command, cwd=cwd, env=env, view=None)
        except NotBegun as error:
            await self._holder.make_clean(self._settings)
            # raises if the machine is at fault
            await begin(["sh", "-c", ":"], cwd="/", env={}, view="sealed" if self._sealed else "clean")
            return CommandResult(code=_NOT_STARTED, output=f"{error.what}\n", seconds=0.0)

    async def _begin(
        self,
        command: Sequence[str],
        *,
        limits: SandboxLimits,
        shown: int,
        stdin: bytes,
        cwd: str,
        env: Mapping[str, str],
        view: View | None,
    ) -> CommandResult:
        """Run the command; raise NotBegun if bubblewrap could not start it."""
        with ProcessNamespace(filtered=self._filter) as inside:
            line = self.command(command, inside, cwd=cwd, env=env, view=view)
            return await execute(line, within=inside, limits=limits, shown=shown, stdin=stdin)

    def command(
        self,
        command: Sequence[str],
        inside: ProcessNamespace,
        *,
        cwd: str,
        env: Mapping[str, str],
        view: View | None = None,
    ) -> list[str]:
        """Return the full command line: join the control group, set limits, enter the namespaces, start bubblewrap."""
        view = view or ("sealed" if self._sealed else "own")
        limits = self._settings.limits
        words = {"PATH": PATH, "HOME": HOME, "USER": "root", "LANG": "C.UTF-8", "TERM": "dumb", **env}
        return [
            *("/bin/sh", "-c", _limiting(limits, self._group), "sh"),
            *self._holder.entering,
            *(restoring(self._settings) if view == "sealed" else ()),
            *(
                "bwrap",
                "--unshare-pid",
                "--unshare-uts",
                "--hostname",
                "sandbox",
                "--die-with-parent",
                *inside.arguments,
                *self._files(view),
            ),
            *("--proc", "/proc", "--dev", "/dev", "--size", str(limits.disk), "--tmpfs", "/dev/shm"),
            *("--remount-ro", "/dev", "--cap-drop", "ALL", *self._capabilities(), "--clearenv"),
            *(part for name, value in words.items() for part in ("--setenv", name, value)),
            *("--chdir", cwd, "--", *command),
        ]

    def _files(self, view: View) -> list[str]:
        """Return options for the sandbox's own files, and read-only for the host folders it exposes."""
        clean = self._settings.root or CLEAN
        system = [part for place in self._system(clean) for part in place] if view == "sealed" else []
        exposed = [] if self._settings.root else ["/usr", *SHOWN, *_unmerged()]
        options = [part for path in exposed if Path(path).is_dir() for part in ("--ro-bind", path, path)]
        if view == "clean":
            return ["--ro-bind", clean, "/", *options]
        as_root = os.geteuid() == 0
        for number, path in enumerate(self._settings.binds):
            options += ["--ro-bind", f"/mnt/binds/{number}" if as_root else path, path]
        return ["--bind", ROOT, "/", *system, *options]

    def _system(self, clean: str) -> Iterator[tuple[str, ...]]:
        """Yield options that cover the agent's `SYSTEM` folders with the initial ones, or with an empty /etc if it had
        none.
        """
        if self._settings.root is None:
            yield "--ro-bind", f"{clean}/etc", "/etc"
            return
        for name in SYSTEM:
            place = Path(clean, name)
            if place.is_dir() and not place.is_symlink():
                yield "--ro-bind", str(place), f"/{name}"
            elif name == "etc":
                yield "--tmpfs", "/etc", "--remount-ro", "/etc"

    def _capabilities(self) -> list[str]:
        names = (*_CAPABILITIES, *(_FOR_MANY if self._settings.users == "many" else ()))
        return [part for name in names for part in ("--cap-add", f"CAP_{name}")]

    async def shell(self) -> Shell:
        self._check_open()
        shell = TerminalShell(
            self.command,
            limits=self._settings.limits,
            filtered=self._filter,
            shown=KEPT,
        )
        await shell.begin()
        self._shells.append(shell)
        return shell

    async def write(self, path: str, content: bytes, *, executable: bool = False) -> None:
        script = 'mkdir -p -- "$(dirname -- "$1")" && cat > "$1" && chmod "$2" -- "$1"'
        result = await self.run(["sh", "-c", script, "sh", path, "755" if executable else "644"], stdin=content)
        if not result.ok:
            raise OSError(f"{path} could not be written in the sandbox: {result.output.strip() or result.stopped}")

    async def read(self, path: str, *, most: int) -> bytes:
        self._check_open()
        return await asyncio.to_thread(self._outside().read, path, most=most)

    async def names(self, path: str) -> Sequence[str]:
        self._check_open()
        return await asyncio.to_thread(self._outside().names, path)

    def _outside(self) -> OutsideFiles:
        exposed = [] if self._settings.root else ["/usr", *SHOWN, *_unmerged()]
        folders = [path for path in (*exposed, *self._settings.binds) if Path(path).is_dir()]
        return OutsideFiles(self._holder.outside, {path: path for path in folders})

    async def seal(self) -> None:
        self._check_open()
        if self._sealed:
            return
        self._sealed = True
        await self._end_all()
        self._groups.append(self._group)  # memory that an agent filled still counts against the agent's own group
        self._group = cgroups.make_group(memory=self._settings.limits.memory, processes=self._settings.limits.processes)
        await self._holder.make_clean(self._settings, accounts=True)

    async def listen(self, port: int) -> socket.socket:
        self._check_open()
        return await self._holder.listen(port)

    async def close(self) -> None:
        self._closed = True
        try:
            await self._end_all()
        finally:
            await self._holder.close()
            for group in (self._group, *self._groups):
                group.close()

    async def _end_all(self) -> None:
        """End every command and shell, with all their processes."""
        for task in tuple(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        for shell in self._shells:
            await shell.close()

    def _check_open(self) -> None:
        if self._closed:
            raise NoSandbox("this sandbox is closed")


def _cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _limiting(limits: SandboxLimits, group: ControlGroup) -> str:
    """Return a shell script that sets the limits, then runs its arguments at a lower priority than serving."""
    joining = [f"echo $$ > {shlex.quote(file)} || exit 125" for file in group.members]
    ulimits = {"c": 0, "t": limits.cpu, "f": limits.disk // 512 + 1, "n": 1024}
    if not cgroups.enforced():
        ulimits["v"] = limits.memory // 1024
    limiting = [f"ulimit -{name} {value} || exit 125" for name, value in ulimits.items()]
    limiting += [f"ulimit -u {limits.processes} 2>/dev/null || ulimit -p {limits.processes} || exit 125"]
    return "; ".join([*joining, *limiting, f'exec nice -n {NICE} "$@"'])


def _unmerged() -> list[str]:
    """Return the program folders that are not links into /usr on this system."""
    return [path for path in ("/bin", "/sbin", "/lib", "/lib64") if not Path(path).is_symlink()]


def _check(settings: SandboxSettings, group: ControlGroup) -> None:
    """Raise NoSandbox if these settings would break the isolation."""
    if settings.users == "many" and os.geteuid() != 0:
        raise NoSandbox("a sandbox with several users needs root here", remedy="run as root, or set users = one")
    if settings.root is None:
        return
    if not Path(settings.root, "bin/sh").exists():
        raise NoSandbox(
            f"{settings.root} is not a system: it has no bin/sh",
            remedy=f"make one: mmdebstrap --variant=minbase stable {settings.root}",
        )
    if os.geteuid() == 0 and not group.folders:
        raise NoSandbox(
            "a system of its own, run by root, needs control groups, and none can be made here",
            remedy="run as another user, or leave env.sandbox.root out",
        )
