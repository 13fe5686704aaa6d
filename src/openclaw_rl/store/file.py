"""The ledger's file: opened carefully, written in whole transactions, by one writer per role."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, get_args

from openclaw_rl.errors import LedgerDamaged, LedgerError, LedgerNewer, NotInLedger
from openclaw_rl.store.locks import WriterLock
from openclaw_rl.store.schema import APPLICATION_ID, MIGRATIONS

Writer = Literal["serve", "import", "collect", "judge", "train"]
Sync = Literal["full", "normal"]
WRITERS: tuple[Writer, ...] = get_args(Writer)
DERIVED: tuple[Writer, ...] = ("collect", "judge")
"""writers whose rows follow from other rows: a power cut may cost their newest, which are then decided again"""


class LedgerFile:
    """One connection to the ledger, as one writer or (``writer`` None) as a reader.

    Opening a damaged file, a newer one, or one of another program raises and changes nothing.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        writer: Writer | None = None,
        sync: Sync = "full",
        migrations: Sequence[str] = MIGRATIONS,
    ) -> None:
        self.path = Path(path).absolute()
        self.root = self.path.parent
        self.writer = writer
        self.lock = threading.RLock()
        self.low: dict[str, int] = {}  # the loop's low-water marks, by table
        if writer is not None and not self.path.exists():
            _create(self.path, migrations)
        check_header(self.path, newest=len(migrations))
        self._writer_lock = WriterLock(self.path, writer) if writer else None
        try:
            self.db = self._connect(sync, migrations)
        except BaseException:
            if self._writer_lock:
                self._writer_lock.release()
            raise

    def _connect(self, sync: Sync, migrations: Sequence[str]) -> sqlite3.Connection:
        db = _open(self.path, mode="ro" if self.writer is None else "rw")
        try:
            if self.writer is not None:
                _migrate(db, migrations)
                db.execute(f"PRAGMA synchronous = {'normal' if self.writer in DERIVED else sync}")
            elif db.execute("PRAGMA user_version").fetchone()[0] < len(migrations):
                raise LedgerError(
                    f"{self.path} has an older layout than this release reads",
                    remedy="start 'openclaw-rl up' once to bring it forward",
                )
            db.execute("SELECT count(*) FROM cursors").fetchone()
        except sqlite3.DatabaseError as error:
            db.close()
            raise _damaged(self.path, str(error)) from error
        except BaseException:
            db.close()
            raise
        return db

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

    @contextmanager
    def writing(self, *writers: Writer) -> Iterator[sqlite3.Connection]:
        """A transaction of one of these writers: all of it is written, or nothing."""
        if self.writer not in writers:
            raise LedgerError(f"this connection writes as {self.writer!r}; that needs {' or '.join(writers)}")
        with self.lock, transaction(self.db):
            yield self.db

    def rows(self, sql: str, *values: Any) -> list[Any]:
        """All rows of a query."""
        with self.lock:
            return self.db.execute(sql, values).fetchall()

    def row(self, sql: str, *values: Any) -> Any:
        """The first row of a query, None if there is none."""
        with self.lock:
            return self.db.execute(sql, values).fetchone()

    def cursor(self, name: str) -> int:
        """A loop's low-water mark in a table: nothing at or below it is open."""
        if name not in self.low:
            row = self.row("SELECT seq FROM cursors WHERE name = ?", name)
            self.low[name] = row[0] if row else 0
        return self.low[name]

    def save_cursors(self, db: sqlite3.Connection) -> None:
        """Write the marks, inside the transaction of what moved them."""
        db.executemany("INSERT OR REPLACE INTO cursors VALUES (?, ?)", list(self.low.items()))


def check_header(path: Path, *, newest: int = len(MIGRATIONS)) -> None:
    """Refuse, without opening it as a database, a file that is no ledger, is cut short, or is of a later release."""
    if not path.exists():
        raise NotInLedger(f"there is no ledger at {path}", remedy="start 'openclaw-rl up' first, or set run.dir")
    with path.open("rb") as file:
        head = file.read(100)
    if len(head) < 100 or not head.startswith(b"SQLite format 3\x00"):
        raise _damaged(path, "it does not begin as a ledger does")
    if int.from_bytes(head[68:72], "big") != APPLICATION_ID:
        raise _damaged(path, "it is another program's database")
    layout = int.from_bytes(head[60:64], "big")
    if layout > newest:
        raise LedgerNewer(
            f"{path} has layout {layout}; this release knows layouts up to {newest}",
            remedy="upgrade openclaw-rl, or give it another run directory (run.dir)",
        )
    _refuse_cut_short(path, head)


def _refuse_cut_short(path: Path, head: bytes) -> None:
    """The header says how long the file is, unless there is a log beside it: a process that died while moving pages
    from the log into the file leaves a file that is short, and whole again as soon as the log is read."""
    log = path.with_name(f"{path.name}-wal")
    if head[24:28] != head[92:96] or (log.exists() and log.stat().st_size > 0):
        return
    page, pages = int.from_bytes(head[16:18], "big"), int.from_bytes(head[28:32], "big")
    whole = (65536 if page == 1 else page) * pages
    if path.stat().st_size < whole:
        raise _damaged(path, f"it is cut short: {path.stat().st_size} of {whole} bytes")


def _damaged(path: Path, what: str) -> LedgerDamaged:
    return LedgerDamaged(
        f"{path} is not a healthy ledger: {what}; nothing was changed",
        remedy="restore a copy, or move the file away to begin a new one",
    )


def missing(noun: str, name: str) -> NotInLedger:
    return NotInLedger(f"there is no {noun} {name!r} in the ledger", remedy="'openclaw-rl status' shows what there is")


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def _open(path: Path, *, mode: str) -> sqlite3.Connection:
    uri = f"{path.resolve().as_uri()}?mode={mode}"
    return sqlite3.connect(uri, uri=True, timeout=30.0, isolation_level=None, check_same_thread=False)


def _create(path: Path, migrations: Sequence[str]) -> None:
    """Make an empty ledger under another name and put it in place whole; if another process was first, use theirs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.new")
    draft.unlink(missing_ok=True)
    db = _open(draft, mode="rwc")
    try:
        _migrate(db, migrations)
    finally:
        db.close()
    with contextlib.suppress(FileExistsError):
        os.link(draft, path)
    draft.unlink()


def _migrate(db: sqlite3.Connection, migrations: Sequence[str]) -> None:
    db.execute("PRAGMA journal_mode = WAL")
    if db.execute("PRAGMA user_version").fetchone()[0] == len(migrations):
        return
    with transaction(db):  # another process may have done it meanwhile, so look again inside
        for layout in range(db.execute("PRAGMA user_version").fetchone()[0], len(migrations)):
            for statement in _statements(migrations[layout]):
                db.execute(statement)
        db.execute(f"PRAGMA user_version = {len(migrations)}")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # so that the file's own header tells its layout


def _statements(script: str) -> Iterator[str]:
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
