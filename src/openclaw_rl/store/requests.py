"""What people ask of a run. Anybody may write a request; the train loop carries it out."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from openclaw_rl.store.opening import connect, look, transaction
from openclaw_rl.store.rows import insert
from openclaw_rl.store.troubles import sqlite_errors


def ask(path: str | Path, verb: str, argument: Mapping[str, Any]) -> int:
    """Write what a person asks of the system, running or not; the train loop carries it out. Returns its number."""
    place = Path(path).absolute()
    with closing(look(place)), closing(connect(place, mode="rw")) as db, sqlite_errors(place), transaction(db):
        return insert(db, "requests", {"verb": verb, "argument": json.dumps(dict(argument)), "at": time.time()})
