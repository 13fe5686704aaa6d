"""SQLite and file system errors as ledger errors, with cause, place and remedy."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from openclaw_rl.errors import AlreadyInLedger, LedgerDamaged, LedgerDown, LedgerError

PRIVATE_DIRECTORY, PRIVATE_FILE = 0o700, 0o600
"""owner only, since a run contains private conversations. sqlite gives -wal and -shm the ledger's mode"""

_ROOM = "free some space on its disk"
_RIGHT = "give this user the right to write there (chmod u+w), or choose another run directory (run.dir)"
_DISK = "see that its disk is there and healthy"

_DOWN = {
    sqlite3.SQLITE_FULL: ("there is no room left for it", _ROOM),
    sqlite3.SQLITE_IOERR: ("its disk cannot be read or written", f"{_ROOM}, or {_DISK}"),
    sqlite3.SQLITE_READONLY: ("it may only be read", _RIGHT),
    sqlite3.SQLITE_PERM: ("it may not be opened", _RIGHT),
    sqlite3.SQLITE_AUTH: ("it may not be opened", _RIGHT),
    sqlite3.SQLITE_CANTOPEN: ("it cannot be opened", f"see that it is a file, and {_RIGHT}"),
    sqlite3.SQLITE_BUSY: ("another process holds it too long", "end the program that holds a transaction on it open"),
    sqlite3.SQLITE_LOCKED: ("another process holds it too long", "end the program that holds a transaction on it open"),
    sqlite3.SQLITE_NOMEM: ("there is no memory left", "end other programs on this machine"),
}
_DAMAGED = {
    sqlite3.SQLITE_NOTADB: "it does not begin as a ledger does",
    sqlite3.SQLITE_CORRUPT: "it is damaged or cut short",
}
_THERE = (sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_ROWID)
_REMEDIES = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.ENOTDIR: "a file is in the way: move it, or choose another run directory (run.dir)",
    errno.EEXIST: "a file is in the way: move it, or choose another run directory (run.dir)",
    errno.EISDIR: "a directory is in the way: move it, or choose another run directory (run.dir)",
    errno.EROFS: "choose a run directory on a disk that can be written (run.dir)",
    errno.EACCES: _RIGHT,
    errno.EPERM: _RIGHT,
}


@contextmanager
def sqlite_errors(path: Path) -> Iterator[None]:
    """Raise sqlite errors inside as ledger errors; mistakes in our own SQL stay as they are."""
    try:
        yield
    except sqlite3.Error as error:
        full = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        if full in _THERE:
            raise AlreadyInLedger(f"{path} has such a row already ({error}); nothing was changed") from error
        code = full & 0xFF
        if code in _DAMAGED:
            raise damaged(path, f"{_DAMAGED[code]} ({error})") from error
        if code in _DOWN:
            why, remedy = _DOWN[code]
            raise LedgerDown(f"{path} cannot be used: {why} ({error})", why=why, remedy=remedy) from error
        raise


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Raise file system errors inside as a LedgerError."""
    try:
        yield
    except OSError as error:
        what = f"{error.filename or path}: {error.strerror or error}"
        raise LedgerError(
            f"the run directory cannot be used: {what}", remedy=_REMEDIES.get(error.errno or 0, _DISK)
        ) from error


def damaged(path: Path, what: str) -> LedgerDamaged:
    return LedgerDamaged(
        f"{path} is not a healthy ledger: {what}; nothing was changed",
        remedy="restore a copy, or move the file away to begin a new one",
    )
