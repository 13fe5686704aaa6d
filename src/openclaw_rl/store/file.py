"""The ledger's file: opened carefully, written in whole transactions, by one writer per role."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, get_args

from openclaw_rl.errors import LedgerDown, LedgerError, NotInLedger
from openclaw_rl.store.locks import WriterLock
from openclaw_rl.store.opening import connect, create, layout, look, migrate, transaction
from openclaw_rl.store.schema import MIGRATIONS
from openclaw_rl.store.troubles import damaged, file_errors, sqlite_errors

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
        self.trouble: LedgerDown | None = None  # why the newest write failed, None if it did not
        self._writer_lock: WriterLock | None = None
        if writer is None:
            self.db = self._reader(len(migrations))
            return
        with file_errors(self.path):
            new = not self.path.exists()
        if new:
            create(self.path, migrations)
        look(self.path, newest=len(migrations)).close()
        self._writer_lock = WriterLock(self.path, writer)
        try:
            self.db = self._writer(writer, sync, migrations)
        except BaseException:
            self._writer_lock.release()
            raise

    def _reader(self, newest: int) -> sqlite3.Connection:
        db = look(self.path, newest=newest)
        if layout(db) < newest:
            db.close()
            raise LedgerError(
                f"{self.path} has an older layout than this release reads",
                remedy="start 'openclaw-rl up' once to bring it forward",
            )
        return db

    def _writer(self, writer: Writer, sync: Sync, migrations: Sequence[str]) -> sqlite3.Connection:
        db = connect(self.path, mode="rw")
        try:
            with sqlite_errors(self.path):
                migrate(db, migrations)
                db.execute(f"PRAGMA synchronous = {'normal' if writer in DERIVED else sync}")
        except sqlite3.DatabaseError as error:  # a ledger that its own migrations do not fit
            db.close()
            raise damaged(self.path, str(error)) from error
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
        with self.committing() as db:
            yield db

    @contextmanager
    def committing(self) -> Iterator[sqlite3.Connection]:
        """A transaction, whoever writes. What was not written moves no mark, and ``trouble`` says why it was not."""
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

    def rows(self, sql: str, *values: Any) -> list[Any]:
        """All rows of a query."""
        with self.lock, sqlite_errors(self.path):
            return self.db.execute(sql, values).fetchall()

    def row(self, sql: str, *values: Any) -> Any:
        """The first row of a query, None if there is none."""
        with self.lock, sqlite_errors(self.path):
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


def missing(noun: str, name: str) -> NotInLedger:
    return NotInLedger(f"there is no {noun} {name!r} in the ledger", remedy="'openclaw-rl status' shows what there is")
