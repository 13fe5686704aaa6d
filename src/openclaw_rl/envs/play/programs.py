"""An agent program's location on this machine, and the folders that it needs in its sandbox.

A virtual environment is shown with its base Python, an npm package with its node_modules and node, a script with its
interpreter, any other program with its own folder. Files in /usr are always there.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from openclaw_rl.envs.sandbox import HOME, Sandbox
from openclaw_rl.errors import ConfigError

_THERE = Path("/usr")
_HEAD = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundProgram:
    """A program: its path, the folders to show it, and those to search for the programs that it starts."""

    path: str
    folders: tuple[str, ...]
    search: tuple[str, ...]


def find_program(
    program: str, *, install: str | None = None, more: Sequence[Path] = (), copied: bool = False
) -> FoundProgram:
    """Return the program with this name or path, with ``more`` folders that it needs.

    ``copied``: a script that is copied into the sandbox needs its interpreter, not its folder. Raise ConfigError, with
    the install command, if the program is missing.
    """
    location = shutil.which(program)
    if location is None:
        how = f"install it: {install}; " if install else ""
        raise ConfigError(
            f"the agent's program {program!r} is not on this machine",
            remedy=f"{how}or give its path with --program PATH",
        )
    path = Path(location).absolute()
    begun = _interpreters(path) if copied else (path,)
    needed = [needed_folder for place in begun for needed_folder in _needed(place)] + [
        folder.resolve() for folder in more
    ]
    return FoundProgram(
        path=str(path),
        folders=tuple(map(str, _shown(needed))),
        search=tuple(dict.fromkeys(str(place.parent) for place in (path, *_interpreters(path)))),
    )


def _needed(path: Path) -> Iterator[Path]:
    """Yield the folders for a program and for its interpreters."""
    for place in dict.fromkeys((path, path.resolve())):
        yield _home_of(place)
        yield from _python_of(place)
    for interpreter in _interpreters(path):
        yield from _needed(interpreter)


def _home_of(place: Path) -> Path:
    """Return the virtual environment, node_modules or version manager that contains a program, else its folder."""
    for above in place.parents:
        if (above / "pyvenv.cfg").is_file():
            return above
    if "node_modules" in place.parts:
        return Path(*place.parts[: place.parts.index("node_modules") + 1])
    return place.parent.parent if place.parent.name == "shims" else place.parent


def _python_of(place: Path) -> Iterator[Path]:
    """Yield the folder with a virtual environment's base Python."""
    settings = _home_of(place) / "pyvenv.cfg"
    if settings.is_file():
        home = re.search(r"(?m)^home\s*=\s*(.+)$", settings.read_text(encoding="utf-8"))
        if home:
            yield Path(home[1].strip()).resolve().parent


def _interpreters(path: Path) -> Sequence[Path]:
    """Return a script's interpreter, from its first line; none for a binary."""
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if not head.startswith(b"#!"):
        return ()
    words = head[2:].splitlines()[0].decode(errors="replace").split()
    names = [word for word in words[1:] if not word.startswith("-")] if words[:1] == ["/usr/bin/env"] else words[:1]
    interpreter = shutil.which(names[0]) if names else None
    return (Path(interpreter).absolute(),) if interpreter else ()


def _shown(folders: Sequence[Path]) -> list[Path]:
    """Drop duplicates and folders in others or in /usr; raise ConfigError for one that would cover a task."""
    candidates = sorted(
        {folder for folder in folders if not folder.is_relative_to(_THERE) and folder.parts[1:2] != ("bin",)}
    )
    outermost: list[Path] = []
    for folder in candidates:
        if not any(folder.is_relative_to(outer) for outer in outermost):
            outermost.append(folder)
    for folder in outermost:
        if Path(HOME).is_relative_to(folder):
            raise ConfigError(
                f"the agent needs all of {folder}, where tasks have their files in a sandbox",
                remedy="put it into a folder of its own and name it with --program PATH",
            )
    return outermost


# An environment's contract with an agent program: a task in a sandbox, and the files' worth after the program ends.


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTask:
    """A started task: the program's instruction, the sandbox with the task's files, and the folder to work in.

    The sandbox belongs to the environment, which closes it.
    """

    instruction: str
    sandbox: Sandbox
    cwd: str


@runtime_checkable
class SupportsAgents(Protocol):
    """An environment whose tasks an agent program can do by itself: only the sandbox's final state counts."""

    async def hand_over(self, task: str, *, seed: int) -> AgentTask:
        """Start ``task`` for a program, in place of `reset`; raise TaskRefused if files cannot decide it."""
        ...

    async def outcome(self) -> float:
        """Return the state's worth, in -1 .. 1."""
        ...
