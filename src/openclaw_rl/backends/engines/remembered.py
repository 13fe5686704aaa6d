"""Where the engine of a run answers: kept in the run directory by the process that started it, so that others use it
too instead of starting a second one."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Final

from openclaw_rl import files

log = logging.getLogger(__name__)

FILE: Final = "engine.json"


def remember(run_dir: Path, *, engine: str, url: str) -> None:
    """Keep the address of an engine of this process; a disk that takes nothing is no reason not to serve."""
    try:
        files.write(run_dir / FILE, json.dumps({"engine": engine, "url": url, "pid": os.getpid()}) + "\n", mode=0o600)
    except OSError as error:
        log.warning("the engine's address could not be written to %s: %s", run_dir / FILE, error)


def forget(run_dir: Path) -> None:
    """Take the address of an engine of this process back; that of another process stays."""
    kept = _read(run_dir)
    if kept is not None and kept[2] == os.getpid():
        (run_dir / FILE).unlink(missing_ok=True)


def remembered(run_dir: Path, *, engine: str) -> str | None:
    """The address of the engine that another process of this run started and watches; None where there is none."""
    kept = _read(run_dir)
    if kept is None or kept[0] != engine or kept[2] == os.getpid() or not is_running(kept[2]):
        return None
    return kept[1]


def _read(run_dir: Path) -> tuple[str, str, int] | None:
    try:
        kept = json.loads((run_dir / FILE).read_text("utf-8"))
        return str(kept["engine"]), str(kept["url"]), int(kept["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def is_running(pid: int) -> bool:
    """Whether a process with this number is there."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
