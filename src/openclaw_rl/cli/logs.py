"""A command's log: a line on the terminal for each event, and a file that has the tracebacks as well."""

from __future__ import annotations

import copy
import logging
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

LOG_BYTES = 10 * 2**20
LOG_FILES = 5
"""of a run's log: how large one becomes, and how many older ones are kept beside it"""
_FORMAT = "%(asctime)s %(levelname).1s %(name)s: %(message)s"


class LogFile(RotatingFileHandler):
    """Begins anew when it is full; its folder is made with the first line."""

    def __init__(self, file: Path) -> None:
        super().__init__(file, maxBytes=LOG_BYTES, backupCount=LOG_FILES, encoding="utf-8", delay=True)
        self.setFormatter(logging.Formatter(_FORMAT))

    def _open(self) -> Any:
        Path(self.baseFilename).parent.mkdir(parents=True, exist_ok=True)
        return super()._open()


class OneLine(logging.Formatter):
    """An error in the line of its event, with the file that has its traceback."""

    def __init__(self, file: Path) -> None:
        super().__init__(_FORMAT)
        self._file = file

    def format(self, record: logging.LogRecord) -> str:
        bare = copy.copy(record)
        bare.exc_info = bare.exc_text = bare.stack_info = None
        line = super().format(bare)
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return line
        what = "" if str(error) and str(error) in line else f": {type(error).__name__}: {error}"
        return f"{' '.join(f'{line}{what}'.split())}; its traceback is in {self._file}"


def log_to(file: Path, *, level: str) -> None:
    """Log to the terminal and to a file."""
    terminal = logging.StreamHandler(sys.stderr)
    terminal.setFormatter(OneLine(file))
    logging.basicConfig(level=level.upper(), handlers=[terminal, LogFile(file)])
    if level != "debug":  # a line for each request of an environment would hide all others
        logging.getLogger("httpx2").setLevel(logging.WARNING)
