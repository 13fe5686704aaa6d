"""The ledger in a SQLite file: the default."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from openclaw_rl.errors import LedgerHeld
from openclaw_rl.store.database import ALL, GAPS, Access, Database, Row, Sync, insertion, need_values
from openclaw_rl.store.locks import WriterLock
from openclaw_rl.store.opening import connect, create, migrate, open_current, open_read_only, transaction
from openclaw_rl.store.roles import WRITERS
from openclaw_rl.store.schema import MIGRATIONS
from openclaw_rl.store.troubles import damaged, file_errors, sqlite_errors


class SqliteDatabase(Database):
    """A connection to a ledger's file. Opening a damaged file, a newer one, or another program's changes nothing."""

    def __init__(
        self, path: Path, access: Access, *, role: str | None = None, migrations: Sequence[str] | None = None
    ) -> None:
        """``role``: the writer whose place it holds until it is closed."""
        self.path = path
        self._lock: WriterLock | None = None
        self._reader: sqlite3.Connection | None = None  # closed last: beside it, nobody clears the log away
        known = MIGRATIONS if migrations is None else migrations
        self.connection = self._write(role, known) if access == "write" else self._current(access, known)
        self.connection.row_factory = sqlite3.Row

    def _current(self, access: Access, migrations: Sequence[str]) -> sqlite3.Connection:
        reader = open_current(self.path, newest=len(migrations))
        if access == "read":
            return reader
        self._reader = reader
        writer = connect(self.path, mode="rw")
        writer.execute("PRAGMA secure_delete = on")  # what a person deletes is overwritten, not only let go
        return writer

    def _write(self, role: str | None, migrations: Sequence[str]) -> sqlite3.Connection:
        with file_errors(self.path):
            new = not self.path.exists()
        if new:
            create(self.path, migrations)
        open_read_only(self.path, newest=len(migrations)).close()
        self._lock = WriterLock(self.path, role) if role else None
        try:
            return self._migrated(migrations)
        except BaseException:
            self._release()
            raise

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

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        need_values(values)
        with sqlite_errors(self.path):
            return self.connection.execute(sql, values).fetchall()

    def row(self, sql: str, values: Sequence[Any] = ()) -> Row | None:
        need_values(values)
        with sqlite_errors(self.path):
            found: Row | None = self.connection.execute(sql, values).fetchone()
        return found

    @contextmanager
    def transaction(self, *, alone: str | None = None) -> Iterator[None]:
        with sqlite_errors(self.path), transaction(self.connection):  # SQLite has one at a time, whatever its name
            yield

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        with sqlite_errors(self.path):
            self.connection.execute("BEGIN")
            try:
                yield
            finally:
                self.connection.execute("ROLLBACK")  # nothing was written

    def execute(self, sql: str, values: Sequence[Any] = ()) -> None:
        need_values(values)
        self.connection.execute(sql, values)

    def executemany(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        for values in rows:
            need_values(values)
        self.connection.executemany(sql, rows)

    def insert_numbered(self, table: str, row: Mapping[str, Any], *, key: str) -> int:
        return self.connection.execute(insertion(table, row), tuple(row.values())).lastrowid or 0

    def horizon(self, table: str, after: int) -> int:
        return ALL  # who writes has the file alone, so rows appear in the order of their numbers

    def count(self, table: str) -> int:
        row = self.row("SELECT seq FROM cursors WHERE name = ?", (GAPS + table,))
        return self.last_number(table, "seq") - (row["seq"] if row else 0)

    def removed(self, table: str, count: int) -> None:
        """Numbers have no gaps but those that were copied and those of deleted rows."""
        self.execute(
            "INSERT INTO cursors (name, seq) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET seq = seq + excluded.seq",
            (GAPS + table, count),
        )

    def shred(self) -> bool:
        """Deleted rows are overwritten in the file; older pages lie in the log until it is cleared away."""
        with sqlite_errors(self.path):
            self.connection.execute("PRAGMA busy_timeout = 0")  # who reads or writes now is not kept waiting
            try:
                busy, *_ = self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                self.connection.execute("PRAGMA busy_timeout = 30000")
        return not busy

    def last_number(self, table: str, key: str) -> int:
        row = self.row("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,))
        return int(row["seq"]) if row else 0

    def continue_numbers(self, table: str, key: str, *, after: int) -> None:
        """What has to be noted is how many numbers are missing, so that `count` is true."""
        last = max(self.last_number(table, key), after)
        [row] = self.rows(f"SELECT count(*) AS n FROM {table}")
        self.execute("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
        self.insert("sqlite_sequence", {"name": table, "seq": last})
        if last > row["n"]:
            self.insert("cursors", {"name": GAPS + table, "seq": last - row["n"]})

    def writers(self) -> list[str]:
        found = []
        for role in WRITERS:
            try:
                WriterLock(self.path, role).release()
            except LedgerHeld as error:
                found.append(error.what)
        return found

    def durability(self, sync: Sync) -> None:
        self.connection.execute(f"PRAGMA synchronous = {sync}")

    def faults(self) -> list[str]:
        found = [row["quick_check"] for row in self.rows("PRAGMA quick_check(10)")]
        return [] if found == ["ok"] else found

    def size(self) -> int:
        return self.path.stat().st_size

    def close(self) -> None:
        self.connection.close()
        if self._reader is not None:
            self._reader.close()
        self._release()
