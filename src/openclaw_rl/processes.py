"""Processes that do not outlive the one that started them, however it ended, and that `ps` and `top` tell apart."""

from __future__ import annotations

import os
import threading
from multiprocessing import current_process, parent_process
from pathlib import Path


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
