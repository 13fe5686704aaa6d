"""Control groups: one limit for all memory and processes of a sandbox, if this machine permits it.

Uses version 2 if its controllers are delegated to us, else version 1 if it is mounted; both are detected by a trial.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import platform
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from openclaw_rl.errors import NoSandbox
from openclaw_rl.types import new_id

_ROOT = Path("/sys/fs/cgroup")
_PREFIX = "openclaw-rl-"
_CLOCKS = 5.0
"""tolerance in seconds between file times and process times"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hierarchy:
    """A folder for new groups, with the file and kind of each required limit, and of the optional ones (``wanted``)."""

    parent: Path
    limits: tuple[tuple[str, str], ...]
    wanted: tuple[tuple[str, str], ...]

    def usable(self) -> bool:
        """Return True if a group can be created there and its limits set."""
        folder = self.parent / f"{_PREFIX}{os.getpid()}-{new_id()}"
        try:
            folder.mkdir()
        except OSError:
            return False
        try:
            for file, _ in self.limits:
                with (folder / file).open("r+") as limit:  # the kernel creates these files; a plain folder has none
                    limit.write(str(1 << 20))
        except OSError:
            return False
        finally:
            with contextlib.suppress(OSError):
                folder.rmdir()
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlGroup:
    """The folders of a sandbox's group, one per hierarchy; none if there is no control."""

    folders: tuple[Path, ...]

    @property
    def members(self) -> tuple[str, ...]:
        """The files into which a process writes its id to join."""
        return tuple(str(folder / "cgroup.procs") for folder in self.folders)

    def close(self) -> None:
        """Remove the group. The kernel keeps a group that still has a process; `sweep` removes it later."""
        for folder in self.folders:
            with contextlib.suppress(OSError):
                folder.rmdir()


def make_group(*, memory: int, processes: int) -> ControlGroup:
    """Create a group with these limits. A process's first call also removes the groups of killed processes."""
    _sweep_once()
    values = {"memory": memory, "swap": memory, "pids": processes, "no swap": 0}
    folders = []
    for hierarchy in _hierarchies():
        folder = hierarchy.parent / f"{_PREFIX}{os.getpid()}-{new_id()}"
        try:
            folder.mkdir()
        except OSError:  # the folder is no longer writable: the limits per process still apply
            continue
        folders.append(folder)
        for file, kind in (*hierarchy.limits, *hierarchy.wanted):
            with contextlib.suppress(OSError):  # a machine without swap has no limit for it
                (folder / file).write_text(str(values[kind]))
    return ControlGroup(folders=tuple(folders))


def enforced() -> bool:
    """Return True if the total memory of a sandbox can be limited here."""
    return any(kind == "memory" for hierarchy in _hierarchies() for _, kind in hierarchy.limits)


def sweep() -> int:
    """Remove groups whose process ended without removing them; return their number."""
    swept = 0
    for folder in (group for hierarchy in _hierarchies() for group in abandoned(hierarchy.parent, _PREFIX)):
        with contextlib.suppress(OSError):  # it still has a running process
            folder.rmdir()
            swept += 1
    return swept


@functools.cache
def _sweep_once() -> int:
    return sweep()


def abandoned(parent: Path, prefix: str) -> list[Path]:
    """Return folders ``PREFIX PID - ...`` whose process has ended, or whose process id belongs to a newer process."""
    return [
        folder
        for folder in parent.glob(f"{prefix}*-*")
        if (owner := folder.name.removeprefix(prefix).partition("-")[0]).isdecimal() and not _made_by(owner, folder)
    ]


def _made_by(owner: str, folder: Path) -> bool:
    """Return True if the process with this id is old enough to have created the folder."""
    try:
        stat = Path("/proc", owner, "stat").read_text(encoding="utf-8", errors="replace")
        up = float(Path("/proc/uptime").read_text(encoding="utf-8").split()[0])
        age = up - int(stat.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return time.time() - folder.stat().st_mtime <= age + _CLOCKS
    except OSError:
        return False


@functools.cache
def _hierarchies() -> Sequence[_Hierarchy]:
    """Return the hierarchies where groups can be created, determined by a trial."""
    groups = _own_groups()
    unified = _Hierarchy(
        parent=_ROOT / groups.get("", "/").lstrip("/"),
        limits=(("memory.max", "memory"), ("pids.max", "pids")),
        wanted=(("memory.swap.max", "no swap"),),
    )
    if unified.usable():
        return (unified,)
    memory = _Hierarchy(
        parent=_ROOT / "memory" / groups.get("memory", "/").lstrip("/"),
        limits=(("memory.limit_in_bytes", "memory"),),
        wanted=(("memory.memsw.limit_in_bytes", "swap"),),
    )
    pids = _Hierarchy(
        parent=_ROOT / "pids" / groups.get("pids", "/").lstrip("/"), limits=(("pids.max", "pids"),), wanted=()
    )
    return tuple(hierarchy for hierarchy in (memory, pids) if hierarchy.usable())


def _own_groups() -> dict[str, str]:
    """Return this process's group by controller; "" is version 2."""
    groups: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, place = line.split(":", 2)
            groups |= dict.fromkeys(controllers.split(","), place)
    return groups


# The system calls that a sandboxed program may not use, as a seccomp filter.
#
# Namespaces and limits leave these open: memory that no limit counts (System V, message queues, files in memory),
# sockets that network namespaces do not isolate, new namespaces, keys, and the parts of the kernel that break most
# often.

_ALLOW, _KILL, _FAIL = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_NEW_NAMESPACE = 0x7E020000
"""every flag of clone() that creates a namespace"""
_FOREIGN = 0x40000000
"""first number of x86-64's second call set, which would bypass the filter"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    """The call numbers of one architecture."""

    audit: int
    clone: int
    refused: dict[str, int]


_SAME = {"io_uring_setup": 425, "memfd_secret": 447}
_MACHINES = {
    "x86_64": _Machine(
        audit=0xC000003E,
        clone=56,
        refused={
            **_SAME,
            **{"socket": 41, "unshare": 272, "setns": 308, "shmget": 29, "semget": 64, "msgget": 68, "mq_open": 240},
            **{"memfd_create": 319, "add_key": 248, "request_key": 249, "keyctl": 250, "bpf": 321, "ptrace": 101},
            **{"perf_event_open": 298, "userfaultfd": 323, "process_vm_readv": 310, "process_vm_writev": 311},
        },
    ),
    "aarch64": _Machine(
        audit=0xC00000B7,
        clone=220,
        refused={
            **_SAME,
            **{"socket": 198, "unshare": 97, "setns": 268, "shmget": 194, "semget": 190, "msgget": 186, "mq_open": 180},
            **{"memfd_create": 279, "add_key": 217, "request_key": 218, "keyctl": 219, "bpf": 280, "ptrace": 117},
            **{"perf_event_open": 241, "userfaultfd": 282, "process_vm_readv": 270, "process_vm_writev": 271},
        },
    ),
}
_KEPT_APART = (1, 2, 10, 16)
"""socket families without access to the host: local, IPv4, IPv6, netlink"""
_CLONE3 = 435
"""clone3() keeps its flags in memory that a filter cannot read; on "not implemented", the C library uses clone()"""


def program(machine: str = platform.machine(), *, sockets: bool = False) -> bytes:
    """Return the filter for this processor; raise NoSandbox if its call numbers are unknown.

    ``sockets`` allows the families that a network namespace isolates.
    """
    processor = _MACHINES.get(machine)
    if processor is None:
        raise NoSandbox(f"the sandbox supports {' and '.join(_MACHINES)}, not {machine}")
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in _instructions(processor, sockets=sockets))


def _instructions(machine: _Machine, *, sockets: bool) -> Iterator[tuple[int, int, int, int]]:
    """Yield (operation, jump if true, jump if false, operand)."""
    yield _LOAD, 0, 0, _ARCHITECTURE
    yield _EQUAL, 1, 0, machine.audit
    yield _RETURN, 0, 0, _KILL
    yield _LOAD, 0, 0, _NUMBER
    yield _AT_LEAST, 0, 1, _FOREIGN
    yield _RETURN, 0, 0, _KILL
    for name, number in machine.refused.items():
        if name != "socket" or not sockets:
            yield _EQUAL, 0, 1, number
            yield _RETURN, 0, 0, _FAIL | errno.EPERM
    yield _EQUAL, 0, 1, _CLONE3
    yield _RETURN, 0, 0, _FAIL | errno.ENOSYS
    yield _EQUAL, 0, 3, machine.clone
    yield _LOAD, 0, 0, _FIRST_ARGUMENT
    yield _ANY_BIT, 0, 1, _NEW_NAMESPACE
    yield _RETURN, 0, 0, _FAIL | errno.EPERM
    if sockets:
        yield from _some_sockets(machine.refused["socket"])
    yield _RETURN, 0, 0, _ALLOW


def _some_sockets(number: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the instructions that allow only the socket families which a network namespace isolates."""
    yield _LOAD, 0, 0, _NUMBER
    yield _EQUAL, 0, len(_KEPT_APART) + 2, number
    yield _LOAD, 0, 0, _FIRST_ARGUMENT
    for distance, family in zip(range(len(_KEPT_APART), 0, -1), _KEPT_APART, strict=True):
        yield _EQUAL, distance, 0, family
    yield _RETURN, 0, 0, _FAIL | errno.EPERM
