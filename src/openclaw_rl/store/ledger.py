"""The work lists and the writes of each loop."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from openclaw_rl.errors import LedgerError, NotInLedger
from openclaw_rl.ports import Case
from openclaw_rl.store import codec
from openclaw_rl.store.file import Sync, Writer, missing
from openclaw_rl.store.opening import connect, look, transaction
from openclaw_rl.store.reading import Reader
from openclaw_rl.store.rows import (
    OUTCOME,
    TURN,
    UNTRAINED,
    VERDICT,
    insert,
    insert_drops,
    insert_version,
    outcome_row,
    to_feedback,
    to_outcome,
    to_recorded,
    to_settled,
    to_turn,
    to_verdict,
    turn_row,
    verdict_row,
    whole,
)
from openclaw_rl.store.schema import MIGRATIONS
from openclaw_rl.store.troubles import sqlite_errors
from openclaw_rl.types import (
    ControlRequest,
    Drop,
    Feedback,
    ImportRecord,
    JudgedTurn,
    Outcome,
    SessionEnd,
    Step,
    Turn,
    UnreadableTurn,
    Verdict,
    Version,
    VersionState,
)


class Ledger(Reader):
    """One connection, as one writer or (``writer`` None) as a reader."""

    def __init__(
        self,
        path: str | Path,
        *,
        writer: Writer | None = None,
        sync: Sync = "full",
        migrations: Sequence[str] = MIGRATIONS,
    ) -> None:
        super().__init__(path, writer=writer, sync=sync, migrations=migrations)
        self._heard: dict[str, int] = {}  # the newest feedback that the reader of a case has seen, by turn

    # --- serve ---

    def add_turn(self, turn: Turn) -> None:
        """Write an answered turn; durable when this returns."""
        row = turn_row(turn)  # packed before the file is locked
        with self.writing("serve") as db:
            insert(db, "turns", row)

    def add_feedback(self, feedback: Feedback) -> None:
        """Write what somebody said of a turn outright."""
        with self.writing("serve") as db:
            if db.execute("SELECT 1 FROM turns WHERE id = ?", (feedback.turn,)).fetchone() is None:
                raise missing("turn", feedback.turn)
            insert(
                db,
                "feedback",
                {
                    "turn": feedback.turn,
                    "score": feedback.score,
                    "hint": feedback.hint,
                    "edit": feedback.edit,
                    "source": feedback.source,
                    "at": feedback.at,
                },
            )

    def add_ending(self, session: str, user: str) -> None:
        """Write that a session is over."""
        with self.writing("serve") as db:
            insert(db, "endings", {"session": session, "user": user, "at": time.time()})

    def add_optout(self, session: str, user: str) -> None:
        """Write that no turn of a session may train from now on."""
        with self.writing("serve") as db:
            db.execute("INSERT OR IGNORE INTO session_optouts VALUES (?, ?, ?)", (user, session, time.time()))

    def opted_out(self, session: str, user: str) -> bool:
        """Whether a user took a session out of training."""
        row = self.row("SELECT 1 FROM session_optouts WHERE user = ? AND session = ?", user, session)
        return row is not None

    def has_session(self, session: str, user: str) -> bool:
        """Whether a user has declared a session of this name; another user's of the same name is another session."""
        row = self.row("SELECT 1 FROM turns WHERE session = ? AND user = ? LIMIT 1", session, user)
        return row is not None or self.opted_out(session, user)  # its turns may not be stored

    # --- import ---

    def add_recorded(self, turns: Sequence[tuple[Turn, ImportRecord]]) -> None:
        """Write one imported conversation, whole or not at all."""
        with self.writing("import") as db:
            for turn, said in turns:
                insert(db, "turns", turn_row(turn))
                insert(
                    db,
                    "records",
                    {
                        "turn": said.turn,
                        "session": said.session,
                        "idx": said.index,
                        "kind": said.kind,
                        "next_state": codec.pack_json(codec.plain(said.next_state)),
                        "trainable": said.trainable,
                        "extra": codec.pack_json(said.extra),
                    },
                )

    # --- collect ---

    def new_turns(self, limit: int) -> list[tuple[int, Turn | UnreadableTurn]]:
        """Turns that collect has not read yet, oldest first, with their sequence numbers."""
        rows = self.rows(
            f"SELECT t.seq, {TURN} FROM turns t WHERE t.seq > ? ORDER BY t.seq LIMIT ?", self.cursor("turns"), limit
        )
        return [(row[0], whole(partial(to_turn, row[1:]), turn=row[1])) for row in rows]

    def open_turns(self) -> list[tuple[int, Turn | UnreadableTurn]]:
        """Turns that were read before and have no outcome yet: what a restart must remember."""
        rows = self.rows(
            f"SELECT t.seq, {TURN} FROM open_turns p CROSS JOIN turns t ON t.seq = p.turn_seq ORDER BY p.turn_seq"
        )
        return [(row[0], whole(partial(to_turn, row[1:]), turn=row[1])) for row in rows]

    def settled_turns(self, since: float) -> list[tuple[int, Turn, Outcome]]:
        """Settled turns answered at or after ``since``, oldest first: what a restart may want to recognise.

        One that can no longer be decoded is left out: it is settled, and nothing can be recognised by it.
        """
        rows = self.rows(
            f"SELECT t.seq, {OUTCOME}, {TURN} FROM turns t JOIN outcomes o ON o.turn = t.id"
            " WHERE t.at >= ? ORDER BY t.seq",
            since,
        )
        read = [(row[0], whole(partial(to_settled, row[1:]), turn=row[1])) for row in rows]
        return [(seq, *found) for seq, found in read if not isinstance(found, UnreadableTurn)]

    def new_endings(self, limit: int) -> list[tuple[int, SessionEnd]]:
        """Sessions declared over since collect last looked."""
        rows = self.rows(
            "SELECT seq, session, user, at FROM endings WHERE seq > ? ORDER BY seq LIMIT ?",
            self.cursor("endings"),
            limit,
        )
        return [(seq, SessionEnd(session=session, user=user, at=at)) for seq, session, user, at in rows]

    def recorded(self, turn: str) -> ImportRecord | UnreadableTurn | None:
        """What an imported record says of this turn; None for a turn that was served."""
        row = self.row(
            "SELECT turn, session, idx, kind, next_state, trainable, extra FROM records WHERE turn = ?", turn
        )
        return whole(partial(to_recorded, row), turn=turn) if row is not None else None

    def settle(
        self,
        outcomes: Sequence[Outcome],
        drops: Sequence[Drop],
        *,
        turns_read: int | None = None,
        endings_read: int | None = None,
    ) -> None:
        """Write outcomes and drops and move the cursors, all at once; what was read but not settled stays open."""
        with self.writing("collect") as db:
            if turns_read is not None:
                db.execute(
                    "INSERT OR IGNORE INTO open_turns SELECT seq FROM turns WHERE seq > ? AND seq <= ?",
                    (self.cursor("turns"), turns_read),
                )
            for outcome in outcomes:
                insert(db, "outcomes", outcome_row(outcome))
            insert_drops(db, drops)
            settled = [(outcome.turn,) for outcome in outcomes] + [(drop.turn,) for drop in drops]
            db.executemany("DELETE FROM open_turns WHERE turn_seq = (SELECT seq FROM turns WHERE id = ?)", settled)
            moved = {"turns": turns_read, "endings": endings_read}
            self.low.update({name: seq for name, seq in moved.items() if seq is not None})
            self.save_cursors(db)

    # --- judge ---

    def unjudged(self, limit: int) -> list[Case | UnreadableTurn]:
        """Outcomes without a verdict, oldest first."""
        missing = "o.seq > ? AND NOT EXISTS (SELECT 1 FROM verdicts v WHERE v.turn = o.turn)"
        with self.lock:
            low = self._advance("outcomes", f"SELECT min(o.seq) FROM outcomes o WHERE {missing}")
            rows = self.rows(
                f"SELECT {OUTCOME}, {TURN} FROM outcomes o JOIN turns t ON t.id = o.turn WHERE {missing}"
                " ORDER BY o.seq LIMIT ?",
                low,
                limit,
            )
            return [self._read_case(row) for row in rows]

    def late_feedback(self, limit: int) -> list[Case | UnreadableTurn]:
        """Turns about which something was said after their verdict, and which have not trained."""
        unheard = (
            "f.seq > ? AND NOT EXISTS (SELECT 1 FROM trained x WHERE x.turn = f.turn)"
            " AND f.seq > coalesce((SELECT max(v.heard) FROM verdicts v WHERE v.turn = f.turn), 0)"
        )
        with self.lock:
            low = self._advance("feedback", f"SELECT min(f.seq) FROM feedback f WHERE {unheard}")
            rows = self.rows(
                f"SELECT DISTINCT {OUTCOME}, {TURN} FROM feedback f JOIN turns t ON t.id = f.turn"
                f" JOIN outcomes o ON o.turn = f.turn WHERE {unheard}"
                " AND EXISTS (SELECT 1 FROM verdicts v WHERE v.turn = f.turn) ORDER BY f.seq LIMIT ?",
                low,
                limit,
            )
            return [self._read_case(row) for row in rows]

    def case(self, turn: str) -> Case:
        """All that a judge may see of one turn, judged or not."""
        outcome = self.outcome(turn)
        if outcome is None:
            raise NotInLedger(f"turn {turn} has no outcome yet", remedy="wait for the next request of its session")
        return self._case(self.turn(turn), outcome)

    def _read_case(self, row: Sequence[Any]) -> Case | UnreadableTurn:
        found = whole(partial(to_settled, row), turn=row[0])
        if isinstance(found, UnreadableTurn):
            heard = self.row("SELECT coalesce(max(seq), 0) FROM feedback WHERE turn = ?", found.turn)
            self._heard[found.turn] = heard[0]
            return found
        return self._case(*found)

    def _case(self, turn: Turn, outcome: Outcome) -> Case:
        rows = self.rows(
            "SELECT seq, turn, score, hint, edit, source, at FROM feedback WHERE turn = ? ORDER BY seq", turn.id
        )
        self._heard[turn.id] = rows[-1][0] if rows else 0
        return Case(turn=turn, outcome=outcome, feedback=tuple(to_feedback(row[1:]) for row in rows))

    def _advance(self, name: str, first_open: str) -> int:
        """Move a low-water mark up to just before the first row that is still open.

        One statement, so that both numbers are of one moment: a row that another process adds in between must not be
        passed by.
        """
        low = self.cursor(name)
        first, newest = self.row(f"SELECT ({first_open}), (SELECT coalesce(max(seq), 0) FROM {name})", low)
        self.low[name] = first - 1 if first is not None else max(newest, low)
        return self.low[name]

    def add_verdicts(self, verdicts: Sequence[Verdict], drops: Sequence[Drop] = ()) -> None:
        """Write verdicts; a later one of the same turn replaces the earlier while the turn has not trained."""
        with self.writing("judge") as db:
            for verdict in verdicts:
                insert(db, "verdicts", verdict_row(verdict) | {"heard": self._heard.pop(verdict.turn, 0)})
            insert_drops(db, drops)
            self.save_cursors(db)

    def scores(self, window: int) -> list[tuple[str, float | None, str]]:
        """User, score and source of the newest verdicts of main turns, newest first."""
        return self.rows(
            "SELECT t.user, v.score, v.source FROM verdicts v JOIN turns t ON t.id = v.turn"
            " JOIN outcomes o ON o.turn = v.turn AND o.kind = 'main' ORDER BY v.seq DESC LIMIT ?",
            window,
        )

    # --- train ---

    def untrained(self, limit: int) -> list[JudgedTurn | UnreadableTurn]:
        """Judged turns that were neither trained nor dropped since their newest verdict, oldest first."""
        with self.lock:
            low = self._advance("verdicts", f"SELECT min(v.seq) FROM verdicts v WHERE {UNTRAINED}")
            rows = self.rows(
                f"SELECT {VERDICT}, {OUTCOME}, {TURN} FROM verdicts v JOIN outcomes o ON o.turn = v.turn"
                f" JOIN turns t ON t.id = v.turn WHERE {UNTRAINED} ORDER BY v.seq LIMIT ?",
                low,
                limit,
            )
        return [whole(partial(_judged, row), turn=row[0]) for row in rows]

    def add_drops(self, drops: Sequence[Drop]) -> None:
        """Write why turns will not train."""
        with self.writing("train") as db:
            insert_drops(db, drops)
            self.save_cursors(db)

    def add_step(self, step: Step, version: Version | None, drops: Sequence[Drop] = ()) -> None:
        """Write a step, the turns it used up and the version it made, all at once: a turn trains once."""
        with self.writing("train") as db:
            insert(
                db,
                "steps",
                {
                    "number": step.number,
                    "metrics": json.dumps(dict(step.metrics)),
                    "seconds": step.seconds,
                    "skipped": step.skipped,
                    "baselines": json.dumps(dict(step.baselines)),
                    "at": step.at,
                },
            )
            db.executemany(
                "INSERT INTO trained (turn, step, part) VALUES (?, ?, ?)",
                [(turn, step.number, json.dumps(dict(step.parts.get(turn, {})))) for turn in step.turns],
            )
            insert_drops(db, drops)
            if version is not None:
                insert_version(db, version, self.root)
            self.save_cursors(db)

    def add_version(self, version: Version) -> None:
        """Write a version that no step made: the base, or a rollback."""
        with self.writing("train") as db:
            insert_version(db, version, self.root)

    def set_state(self, version: int, state: VersionState, reason: str) -> None:
        """Write that a version became live, refused or rolled back, and why."""
        with self.writing("train") as db:
            insert(db, "states", {"version": version, "state": state, "reason": reason, "at": time.time()})

    def last_step(self) -> Step | None:
        """The newest step, None before the first."""
        row = self.row("SELECT max(number) FROM steps")
        return self.step(row[0]) if row[0] is not None else None

    # --- what a person asks ---

    def new_requests(self, limit: int) -> list[ControlRequest]:
        """What a person asked and `done_requests` has not acknowledged."""
        rows = self.rows(
            "SELECT seq, verb, argument, at FROM requests WHERE seq > ? ORDER BY seq LIMIT ?",
            self.cursor("requests"),
            limit,
        )
        return [ControlRequest(seq=seq, command=verb, argument=json.loads(text), at=at) for seq, verb, text, at in rows]

    def pause(self, why: str) -> None:
        """Stop training until a person resumes it."""
        with self.writing("train") as db:
            insert(db, "requests", {"verb": "pause", "argument": json.dumps({"why": why}), "at": time.time()})

    def done_requests(self, seq: int) -> None:
        """All requests up to ``seq`` are carried out."""
        with self.writing("train") as db:
            self.low["requests"] = seq
            self.save_cursors(db)

    # --- health ---

    def report(
        self,
        loop: str,
        *,
        state: str,
        moved: int,
        failures: int,
        error: str = "",
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        """Say how a loop is doing; the newest word replaces the one before."""
        if self.writer is None:
            raise LedgerError("a reader has no health to report")
        said = json.dumps(dict(detail or {}))
        with self.committing() as db:
            db.execute(
                "INSERT OR REPLACE INTO health VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (loop, os.getpid(), socket.gethostname(), state, time.time(), moved, failures, error, said),
            )


def _judged(row: Sequence[Any]) -> JudgedTurn:
    return JudgedTurn(verdict=to_verdict(row[:10]), outcome=to_outcome(row[10:21]), turn=to_turn(row[21:]))


def ask(path: str | Path, verb: str, argument: Mapping[str, Any]) -> int:
    """Write what a person asks of the system, running or not; the train loop carries it out. Returns its number."""
    place = Path(path).absolute()
    with closing(look(place)), closing(connect(place, mode="rw")) as db, sqlite_errors(place), transaction(db):
        return insert(db, "requests", {"verb": verb, "argument": json.dumps(dict(argument)), "at": time.time()})
