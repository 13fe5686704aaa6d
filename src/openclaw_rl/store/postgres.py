"""The ledger in a PostgreSQL database: for several gateways, and for loops on several machines.

A writer's place is an advisory lock of its connection, which the server lets go when the connection ends, however it
ends. Gateways have a place each. A connection that was lost is made anew; a loop is told of it first, since the server
may have lost what was committed last, and with it what the loop remembers.
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
"""seconds for which a gateway waits for a server that is away, before a turn has to wait in memory"""

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
"""the locks of a transaction that runs alone, in the order in which all of them are taken; nothing is written beside a
deletion: the lock on the order of rows keeps the tables out that several processes write"""
_SHARED: Final = frozenset({"turns", "feedback", "endings", "session_rewards", "requests"})
"""tables that several processes write at once"""
_LOOPS: Final = frozenset({"collect", "judge", "train"})
"""writers that remember what they read"""
_ALIVE: Final = {
    "connect_timeout": "10",
    "keepalives": "1",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "15000",
}
"""a server that is gone is missed within some seconds"""
_HOLDERS: Final = (
    "SELECT a.pid, a.application_name, extract(epoch FROM a.backend_start)::float8 AS since FROM pg_locks l"
    " JOIN pg_stat_activity a ON a.pid = l.pid JOIN pg_database d ON d.oid = l.database"
    " WHERE l.locktype = 'advisory' AND l.granted AND d.datname = current_database() AND l.pid != pg_backend_pid()"
    f" AND l.classid = {APPLICATION_ID}"
)
_NOTHING: Final = "nothing has to be done: the loop reads what it remembers anew"
_ORPHANS: Final = (
    "SELECT 'an outcome' AS what, turn FROM outcomes x WHERE NOT EXISTS (SELECT 1 FROM turns t WHERE t.id = x.turn)"
    " UNION ALL SELECT 'a verdict', turn FROM verdicts x WHERE NOT EXISTS (SELECT 1 FROM turns t WHERE t.id = x.turn)"
    " UNION ALL SELECT 'feedback', turn FROM feedback x WHERE NOT EXISTS (SELECT 1 FROM turns t WHERE t.id = x.turn)"
    " LIMIT 10"
)


def connect(place: ServerPlace, *, name: str) -> psycopg.Connection[Row]:
    """A connection in which each statement is a transaction, unless one is begun."""
    with connection_errors(place):
        given = {key: value for key, value in conninfo_to_dict(place.url).items() if value is not None}
        connection: psycopg.Connection[Row] = psycopg.connect(
            **{**_ALIVE, **given, "application_name": name},  # type: ignore[arg-type]
            autocommit=True,
            row_factory=dict_row,
            cursor_factory=RawCursor,
        )
    register_texts(connection)
    return connection


def _in_words(holder: Row) -> str:
    """Who holds a writer's place."""
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
        """``role``: the writer whose place it holds until it is closed."""
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
            found = self._layout()
            self._refuse(found, newest)
            self._set_up()
            if self._access == "write" and found != newest:
                self._migrate(migrations)

    def _layout(self) -> int | None:
        """How far the ledger's layout is; None where there is no ledger."""
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
        """What a session needs, the first one and each that follows it."""
        self._run("SET idle_in_transaction_session_timeout = '10s'")  # nobody waits long for a writer that hangs
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
                found = self._layout()  # another process may have done it meanwhile
                for script in migrations[0 if found is None else found - FIRST_LAYOUT + 1 :]:
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
            wanted = _GATEWAYS[self._slot - 1]
            self._slot = next(n - 100 for n in (wanted, *_GATEWAYS) if self._locked(n))
            return
        if self._locked(_ROLES[role]):
            return
        holder = self._held_by(_ROLES[role])
        who = _in_words(holder) if holder else "it has ended by now"
        raise LedgerHeld(
            f"another process already writes as {role!r} to {self.place}: {who}",
            remedy="stop that process, or give this one another database (store.url)",
        )

    def _locked(self, number: int) -> bool:
        if self._value(f"SELECT pg_try_advisory_lock({APPLICATION_ID}, {number})"):
            return True
        holder = self._held_by(number)
        if holder is None or holder["application_name"] != self._name:
            return False
        self._run(f"SELECT pg_terminate_backend({holder['pid']}, 5000)")  # ours, and the server has not missed it yet
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
        """Make the connection anew where it was lost, with some patience for a gateway's server; whether it was."""
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
        """What ``work`` gives, which changes nothing; once more where the connection was lost and nobody minds."""
        if self._resume() and self._role in _LOOPS:
            raise LedgerDown(f"{self.place} was away for a while", why="the server was away", remedy=_NOTHING)
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
        found = self._run(sql).fetchone()
        return next(iter(found.values())) if found else None

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
            with suppress(psycopg.Error):  # where the connection is gone, so is the transaction
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
            with suppress(psycopg.Error):  # where the connection is gone, so is the snapshot
                self._run("ROLLBACK")

    def _notify(self) -> None:
        """Wake the loops that wait for what was written. In a transaction of its own: notices are sent one by one."""
        tables = ",".join(sorted(self._touched & WATCHED))
        if tables:
            with suppress(psycopg.Error):  # it is written; who was not woken looks by itself before long
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
        [found] = self._run(f"{insertion(table, row)} RETURNING {key}", tuple(row.values())).fetchall()
        return int(found[key])

    def horizon(self, table: str, after: int) -> int:
        if table not in _SHARED:
            return ALL  # its one writer commits in the order of its numbers
        found = self.row("SELECT ledger_horizon(?, ?) AS n", (table, after))
        return int(found["n"]) if found else after

    def count(self, table: str) -> int:
        found = self.row(f"SELECT count(*) AS n FROM {table}")
        return int(found["n"]) if found else 0

    def removed(self, table: str, count: int) -> None:
        pass  # its rows are counted one by one

    def last_number(self, table: str, key: str) -> int:
        [row] = self.rows(f"SELECT pg_get_serial_sequence('{table}', '{key}') AS name")
        [found] = self.rows(
            f"SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END AS n FROM {row['name']}"
        )
        return int(found["n"])

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
            wanted = "off" if sync == "normal" else "on" if level == "off" else level
            self._run(f"SET synchronous_commit = {wanted}")

    def faults(self) -> list[str]:
        return [f"{row['what']} of turn {row['turn']}, which is not there" for row in self.rows(_ORPHANS)]

    def size(self) -> int:
        found = self.row("SELECT pg_database_size(current_database()) AS bytes")
        return int(found["bytes"]) if found else 0

    def close(self) -> None:
        self._closed = True
        self.connection.close()
