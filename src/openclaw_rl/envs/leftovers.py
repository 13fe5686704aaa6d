"""Files of environments that outlive a process: kept on purpose in the cache, or left by one that was killed.

Names of folders that a process makes for itself begin with a prefix and its process id: a later one removes them.
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
"""prefix of the folders of browsers"""
CACHED: Final = ("swe", "harbor")
"""folders of the cache: virtual environments of repositories' tests, and copies of pytest"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """A folder that was removed, with the bytes that its files took."""

    folder: Path
    size: int


def browser_folder() -> Path:
    """A new folder for a browser; those of processes that are gone are removed."""
    for folder in abandoned(Path(tempfile.gettempdir()), BROWSERS):
        shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{BROWSERS}{os.getpid()}-"))


def clear(cache: Path) -> Sequence[Cleared]:
    """Remove what environments keep in the cache, and what killed processes left; each folder with its size."""
    cgroups.sweep()
    kept = [folder for name in CACHED for folder in (cache / name,) if folder.is_dir()]
    return [_removed(folder) for folder in (*kept, *abandoned(Path(tempfile.gettempdir()), BROWSERS))]


def _removed(folder: Path) -> Cleared:
    size = size_of([folder])
    shutil.rmtree(folder)
    return Cleared(folder=folder, size=size)


def size_of(folders: Iterable[Path]) -> int:
    """The bytes of all files below these folders."""
    size = 0
    for folder in folders:
        for place, _, names in os.walk(folder):
            for name in names:
                with contextlib.suppress(OSError):  # a link that leads nowhere, or a file that was just removed
                    size += (Path(place) / name).lstat().st_size
    return size
