"""Main memory, GPUs, the open-file limit, and processes that end with their parent and show a name."""

from __future__ import annotations

import os
import resource
import threading
from multiprocessing import current_process, parent_process
from pathlib import Path
from typing import Final

GIB: Final = 1 << 30
_CGROUP: Final = Path("/sys/fs/cgroup")
_MOST_FILES: Final = 65_536
"""most open files that a process requests: some systems allow a billion, which some programs loop over"""


def total_memory() -> int | None:
    """Return main memory in bytes, within a container's limit; None if the system does not report it."""
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = _cgroup("memory.max")
    return total if limit is None else min(total, limit)


def free_memory() -> int | None:
    """Return the bytes of main memory that are still available, within a container's limit.

    If only the total is known, half of it; if that is unknown too, None.
    """
    meminfo = Path("/proc/meminfo")
    if not meminfo.is_file():
        total = total_memory()
        return None if total is None else total // 2
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
    free = int(lines["MemAvailable"].split()[0]) * 1024
    limit, used = _cgroup("memory.max"), _cgroup("memory.current")
    return free if limit is None or used is None else min(free, max(limit - used, 0))


def _cgroup(name: str) -> int | None:
    """Return a figure of this container; None without that file, or without a limit."""
    file = _CGROUP / name
    text = file.read_text().strip() if file.is_file() else "max"
    return None if text == "max" else int(text)


def count_gpus(visible: str | None, *, devices: Path = Path("/dev")) -> int:
    """Count this machine's or container's NVIDIA GPUs without loading any library.

    ``visible`` is the value of CUDA_VISIBLE_DEVICES.
    """
    there = sum(device.name.removeprefix("nvidia").isdecimal() for device in devices.glob("nvidia*"))
    return there if visible is None else min(there, len([part for part in visible.split(",") if part.strip()]))


def raise_open_files() -> int:
    """Raise this process's open-file limit as far as the system permits without privileges; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST_FILES
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if most > soft:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        except (OSError, ValueError):  # macOS has a lower limit of its own, which getrlimit does not report
            return soft
    return max(soft, most)


def end_with_parent() -> None:
    """End this process as soon as its parent ends, since no process would use its results."""
    threading.Thread(target=_wait_and_end, daemon=True).start()


def show_name() -> None:
    """Show this process under its name, cut to 15 characters, in system tools, where /proc has it."""
    place = Path("/proc/self/comm")
    if place.exists():
        place.write_text(current_process().name[:15])


def _wait_and_end() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
