"""Standing notes in the ledger: the notes, each change to their state, and each user's switch.

Three authors change notes: the judge creates them, training retires them, their users edit them. So any process may
write these tables, like requests; every write reads its rows inside its own transaction.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from typing import TypeVar

from openclaw_rl.errors import NotInLedger
from openclaw_rl.store import codec
from openclaw_rl.store.connection import LedgerConnection, SharedWriter
from openclaw_rl.store.database import Row
from openclaw_rl.store.results import GivenHints, GivenRemark
from openclaw_rl.types import Distillation, Note, NoteAuthor, NoteChange, NoteKind, NoteState

T = TypeVar("T")

_VERDICTS, _FEEDBACK = "note verdicts", "note feedback"  # cursors of the process that makes notes from them
_NOTE = (
    "n.number, n.user, n.kind, n.text, n.vague, n.turn, n.at, c.state, c.replaced_by FROM notes n JOIN note_changes c"
    " ON c.seq = (SELECT max(seq) FROM note_changes WHERE note = n.number)"
)


class NoteQueries(LedgerConnection):
    """Queries about standing notes."""

    def note(self, number: int) -> Note:
        """Return the note with this number, in its present state."""
        row = self.row(f"SELECT {_NOTE} WHERE n.number = ?", number)
        if row is None:
            raise NotInLedger(f"there is no note {number}", remedy="'openclaw-rl notes' lists them")
        return _to_note(row)

    def notes(self, user: str | None = None) -> list[Note]:
        """Return all notes, a user's or all users', whatever their state; oldest first."""
        if user is None:
            return [_to_note(row) for row in self.rows(f"SELECT {_NOTE} ORDER BY n.number")]
        return [_to_note(row) for row in self.rows(f"SELECT {_NOTE} WHERE n.user = ? ORDER BY n.number", user)]

    def notes_of_turn(self, turn: str) -> list[Note]:
        """Return the notes that a turn's verdict produced."""
        return [_to_note(row) for row in self.rows(f"SELECT {_NOTE} WHERE n.turn = ? ORDER BY n.number", turn)]

    def note_changes(self, number: int) -> list[NoteChange]:
        """Return each change to a note's state, oldest first."""
        rows = self.rows(
            "SELECT note, state, author AS by, reason, replaced_by, at FROM note_changes WHERE note = ? ORDER BY seq",
            number,
        )
        return [NoteChange(**dict(row)) for row in rows]

    def last_note_change(self) -> int:
        """Return the number of the newest note change: if it is the same, no note has changed."""
        row = self.row("SELECT max(seq) AS seq FROM note_changes")
        return (row["seq"] if row else None) or 0

    def distillations(self, note: int | None = None) -> list[Distillation]:
        """Return each prompt distillation of a note, or of all notes, oldest first."""
        where, values = ("WHERE note = ?", (note,)) if note is not None else ("", ())
        rows = self.rows(f"SELECT note, step, learned, evidence, at FROM rehearsals {where} ORDER BY seq", *values)
        return [
            Distillation(**{**dict(row), "learned": bool(row["learned"]), "evidence": json.loads(row["evidence"])})
            for row in rows
        ]

    def distillation_of(self, step: int) -> Distillation | None:
        """Return the prompt distillation in a step, None for a step on turns."""
        row = self.row("SELECT note FROM rehearsals WHERE step = ?", step)
        return next((entry for entry in self.distillations(row["note"]) if entry.step == step), None) if row else None

    def notes_enabled(self, user: str) -> bool:
        """Check if a user's notes are put into prompts: yes unless the user switched them off."""
        row = self.row("SELECT enabled FROM note_switches WHERE user = ? ORDER BY seq DESC LIMIT 1", user)
        return row is None or bool(row["enabled"])


class NotesLedger(SharedWriter, NoteQueries):
    """The ledger's writer for notes, in any process."""

    def atomically(self, work: Callable[[], T]) -> T:
        """Return the result of ``work``; it reads and writes notes as at one moment."""
        with self.writing(alone="notes"):
            return work()

    def insert_note(
        self,
        *,
        user: str,
        kind: NoteKind,
        text: str,
        vague: bool,
        turn: str | None,
        by: NoteAuthor,
        reason: str,
        state: NoteState = "in force",
    ) -> int:
        """Write a note in its first state; return its number. Call it inside `atomically`."""
        now = time.time()
        row = {"user": user, "kind": kind, "text": text, "vague": vague, "turn": turn, "at": now}
        number = self.db.insert_numbered("notes", row, key="number")
        self.insert_change(number, state, by=by, reason=reason)
        return number

    def insert_change(
        self, number: int, state: NoteState, *, by: NoteAuthor, reason: str, replaced_by: int | None = None
    ) -> None:
        """Write a change to a note's state. Call it inside `atomically`."""
        row = {"note": number, "state": state, "author": by, "reason": reason, "replaced_by": replaced_by}
        self.db.insert("note_changes", row | {"at": moment(self, number, time.time())})

    def insert_switch(self, user: str, enabled: bool, reason: str) -> None:
        """Write that a user's notes are put into prompts or not. Call it inside `atomically`."""
        self.db.insert("note_switches", {"user": user, "enabled": enabled, "reason": reason, "at": time.time()})

    def new_hints(self, limit: int) -> list[GivenHints]:
        """Return verdicts' hints that have not been made into notes yet, oldest first.

        Only main turns that may be trained on count: a turn kept out of training produces no notes, and an imported
        record is from other conversations.
        """
        rows = self.rows(
            "SELECT v.seq, v.turn, t.user, v.hints, t.trainable AND coalesce(o.kind = 'main', false)"
            " AND NOT EXISTS (SELECT 1 FROM records r WHERE r.turn = v.turn) AS counts"
            " FROM verdicts v JOIN turns t ON t.id = v.turn LEFT JOIN outcomes o ON o.turn = v.turn"
            " WHERE v.seq > ? ORDER BY v.seq LIMIT ?",
            self.cursor(_VERDICTS),
            limit,
        )
        return [_to_hints(row) for row in rows]

    def new_remarks(self, limit: int) -> list[GivenRemark]:
        """Return explicit comments that have not been made into notes yet, oldest first; none from environments.

        A verdict waits for the messages after a turn; an explicit comment takes effect without waiting.
        """
        read = self.cursor(_FEEDBACK)
        rows = self.rows(
            "SELECT f.seq, f.turn, t.user, t.reply, CASE WHEN f.source = 'explicit' AND t.trainable THEN f.hint END"
            " AS text FROM feedback f JOIN turns t ON t.id = f.turn WHERE f.seq > ? AND f.seq <= ?"
            " ORDER BY f.seq LIMIT ?",
            read,
            self.horizon("feedback", read),
            limit,
        )
        return [_to_remark(row) for row in rows]

    def took(self, *, verdict: int | None = None, feedback: int | None = None) -> None:
        """Record that all verdicts and feedback up to these were made into notes. Call it inside `atomically`."""
        if verdict is not None:
            self.low[_VERDICTS] = verdict
        if feedback is not None:
            self.low[_FEEDBACK] = feedback
        self.save_cursors(self.db)


def moment(ledger: LedgerConnection, note: int, now: float) -> float:
    """Return ``now``, or just after the note's newest row if the clock was set back: rows are compared by time."""
    row = ledger.row(
        "SELECT max(at) AS at FROM (SELECT at FROM note_changes WHERE note = ?1"
        " UNION ALL SELECT at FROM rehearsals WHERE note = ?1) AS times",
        note,
    )
    newest = row["at"] if row else None
    return now if newest is None or now > newest else math.nextafter(newest, math.inf)


def _to_note(row: Row) -> Note:
    return Note(**(dict(row) | {"vague": bool(row["vague"])}))


def _to_hints(row: Row) -> GivenHints:
    hints = codec.hints(json.loads(row["hints"])) if row["counts"] else ()
    return GivenHints(seq=row["seq"], turn=row["turn"], user=row["user"], hints=hints)


def _to_remark(row: Row) -> GivenRemark:
    reply = codec.unpack_json(row["reply"])["reply"].get("content", "") if row["text"] else ""
    return GivenRemark(seq=row["seq"], turn=row["turn"], user=row["user"], reply=reply, text=row["text"])
