"""Control groups: one limit on the memory and the processes of a whole sandbox, where this machine lets us set it.

Version 2 where its controllers are delegated to us, else version 1 where it is mounted; looked for, never assumed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from openclaw_rl.types import new_id

_ROOT = Path("/sys/fs/cgroup")
_PREFIX = "openclaw-rl-"
_CLOCKS = 5.0
"""seconds by which the times of files and of processes may differ"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hierarchy:
    """A place where groups are made, with the file and the kind of each limit, and of those that may be missing."""

    parent: Path
    limits: tuple[tuple[str, str], ...]
    wanted: tuple[tuple[str, str], ...]

    def usable(self) -> bool:
        """Whether a group can be made there whose limits can be set."""
        folder = self.parent / f"{_PREFIX}{os.getpid()}-{new_id()}"
        try:
            folder.mkdir()
        except OSError:
            return False
        try:
            for file, _ in self.limits:
                with (folder / file).open("r+") as limit:  # the kernel makes these files; a plain folder has none
                    limit.write(str(1 << 20))
        except OSError:
            return False
        finally:
            with contextlib.suppress(OSError):
                folder.rmdir()
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlGroup:
    """The folders of one sandbox's group, one for each hierarchy; none where there is no such control."""

    folders: tuple[Path, ...]

    @property
    def members(self) -> tuple[str, ...]:
        """The files that a process writes itself into."""
        return tuple(str(folder / "cgroup.procs") for folder in self.folders)

    def close(self) -> None:
        """Remove it. The kernel keeps a group that still has a process; it is swept up later."""
        for folder in self.folders:
            with contextlib.suppress(OSError):
                folder.rmdir()


def make_group(*, memory: int, processes: int) -> ControlGroup:
    """A new group with these limits. The first of a process removes those that killed processes left."""
    _sweep_once()
    values = {"memory": memory, "swap": memory, "pids": processes, "no swap": 0}
    made = []
    for hierarchy in _hierarchies():
        folder = hierarchy.parent / f"{_PREFIX}{os.getpid()}-{new_id()}"
        try:
            folder.mkdir()
        except OSError:  # what was writable is no more: the limits of each process stay
            continue
        made.append(folder)
        for file, kind in (*hierarchy.limits, *hierarchy.wanted):
            with contextlib.suppress(OSError):  # a machine without swap has no limit for it
                (folder / file).write_text(str(values[kind]))
    return ControlGroup(folders=tuple(made))


def enforced() -> bool:
    """Whether the memory of a whole sandbox can be limited here."""
    return any(kind == "memory" for hierarchy in _hierarchies() for _, kind in hierarchy.limits)


def sweep() -> int:
    """Remove groups whose process has ended without removing them; how many."""
    swept = 0
    for folder in (each for hierarchy in _hierarchies() for each in abandoned(hierarchy.parent, _PREFIX)):
        with contextlib.suppress(OSError):  # a process of it has not ended yet
            folder.rmdir()
            swept += 1
    return swept


@functools.cache
def _sweep_once() -> int:
    return sweep()


def abandoned(parent: Path, prefix: str) -> list[Path]:
    """Folders ``PREFIX PID - ...`` whose process is gone, or began after them under the same id."""
    return [
        folder
        for folder in parent.glob(f"{prefix}*-*")
        if (owner := folder.name.removeprefix(prefix).partition("-")[0]).isdecimal() and not _made_by(owner, folder)
    ]


def _made_by(owner: str, folder: Path) -> bool:
    """Whether the process that has this id can have made the folder: it began before."""
    try:
        stat = Path("/proc", owner, "stat").read_text(encoding="utf-8", errors="replace")
        up = float(Path("/proc/uptime").read_text(encoding="utf-8").split()[0])
        age = up - int(stat.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return time.time() - folder.stat().st_mtime <= age + _CLOCKS
    except OSError:
        return False


@functools.cache
def _hierarchies() -> Sequence[_Hierarchy]:
    """Where groups can be made; found out by trying."""
    own = _own_groups()
    unified = _Hierarchy(
        parent=_ROOT / own.get("", "/").lstrip("/"),
        limits=(("memory.max", "memory"), ("pids.max", "pids")),
        wanted=(("memory.swap.max", "no swap"),),
    )
    if unified.usable():
        return (unified,)
    memory = _Hierarchy(
        parent=_ROOT / "memory" / own.get("memory", "/").lstrip("/"),
        limits=(("memory.limit_in_bytes", "memory"),),
        wanted=(("memory.memsw.limit_in_bytes", "swap"),),
    )
    pids = _Hierarchy(
        parent=_ROOT / "pids" / own.get("pids", "/").lstrip("/"), limits=(("pids.max", "pids"),), wanted=()
    )
    return tuple(each for each in (memory, pids) if each.usable())


def _own_groups() -> dict[str, str]:
    """The group that this process is in, by controller; "" is version 2."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, place = line.split(":", 2)
            found |= dict.fromkeys(controllers.split(","), place)
    return found
