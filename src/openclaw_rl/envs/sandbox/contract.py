"""The contract of every sandbox driver: limits, command results, the sandbox and its shell."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

HOME = "/root"
"""working directory in which commands start"""

SYSTEM = ("bin", "etc", "lib", "lib32", "lib64", "libx32", "sbin", "usr")
"""folders below the root that decide how every program runs"""

Driver = Literal["bubblewrap", "podman", "docker"]
Users = Literal["one", "many"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """Resource limits. ``seconds`` and ``output`` (bytes) apply to one command, ``cpu`` (seconds) to each process.

    ``disk`` limits all files together and each file. ``processes`` counts threads too. ``memory`` applies to the whole
    sandbox if this machine offers control groups, else to each process.
    """

    seconds: float
    cpu: int
    memory: int
    processes: int
    disk: int
    output: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSettings:
    """Settings for one sandbox.

    ``root`` None exposes this machine's programs, read-only, and no other host files; a folder (or, for a container
    driver, an image) supplies a separate system. ``users`` "many" lets root inside switch to other users. ``binds`` are
    host folders to mount read-only at their host paths.
    """

    limits: SandboxLimits
    driver: Driver
    root: str | None
    users: Users = "one"
    binds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """The result of a command. ``code`` is None if it was stopped, for the reason in ``stopped``.

    ``output`` interleaves stdout and stderr in order; output over the limit is cut to its head and tail.
    """

    code: int | None
    output: str
    seconds: float
    stopped: str = ""

    @property
    def ok(self) -> bool:
        return self.code == 0


class Shell(Protocol):
    """A persistent shell at a terminal: its folder, variables and background jobs last from command to command.

    Its results are the agent's own view: a checker uses `Sandbox.run`, which no process inside can fake.
    """

    async def run(self, command: str, *, seconds: float | None = None) -> CommandResult:
        """Run one command to its end; at its time limit send Ctrl-C, and restart the shell if it does not recover."""
        ...

    async def type(self, keys: str) -> None:
        """Send keys to the terminal, unchanged."""
        ...

    async def seen(self) -> str:
        """Return the terminal output since the last read, without waiting."""
        ...

    async def close(self) -> None:
        """End the shell and every process it started. Safe to call twice."""
        ...


class Sandbox(Protocol):
    """An isolated environment for one lease.

    Files last until `close`, processes only as long as their command or shell. The network is the sandbox's own
    loopback; the host's environment variables are absent, and programs inside cannot see, touch or outlive anything
    outside. Commands may run concurrently. Methods raise NoSandbox when isolation is no longer possible.
    """

    async def run(
        self,
        command: Sequence[str],
        *,
        seconds: float | None = None,
        stdin: bytes = b"",
        cwd: str = HOME,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        """Run a program in new processes, all of which have ended on return. ``seconds`` defaults to the limit."""
        ...

    async def shell(self) -> Shell:
        """Start a shell (bash, at a terminal)."""
        ...

    async def write(self, path: str, content: bytes, *, executable: bool = False) -> None:
        """Write a file and create its parent folders. ``path`` is inside the sandbox: links never lead to the host."""
        ...

    async def read(self, path: str, *, most: int) -> bytes:
        """Return the first ``most`` bytes; raise FileNotFoundError if the file does not exist."""
        ...

    async def names(self, path: str) -> Sequence[str]:
        """Return the names in a folder; raise FileNotFoundError if it does not exist."""
        ...

    async def seal(self) -> None:
        """End every process, shells too, before a checker starts. Safe to call twice.

        Later commands see the initial `SYSTEM` folders, read-only, and the current state of all other files.
        """
        ...

    async def listen(self, port: int) -> socket.socket:
        """Return a socket that listens at 127.0.0.1:``port`` of the sandbox's network: the only way out of the sandbox.

        The socket ends with the sandbox; the caller closes it.
        """
        ...

    async def close(self) -> None:
        """End every process and delete every file. Always terminates; safe to call twice."""
        ...


# Command output is bounded: the head and the tail are kept, the bytes between them are counted.


class BoundedOutput:
    """A buffer that is `over` after more than ``most`` bytes and keeps at most ``shown``, half from each end."""

    def __init__(self, *, most: int, shown: int) -> None:
        self.most = most
        self._half = max(1, shown // 2)
        self._seen = 0
        self._head = b""
        self._tail = b""

    @property
    def over(self) -> bool:
        """True if the output exceeds ``most``."""
        return self._seen > self.most

    def add(self, part: bytes) -> None:
        self._seen += len(part)
        room = self._half - len(self._head)
        self._head += part[:room]
        if room < len(part):
            self._tail = (self._tail + part[room:])[-self._half :]

    def text(self) -> str:
        hidden = self._seen - len(self._head) - len(self._tail)
        gap = f"\n[... {hidden} bytes left out ...]\n".encode() if hidden else b""
        return (self._head + gap + self._tail).decode(errors="replace")
