"""Copy a ledger from one store to another: every row with its number, whole or not at all, compared afterwards."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import zip_longest
from typing import Any, Final

from openclaw_rl.errors import LedgerDamaged, LedgerError, LedgerHeld
from openclaw_rl.store.database import GAPS, AnyPlace, Database, Row, place_of
from openclaw_rl.store.stores import open_database

TABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "turns": ("seq",),
    "feedback": ("seq",),
    "endings": ("seq",),
    "session_rewards": ("seq",),
    "session_optouts": ("user", "session"),
    "records": ("turn",),
    "open_turns": ("turn_seq",),
    "outcomes": ("seq",),
    "verdicts": ("seq",),
    "drops": ("seq",),
    "steps": ("number",),
    "trained": ("turn",),
    "rehearsals": ("seq",),
    "versions": ("number",),
    "states": ("seq",),
    "gate_decisions": ("seq",),
    "requests": ("seq",),
    "notes": ("number",),
    "note_changes": ("seq",),
    "note_switches": ("seq",),
    "deletions": ("seq",),
    "deleted_turns": ("turn",),
    "cursors": ("name",),
    "health": ("loop",),
}
"""every table that is copied, with its key"""

COUNTED: Final = {"tallies": ("stage", "reason")}
"""what the stores count by themselves while rows are inserted; it is compared, not copied"""

_NUMBERED: Final = {name: key[0] for name, key in TABLES.items() if key == ("seq",)} | {"notes": "number"}
_SWITCHES: Final[Mapping[str, tuple[str, ...]]] = {
    "turns": ("done", "trainable", "scored"),
    "records": ("trainable",),
    "rehearsals": ("learned",),
    "notes": ("vague",),
    "note_switches": ("enabled",),
}
"""what is true or false, which SQLite keeps as 1 and 0"""
_BATCH: Final = 200


def copy_ledger(source: AnyPlace, target: AnyPlace) -> dict[str, int]:
    """Copy every row of a ledger that nobody writes to a place that has none yet; how many rows of each table.

    All of it is there afterwards, as a second reading of both has shown, or nothing is. Raises a LedgerError that says
    why not.
    """
    start, end = place_of(source), place_of(target)
    if start == end:
        raise LedgerError("a ledger cannot be copied to itself", remedy="name another place to copy it to")
    with closing(open_database(start, "read")) as old:
        _refuse_written(old, start)
        with closing(open_database(end, "write")) as new:
            _refuse_filled(new, end)
            with new.transaction():
                counts = {name: _copied(old, new, name) for name in TABLES}
                for name, key in _NUMBERED.items():
                    new.continue_numbers(name, key, after=old.last_number(name, key))
                _compare(old, new)
    return counts


def _refuse_written(db: Database, place: object) -> None:
    if writers := db.writers():
        raise LedgerHeld(f"{place} is being written: {'; '.join(writers)}", remedy="stop the run, then copy its ledger")


def _refuse_filled(db: Database, place: object) -> None:
    filled = [name for name in TABLES if name != "cursors" and db.row(f"SELECT 1 FROM {name} LIMIT 1") is not None]
    if filled:
        raise LedgerError(
            f"{place} has rows already ({', '.join(filled)}); nothing was changed",
            remedy="copy to a new file or an empty database",
        )


def _copied(old: Database, new: Database, table: str) -> int:
    if table == "cursors":
        new.execute("DELETE FROM cursors")  # those that a new ledger begins with
    count = 0
    for rows in _batches(old, table, TABLES[table]):
        names = list(rows[0])
        marks = ", ".join("?" * len(names))
        values = [tuple(_value(table, name, row[name]) for name in names) for row in rows if not _is_gap(table, row)]
        new.executemany(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})", values)
        count += len(values)
    return count


def _value(table: str, name: str, value: Any) -> Any:
    return bool(value) if name in _SWITCHES.get(table, ()) else value


def _batches(db: Database, table: str, key: Sequence[str]) -> Iterator[list[dict[str, Any]]]:
    """The rows of a table in the order of its key, some at a time."""
    names, marks = ", ".join(key), ", ".join("?" * len(key))
    rows = _some(db, f"SELECT * FROM {table} ORDER BY {names} LIMIT {_BATCH}")
    while rows:
        yield rows
        after = [rows[-1][name] for name in key]
        where = f"WHERE ({names}) > ({marks})" if len(key) > 1 else f"WHERE {names} > {marks}"
        rows = _some(db, f"SELECT * FROM {table} {where} ORDER BY {names} LIMIT {_BATCH}", after)


def _some(db: Database, sql: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
    return [dict(row) for row in db.rows(sql, values)]


def _compare(old: Database, new: Database) -> None:
    for table, key in {**TABLES, **COUNTED}.items():
        if not _same(old, new, table, key):
            raise LedgerDamaged(
                f"the copy of the table {table!r} is not what was copied; nothing was kept of it",
                remedy="see that nothing writes to the ledger meanwhile, and copy it again",
            )


def _same(old: Database, new: Database, table: str, key: Sequence[str]) -> bool:
    """Whether every value of a table is the same; in turns: a server ends a transaction that idles."""
    both = zip_longest(_batches(old, table, key), _batches(new, table, key))
    return all(_digest(table, mine or []) == _digest(table, theirs or []) for mine, theirs in both)


def _digest(table: str, rows: Sequence[Row]) -> bytes:
    """A digest of every value of some rows, the same whichever store they come from."""
    digest = hashlib.blake2b()
    for row in rows:
        if not _is_gap(table, row):
            digest.update(_bytes(row))
    return digest.digest()


def _is_gap(table: str, row: Row) -> bool:
    """Whether a row tells of numbers without a row, which each store knows of itself."""
    return table == "cursors" and row["name"].startswith(GAPS)


def _bytes(row: Row) -> bytes:
    parts = (f"{name}=".encode() + _plain(row[name]) for name in sorted(row))
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


def _plain(value: Any) -> bytes:
    match value:
        case None:
            return b"null"
        case bool() | int():
            return b"i%d" % int(value)
        case float():
            return b"f" + struct.pack(">d", value)
        case str():
            return b"s" + value.encode()
        case _:
            return b"b" + bytes(value)
