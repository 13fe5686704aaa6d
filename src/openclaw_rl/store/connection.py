"""A connection to the ledger: checked on opening, read through named columns, written in atomic transactions."""

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
    """A connection to the ledger, as a writer or (``writer`` None) as a reader.

    Opening a damaged ledger, a newer one, or another program's database raises and changes nothing.
    """

    writer: ClassVar[Writer | None] = None
    access: ClassVar[Access] = "read"

    def __init__(self, place: AnyPlace, *, migrations: Sequence[str] | None = None) -> None:
        self.place = place_of(place)
        self.root = root_of(self.place)
        self.lock = threading.RLock()
        self.db: Database = open_database(self.place, self.access, role=self.writer, migrations=migrations)

    def close(self) -> None:
        """Close the connection and release the writer's role. Safe to call twice."""
        with self.lock:
            self.db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def rows(self, sql: str, *values: Any) -> list[Row]:
        """Return all rows for a query; columns are read by name."""
        with self.lock:
            return self.db.rows(sql, values)

    def row(self, sql: str, *values: Any) -> Row | None:
        """Return the first row for a query, None without one."""
        with self.lock:
            return self.db.row(sql, values)

    def one(self, sql: str, *values: Any) -> Row:
        """Return the only row for a query that always has one, such as a count."""
        row = self.row(sql, *values)
        assert row is not None, sql
        return row

    def horizon(self, table: str, after: int) -> int:
        """Return a number up to which the table's rows are complete; at least ``after``."""
        with self.lock:
            return self.db.horizon(table, after)


class LedgerWriter(LedgerConnection):
    """A ledger writer: its role, transactions, low-water marks, and a report on its loop's health.

    A commit survives the process. A `DurableWriter`'s commit survives a power cut as well.
    """

    access: ClassVar[Access] = "write"

    def __init__(self, place: AnyPlace, *, migrations: Sequence[str] | None = None) -> None:
        self.low: dict[str, int] = {}  # the loop's low-water marks, by table
        self.trouble: LedgerDown | None = None  # cause of the newest write's failure, None if it succeeded
        self._generation = 0
        super().__init__(place, migrations=migrations)

    @contextmanager
    def writing(self, *, alone: str | None = None) -> Iterator[Database]:
        """Run a transaction. On a failure no mark moves, and ``trouble`` has the cause.

        ``alone``: no other transaction with this name runs at the same time.
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
        """Return a loop's low-water mark in a table: no row at or below it is open."""
        if self._generation != self.db.generation:  # the commit that moved the marks may be lost
            self.low, self._generation = {}, self.db.generation
        if name not in self.low:
            row = self.row("SELECT seq FROM cursors WHERE name = ?", name)
            self.low[name] = row["seq"] if row else 0
        return self.low[name]

    def save_cursors(self, db: Database) -> None:
        """Write the marks, inside the transaction that moved them."""
        db.executemany(
            "INSERT INTO cursors (name, seq) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET seq = excluded.seq",
            list(self.low.items()),
        )

    def advance(self, name: str, first_open: str) -> int:
        """Move a low-water mark up to just before the first row that is still open.

        A single statement reads both numbers at one moment, so that a row that another process adds in between is not
        skipped.
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
        """Write a loop's health, replacing its last report."""
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
    """A writer for rows that any process may write; several may run at once."""


class DurableWriter(LedgerWriter):
    """A writer for rows that cannot be recreated; ``sync`` is store.sync."""

    def __init__(self, place: AnyPlace, *, sync: Sync, migrations: Sequence[str] | None = None) -> None:
        super().__init__(place, migrations=migrations)
        self.db.durability(sync)


def missing(noun: str, name: str) -> NotInLedger:
    return NotInLedger(f"there is no {noun} {name!r} in the ledger", remedy="'openclaw-rl status' shows what there is")
