"""What a sandbox promises, whatever keeps it apart: its limits, how a command ended, the room itself, its shell."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

HOME = "/root"
"""where commands begin"""

SYSTEM = ("bin", "etc", "lib", "lib32", "lib64", "libx32", "sbin", "usr")
"""folders below the root that decide how every program runs"""

Driver = Literal["bubblewrap", "podman", "docker"]
Users = Literal["one", "many"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """What may be used. ``seconds`` and ``output`` (bytes) are of one command, ``cpu`` (seconds) of each process.

    ``disk`` is what all files may take together, and the most that one may. ``processes`` counts threads too.
    ``memory`` is of the whole sandbox where this machine has control groups for us, of each process elsewhere.
    """

    seconds: float
    cpu: int
    memory: int
    processes: int
    disk: int
    output: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSettings:
    """How a sandbox is made.

    ``root`` None shows the programs of this machine, read-only, and nothing else of it; a folder (or, for a container
    driver, an image) is a system of its own. ``users`` "many" lets root inside become others. ``binds`` are folders of
    this machine to show, read-only, under their own paths.
    """

    limits: SandboxLimits
    driver: Driver
    root: str | None
    users: Users = "one"
    binds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """How a command ended. ``code`` None: it was stopped, for the reason in ``stopped``.

    ``output`` is what it printed, stdout and stderr as they came; of too much, the head and the tail.
    """

    code: int | None
    output: str
    seconds: float
    stopped: str = ""

    @property
    def ok(self) -> bool:
        return self.code == 0


class Shell(Protocol):
    """A shell that lives on between commands, at a terminal: its folder, its variables and its background jobs stay.

    What it reports is the agent's own view: a checker asks `Sandbox.run`, which nothing inside can answer for.
    """

    async def run(self, command: str, *, seconds: float | None = None) -> CommandResult:
        """One command to its end. Out of time it gets Ctrl-C; a shell that does not come back is begun anew."""
        ...

    async def type(self, keys: str) -> None:
        """Send keys to the terminal, as they are."""
        ...

    async def seen(self) -> str:
        """What came to the terminal since the last look, without waiting."""
        ...

    async def close(self) -> None:
        """End it and all that was begun in it. Safe to call twice."""
        ...


class Sandbox(Protocol):
    """A room apart from the machine, for one lease.

    Files stay until `close`, processes only as long as their command or shell. There is no network but its own
    loopback, nothing of the host's environment, and what runs in it cannot see, touch or outlive anything else.
    Commands of one sandbox may run at once. Raises NoSandbox where it cannot be kept apart any more.
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
        """Run a program in processes of its own; all of them are gone when this returns. ``seconds``: the limit's."""
        ...

    async def shell(self) -> Shell:
        """Begin a shell (bash, at a terminal)."""
        ...

    async def write(self, path: str, content: bytes, *, executable: bool = False) -> None:
        """Put a file there, with the folders above it. ``path`` is the sandbox's own: a link leads nowhere outside."""
        ...

    async def read(self, path: str, *, most: int) -> bytes:
        """The first bytes of a file. Raises FileNotFoundError where there is none."""
        ...

    async def names(self, path: str) -> Sequence[str]:
        """The names in a folder. Raises FileNotFoundError where there is none."""
        ...

    async def seal(self) -> None:
        """End every process, shells too, before a checker begins. Safe to call twice.

        From here on, commands see `SYSTEM` as it was at the beginning, read-only, and all other files as they are.
        """
        ...

    async def listen(self, port: int) -> socket.socket:
        """A socket at 127.0.0.1:``port`` of the sandbox's own network, for us to accept at: the only way out there is.

        It ends with the sandbox; whoever takes it closes it.
        """
        ...

    async def close(self) -> None:
        """End every process and drop every file. It always ends; safe to call twice."""
        ...


# What a command prints, however much: the beginning and the end are kept, the middle is counted.


class BoundedOutput:
    """Takes bytes until there are more than ``most``; of those it keeps ``shown`` at most, half from each end."""

    def __init__(self, *, most: int, shown: int) -> None:
        self.most = most
        self._half = max(1, shown // 2)
        self._seen = 0
        self._head = b""
        self._tail = b""

    @property
    def over(self) -> bool:
        """Whether more was printed than is allowed."""
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
