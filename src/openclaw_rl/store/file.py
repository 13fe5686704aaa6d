"""The ledger's file: opened carefully, read through named columns, written in whole transactions."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Literal, Self, get_args

from openclaw_rl.errors import LedgerDown, NotInLedger
from openclaw_rl.store.locks import WriterLock
from openclaw_rl.store.opening import connect, create, migrate, open_current, open_read_only, transaction
from openclaw_rl.store.results import LoopState
from openclaw_rl.store.rows import Row
from openclaw_rl.store.schema import MIGRATIONS
from openclaw_rl.store.troubles import damaged, file_errors, sqlite_errors

Writer = Literal["serve", "import", "collect", "judge", "train"]
Sync = Literal["full", "normal"]
WRITERS: tuple[Writer, ...] = get_args(Writer)


class LedgerFile:
    """One connection to the ledger, as one writer or (``writer`` None) as a reader.

    Opening a damaged file, a newer one, or one of another program raises and changes nothing.
    """

    writer: ClassVar[Writer | None] = None

    def __init__(self, path: str | Path, *, migrations: Sequence[str] = MIGRATIONS) -> None:
        self.path = Path(path).absolute()
        self.root = self.path.parent
        self.lock = threading.RLock()
        self._writer_lock: WriterLock | None = None
        self.db = self._open(migrations)
        self.db.row_factory = sqlite3.Row

    def _open(self, migrations: Sequence[str]) -> sqlite3.Connection:
        return open_current(self.path, newest=len(migrations))

    def close(self) -> None:
        """Close the file and let the writer's place go. Safe to call twice."""
        with self.lock:
            self.db.close()
            if self._writer_lock:
                self._writer_lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def rows(self, sql: str, *values: Any) -> list[Row]:
        """All rows of a query; columns are read by name."""
        with self.lock, sqlite_errors(self.path):
            return self.db.execute(sql, values).fetchall()

    def row(self, sql: str, *values: Any) -> Row | None:
        """The first row of a query, None if there is none."""
        with self.lock, sqlite_errors(self.path):
            found: Row | None = self.db.execute(sql, values).fetchone()
        return found

    def one(self, sql: str, *values: Any) -> Row:
        """The only row of a query that always has one, such as a count."""
        found = self.row(sql, *values)
        assert found is not None, sql
        return found


class LedgerWriter(LedgerFile):
    """What every writer of the ledger has: its place, transactions, low-water marks, a report of its loop's health.

    A commit survives the process. One of a `DurableWriter` survives a power cut as well.
    """

    def __init__(self, path: str | Path, *, migrations: Sequence[str] = MIGRATIONS) -> None:
        self.low: dict[str, int] = {}  # the loop's low-water marks, by table
        self.trouble: LedgerDown | None = None  # why the newest write failed, None if it did not
        super().__init__(path, migrations=migrations)

    def _open(self, migrations: Sequence[str]) -> sqlite3.Connection:
        assert self.writer is not None
        self._create_or_check(migrations)
        self._writer_lock = WriterLock(self.path, self.writer)
        try:
            return self._migrated(migrations)
        except BaseException:
            self._writer_lock.release()
            raise

    def _create_or_check(self, migrations: Sequence[str]) -> None:
        with file_errors(self.path):
            new = not self.path.exists()
        if new:
            create(self.path, migrations)
        open_read_only(self.path, newest=len(migrations)).close()

    def _migrated(self, migrations: Sequence[str]) -> sqlite3.Connection:
        db = connect(self.path, mode="rw")
        try:
            with sqlite_errors(self.path):
                migrate(db, migrations)
                db.execute("PRAGMA synchronous = normal")
        except sqlite3.DatabaseError as error:  # a ledger that its own migrations do not fit
            db.close()
            raise damaged(self.path, str(error)) from error
        except BaseException:
            db.close()
            raise
        return db

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction. What was not written moves no mark, and ``trouble`` says why it was not."""
        with self.lock:
            marks = dict(self.low)
            try:
                with sqlite_errors(self.path), transaction(self.db):
                    yield self.db
            except BaseException as error:
                self.low = marks
                self.trouble = error if isinstance(error, LedgerDown) else self.trouble
                raise
            self.trouble = None

    def cursor(self, name: str) -> int:
        """A loop's low-water mark in a table: nothing at or below it is open."""
        if name not in self.low:
            row = self.row("SELECT seq FROM cursors WHERE name = ?", name)
            self.low[name] = row["seq"] if row else 0
        return self.low[name]

    def save_cursors(self, db: sqlite3.Connection) -> None:
        """Write the marks, inside the transaction of what moved them."""
        db.executemany("INSERT OR REPLACE INTO cursors (name, seq) VALUES (?, ?)", list(self.low.items()))

    def advance(self, name: str, first_open: str) -> int:
        """Move a low-water mark up to just before the first row that is still open.

        One statement, so that both numbers are of one moment: a row that another process adds in between must not be
        passed by.
        """
        low = self.cursor(name)
        row = self.one(f"SELECT ({first_open}) AS first, (SELECT coalesce(max(seq), 0) FROM {name}) AS newest", low)
        self.low[name] = row["first"] - 1 if row["first"] is not None else max(row["newest"], low)
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
        marks = ", ".join("?" * len(row))
        with self.writing() as db:
            db.execute(f"INSERT OR REPLACE INTO health ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))


class SharedWriter(LedgerWriter):
    """A writer of rows that any process may write; there may be several of it at once."""

    def _open(self, migrations: Sequence[str]) -> sqlite3.Connection:
        self._create_or_check(migrations)
        return self._migrated(migrations)


class DurableWriter(LedgerWriter):
    """A writer of rows that nothing else could give back; ``sync`` is store.sync."""

    def __init__(self, path: str | Path, *, sync: Sync, migrations: Sequence[str] = MIGRATIONS) -> None:
        super().__init__(path, migrations=migrations)
        self.db.execute(f"PRAGMA synchronous = {sync}")


def missing(noun: str, name: str) -> NotInLedger:
    return NotInLedger(f"there is no {noun} {name!r} in the ledger", remedy="'openclaw-rl status' shows what there is")
