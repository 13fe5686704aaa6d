"""What happened in a pool: the newest events in memory, all of them in a file where one is named."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

KEPT = 1000


class EventLog:
    """Takes events in one process. A disk that takes nothing costs the file, never an episode."""

    def __init__(self, file: Path | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self._file = file
        self._clock = clock
        self._newest: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self.counts: Counter[str] = Counter()

    def add(self, event: str, **fields: Any) -> None:
        row = {"at": self._clock(), "event": event, **fields}
        self.counts[event] += 1
        self._newest.append(row)
        log.debug("pool.%s %s", event, " ".join(f"{name}={value}" for name, value in fields.items()))
        if self._file is None:
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(row, ensure_ascii=False) + "\n")
        except OSError as error:
            log.warning("the event log %s cannot be written: %s", self._file, error)
            self._file = None

    def newest(self, limit: int) -> Sequence[dict[str, Any]]:
        """The newest events, oldest first."""
        return list(self._newest)[-limit:]
