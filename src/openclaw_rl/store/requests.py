"""What people request of a run. Any process may write a request; the train loop carries it out."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from openclaw_rl.store.opening import connect, open_current, transaction
from openclaw_rl.store.rows import insert
from openclaw_rl.store.troubles import sqlite_errors
from openclaw_rl.types import Command


def submit_request(
    path: str | Path, command: Command, *, version: int | None = None, turn: str | None = None, reason: str = ""
) -> int:
    """Write a request to a run, running or not; its number."""
    place = Path(path).absolute()
    with (
        closing(open_current(place)),
        closing(connect(place, mode="rw")) as db,
        sqlite_errors(place),
        transaction(db),
    ):
        return insert_request(db, command, version=version, turn=turn, reason=reason)


def insert_request(
    db: sqlite3.Connection, command: Command, *, version: int | None = None, turn: str | None = None, reason: str = ""
) -> int:
    row = {"command": command, "version": version, "turn": turn, "reason": reason or "on request", "at": time.time()}
    return insert(db, "requests", row)
