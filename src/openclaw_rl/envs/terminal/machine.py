"""The machine of a terminal task: its files, its commands and their output."""

from __future__ import annotations

import io
import os
import posixpath
import shlex
import tarfile
from collections.abc import Mapping, Sequence
from typing import Any

from openclaw_rl.envs.actions import bounded
from openclaw_rl.envs.sandbox import HOME, CommandResult, Sandbox, SandboxSettings, Shell, open_sandbox
from openclaw_rl.envs.terminal.tasks import FinalState, TerminalTask
from openclaw_rl.errors import EnvFailed
from openclaw_rl.types import Tool

READ = 256 << 10
"""most bytes that the tools read from a file"""


def _tool(name: str, description: str, **texts: str) -> Tool:
    properties = {key: {"type": "string", "description": about} for key, about in texts.items()}
    return Tool(
        name=name,
        description=description,
        parameters={"type": "object", "properties": properties, "required": list(texts)},
    )


_PATH = f"where it lies; without a leading slash, below {HOME}"
TOOLS: Sequence[Tool] = (
    _tool("bash", "Run a command in the terminal and see what it prints.", command="the command, as typed in bash"),
    _tool("read", "Read a text file.", path=_PATH),
    _tool("write", "Write a text file; one that is there is replaced.", path=_PATH, content="all that it is to hold"),
    _tool(
        "edit",
        "Replace a passage of a text file.",
        path=_PATH,
        old="the passage, which is there once",
        new="what it becomes",
    ),
)


class TerminalMachine:
    """A sandbox with a task's files. ``lasting``: commands share one shell, which keeps its folder and variables."""

    def __init__(
        self, sandbox: Sandbox, *, lasting: bool, shown: int, folder: str = HOME, binds: tuple[str, ...] = ()
    ) -> None:
        self._sandbox = sandbox
        self._binds = binds
        self._folder = folder
        self._lasting = lasting
        self._shown = shown
        self._shell: Shell | None = None
        self._printed = ""

    @classmethod
    async def begin(cls, settings: SandboxSettings, task: TerminalTask, *, shown: int) -> TerminalMachine:
        """Open a sandbox and set it up for a task; tool results are cut to ``shown`` characters."""
        sandbox = await open_sandbox(settings)
        try:
            await set_up(sandbox, task)
            machine = cls(sandbox, lasting=task.steps > 1, shown=shown, folder=task.folder, binds=settings.binds)
            for command in task.start:
                await machine._run(command)
        except BaseException:
            await sandbox.close()
            raise
        return machine

    def state(self, answer: str | None = None) -> FinalState:
        """Return the state that checks examine."""
        return FinalState(sandbox=self._sandbox, printed=self._printed, shown=self._binds, answer=answer)

    @property
    def printed(self) -> str:
        """The last command's output."""
        return self._printed

    async def seal(self) -> None:
        """End the agent's processes before a checker runs; see `Sandbox.seal`."""
        await self._sandbox.seal()

    async def written(self, name: str) -> str | None:
        """Return the text of a file in the task's folder, or None if it cannot be read."""
        try:
            return await self._read(posixpath.join(self._folder, name))
        except OSError:
            return None

    async def act(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Execute one of `TOOLS`; return the text for the agent."""
        if tool == "bash":
            return await self.command(arguments["command"])
        path = posixpath.join(self._folder, arguments["path"])
        try:
            if tool == "read":
                return bounded(await self._read(path), self._shown)
            if tool == "write":
                await self._sandbox.write(path, arguments["content"].encode(errors="replace"))
                return f"written: {path}"
            return await self._edit(path, arguments["old"], arguments["new"])
        except OSError as error:
            return f"error: {error}"

    async def command(self, command: str) -> str:
        """Run a command; return the head and tail of its output, with its exit code and duration."""
        ran = await self._run(command)
        self._printed = ran.output
        end = f"exit code {ran.code}" if ran.code is not None else ran.stopped
        output = bounded(ran.output.rstrip("\n"), self._shown)
        return "\n".join([*([output] if output else []), f"[{end}, {ran.seconds:.1f} s]"])

    async def _run(self, command: str) -> CommandResult:
        if "\0" in command:
            return CommandResult(code=2, output="bash: a command holds no null character\n", seconds=0.0)
        if not self._lasting:
            return await self._sandbox.run(["bash", "-c", command], cwd=self._folder)
        if self._shell is None:
            self._shell = await self._sandbox.shell()
            if self._folder != HOME:
                await self._shell.run(f"cd {self._folder}")
        return await self._shell.run(command)

    async def _read(self, path: str) -> str:
        return (await self._sandbox.read(path, most=READ)).decode(errors="replace")

    async def _edit(self, path: str, old: str, new: str) -> str:
        text = await self._read(path)
        times = text.count(old) if old else 0
        if times != 1:
            return f"error: the passage is {times} times in {path}, not once"
        await self._sandbox.write(path, text.replace(old, new).encode(errors="replace"))
        return f"edited: {path}"

    async def close(self) -> None:
        await self._sandbox.close()


async def set_up(sandbox: Sandbox, task: TerminalTask) -> None:
    """Write a task's files and run its setup scripts; raise EnvFailed if either fails."""
    if task.files:
        result = await sandbox.run(["tar", "-xf", "-"], stdin=_archive(task.files))
        if not result.ok:
            raise EnvFailed(f"the files of a task could not be written: {result.output or result.stopped}")
    for path, file in task.placed.items():
        await sandbox.write(path, file.read_bytes(), executable=os.access(file, os.X_OK))
    for script in task.setup:
        begin = f"cd {shlex.quote(task.folder)} 2>/dev/null || true\n"  # the first script may have to create the folder
        result = await sandbox.run(["bash", "-c", begin + script], cwd="/")
        if not result.ok:
            raise EnvFailed(f"a task could not be set up: {(result.output or result.stopped)[-300:]}")


def _archive(files: Mapping[str, str]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, text in files.items():
            data = text.encode()
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue()
