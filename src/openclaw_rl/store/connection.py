"""A connection to the ledger: opened carefully, read through named columns, written in whole transactions."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, ClassVar, Self

from openclaw_rl.errors import LedgerDown, NotInLedger
from openclaw_rl.store.database import Access, AnyPlace, Database, Row, Sync, Writer, place_of, root_of
from openclaw_rl.store.results import LoopState
from openclaw_rl.store.stores import open_database


class LedgerConnection:
    """One connection to the ledger, as one writer or (``writer`` None) as a reader.

    Opening a damaged ledger, a newer one, or what belongs to another program raises and changes nothing.
    """

    writer: ClassVar[Writer | None] = None
    access: ClassVar[Access] = "read"

    def __init__(self, place: AnyPlace, *, migrations: Sequence[str] | None = None) -> None:
        self.place = place_of(place)
        self.root = root_of(self.place)
        self.lock = threading.RLock()
        self.db: Database = open_database(self.place, self.access, role=self.writer, migrations=migrations)

    def close(self) -> None:
        """Close it and let the writer's place go. Safe to call twice."""
        with self.lock:
            self.db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def rows(self, sql: str, *values: Any) -> list[Row]:
        """All rows of a query; columns are read by name."""
        with self.lock:
            return self.db.rows(sql, values)

    def row(self, sql: str, *values: Any) -> Row | None:
        """The first row of a query, None if there is none."""
        with self.lock:
            return self.db.row(sql, values)

    def one(self, sql: str, *values: Any) -> Row:
        """The only row of a query that always has one, such as a count."""
        found = self.row(sql, *values)
        assert found is not None, sql
        return found

    def horizon(self, table: str, after: int) -> int:
        """A number up to which no row of a table will appear any more that is not there now; at least ``after``."""
        with self.lock:
            return self.db.horizon(table, after)


class LedgerWriter(LedgerConnection):
    """What every writer of the ledger has: its place, transactions, low-water marks, a report of its loop's health.

    A commit survives the process. One of a `DurableWriter` survives a power cut as well.
    """

    access: ClassVar[Access] = "write"

    def __init__(self, place: AnyPlace, *, migrations: Sequence[str] | None = None) -> None:
        self.low: dict[str, int] = {}  # the loop's low-water marks, by table
        self.trouble: LedgerDown | None = None  # why the newest write failed, None if it did not
        self._generation = 0
        super().__init__(place, migrations=migrations)

    @contextmanager
    def writing(self, *, alone: str | None = None) -> Iterator[Database]:
        """A transaction. What was not written moves no mark, and ``trouble`` says why it was not.

        ``alone``: no other transaction of this name runs at the same time.
        """
        with self.lock:
            marks = dict(self.low)
            try:
                with self.db.transaction(alone=alone):
                    yield self.db
            except BaseException as error:
                self.low = marks
                self.trouble = error if isinstance(error, LedgerDown) else self.trouble
                raise
            self.trouble = None

    def cursor(self, name: str) -> int:
        """A loop's low-water mark in a table: nothing at or below it is open."""
        if self._generation != self.db.generation:  # what moved the marks may be gone
            self.low, self._generation = {}, self.db.generation
        if name not in self.low:
            row = self.row("SELECT seq FROM cursors WHERE name = ?", name)
            self.low[name] = row["seq"] if row else 0
        return self.low[name]

    def save_cursors(self, db: Database) -> None:
        """Write the marks, inside the transaction of what moved them."""
        db.executemany(
            "INSERT INTO cursors (name, seq) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET seq = excluded.seq",
            list(self.low.items()),
        )

    def advance(self, name: str, first_open: str) -> int:
        """Move a low-water mark up to just before the first row that is still open.

        One statement, so that both numbers are of one moment: a row that another process adds in between must not be
        passed by.
        """
        low = self.cursor(name)
        settled = self.horizon(name, low)
        row = self.one(f"SELECT ({first_open}) AS first, (SELECT coalesce(max(seq), 0) FROM {name}) AS newest", low)
        reached = row["first"] - 1 if row["first"] is not None else row["newest"]
        self.low[name] = max(min(reached, settled), low)
        return self.low[name]

    def report(
        self,
        loop: str,
        *,
        state: LoopState,
        moved: int,
        failures: int,
        error: str = "",
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        """Write how a loop is doing, in place of its report before."""
        row = {
            "loop": loop,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "state": state,
            "at": time.time(),
            "moved": moved,
            "failures": failures,
            "error": error,
            "detail": json.dumps(dict(detail or {})),
        }
        with self.writing() as db:
            db.execute(f"{_REPORT} ({', '.join('?' * len(row))}) {_REPLACED}", tuple(row.values()))


_HEALTH = ("loop", "pid", "host", "state", "at", "moved", "failures", "error", "detail")
_REPORT = f"INSERT INTO health ({', '.join(_HEALTH)}) VALUES"
_REPLACED = "ON CONFLICT (loop) DO UPDATE SET " + ", ".join(f"{name} = excluded.{name}" for name in _HEALTH[1:])


class SharedWriter(LedgerWriter):
    """A writer of rows that any process may write; there may be several of it at once."""


class DurableWriter(LedgerWriter):
    """A writer of rows that nothing else could give back; ``sync`` is store.sync."""

    def __init__(self, place: AnyPlace, *, sync: Sync, migrations: Sequence[str] | None = None) -> None:
        super().__init__(place, migrations=migrations)
        self.db.durability(sync)


def missing(noun: str, name: str) -> NotInLedger:
    return NotInLedger(f"there is no {noun} {name!r} in the ledger", remedy="'openclaw-rl status' shows what there is")
