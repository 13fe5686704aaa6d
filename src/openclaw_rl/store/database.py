"""What the ledger needs of a store, so that its classes are written once.

Statements are those that SQLite and PostgreSQL both understand, with ``?`` and ``?1`` for values. Where the two differ,
the difference is a method here.
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
"""``read`` cannot write; ``add`` writes to a ledger that is there; ``write`` makes it or brings it forward too"""

ALL: Final = 2**63 - 1
"""a sequence number that no row reaches"""

_NAMES: Final = frozenset({"id", "session", "user", "grp", "turn"})
"""columns by which rows are looked up"""

GAPS: Final = "gaps in "
"""before the name of a table, among the cursors: how many numbers below its newest have no row"""


class Database(ABC):
    """One connection to a store, for one thread at a time. What goes wrong is raised as a LedgerError."""

    generation = 0
    """how often the connection was made anew: what was committed just before may be gone with the server that had it"""

    @property
    def lost(self) -> bool:
        """Whether the connection is gone, so that what failed may be tried again: it is made anew then."""
        return False

    @property
    def slot(self) -> int:
        """Which of several writers of one role this is, from 1."""
        return 1

    @abstractmethod
    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """All rows of a query; here and below, InvalidValue for a value that no store takes."""

    @abstractmethod
    def row(self, sql: str, values: Sequence[Any] = ()) -> Row | None:
        """The first row of a query, None if there is none."""

    @abstractmethod
    def transaction(self, *, alone: str | None = None) -> AbstractContextManager[None]:
        """All of it is written, or nothing; whatever fails, the connection is ready for the next one.

        ``alone``: no other transaction of this name runs at the same time.
        """

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[None]:
        """All queries inside read the ledger as it was at the first of them, whatever others write meanwhile."""

    @abstractmethod
    def execute(self, sql: str, values: Sequence[Any] = ()) -> None:
        """A statement of a transaction."""

    @abstractmethod
    def executemany(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """A statement of a transaction, once for each row of values."""

    @abstractmethod
    def insert_numbered(self, table: str, row: Mapping[str, Any], *, key: str) -> int:
        """Insert a row, inside a transaction; the number that it got."""

    def insert(self, table: str, row: Mapping[str, Any]) -> None:
        """Insert a row, inside a transaction; InvalidValue names the column whose text no store takes."""
        self.execute(insertion(table, row), tuple(row.values()))

    @abstractmethod
    def horizon(self, table: str, after: int) -> int:
        """A number up to which no row of a table will appear any more that is not there now; at least ``after``.

        A work list that moves a mark looks no further: of two writers, the one that got the lower number may be the
        later one to commit.
        """

    @abstractmethod
    def count(self, table: str) -> int:
        """How many rows a table of facts has."""

    @abstractmethod
    def removed(self, table: str, count: int) -> None:
        """Tell `count` that so many rows of a table of facts were deleted, inside the transaction that did it."""

    def shred(self) -> bool:
        """Have what was deleted leave the disk, as far as nobody has to wait for it; whether all of it has."""
        return False

    @abstractmethod
    def last_number(self, table: str, key: str) -> int:
        """The largest number that a row of a table ever had, 0 before the first."""

    @abstractmethod
    def continue_numbers(self, table: str, key: str, *, after: int) -> None:
        """Have the next row of a table numbered after ``after`` and after those that were inserted with theirs."""

    @abstractmethod
    def writers(self) -> list[str]:
        """Who writes to this ledger now, in words; not whoever has this connection."""

    @abstractmethod
    def durability(self, sync: Sync) -> None:
        """What a commit outlives from now on: ``normal`` the process, ``full`` a power cut as well."""

    @abstractmethod
    def faults(self) -> list[str]:
        """Read the whole ledger for damage: what is wrong, empty if nothing."""

    @abstractmethod
    def size(self) -> int:
        """How many bytes it takes."""

    @abstractmethod
    def close(self) -> None:
        """Let it go, and the writer's place with it. Safe to call twice."""


def need_values(values: Sequence[Any]) -> None:
    """Raise InvalidValue for a value that no store takes."""
    for value in values:
        if isinstance(value, str):
            need_text(value, "text")
        elif isinstance(value, int):
            need(-ALL <= value <= ALL, "number", "it has more than 64 bits; no row has such a number")


def insertion(table: str, row: Mapping[str, Any]) -> str:
    """The statement that inserts a row; InvalidValue names the column whose text no store takes."""
    for column, value in row.items():
        if isinstance(value, str):
            (need_name if column in _NAMES else need_text)(value, column)
    return f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})"


# Where a ledger lies: in a file, or in a database of a PostgreSQL server.

_URL: Final = re.compile(r"postgres(ql)?://", re.IGNORECASE)
_PASSWORD: Final = re.compile(r"(?<=//)([^:/@?]*):[^@/]*(?=@)|([?&]password)=[^&]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlace:
    """A database by its URL, and the directory of the run that it belongs to.

    >>> str(ServerPlace(url="postgresql://ann:secret@db:5432/run?sslmode=require", root=Path("run")))
    'postgresql://ann@db:5432/run?sslmode=require'
    """

    url: str = field(repr=False)
    root: Path

    def __str__(self) -> str:
        return _PASSWORD.sub(lambda found: found[1] or (f"{found[2]}=hidden" if found[2] else ""), self.url)


Place = Path | ServerPlace
AnyPlace = str | Path | ServerPlace


def is_url(name: str) -> bool:
    """Whether a name is the URL of a database."""
    return _URL.match(name) is not None


def place_of(name: AnyPlace) -> Place:
    """The place that a person named: the path of a file, or the URL of a database, whose run is here."""
    if isinstance(name, str) and is_url(name):
        return ServerPlace(url=name, root=Path.cwd())
    return name if isinstance(name, ServerPlace) else Path(name).absolute()


def root_of(place: Place) -> Path:
    """The directory of the run that a ledger belongs to, where its versions lie."""
    return place.root if isinstance(place, ServerPlace) else place.parent


# Who writes to the ledger, and which rows are work for whom.

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
"""every table that somebody waits for"""

CHANNEL: Final = "openclaw_rl"
"""where a server notifies the names of those that got a row"""
