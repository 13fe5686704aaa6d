"""Copy a ledger between stores: every row with its number, atomically, and compared afterwards."""

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
"""counts that each store keeps itself while rows are inserted; compared, not copied"""

_NUMBERED: Final = {name: key[0] for name, key in TABLES.items() if key == ("seq",)} | {"notes": "number"}
_SWITCHES: Final[Mapping[str, tuple[str, ...]]] = {
    "turns": ("done", "trainable", "scored"),
    "records": ("trainable",),
    "rehearsals": ("learned",),
    "notes": ("vague",),
    "note_switches": ("enabled",),
}
"""boolean columns, which SQLite stores as 1 and 0"""
_BATCH: Final = 200


def copy_ledger(source: AnyPlace, target: AnyPlace) -> dict[str, int]:
    """Copy every row from a ledger without writers to a place without a ledger; return the row count by table.

    The copy is complete, as a second reading of both confirms, or absent. A failure raises a LedgerError with the
    reason.
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
        new.execute("DELETE FROM cursors")  # the initial cursors of a new ledger
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
    """Yield the table's rows in its key's order, a batch at a time."""
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
                f"the copy of the table {table!r} differs from its source; nothing was written",
                remedy="see that nothing writes to the ledger meanwhile, and copy it again",
            )


def _same(old: Database, new: Database, table: str, key: Sequence[str]) -> bool:
    """Compare every value in a table, both ledgers in turns: a server ends a transaction that idles."""
    pairs = zip_longest(_batches(old, table, key), _batches(new, table, key))
    return all(_digest(table, left_rows or []) == _digest(table, right_rows or []) for left_rows, right_rows in pairs)


def _digest(table: str, rows: Sequence[Row]) -> bytes:
    """Return a digest over every value in some rows, the same for each store."""
    digest = hashlib.blake2b()
    for row in rows:
        if not _is_gap(table, row):
            digest.update(_bytes(row))
    return digest.digest()


def _is_gap(table: str, row: Row) -> bool:
    """Check if a row counts numbers without a row, which each store counts itself."""
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
