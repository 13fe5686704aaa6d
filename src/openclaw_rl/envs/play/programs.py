"""Where an agent program lies on this machine, and which folders it must see in its sandbox to run.

A virtual environment is shown with the Python that it was made from, a package of npm with its node_modules and node,
a script with its interpreter, anything else with its own folder. What lies in /usr is there already.
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
    """A program: its path, the folders to show it, and those to search for what it starts."""

    path: str
    folders: tuple[str, ...]
    search: tuple[str, ...]


def find_program(
    program: str, *, install: str | None = None, more: Sequence[Path] = (), copied: bool = False
) -> FoundProgram:
    """The program of this name or path, with ``more`` folders that it needs.

    ``copied``: a script that goes along by itself needs what runs it, not its folder. Raises ConfigError, with the line
    that installs it, where the program is missing.
    """
    found = shutil.which(program)
    if found is None:
        how = f"install it: {install}; " if install else ""
        raise ConfigError(
            f"the agent's program {program!r} is not on this machine",
            remedy=f"{how}or say where it is with --program PATH",
        )
    path = Path(found).absolute()
    begun = _interpreters(path) if copied else (path,)
    needed = [each for place in begun for each in _needed(place)] + [folder.resolve() for folder in more]
    return FoundProgram(
        path=str(path),
        folders=tuple(map(str, _shown(needed))),
        search=tuple(dict.fromkeys(str(place.parent) for place in (path, *_interpreters(path)))),
    )


def _needed(path: Path) -> Iterator[Path]:
    """The folders of a program and of what runs it."""
    for place in dict.fromkeys((path, path.resolve())):
        yield _home_of(place)
        yield from _python_of(place)
    for interpreter in _interpreters(path):
        yield from _needed(interpreter)


def _home_of(place: Path) -> Path:
    """The virtual environment, node_modules or version manager that a program belongs to, else its folder."""
    for above in place.parents:
        if (above / "pyvenv.cfg").is_file():
            return above
    if "node_modules" in place.parts:
        return Path(*place.parts[: place.parts.index("node_modules") + 1])
    return place.parent.parent if place.parent.name == "shims" else place.parent


def _python_of(place: Path) -> Iterator[Path]:
    """Where the Python lies from which a virtual environment was made."""
    settings = _home_of(place) / "pyvenv.cfg"
    if settings.is_file():
        home = re.search(r"(?m)^home\s*=\s*(.+)$", settings.read_text(encoding="utf-8"))
        if home:
            yield Path(home[1].strip()).resolve().parent


def _interpreters(path: Path) -> Sequence[Path]:
    """What runs a script, by its first line; none of a binary."""
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if not head.startswith(b"#!"):
        return ()
    words = head[2:].splitlines()[0].decode(errors="replace").split()
    names = [word for word in words[1:] if not word.startswith("-")] if words[:1] == ["/usr/bin/env"] else words[:1]
    found = shutil.which(names[0]) if names else None
    return (Path(found).absolute(),) if found else ()


def _shown(folders: Sequence[Path]) -> list[Path]:
    """Each once, without those that lie in another or in /usr. Raises ConfigError for what would cover a task."""
    wanted = sorted({each for each in folders if not each.is_relative_to(_THERE) and each.parts[1:2] != ("bin",)})
    kept: list[Path] = []
    for each in wanted:
        if not any(each.is_relative_to(other) for other in kept):
            kept.append(each)
    for each in kept:
        if Path(HOME).is_relative_to(each):
            raise ConfigError(
                f"the agent needs all of {each}, where tasks have their files in a sandbox",
                remedy="put it into a folder of its own and name it with --program PATH",
            )
    return kept


# What an environment offers an agent program: a task in a sandbox, and what the files are worth when it has ended.


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTask:
    """A task begun: what the program is told, the sandbox with the task's files, and the folder to work in.

    The sandbox belongs to the environment, which closes it.
    """

    instruction: str
    sandbox: Sandbox
    cwd: str


@runtime_checkable
class SupportsAgents(Protocol):
    """An environment whose tasks a program can do by itself: all that counts is in the sandbox when it has ended."""

    async def hand_over(self, task: str, *, seed: int) -> AgentTask:
        """Begin ``task`` for a program, in place of `reset`. Raises TaskRefused for one that files cannot decide."""
        ...

    async def outcome(self) -> float:
        """What the state is worth, in -1 .. 1."""
        ...
