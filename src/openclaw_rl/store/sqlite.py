"""The ledger in a SQLite file: the default."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

from openclaw_rl.errors import LedgerError, LedgerHeld, LedgerNewer, NotInLedger
from openclaw_rl.store.database import ALL, GAPS, WRITERS, Access, Database, Row, Sync, insertion, need_values
from openclaw_rl.store.schema import APPLICATION_ID, MIGRATIONS
from openclaw_rl.store.troubles import PRIVATE_DIRECTORY, PRIVATE_FILE, damaged, file_errors, sqlite_errors

# The way into the ledger's file: through sqlite, and through nothing else.
#
# POSIX locks belong to a process: closing any descriptor of a file lets all of them go, also those that sqlite holds on
# other descriptors of it. Another program then takes itself for the last user and deletes the log under this one.
# sqlite keeps count of its own descriptors, so whatever must be known of the file is read through a connection, and no
# code of this package opens ``ledger.db``, its ``-wal`` or its ``-shm`` in another way, not even to read them.

_HEADER = 100
_VERSIONS = slice(18, 20)
"""in the header: the format versions for writing and reading the file, 2 with a write-ahead log"""


def connect(path: Path, *, mode: str) -> sqlite3.Connection:
    """Open a connection; ``mode`` ro reads, rw writes, rwc creates the file."""
    uri = f"{path.resolve().as_uri()}?mode={mode}"
    with sqlite_errors(path):
        return sqlite3.connect(uri, uri=True, timeout=30.0, isolation_level=None, check_same_thread=False)


def open_read_only(path: Path, *, newest: int = len(MIGRATIONS)) -> sqlite3.Connection:
    """Open a read-only connection to a healthy ledger with a layout up to ``newest``.

    Raises NotInLedger, LedgerDamaged or LedgerNewer otherwise; the file is unchanged. While such a connection is open,
    closing another one in this process does not remove the log, and closing this one never does.
    """
    with file_errors(path):
        if not path.exists():
            raise NotInLedger(f"there is no ledger at {path}", remedy="start 'openclaw-rl up' first, or set run.dir")
        if not path.is_file():
            raise IsADirectoryError(errno.EISDIR, "it is not a file", str(path))
    db = connect(path, mode="ro")
    try:
        with sqlite_errors(path):
            _refuse_foreign(path, db, newest)
    except BaseException:
        db.close()
        raise
    return db


def open_current(path: Path, *, newest: int = len(MIGRATIONS)) -> sqlite3.Connection:
    """Open a read-only connection to a healthy ledger of layout ``newest``; raise LedgerError for an older one."""
    db = open_read_only(path, newest=newest)
    if layout(db) < newest:
        db.close()
        raise LedgerError(
            f"{path} has an older layout than this release reads",
            remedy="start 'openclaw-rl up' once to bring it forward",
        )
    return db


def layout(db: sqlite3.Connection) -> int:
    """Return the number of migrations that the file has had."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _refuse_foreign(path: Path, db: sqlite3.Connection, newest: int) -> None:
    if path.stat().st_size < _HEADER:  # sqlite accepts such a file as an empty database
        raise damaged(path, "it does not begin as a ledger does")
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise damaged(path, "it is another program's database")
    if layout(db) > newest:
        raise LedgerNewer(
            f"{path} has layout {layout(db)}; this release knows layouts up to {newest}",
            remedy="upgrade openclaw-rl, or give it another run directory (run.dir)",
        )
    try:
        db.execute("SELECT count(*) FROM cursors").fetchone()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
            raise
        raise damaged(path, str(error)) from error  # a ledger by its mark, without a ledger's tables


def create(path: Path, migrations: Sequence[str]) -> None:
    """Create an empty ledger under another name and link it into place; if another process was first, use its file."""
    draft = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.new")
    with sqlite_errors(path):
        image = empty_ledger(tuple(migrations))
    with file_errors(path):
        path.parent.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        draft.unlink(missing_ok=True)
        try:
            with os.fdopen(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE_FILE), "wb") as file:
                file.write(image)  # no process has it open yet
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileExistsError):
                os.link(draft, path)
        finally:
            draft.unlink(missing_ok=True)


@cache
def empty_ledger(migrations: tuple[str, ...]) -> bytes:
    """Return the file of a ledger without rows. It is made in memory, since sqlite syncs each file to the disk."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        migrate(db, migrations)
        image = bytearray(db.serialize())
    image[_VERSIONS] = b"\2\2"  # it has a log from the beginning, so that its first user has nothing to change
    return bytes(image)


def migrate(db: sqlite3.Connection, migrations: Sequence[str]) -> None:
    """Migrate a ledger to the newest layout, atomically."""
    db.execute("PRAGMA journal_mode = WAL")
    if layout(db) == len(migrations):
        return
    with transaction(db):  # another process may have done it meanwhile, so the layout is read again inside
        for number in range(layout(db), len(migrations)):
            for statement in _statements(migrations[number]):
                db.execute(statement)
        db.execute(f"PRAGMA user_version = {len(migrations)}")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Write everything inside or nothing; after a failure, the connection is ready for the next transaction."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # if the disk was full, sqlite has rolled back already
            db.execute("ROLLBACK")
        raise


def _statements(script: str) -> Iterator[str]:
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


# One writer per role: the operating system releases the lock when its process ends, for any reason.


class WriterLock:
    """Holds ``<ledger>.<role>.lock`` until `release`, or until the process ends."""

    def __init__(self, ledger: Path, role: str) -> None:
        self.role = role
        self.path = ledger.with_name(f"{ledger.name}.{role}.lock")
        with file_errors(self.path):
            file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, PRIVATE_FILE)
        self._file: IO[str] | None = os.fdopen(file, "a+", encoding="utf-8")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held_by = self._holder()
            self.release()
            raise LedgerHeld(
                f"another process already writes as {role!r} to {ledger}: {held_by}",
                remedy="stop that process, or give this one another run directory (run.dir)",
            ) from None
        try:
            with file_errors(self.path):
                self._sign()
        except BaseException:
            self.release()
            raise

    def _holder(self) -> str:
        try:
            holder = json.loads(self.path.read_text())
            since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder["since"]))
            return f"process {holder['pid']} on {holder['host']} since {since}"
        except (OSError, ValueError, KeyError):  # it is locked, but its process has not written to it yet
            return "a process that has not written its id yet"

    def _sign(self) -> None:
        assert self._file is not None
        self._file.truncate(0)
        json.dump({"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}, self._file)
        self._file.flush()

    def release(self) -> None:
        """Release the lock. Safe to call twice. The file stays: removing it would race with the next holder."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # a full disk for the name is no failure; the lock is released
                self._file.close()
            self._file = None


class SqliteDatabase(Database):
    """A connection to a ledger's file. Opening a damaged file, a newer one, or another program's changes nothing."""

    def __init__(
        self, path: Path, access: Access, *, role: str | None = None, migrations: Sequence[str] | None = None
    ) -> None:
        """``role``: the writer role that it holds until it is closed."""
        self.path = path
        self._lock: WriterLock | None = None
        self._reader: sqlite3.Connection | None = None  # closed last: while it is open, the log is not removed
        layouts = MIGRATIONS if migrations is None else migrations
        self.connection = self._write(role, layouts) if access == "write" else self._current(access, layouts)
        self.connection.row_factory = sqlite3.Row

    def _current(self, access: Access, migrations: Sequence[str]) -> sqlite3.Connection:
        reader = open_current(self.path, newest=len(migrations))
        if access == "read":
            return reader
        self._reader = reader
        writer = connect(self.path, mode="rw")
        writer.execute("PRAGMA secure_delete = on")  # deleted data is overwritten, not only unlinked
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
            first: Row | None = self.connection.execute(sql, values).fetchone()
        return first

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
        return ALL  # the writer has the file alone, so rows appear in the order of their numbers

    def count(self, table: str) -> int:
        row = self.row("SELECT seq FROM cursors WHERE name = ?", (GAPS + table,))
        return self.last_number(table, "seq") - (row["seq"] if row else 0)

    def removed(self, table: str, count: int) -> None:
        """Count the gaps: numbers have none except from copies and deleted rows."""
        self.execute(
            "INSERT INTO cursors (name, seq) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET seq = seq + excluded.seq",
            (GAPS + table, count),
        )

    def shred(self) -> bool:
        """Truncate the log, which may contain older pages; deleted rows in the file are overwritten already."""
        with sqlite_errors(self.path):
            self.connection.execute("PRAGMA busy_timeout = 0")  # present readers and writers are not blocked
            try:
                busy, *_ = self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                self.connection.execute("PRAGMA busy_timeout = 30000")
        return not busy

    def last_number(self, table: str, key: str) -> int:
        row = self.row("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,))
        return int(row["seq"]) if row else 0

    def continue_numbers(self, table: str, key: str, *, after: int) -> None:
        """Record the number of missing numbers, so that `count` stays correct."""
        last = max(self.last_number(table, key), after)
        [row] = self.rows(f"SELECT count(*) AS n FROM {table}")
        self.execute("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
        self.insert("sqlite_sequence", {"name": table, "seq": last})
        if last > row["n"]:
            self.insert("cursors", {"name": GAPS + table, "seq": last - row["n"]})

    def writers(self) -> list[str]:
        writers = []
        for role in WRITERS:
            try:
                WriterLock(self.path, role).release()
            except LedgerHeld as error:
                writers.append(error.what)
        return writers

    def durability(self, sync: Sync) -> None:
        self.connection.execute(f"PRAGMA synchronous = {sync}")

    def faults(self) -> list[str]:
        faults = [row["quick_check"] for row in self.rows("PRAGMA quick_check(10)")]
        return [] if faults == ["ok"] else faults

    def size(self) -> int:
        return self.path.stat().st_size

    def close(self) -> None:
        self.connection.close()
        if self._reader is not None:
            self._reader.close()
        self._release()
