"""The way into the ledger's file: through sqlite, and through nothing else.

POSIX locks belong to a process: closing any descriptor of a file lets all of them go, also those that sqlite holds on
other descriptors of it. Another program then takes itself for the last user and deletes the log under this one. sqlite
keeps count of its own descriptors, so whatever must be known of the file is read through a connection, and no code of
this package opens ``ledger.db``, its ``-wal`` or its ``-shm`` in another way, not even to read them.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path

from openclaw_rl.errors import LedgerError, LedgerNewer, NotInLedger
from openclaw_rl.store.schema import APPLICATION_ID, MIGRATIONS
from openclaw_rl.store.troubles import PRIVATE_DIRECTORY, PRIVATE_FILE, damaged, file_errors, sqlite_errors

_HEADER = 100
_VERSIONS = slice(18, 20)
"""of the header: the versions of the format to write and to read the file, 2 with a write-ahead log"""


def connect(path: Path, *, mode: str) -> sqlite3.Connection:
    """A connection; ``mode`` ro reads, rw writes, rwc makes the file."""
    uri = f"{path.resolve().as_uri()}?mode={mode}"
    with sqlite_errors(path):
        return sqlite3.connect(uri, uri=True, timeout=30.0, isolation_level=None, check_same_thread=False)


def open_read_only(path: Path, *, newest: int = len(MIGRATIONS)) -> sqlite3.Connection:
    """A connection that only reads, to a file that is a healthy ledger of a layout up to ``newest``.

    Raises NotInLedger, LedgerDamaged or LedgerNewer otherwise; the file is as it was. While such a connection is open
    no other one of this process clears the log away when it is closed, and this one never does.
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
    """A connection that only reads, to a healthy ledger of layout ``newest``; raises LedgerError for an older one."""
    db = open_read_only(path, newest=newest)
    if layout(db) < newest:
        db.close()
        raise LedgerError(
            f"{path} has an older layout than this release reads",
            remedy="start 'openclaw-rl up' once to bring it forward",
        )
    return db


def layout(db: sqlite3.Connection) -> int:
    """How many migrations the file has seen."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _refuse_foreign(path: Path, db: sqlite3.Connection, newest: int) -> None:
    if path.stat().st_size < _HEADER:  # which sqlite takes for a database that is still empty
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
    """Make an empty ledger under another name and put it in place whole; if another process was first, use theirs."""
    draft = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.new")
    with sqlite_errors(path):
        image = empty_ledger(tuple(migrations))
    with file_errors(path):
        path.parent.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        draft.unlink(missing_ok=True)
        try:
            with os.fdopen(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE_FILE), "wb") as file:
                file.write(image)  # nobody has it open yet
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileExistsError):
                os.link(draft, path)
        finally:
            draft.unlink(missing_ok=True)


@cache
def empty_ledger(migrations: tuple[str, ...]) -> bytes:
    """The file of a ledger without rows. It is made in memory, since sqlite waits for the disk with each file."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        migrate(db, migrations)
        image = bytearray(db.serialize())
    image[_VERSIONS] = b"\2\2"  # it keeps a log from the beginning, so that who opens it first has nothing to change
    return bytes(image)


def migrate(db: sqlite3.Connection, migrations: Sequence[str]) -> None:
    """Bring a ledger to the newest layout, whole or not at all."""
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
    """All of it is written, or nothing; whatever fails, the connection is ready for the next one."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # where there was no room, sqlite has rolled back already
            db.execute("ROLLBACK")
        raise


def _statements(script: str) -> Iterator[str]:
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
