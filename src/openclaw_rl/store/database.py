"""The ledger's interface to a store, so that its classes are written once.

Statements are in the SQL that SQLite and PostgreSQL both accept, with ``?`` and ``?1`` for values. Differences between
them are methods here.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args

from openclaw_rl.types.messages import need, need_name, need_text

Row = Mapping[str, Any]
"""columns are read by name"""
Sync = Literal["full", "normal"]
Access = Literal["read", "add", "write"]
"""``read`` cannot write; ``add`` writes to an existing ledger; ``write`` also creates or migrates it"""

ALL: Final = 2**63 - 1
"""a sequence number larger than any row's"""

_NAMES: Final = frozenset({"id", "session", "user", "grp", "turn"})
"""columns by which rows are looked up"""

GAPS: Final = "gaps in "
"""prefix of a cursor: with a table's name, it counts the numbers below the newest that have no row"""


class Database(ABC):
    """A connection to a store, for one thread at a time. Failures are raised as LedgerError."""

    generation = 0
    """number of reconnections: the newest commits may be lost with the server that had them"""

    @property
    def lost(self) -> bool:
        """True if the connection is gone: it is made anew for the next try of a failed statement."""
        return False

    @property
    def slot(self) -> int:
        """This writer's index among several writers with one role, from 1."""
        return 1

    @abstractmethod
    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """Return all rows for a query; here and below, InvalidValue for a value that no store accepts."""

    @abstractmethod
    def row(self, sql: str, values: Sequence[Any] = ()) -> Row | None:
        """Return the first row for a query, None without one."""

    @abstractmethod
    def transaction(self, *, alone: str | None = None) -> AbstractContextManager[None]:
        """Write everything inside or nothing; after a failure, the connection is ready for the next transaction.

        ``alone``: no other transaction with this name runs at the same time.
        """

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[None]:
        """Read the ledger in all queries inside as it was at the first of them, whatever other writers do."""

    @abstractmethod
    def execute(self, sql: str, values: Sequence[Any] = ()) -> None:
        """Run a statement in a transaction."""

    @abstractmethod
    def executemany(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement in a transaction, once for each row of values."""

    @abstractmethod
    def insert_numbered(self, table: str, row: Mapping[str, Any], *, key: str) -> int:
        """Insert a row inside a transaction; return its number."""

    def insert(self, table: str, row: Mapping[str, Any]) -> None:
        """Insert a row inside a transaction; InvalidValue names a column with a text that no store accepts."""
        self.execute(insertion(table, row), tuple(row.values()))

    @abstractmethod
    def horizon(self, table: str, after: int) -> int:
        """Return a number up to which the table's rows are complete; at least ``after``.

        A work list that moves a mark reads no further: between two writers, the one with the lower number may commit
        later.
        """

    @abstractmethod
    def count(self, table: str) -> int:
        """Return the row count of a fact table."""

    @abstractmethod
    def removed(self, table: str, count: int) -> None:
        """Adjust `count` for rows deleted from a fact table, inside the transaction that deleted them."""

    def shred(self) -> bool:
        """Erase deleted data from the disk as far as possible without waiting; return True if all of it is erased."""
        return False

    @abstractmethod
    def last_number(self, table: str, key: str) -> int:
        """Return the largest number that a row in a table ever had, 0 before the first."""

    @abstractmethod
    def continue_numbers(self, table: str, key: str, *, after: int) -> None:
        """Number the table's next row after ``after`` and after the rows inserted with explicit numbers."""

    @abstractmethod
    def writers(self) -> list[str]:
        """Describe the ledger's present writers, without this connection's own."""

    @abstractmethod
    def durability(self, sync: Sync) -> None:
        """Set the durability of later commits: ``normal`` survives the process, ``full`` a power cut as well."""

    @abstractmethod
    def faults(self) -> list[str]:
        """Read the whole ledger for damage; return the faults, empty without any."""

    @abstractmethod
    def size(self) -> int:
        """Return its size in bytes."""

    @abstractmethod
    def close(self) -> None:
        """Close it and release the writer's role. Safe to call twice."""


def need_values(values: Sequence[Any]) -> None:
    """Raise InvalidValue for a value that no store accepts."""
    for value in values:
        if isinstance(value, str):
            need_text(value, "text")
        elif isinstance(value, int):
            need(-ALL <= value <= ALL, "number", "it has more than 64 bits; no row has such a number")


def insertion(table: str, row: Mapping[str, Any]) -> str:
    """Return the statement that inserts a row; InvalidValue names a column with a text that no store accepts."""
    for column, value in row.items():
        if isinstance(value, str):
            (need_name if column in _NAMES else need_text)(value, column)
    return f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})"


# A ledger's place: a file, or a database on a PostgreSQL server.

_URL: Final = re.compile(r"postgres(ql)?://", re.IGNORECASE)
_PASSWORD: Final = re.compile(r"(?<=//)([^:/@?]*):[^@/]*(?=@)|([?&]password)=[^&]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlace:
    """A database by its URL, and its run's directory.

    >>> str(ServerPlace(url="postgresql://ann:secret@db:5432/run?sslmode=require", root=Path("run")))
    'postgresql://ann@db:5432/run?sslmode=require'
    """

    url: str = field(repr=False)
    root: Path

    def __str__(self) -> str:
        return _PASSWORD.sub(lambda match: match[1] or (f"{match[2]}=hidden" if match[2] else ""), self.url)


Place = Path | ServerPlace
AnyPlace = str | Path | ServerPlace


def is_url(name: str) -> bool:
    """Check if a name is a database URL."""
    return _URL.match(name) is not None


def place_of(name: AnyPlace) -> Place:
    """Return the place for a name: a file's path, or a database URL, whose run is in the working directory."""
    if isinstance(name, str) and is_url(name):
        return ServerPlace(url=name, root=Path.cwd())
    return name if isinstance(name, ServerPlace) else Path(name).absolute()


def root_of(place: Place) -> Path:
    """Return the directory of the ledger's run, which contains its versions."""
    return place.root if isinstance(place, ServerPlace) else place.parent


# The ledger's writers, and the rows that are work for each.

Writer = Literal["serve", "import", "collect", "judge", "train"]
WRITERS: Final[tuple[Writer, ...]] = get_args(Writer)

WAITS_FOR: Final[Mapping[Writer, frozenset[str]]] = {
    "serve": frozenset({"states"}),
    "collect": frozenset({"turns", "endings"}),
    "judge": frozenset({"outcomes", "feedback", "session_rewards"}),
    "train": frozenset({"verdicts", "requests", "endings", "session_rewards"}),
}
"""the tables whose rows are work for a loop"""

WATCHED: Final = frozenset[str]().union(*WAITS_FOR.values())
"""every table that a loop waits for"""

CHANNEL: Final = "openclaw_rl"
"""channel on which a server publishes the names of tables with new rows"""
