"""The ledger in a PostgreSQL database: for several gateways, and for loops on several machines.

A writer's role is an advisory lock on its connection, which the server releases when the connection ends, for any
reason. Each gateway has its own. A lost connection is made anew; a loop gets an error first, since the server may have
lost the newest commits, which the loop's memory is based on.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

import psycopg
from psycopg import RawCursor
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row

from openclaw_rl.errors import LedgerDamaged, LedgerDown, LedgerError, LedgerHeld, LedgerNewer, NotInLedger
from openclaw_rl.store.database import (
    ALL,
    CHANNEL,
    WATCHED,
    Access,
    Database,
    Row,
    ServerPlace,
    Sync,
    insertion,
    need_values,
)
from openclaw_rl.store.postgres_text import connection_errors, postgres_errors, register_texts, translated
from openclaw_rl.store.schema import APPLICATION_ID, FIRST_LAYOUT, ORDER_LOCK, POSTGRES_MIGRATIONS
from openclaw_rl.store.troubles import PRIVATE_DIRECTORY, file_errors

T = TypeVar("T")

PATIENCE: Final = 10.0
"""seconds for which a gateway waits for an unreachable server, before a turn has to wait in memory"""

_LAYOUT_LOCK: Final = 51
_ROLES: Final = {"import": 1, "collect": 2, "judge": 3, "train": 4}
_GATEWAYS: Final = range(101, 1101)
_ALONE: Final = {
    "notes": (60,),
    "trained": (61,),
    "collected": (62,),
    "judged": (63,),
    "deletion": (60, 61, 62, 63, ORDER_LOCK),
}
"""the locks for a transaction that runs alone, in their locking order; during a deletion nothing else is written: the
lock on the order of rows blocks the tables that several processes write"""
_SHARED: Final = frozenset({"turns", "feedback", "endings", "session_rewards", "requests"})
"""tables that several processes write at once"""
_LOOPS: Final = frozenset({"collect", "judge", "train"})
"""writers that keep state from their reads"""
_ALIVE: Final = {
    "connect_timeout": "10",
    "keepalives": "1",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "15000",
}
"""an unreachable server is noticed within some seconds"""
_HOLDERS: Final = (
    "SELECT a.pid, a.application_name, extract(epoch FROM a.backend_start)::float8 AS since FROM pg_locks l"
    " JOIN pg_stat_activity a ON a.pid = l.pid JOIN pg_database d ON d.oid = l.database"
    " WHERE l.locktype = 'advisory' AND l.granted AND d.datname = current_database() AND l.pid != pg_backend_pid()"
    f" AND l.classid = {APPLICATION_ID}"
)
_NOTHING: Final = "no action is needed: the loop reads its state again"
_ORPHANS: Final = (
    "SELECT 'an outcome' AS what, turn FROM outcomes x WHERE NOT EXISTS (SELECT 1 FROM turns t WHERE t.id = x.turn)"
    " UNION ALL SELECT 'a verdict', turn FROM verdicts x WHERE NOT EXISTS (SELECT 1 FROM turns t WHERE t.id = x.turn)"
    " UNION ALL SELECT 'feedback', turn FROM feedback x WHERE NOT EXISTS (SELECT 1 FROM turns t WHERE t.id = x.turn)"
    " LIMIT 10"
)


def connect(place: ServerPlace, *, name: str) -> psycopg.Connection[Row]:
    """Open a connection in which each statement is a transaction, unless one is begun."""
    with connection_errors(place):
        options = {key: value for key, value in conninfo_to_dict(place.url).items() if value is not None}
        connection: psycopg.Connection[Row] = psycopg.connect(
            **{**_ALIVE, **options, "application_name": name},  # type: ignore[arg-type]
            autocommit=True,
            row_factory=dict_row,
            cursor_factory=RawCursor,
        )
    register_texts(connection)
    return connection


def _in_words(holder: Row) -> str:
    """Describe the process that holds a writer's role."""
    words = holder["application_name"].split(" ", 4)
    if len(words) < 5:
        return f"a program that calls itself {holder['application_name']!r}"
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder["since"]))
    return f"process {words[2]} on {words[4]} since {since} ({words[1]})"


class PostgresDatabase(Database):
    """A connection to a ledger on a server. Opening a newer ledger, or another program's tables, changes nothing."""

    def __init__(
        self, place: ServerPlace, access: Access, *, role: str | None = None, migrations: Sequence[str] | None = None
    ) -> None:
        """``role``: the writer role that it holds until it is closed."""
        self.place = place
        self._slot = 1
        self._access, self._role = access, role
        self._name = f"openclaw-rl {role or access} {os.getpid()} {secrets.token_hex(3)} {socket.gethostname()}"[:63]
        self._sync: Sync = "normal"
        self._inside = self._closed = False
        self._touched: set[str] = set()
        self._down_since: float | None = None
        if access == "write":
            with file_errors(place.root):
                place.root.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        self.connection = connect(place, name=self._name)
        try:
            self._begin_session(POSTGRES_MIGRATIONS if migrations is None else migrations)
        except BaseException:
            self.close()
            raise

    # --- opening ---

    def _begin_session(self, migrations: Sequence[str]) -> None:
        newest = FIRST_LAYOUT + len(migrations) - 1
        with postgres_errors(self.place):
            current = self._layout()
            self._refuse(current, newest)
            self._set_up()
            if self._access == "write" and current != newest:
                self._migrate(migrations)

    def _layout(self) -> int | None:
        """Return the ledger's layout number; None without a ledger."""
        if self._value("SELECT to_regclass('ledger_layout') IS NOT NULL"):
            return int(self._value("SELECT layout FROM ledger_layout"))
        return None

    def _refuse(self, found: int | None, newest: int) -> None:
        if found is None and self._access != "write":
            raise NotInLedger(
                f"there is no ledger in {self.place}", remedy="start 'openclaw-rl up' first, or set store.url"
            )
        if found is not None and found > newest:
            raise LedgerNewer(
                f"{self.place} has layout {found}; this release knows layouts up to {newest}",
                remedy="upgrade openclaw-rl, or give it another database (store.url)",
            )
        if found is not None and found < newest and self._access != "write":
            raise LedgerError(
                f"{self.place} has an older layout than this release reads",
                remedy="start 'openclaw-rl up' once to bring it forward",
            )

    def _set_up(self) -> None:
        """Set up a session, the first or a later one."""
        self._run("SET idle_in_transaction_session_timeout = '10s'")  # a hanging writer blocks others only this long
        if self._access == "read":
            self._run("SET default_transaction_read_only = on")
            return
        self._run("SET lock_timeout = '30s'")
        self.durability(self._sync)
        if self._role is not None:
            self._take_place(self._role)

    def _migrate(self, migrations: Sequence[str]) -> None:
        try:
            with self.transaction():
                self._run(f"SELECT pg_advisory_xact_lock({APPLICATION_ID}, {_LAYOUT_LOCK})")
                current = self._layout()  # another process may have migrated it meanwhile
                for script in migrations[0 if current is None else current - FIRST_LAYOUT + 1 :]:
                    self.connection.execute(script.encode())
                self._run(f"UPDATE ledger_layout SET layout = {FIRST_LAYOUT + len(migrations) - 1}")
        except (psycopg.errors.DuplicateTable, psycopg.errors.DuplicateFunction) as error:
            raise LedgerDamaged(
                f"{self.place} holds tables of another program: {str(error).splitlines()[0]}; nothing was changed",
                remedy="give the ledger a database of its own (createdb NAME) and name it in store.url",
            ) from error

    # --- the writer's place ---

    def _take_place(self, role: str) -> None:
        if role == "serve":
            preferred = _GATEWAYS[self._slot - 1]
            self._slot = next(n - 100 for n in (preferred, *_GATEWAYS) if self._locked(n))
            return
        if self._locked(_ROLES[role]):
            return
        holder = self._held_by(_ROLES[role])
        description = _in_words(holder) if holder else "it has already ended"
        raise LedgerHeld(
            f"another process already writes as {role!r} to {self.place}: {description}",
            remedy="stop that process, or give this one another database (store.url)",
        )

    def _locked(self, number: int) -> bool:
        if self._value(f"SELECT pg_try_advisory_lock({APPLICATION_ID}, {number})"):
            return True
        holder = self._held_by(number)
        if holder is None or holder["application_name"] != self._name:
            return False
        self._run(f"SELECT pg_terminate_backend({holder['pid']}, 5000)")  # our own, lost unnoticed by the server
        return bool(self._value(f"SELECT pg_try_advisory_lock({APPLICATION_ID}, {number})"))

    def _held_by(self, number: int) -> Row | None:
        return self._run(f"{_HOLDERS} AND l.objid = {number}").fetchone()

    # --- a connection that was lost ---

    @property
    def slot(self) -> int:
        return self._slot

    @property
    def lost(self) -> bool:
        return self.connection.closed and not self._closed

    def _resume(self) -> bool:
        """Reconnect if the connection was lost, retrying for a gateway; return True if it was."""
        before = self.generation
        while self.lost:
            try:
                self.connection = connect(self.place, name=self._name)
                with postgres_errors(self.place):
                    self._set_up()
            except BaseException as error:
                self.connection.close()
                self._down_since = self._down_since or time.monotonic()
                waited = time.monotonic() - self._down_since
                if not isinstance(error, LedgerDown) or self._role != "serve" or waited > PATIENCE:
                    raise
                time.sleep(0.1)
            else:
                self.generation += 1
                self._down_since = None
        return self.generation != before

    def _tried_again(self, work: Callable[[], T]) -> T:
        """Return the result of ``work``, which only reads.

        A lost connection is made anew and ``work`` is retried, except inside a transaction and in a loop.
        """
        if self._resume() and self._role in _LOOPS:
            raise LedgerDown(
                f"{self.place} was unreachable for a while", why="the server was unreachable", remedy=_NOTHING
            )
        try:
            with postgres_errors(self.place):
                return work()
        except LedgerDown:
            if not self.lost or self._inside or self._role in _LOOPS:
                raise
        self._resume()
        with postgres_errors(self.place):
            return work()

    # --- reading and writing ---

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        need_values(values)
        return self._tried_again(lambda: self._run(sql, values).fetchall())

    def row(self, sql: str, values: Sequence[Any] = ()) -> Row | None:
        need_values(values)
        return self._tried_again(lambda: self._run(sql, values).fetchone())

    def _run(self, sql: str, values: Sequence[Any] = ()) -> psycopg.Cursor[Row]:
        return self.connection.execute(translated(sql), values, binary=True)

    def _value(self, sql: str) -> Any:
        row = self._run(sql).fetchone()
        return next(iter(row.values())) if row else None

    @contextmanager
    def transaction(self, *, alone: str | None = None) -> Iterator[None]:
        self._tried_again(lambda: self._run("BEGIN"))
        self._inside = True
        self._touched.clear()
        try:
            with postgres_errors(self.place):
                for lock in _ALONE[alone] if alone is not None else ():
                    self._run(f"SELECT pg_advisory_xact_lock({APPLICATION_ID}, {lock})")
                yield
                self._run("COMMIT")
        except BaseException:
            with suppress(psycopg.Error):  # a lost connection has no transaction
                self._run("ROLLBACK")
            raise
        finally:
            self._inside = False
        self._notify()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        self._tried_again(lambda: self._run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"))
        self._inside = True
        try:
            yield
        finally:
            self._inside = False
            with suppress(psycopg.Error):  # a lost connection has no snapshot
                self._run("ROLLBACK")

    def _notify(self) -> None:
        """Wake the loops that wait, in a transaction of its own: commits with notices are serialised."""
        tables = ",".join(sorted(self._touched & WATCHED))
        if tables:
            with suppress(psycopg.Error):  # the rows are written; a loop that was not woken polls before long
                self._run("SELECT pg_notify(?, ?)", (CHANNEL, tables))

    def execute(self, sql: str, values: Sequence[Any] = ()) -> None:
        need_values(values)
        self._run(sql, values)

    def executemany(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        for values in rows:
            need_values(values)
        if rows:
            self.connection.cursor().executemany(translated(sql), rows)

    def insert(self, table: str, row: Mapping[str, Any]) -> None:
        self._touched.add(table)
        super().insert(table, row)

    def insert_numbered(self, table: str, row: Mapping[str, Any], *, key: str) -> int:
        self._touched.add(table)
        [inserted] = self._run(f"{insertion(table, row)} RETURNING {key}", tuple(row.values())).fetchall()
        return int(inserted[key])

    def horizon(self, table: str, after: int) -> int:
        if table not in _SHARED:
            return ALL  # its only writer commits in the order of its numbers
        row = self.row("SELECT ledger_horizon(?, ?) AS n", (table, after))
        return int(row["n"]) if row else after

    def count(self, table: str) -> int:
        row = self.row(f"SELECT count(*) AS n FROM {table}")
        return int(row["n"]) if row else 0

    def removed(self, table: str, count: int) -> None:
        pass  # its rows are counted one by one

    def last_number(self, table: str, key: str) -> int:
        [row] = self.rows(f"SELECT pg_get_serial_sequence('{table}', '{key}') AS name")
        [sequence] = self.rows(
            f"SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END AS n FROM {row['name']}"
        )
        return int(sequence["n"])

    def continue_numbers(self, table: str, key: str, *, after: int) -> None:
        sequence = f"pg_get_serial_sequence('{table}', '{key}')"
        self._run(f"SELECT setval({sequence}, greatest(coalesce(max({key}), 0), ?) + 1, false) FROM {table}", (after,))

    def writers(self) -> list[str]:
        numbers = ", ".join(map(str, (*_ROLES.values(), *_GATEWAYS)))
        return [_in_words(row) for row in self.rows(f"{_HOLDERS} AND l.objid IN ({numbers}) ORDER BY l.objid")]

    def durability(self, sync: Sync) -> None:
        self._sync = sync
        with postgres_errors(self.place):
            level = self._value("SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit'")
            setting = "off" if sync == "normal" else "on" if level == "off" else level
            self._run(f"SET synchronous_commit = {setting}")

    def faults(self) -> list[str]:
        return [f"{row['what']} of turn {row['turn']}, which is not there" for row in self.rows(_ORPHANS)]

    def size(self) -> int:
        row = self.row("SELECT pg_database_size(current_database()) AS bytes")
        return int(row["bytes"]) if row else 0

    def close(self) -> None:
        self._closed = True
        self.connection.close()
