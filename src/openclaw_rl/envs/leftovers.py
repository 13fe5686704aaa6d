"""Environment files that outlive a process: deliberate ones in the cache, and those that killed processes left behind.

Names of a process's own folders start with a prefix and its process id, so that a later process can remove them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from openclaw_rl.envs.sandbox import cgroups
from openclaw_rl.envs.sandbox.cgroups import abandoned

BROWSERS: Final = "openclaw-rl-gui-"
"""prefix of browser folders"""
CACHED: Final = ("swe", "harbor")
"""cache folders: virtual environments for repositories' tests, and copies of pytest"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """A removed folder and its files' size in bytes."""

    folder: Path
    size: int


def browser_folder() -> Path:
    """Create a folder for a browser; remove those of ended processes."""
    for folder in abandoned(Path(tempfile.gettempdir()), BROWSERS):
        shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{BROWSERS}{os.getpid()}-"))


def clear(cache: Path) -> Sequence[Cleared]:
    """Remove the environments' cache and the files of killed processes; return each folder with its size."""
    cgroups.sweep()
    cached = [folder for name in CACHED for folder in (cache / name,) if folder.is_dir()]
    return [_removed(folder) for folder in (*cached, *abandoned(Path(tempfile.gettempdir()), BROWSERS))]


def _removed(folder: Path) -> Cleared:
    size = size_of([folder])
    shutil.rmtree(folder)
    return Cleared(folder=folder, size=size)


def size_of(folders: Iterable[Path]) -> int:
    """Return the size in bytes of all files below these folders."""
    size = 0
    for folder in folders:
        for place, _, names in os.walk(folder):
            for name in names:
                with contextlib.suppress(OSError):  # a broken link, or a file that was just removed
                    size += (Path(place) / name).lstat().st_size
    return size
