"""This machine: its memory, its limit of open files, and processes that end with their parent and have a name."""

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
"""open files that a process asks for at most: some systems allow a billion, over which some programs loop"""


def total_memory() -> int | None:
    """Bytes of main memory, a container's limit respected; None where the system does not say."""
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = _cgroup("memory.max")
    return total if limit is None else min(total, limit)


def free_memory() -> int | None:
    """Bytes of main memory that can still be taken, a container's limit respected.

    Where only the total is known, half of it; None where nothing is.
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
    """A figure of this container; None where there is none, or no limit."""
    file = _CGROUP / name
    text = file.read_text().strip() if file.is_file() else "max"
    return None if text == "max" else int(text)


def count_gpus(visible: str | None, *, devices: Path = Path("/dev")) -> int:
    """NVIDIA GPUs of this machine or container, without loading any library; ``visible`` is CUDA_VISIBLE_DEVICES."""
    there = sum(device.name.removeprefix("nvidia").isdecimal() for device in devices.glob("nvidia*"))
    return there if visible is None else min(there, len([each for each in visible.split(",") if each.strip()]))


def raise_open_files() -> int:
    """How many files this process may open, after raising that number as far as the system lets us without asking."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST_FILES
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if most > soft:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        except (OSError, ValueError):  # macOS has a lower limit of its own, which it does not name here
            return soft
    return max(soft, most)


def end_with_parent() -> None:
    """From now on this process ends as soon as its parent has: work that nobody will take up is not worth finishing."""
    threading.Thread(target=_wait_and_end, daemon=True).start()


def show_name() -> None:
    """From now on the system's own tools show this process by its name, cut to 15 characters, where they can."""
    place = Path("/proc/self/comm")
    if place.exists():
        place.write_text(current_process().name[:15])


def _wait_and_end() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
