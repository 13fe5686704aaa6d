"""The door to the stores: which one it is depends on the place alone."""

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
    """A connection to a ledger; ``role``: the writer whose place it holds until it is closed."""
    if not isinstance(place, ServerPlace):
        from openclaw_rl.store.sqlite import SqliteDatabase

        return SqliteDatabase(place, access, role=role, migrations=migrations)
    need_psycopg()
    from openclaw_rl.store.postgres import PostgresDatabase

    return PostgresDatabase(place, access, role=role, migrations=migrations)


def need_psycopg() -> None:
    """Raises MissingExtra where the driver of PostgreSQL is not installed."""
    try:
        import psycopg  # noqa: F401 (it is there, or it is not)
    except ImportError as error:
        raise MissingExtra("psycopg", "postgres") from error


def exists(name: AnyPlace) -> bool:
    """Whether a ledger is there."""
    place = place_of(name)
    if not isinstance(place, ServerPlace):
        return place.exists()
    try:
        with closing(open_database(place, "read")):
            return True
    except NotInLedger:
        return False


# Who is woken by what: a server tells the loops that rows have come, so that none of them has to look all the time.

AGAIN: Final = 1.0
"""seconds until a lost connection is made anew, and after which a loop looks without having been woken"""


async def listen(place: ServerPlace, woken: Callable[[frozenset[str]], None]) -> None:
    """Call ``woken`` with the names of tables that got a row, until it is cancelled.

    After each connection it is called with all of them: nobody knows what came while nobody listened.
    """
    need_psycopg()
    while True:
        with suppress(LedgerDown):  # the loops say so, each of which has a connection of its own
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
