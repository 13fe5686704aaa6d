"""Who is woken by what: a server tells the loops that rows have come, so that none of them has to look all the time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from openclaw_rl.errors import LedgerDown
from openclaw_rl.store.places import ServerPlace
from openclaw_rl.store.roles import CHANNEL, WATCHED
from openclaw_rl.store.stores import need_psycopg

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

    from openclaw_rl.store.postgres_troubles import connection_errors

    with connection_errors(place):
        async with await psycopg.AsyncConnection.connect(place.url, autocommit=True, connect_timeout=10) as connection:
            await connection.execute(f"LISTEN {CHANNEL}".encode())
            woken(WATCHED)
            async for notice in connection.notifies():
                woken(frozenset(notice.payload.split(",")))
