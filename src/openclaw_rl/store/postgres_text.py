"""Statements, texts and errors, converted between the ledger and PostgreSQL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

import psycopg
from psycopg import Connection, errors
from psycopg.adapt import Loader
from psycopg.pq import Format
from psycopg.types.string import StrDumperUnknown

from openclaw_rl.errors import AlreadyInLedger, LedgerDown

_PARTS: Final = re.compile(r"""'(?:[^']|'')*'|"[^"]*"|\?(\d*)|\buser\b""")
_ESCAPE: Final = "\x1a"


@lru_cache(maxsize=1024)
def translated(sql: str) -> bytes:
    """Return a statement with ``$1`` for ``?`` and ``?1``, and ``user``, a reserved word in PostgreSQL, in quotes.

    >>> translated("SELECT 1 FROM turns t WHERE t.user = ? AND note != '?' AND seq > ?")
    b'SELECT 1 FROM turns t WHERE t."user" = $1 AND note != \\'?\\' AND seq > $2'
    >>> translated("SELECT ?2, ?1")
    b'SELECT $2, $1'
    """
    counted = 0

    def part(found: re.Match[str]) -> str:
        nonlocal counted
        if found[0] == "user":
            return '"user"'
        if found[0][0] != "?":
            return found[0]
        counted += 1
        return f"${found[1] or counted}"

    return _PARTS.sub(part, sql).encode()


def escaped(text: str) -> str:
    """Escape a text for PostgreSQL, which accepts all texts except those with a zero character; see `unescaped`.

    >>> escaped("as it is"), unescaped(escaped("a zero \\0 and the mark \\x1a")) == "a zero \\0 and the mark \\x1a"
    ('as it is', True)
    """
    if "\0" not in text and _ESCAPE not in text:
        return text
    return text.replace(_ESCAPE, _ESCAPE * 2).replace("\0", f"{_ESCAPE}0")


def unescaped(text: str) -> str:
    """Return the original text of `escaped`."""
    if _ESCAPE not in text:
        return text
    return re.sub(f"{_ESCAPE}(.)", lambda match: "\0" if match[1] == "0" else _ESCAPE, text, flags=re.DOTALL)


class _TextDumper(StrDumperUnknown):
    def dump(self, obj: str) -> bytes | bytearray | memoryview | None:
        return super().dump(escaped(obj))


class _TextLoader(Loader):
    format = Format.BINARY

    def load(self, data: bytes | bytearray | memoryview) -> str:
        return unescaped(str(data, "utf-8"))


def register_texts(connection: Connection[Any]) -> None:
    """Register converters that keep every text on a connection unchanged."""
    connection.adapters.register_dumper(str, _TextDumper)
    connection.adapters.register_loader("text", _TextLoader)


# PostgreSQL errors as ledger errors, with cause, place and remedy.

_RUNNING: Final = "see that the server runs and that store.url names its host and port"
_RIGHT: Final = "give the role of store.url the right to create and write tables in that database"
_ROOM: Final = "free some space on the disk of the database server"
_WAIT: Final = "wait until it is back; nothing has to be done here"

_REFUSED: Final[tuple[tuple[str, str, str], ...]] = (
    ("password", "the password is wrong or missing", "give it in store.url, in PGPASSWORD or in ~/.pgpass"),
    ("pg_hba.conf", "the server refuses this host", "add a line for this host and role to its pg_hba.conf"),
    ("database system is", "the server is starting or stopping", _WAIT),
    ("too many clients", "the server has no connection left", "raise its max_connections"),
    ("connection slots", "the server has no connection left", "raise its max_connections"),
    ("role", "the server does not know the role", "createuser NAME, or name another one in store.url"),
    ("database", "the server has no such database", "createdb NAME, or name another one in store.url"),
    ("translate host", "the host is not known", "name another one in store.url"),
    ("resolve", "the host is not known", "name another one in store.url"),
    ("SSL", "server and client do not agree on encryption", "set sslmode in store.url as the server wants it"),
)
"""words in the server's message when it refuses a connection, in order of precedence"""

_DOWN: Final[tuple[tuple[type[psycopg.Error], str, str], ...]] = (
    (errors.DiskFull, "there is no room left for it", _ROOM),
    (errors.OutOfMemory, "the server has no memory left", "give the database server more memory"),
    (errors.ReadOnlySqlTransaction, "it may only be read", "name the primary server in store.url, not a standby"),
    (errors.InsufficientPrivilege, "it may not be written", _RIGHT),
    (errors.LockNotAvailable, "another process holds it too long", "end the program that holds a transaction on it"),
    (errors.TooManyConnections, "the server has no connection left", "raise its max_connections"),
    (errors.OperatorIntervention, "the server was stopped", _WAIT),
    (errors.IoError, "the disk of the server cannot be read or written", "see that its disk is there and healthy"),
)


@contextmanager
def postgres_errors(place: object) -> Iterator[None]:
    """Raise psycopg errors inside as ledger errors; mistakes in our own SQL stay as they are."""
    try:
        yield
    except errors.UniqueViolation as error:
        what = f"{place} has such a row already ({_line(error)}); nothing was changed"
        raise AlreadyInLedger(what) from error
    except psycopg.Error as error:
        for kind, why, remedy in _DOWN:
            if isinstance(error, kind):
                raise _down(place, error, why, remedy) from error
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            raise _down(place, error, "the server cannot be reached", _RUNNING) from error
        raise


@contextmanager
def connection_errors(place: object) -> Iterator[None]:
    """Raise psycopg errors during a connection as LedgerDown with the remedy."""
    try:
        yield
    except psycopg.Error as error:
        text = str(error)
        for words, why, remedy in _REFUSED:
            if (words in text and "FATAL" in text) or (words in ("translate host", "resolve") and words in text):
                raise _down(place, error, why, remedy) from error
        raise _down(place, error, "the server cannot be reached", _RUNNING) from error


def _down(place: object, error: psycopg.Error, why: str, remedy: str) -> LedgerDown:
    return LedgerDown(f"{place} cannot be used: {why} ({_line(error)})", why=why, remedy=remedy)


def _line(error: psycopg.Error) -> str:
    """Return the server's first line; for a failed connection, its cause."""
    text = error.diag.message_primary or next(iter(str(error).splitlines()), "")
    return text.rpartition("failed: ")[2].strip() or type(error).__name__
