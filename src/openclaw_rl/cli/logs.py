"""A command's log: one terminal line for each event, and a file that also has the tracebacks."""

from __future__ import annotations

import copy
import logging
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

LOG_BYTES = 10 * 2**20
LOG_FILES = 5
"""for a run's log: its size limit, and the number of older files kept beside it"""
_FORMAT = "%(asctime)s %(levelname).1s %(name)s: %(message)s"


class LogFile(RotatingFileHandler):
    """A log file that rotates when it is full; its folder is created with the first line."""

    def __init__(self, file: Path) -> None:
        super().__init__(file, maxBytes=LOG_BYTES, backupCount=LOG_FILES, encoding="utf-8", delay=True)
        self.setFormatter(logging.Formatter(_FORMAT))

    def _open(self) -> Any:
        Path(self.baseFilename).parent.mkdir(parents=True, exist_ok=True)
        return super()._open()


class OneLine(logging.Formatter):
    """Formats an error on its event's line, with the file that has its traceback."""

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
    if level != "debug":  # a line for each environment request would hide all others
        logging.getLogger("httpx2").setLevel(logging.WARNING)
