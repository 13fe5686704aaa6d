"""The door to the stores: which one it is depends on the place alone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from openclaw_rl.errors import MissingExtra, NotInLedger
from openclaw_rl.store.database import Access, Database
from openclaw_rl.store.places import AnyPlace, Place, ServerPlace, place_of


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
