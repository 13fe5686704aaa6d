"""What people request of a run. Any process may write a request; the train loop carries it out."""

from __future__ import annotations

import time
from contextlib import closing

from openclaw_rl.store.database import Database
from openclaw_rl.store.places import AnyPlace, place_of
from openclaw_rl.store.stores import open_database
from openclaw_rl.types import Command


def submit_request(
    place: AnyPlace, command: Command, *, version: int | None = None, turn: str | None = None, reason: str = ""
) -> int:
    """Write a request to a run, running or not; its number."""
    with closing(open_database(place_of(place), "add")) as db, db.transaction():
        return insert_request(db, command, version=version, turn=turn, reason=reason)


def insert_request(
    db: Database, command: Command, *, version: int | None = None, turn: str | None = None, reason: str = ""
) -> int:
    row = {"command": command, "version": version, "turn": turn, "reason": reason or "on request", "at": time.time()}
    return db.insert_numbered("requests", row, key="seq")
