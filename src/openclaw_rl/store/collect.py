"""The work list and the rows of collecting: turns in, outcomes and drops out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from openclaw_rl.store.connection import LedgerWriter
from openclaw_rl.store.database import Row
from openclaw_rl.store.deletions import purge, stragglers
from openclaw_rl.store.reader import LedgerReader
from openclaw_rl.store.results import ReadEnding, ReadTurn, SettledTurn
from openclaw_rl.store.roles import Writer
from openclaw_rl.store.rows import (
    OUTCOME,
    TURN,
    decoded,
    deleted,
    insert_drops,
    outcome_row,
    to_outcome,
    to_read_turn,
    to_turn,
)
from openclaw_rl.types import Drop, Outcome, SessionEnd, UnreadableTurn


class CollectLedger(LedgerWriter, LedgerReader):
    """The ledger as collecting writes it."""

    writer: ClassVar[Writer | None] = "collect"

    def new_turns(self, limit: int) -> list[ReadTurn]:
        """Turns that collect has not read yet, oldest first, with their sequence numbers."""
        read = self.cursor("turns")
        return self.turns_after(read, limit, up_to=self.horizon("turns", read))

    def open_turns(self) -> list[ReadTurn]:
        """Turns that were read before and have no outcome yet: what a restart must remember."""
        rows = self.rows(
            f"SELECT t.seq, {TURN} FROM open_turns p LEFT JOIN turns t ON t.seq = p.turn_seq ORDER BY p.turn_seq"
        )  # LEFT: SQLite then begins with the few that are open
        return [to_read_turn(row) for row in rows]

    def settled_turns(self, since: float) -> list[SettledTurn]:
        """Settled turns answered at or after ``since``, oldest first: what a restart may want to recognise.

        One that can no longer be decoded is left out: it is settled, and nothing can be recognised by it.
        """
        rows = self.rows(
            f"SELECT t.seq, {OUTCOME}, {TURN} FROM turns t JOIN outcomes o ON o.turn = t.id"
            " WHERE t.at >= ? ORDER BY t.seq",
            since,
        )
        found = [decoded(_settled, row, turn=row["turn_id"]) for row in rows]
        return [settled for settled in found if not isinstance(settled, UnreadableTurn)]

    def new_endings(self, limit: int) -> list[ReadEnding]:
        """Sessions declared over since collect last looked."""
        read = self.cursor("endings")
        rows = self.rows(
            "SELECT seq, session, user, at FROM endings WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?",
            read,
            self.horizon("endings", read),
            limit,
        )
        return [
            ReadEnding(seq=row["seq"], ending=SessionEnd(session=row["session"], user=row["user"], at=row["at"]))
            for row in rows
        ]

    def settle(
        self,
        outcomes: Sequence[Outcome],
        drops: Sequence[Drop],
        *,
        turns_read: int | None = None,
        endings_read: int | None = None,
    ) -> None:
        """Write outcomes and drops and move the cursors, all at once; what was read but not settled stays open.

        A turn that was deleted meanwhile gets none. One that turns out to be of a session that was deleted after its
        request came in is deleted with it.
        """
        late = self._settle(outcomes, drops, turns_read, endings_read)
        if late:
            with self.writing(alone="deletion") as db:
                purge(db, sorted(late))

    def _settle(
        self, outcomes: Sequence[Outcome], drops: Sequence[Drop], turns_read: int | None, endings_read: int | None
    ) -> set[str]:
        """The turns that are of deleted sessions: they are still open, so that a crash forgets none of them."""
        with self.writing(alone="collected") as db:
            late = stragglers(db, {one.turn: one.session for one in outcomes})
            gone = late | deleted(db, [one.turn for one in outcomes])
            outcomes = [one for one in outcomes if one.turn not in gone]
            if turns_read is not None:
                db.execute(
                    "INSERT INTO open_turns (turn_seq) SELECT seq FROM turns WHERE seq > ? AND seq <= ?"
                    " ON CONFLICT DO NOTHING",
                    (self.cursor("turns"), turns_read),
                )
            for outcome in outcomes:
                db.insert("outcomes", outcome_row(outcome))
            insert_drops(db, drops)
            settled = [(outcome.turn,) for outcome in outcomes] + [(drop.turn,) for drop in drops]
            db.executemany("DELETE FROM open_turns WHERE turn_seq = (SELECT seq FROM turns WHERE id = ?)", settled)
            moved = {"turns": turns_read, "endings": endings_read}
            self.low.update({name: seq for name, seq in moved.items() if seq is not None})
            self.save_cursors(db)
        return late


def _settled(row: Row) -> SettledTurn:
    return SettledTurn(seq=row["seq"], turn=to_turn(row), outcome=to_outcome(row))
