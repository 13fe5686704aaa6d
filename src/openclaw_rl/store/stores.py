"""Opening a store: the place alone decides which one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import Final

from openclaw_rl.errors import LedgerDown, MissingExtra, NotInLedger
from openclaw_rl.store.database import CHANNEL, WATCHED, Access, AnyPlace, Database, Place, ServerPlace, place_of


def open_database(
    place: Place, access: Access, *, role: str | None = None, migrations: Sequence[str] | None = None
) -> Database:
    """Open a connection to a ledger; ``role``: the writer role that it holds until it is closed."""
    if not isinstance(place, ServerPlace):
        from openclaw_rl.store.sqlite import SqliteDatabase

        return SqliteDatabase(place, access, role=role, migrations=migrations)
    need_psycopg()
    from openclaw_rl.store.postgres import PostgresDatabase

    return PostgresDatabase(place, access, role=role, migrations=migrations)


def need_psycopg() -> None:
    """Raise MissingExtra if the PostgreSQL driver is not installed."""
    try:
        import psycopg  # noqa: F401 (only its presence matters)
    except ImportError as error:
        raise MissingExtra("psycopg", "postgres") from error


def exists(name: AnyPlace) -> bool:
    """Check if a ledger exists."""
    place = place_of(name)
    if not isinstance(place, ServerPlace):
        return place.exists()
    try:
        with closing(open_database(place, "read")):
            return True
    except NotInLedger:
        return False


# Notifications: a server reports new rows to the loops, so that they need not poll all the time.

AGAIN: Final = 1.0
"""seconds until a reconnection, and after which a loop polls without a notification"""


async def listen(place: ServerPlace, woken: Callable[[frozenset[str]], None]) -> None:
    """Call ``woken`` with the names of tables that got a row, until cancelled.

    After each connection it is called with all of them, since rows may have been added while disconnected.
    """
    need_psycopg()
    while True:
        with suppress(LedgerDown):  # reported by the loops, each of which has its own connection
            await _listen_once(place, woken)
        await asyncio.sleep(AGAIN)


async def _listen_once(place: ServerPlace, woken: Callable[[frozenset[str]], None]) -> None:
    import psycopg

    from openclaw_rl.store.postgres_text import connection_errors

    with connection_errors(place):
        async with await psycopg.AsyncConnection.connect(place.url, autocommit=True, connect_timeout=10) as connection:
            await connection.execute(f"LISTEN {CHANNEL}".encode())
            woken(WATCHED)
            async for notice in connection.notifies():
                woken(frozenset(notice.payload.split(",")))
