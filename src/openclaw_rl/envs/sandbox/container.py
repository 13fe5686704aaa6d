"""The sandbox contract through Podman or Docker, with an image in place of this machine's programs.

The container's first process reads our pipe and ends with us, and the container with it. Files are in the container's
own layer: only each file's size is limited, not their total. `listen` is unsupported.
`seal` starts a second container from the same image and copies the changed folders that are not part of the system.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import shutil
import socket
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Mapping, Sequence
from dataclasses import replace

from openclaw_rl.envs.sandbox.contract import HOME, SYSTEM, CommandResult, SandboxLimits, SandboxSettings, Shell
from openclaw_rl.envs.sandbox.execution import execute, to_its_end
from openclaw_rl.errors import NoSandbox
from openclaw_rl.types import new_id

KEPT = 64 << 10
"""output bytes kept per command"""
BEGIN_SECONDS = 60.0
_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE")
_FOR_MANY = ("SETUID", "SETGID")
_HOUSEKEEPING = SandboxLimits(seconds=30.0, cpu=30, memory=0, processes=0, disk=0, output=1 << 20)
_COPYING = replace(_HOUSEKEEPING, seconds=120.0)
_KERNEL = ("dev", "proc", "run", "sys")
"""folders below the root without task files"""
_OPEN_FILES = 1024
_MARK = "OPENCLAW_RL_COMMAND"
_KILL = f'for p in /proc/[0-9]*; do grep -qz "^{_MARK}=$1" "$p/environ" 2>/dev/null && kill -9 "${{p#/proc/}}"; done; :'


class ContainerSandbox:
    """See `Sandbox`. The container runs only our commands."""

    def __init__(self, tool: str, settings: SandboxSettings, container: _Container) -> None:
        self._tool = tool
        self._settings = settings
        self._container = container
        self._shells: list[_PipeShell] = []
        self._sealed = self._closed = False

    @classmethod
    async def open(cls, settings: SandboxSettings) -> ContainerSandbox:
        """Start a new container; raise NoSandbox, with the remedy, if that is not possible."""
        tool = shutil.which(settings.driver)
        if tool is None:
            raise NoSandbox(
                f"{settings.driver} is not installed", remedy="install it, or set env.sandbox.driver = bubblewrap"
            )
        if settings.root is None:
            raise NoSandbox(
                f"{settings.driver} needs an image",
                remedy="name one: env.sandbox.root = docker.io/library/debian:stable",
            )
        return cls(tool, settings, await _Container.begin(tool, settings))

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
        return await self._execute(command, limits=limits, shown=KEPT, stdin=stdin, cwd=cwd, env=env or {})

    async def _execute(
        self,
        command: Sequence[str],
        *,
        limits: SandboxLimits,
        shown: int,
        stdin: bytes = b"",
        cwd: str = HOME,
        env: Mapping[str, str],
    ) -> CommandResult:
        if self._closed:
            raise NoSandbox("this sandbox is closed")
        mark = new_id()
        line = [self._tool, *_exec_arguments(self._container.name, {**env, _MARK: mark}, cwd=cwd), *command]
        try:
            return await execute(line, within=None, env=None, limits=limits, shown=shown, stdin=stdin)
        finally:
            await to_its_end(self._kill(mark))

    async def _kill(self, mark: str) -> None:
        """Kill the command's remaining processes: the kill of the tool that started it ends only the tool."""
        line = [self._tool, "exec", self._container.name, "sh", "-c", _KILL, "sh", mark]
        await execute(line, within=None, env=None, limits=_HOUSEKEEPING, shown=0)

    async def shell(self) -> Shell:
        line = [self._tool, *_exec_arguments(self._container.name, {}, cwd=HOME)]
        shell = _PipeShell(line, limits=self._settings.limits)
        self._shells.append(shell)
        return shell

    async def write(self, path: str, content: bytes, *, executable: bool = False) -> None:
        script = 'mkdir -p -- "$(dirname -- "$1")" && cat > "$1" && chmod "$2" -- "$1"'
        result = await self.run(["sh", "-c", script, "sh", path, "755" if executable else "644"], stdin=content)
        if not result.ok:
            raise OSError(f"{path} could not be written in the sandbox: {result.output.strip() or result.stopped}")

    async def read(self, path: str, *, most: int) -> bytes:
        script = 'test -f "$1" || exit 66; head -c "$2" -- "$1" | base64 | tr -d "\\n"'
        room = 4096 + 2 * most
        result = await self._execute(
            ["sh", "-c", script, "sh", path, str(most)],
            limits=replace(self._settings.limits, output=room),
            shown=2 * room,
            env={},
        )
        if result.code == 66:
            raise FileNotFoundError(f"no file {path} in the sandbox")
        if not result.ok:
            raise OSError(f"{path} could not be read in the sandbox: {result.output.strip() or result.stopped}")
        return base64.b64decode(result.output)

    async def names(self, path: str) -> Sequence[str]:
        script = 'test -d "$1" || exit 66; cd -- "$1" && find . -mindepth 1 -maxdepth 1 -print0 | base64 | tr -d "\\n"'
        result = await self._execute(
            ["sh", "-c", script, "sh", path], limits=self._settings.limits, shown=self._settings.limits.output, env={}
        )
        if result.code == 66:
            raise FileNotFoundError(f"no folder {path} in the sandbox")
        if not result.ok:
            raise OSError(f"{path} could not be listed in the sandbox: {result.output.strip() or result.stopped}")
        listed = base64.b64decode(result.output).decode(errors="replace")
        return [name.removeprefix("./") for name in listed.split("\0") if name]

    async def seal(self) -> None:
        if self._closed:
            raise NoSandbox("this sandbox is closed")
        if self._sealed:
            return
        self._sealed = True
        for shell in self._shells:
            await shell.close()
        previous, self._container = self._container, await _Container.begin(self._tool, self._settings)
        try:
            for folder in await previous.changed():
                await self._container.take(folder, previous)
        finally:
            await previous.remove()

    async def listen(self, port: int) -> socket.socket:
        raise NoSandbox(
            f"{self._settings.driver} cannot reach a container's own network from outside",
            remedy="set env.sandbox.driver = bubblewrap",
        )

    async def close(self) -> None:
        self._closed = True
        for shell in self._shells:
            await shell.close()
        await self._container.remove()


class _Container:
    """A container whose first process reads our pipe."""

    def __init__(self, tool: str, name: str, process: Process) -> None:
        self._tool = tool
        self.name = name
        self._process = process

    @classmethod
    async def begin(cls, tool: str, settings: SandboxSettings) -> _Container:
        """Start a container; raise NoSandbox with the tool's own reason if it fails."""
        name = f"openclaw-rl-{new_id()}"
        process = await asyncio.create_subprocess_exec(
            tool, *_run_arguments(name, settings), stdin=PIPE, stdout=PIPE, stderr=STDOUT
        )
        container = cls(tool, name, process)
        try:
            await container._wait_for_begin()
        except BaseException:
            await container.remove()
            raise
        return container

    async def _wait_for_begin(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        self._process.stdin.write(b"begun\n")
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), BEGIN_SECONDS)
        except TimeoutError as error:
            raise NoSandbox(f"{self._tool} started no container within {BEGIN_SECONDS:g} s") from error
        if line != b"begun\n":
            output = line + await self._process.stdout.read(4096)
            raise NoSandbox(f"{self._tool} started no container: {output.decode(errors='replace').strip()[-300:]}")

    async def changed(self) -> Sequence[str]:
        """Return the names below the root with changes, as reported from outside; system folders are excluded."""
        result = await self._tool_run("diff", self.name)
        if not result.ok:
            raise NoSandbox(f"{self._tool} cannot list the changes in a container: {result.output.strip()[-300:]}")
        paths = [line[2:].strip("/") for line in result.output.splitlines() if line[:3] in ("A /", "C /", "D /")]
        return sorted({path.partition("/")[0] for path in paths} - {"", *SYSTEM, *_KERNEL})

    async def take(self, folder: str, other: _Container) -> None:
        """Replace our folder of this name below the root with the other container's."""
        await self._tool_run("exec", self.name, "rm", "-rf", "--", f"/{folder}")
        words = ["sh", "-c", '"$0" cp "$1" - | "$0" cp - "$2"', self._tool, f"{other.name}:/{folder}", f"{self.name}:/"]
        await execute(words, within=None, env=None, limits=_COPYING, shown=KEPT)  # a removed folder copies nothing

    async def remove(self) -> None:
        """End the container and every process in it. Safe to call twice."""
        with contextlib.suppress(OSError):
            await self._tool_run("rm", "--force", self.name)
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def _tool_run(self, *words: str) -> CommandResult:
        return await execute([self._tool, *words], within=None, env=None, limits=_HOUSEKEEPING, shown=1 << 20)


class _PipeShell:
    """See `Shell`. Uses pipes, not a terminal: output that programs write only to terminals is missing."""

    def __init__(self, entering: Sequence[str], *, limits: SandboxLimits) -> None:
        self._entering = entering
        self._limits = limits
        self._turn = asyncio.Lock()

    async def run(self, command: str, *, seconds: float | None = None) -> CommandResult:
        """Run the command in a new bash that restores the previous command's folder and variables."""
        async with self._turn:
            state = "/tmp/.openclaw-rl-shell"
            before, after = f'. {state} 2>/dev/null; cd "$PWD" 2>/dev/null', f"declare -p > {state} 2>/dev/null"
            script = f'{before}; eval "$1"; code=$?; {after}; exit $code'
            limits = self._limits if seconds is None else replace(self._limits, seconds=seconds)
            line = [*self._entering, "bash", "-c", script, "bash", command]
            return await execute(line, within=None, env=None, limits=limits, shown=KEPT)

    async def type(self, keys: str) -> None:
        raise NoSandbox("a shell in a container has no terminal", remedy="set env.sandbox.driver = bubblewrap")

    async def seen(self) -> str:
        return ""

    async def close(self) -> None:
        """Do nothing: no process runs between commands."""


def _run_arguments(name: str, settings: SandboxSettings) -> list[str]:
    limits = settings.limits
    caps = (*_CAPABILITIES, *(_FOR_MANY if settings.users == "many" else ()))
    return [
        *("run", "--interactive", "--rm", "--name", name, "--network", "none", "--hostname", "sandbox"),
        *("--stop-timeout", "0"),
        *("--memory", str(limits.memory), "--memory-swap", str(limits.memory), "--pids-limit", str(limits.processes)),
        *("--ulimit", f"cpu={limits.cpu}", "--ulimit", f"fsize={limits.disk}", "--ulimit", "core=0"),
        *("--ulimit", f"nofile={_OPEN_FILES}:{_OPEN_FILES}"),
        *(("--ulimit", f"nproc={limits.processes}") if os.geteuid() == 0 else ()),  # else all our processes count
        *("--shm-size", str(limits.disk), "--security-opt", "no-new-privileges", "--cap-drop", "ALL"),
        *(part for cap in caps for part in ("--cap-add", cap)),
        *(part for path in settings.binds for part in ("--volume", f"{path}:{path}:ro")),
        settings.root or "",
        "cat",
    ]


def _exec_arguments(name: str, env: Mapping[str, str], *, cwd: str) -> list[str]:
    words = {"HOME": HOME, "LANG": "C.UTF-8", "TERM": "dumb", **env}
    variables = [part for key, value in words.items() for part in ("--env", f"{key}={value}")]
    return ["exec", "--interactive", "--workdir", cwd, *variables, name]
