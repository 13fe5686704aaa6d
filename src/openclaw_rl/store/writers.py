"""The ledger's writers: one for each loop's rows, and those for imports and deletions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

from openclaw_rl.errors import DeletedMeanwhile, InvalidValue, LedgerDown, NotInLedger
from openclaw_rl.ports import Case
from openclaw_rl.store.connection import DurableWriter, LedgerWriter, SharedWriter, missing
from openclaw_rl.store.database import Access, AnyPlace, Database, Row, Sync, Writer
from openclaw_rl.store.deletions import digest, insert_deletion, purge, purge_note, purge_session, stragglers
from openclaw_rl.store.reader import LedgerReader
from openclaw_rl.store.results import LoopState, ReadEnding, ReadTurn, SettledTurn, VerdictScore
from openclaw_rl.store.rows import (
    NEWEST_REWARD,
    OF_A_PERSON,
    OUTCOME,
    TURN,
    VERDICT,
    decoded,
    deleted,
    feedback_row,
    insert_drops,
    outcome_row,
    recorded_row,
    to_feedback,
    to_outcome,
    to_read_turn,
    to_reward,
    to_turn,
    to_verdict,
    turn_row,
    verdict_row,
)
from openclaw_rl.types import (
    Deletion,
    Drop,
    Feedback,
    ImportRecord,
    Outcome,
    SessionEnd,
    SessionReward,
    Turn,
    UnreadableTurn,
    Verdict,
)
from openclaw_rl.types.messages import need_name

# Serving's rows: turns, feedback, session rewards and ends, sessions that may not train.

REWARD = ("session", "user", "score", "failed", "at")


class ServeLedger(DurableWriter, LedgerReader):
    """The ledger's writer for serving."""

    writer: ClassVar[Writer | None] = "serve"

    def __init__(self, place: AnyPlace, *, sync: Sync, migrations: Sequence[str] | None = None) -> None:
        super().__init__(place, sync=sync, migrations=migrations)
        self._unsure: set[str] = set()  # turns that may or may not have been committed

    def add_turn(self, turn: Turn) -> None:
        """Write an answered turn; durable on return. A turn in a session deleted meanwhile is not written."""
        row = turn_row(turn)  # packed before the file is locked
        try:
            self._insert_turn(turn.id, row)
        except LedgerDown:
            self._unsure.add(turn.id)
            if not self.db.lost:
                raise
            self._insert_turn(turn.id, row)
        self._unsure.discard(turn.id)

    def _insert_turn(self, turn: str, row: Mapping[str, Any]) -> None:
        with suppress(DeletedMeanwhile), self.writing() as db:
            if turn not in self._unsure or db.row("SELECT 1 FROM turns WHERE id = ?", (turn,)) is None:
                db.insert("turns", row)
                _refuse_deleted(db, turn, row["session"], row["user"])

    def add_feedback(self, feedback: Feedback) -> None:
        """Write explicit feedback on a turn."""
        with self.writing() as db:
            db.insert("feedback", feedback_row(feedback))  # first, since the turn cannot be deleted after this
            if db.row("SELECT 1 FROM turns WHERE id = ?", (feedback.turn,)) is None:
                raise missing("turn", feedback.turn)

    def add_ending(self, session: str, user: str) -> None:
        """Write that a session is over."""
        with self.writing() as db:
            db.insert("endings", {"session": session, "user": user, "at": time.time()})

    def add_reward(self, reward: SessionReward) -> bool:
        """Write a session's reward and its group; return False and write nothing once one of its turns has trained.

        A repeated reward, sent again because its sender missed the response, counts as the same one.
        """
        with self.writing(alone="trained") as db:
            trained = db.row(
                "SELECT 1 FROM turns t JOIN trained x ON x.turn = t.id WHERE t.session = ? AND t.user = ? LIMIT 1",
                (reward.session, reward.user),
            )
            newest = db.row(
                "SELECT score, failed FROM session_rewards WHERE session = ? AND user = ? ORDER BY seq DESC LIMIT 1",
                (reward.session, reward.user),
            )
            repeated = newest is not None and (newest["score"], newest["failed"]) == (reward.score, reward.failed)
            if trained is None and not repeated:
                db.insert("session_rewards", {name: getattr(reward, name) for name in REWARD})
            if trained is None and reward.group is not None:
                db.execute(
                    "UPDATE turns SET grp = ? WHERE session = ? AND user = ? AND grp IS NULL",
                    (reward.group, reward.session, reward.user),
                )
            return trained is None

    def add_optout(self, session: str, user: str) -> None:
        """Write that no turn of a session may train from now on."""
        need_name(session, "session")
        with self.writing() as db:
            db.execute(
                "INSERT INTO session_optouts (user, session, at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                (user, session, time.time()),
            )

    def report(
        self,
        loop: str,
        *,
        state: LoopState,
        moved: int,
        failures: int,
        error: str = "",
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a loop's health, replacing its last report; each gateway has its own."""
        name = loop if self.db.slot == 1 else f"{loop} {self.db.slot}"
        super().report(name, state=state, moved=moved, failures=failures, error=error, detail=detail)


def _refuse_deleted(db: Database, turn: str, session: str | None, user: str) -> None:
    """Raise DeletedMeanwhile if the turn's request arrived before its session's deletion: ids are made on arrival."""
    where = "session = ? AND user = ? AND id > ?"
    if session is not None and db.row(f"SELECT 1 FROM deletions WHERE {where}", (digest(session), user, turn)):
        raise DeletedMeanwhile(f"the session of turn {turn} was deleted while it was answered")


# Collecting's work list and rows: turns in, outcomes and drops out.


class CollectLedger(LedgerWriter, LedgerReader):
    """The ledger's writer for collecting."""

    writer: ClassVar[Writer | None] = "collect"

    def new_turns(self, limit: int) -> list[ReadTurn]:
        """Return turns that collect has not read yet, oldest first, with their sequence numbers."""
        read = self.cursor("turns")
        return self.turns_after(read, limit, up_to=self.horizon("turns", read))

    def open_turns(self) -> list[ReadTurn]:
        """Return turns that were read before and have no outcome yet, for a restart."""
        rows = self.rows(
            f"SELECT t.seq, {TURN} FROM open_turns p LEFT JOIN turns t ON t.seq = p.turn_seq ORDER BY p.turn_seq"
        )  # LEFT: SQLite then begins with the few that are open
        return [to_read_turn(row) for row in rows]

    def settled_turns(self, since: float) -> list[SettledTurn]:
        """Return settled turns answered at or after ``since``, oldest first, for a restart's matching.

        A turn that can no longer be decoded is left out: it is settled, and cannot be matched.
        """
        rows = self.rows(
            f"SELECT t.seq, {OUTCOME}, {TURN} FROM turns t JOIN outcomes o ON o.turn = t.id"
            " WHERE t.at >= ? ORDER BY t.seq",
            since,
        )
        rows_read = [decoded(_settled, row, turn=row["turn_id"]) for row in rows]
        return [settled for settled in rows_read if not isinstance(settled, UnreadableTurn)]

    def new_endings(self, limit: int) -> list[ReadEnding]:
        """Return sessions declared over since collect's last read."""
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
        """Write outcomes and drops and move the cursors, atomically; turns read but not settled stay open.

        A turn that was deleted meanwhile gets no outcome. A turn whose session was deleted after its request arrived is
        deleted with it.
        """
        late = self._settle(outcomes, drops, turns_read, endings_read)
        if late:
            with self.writing(alone="deletion") as db:
                purge(db, sorted(late))

    def _settle(
        self, outcomes: Sequence[Outcome], drops: Sequence[Drop], turns_read: int | None, endings_read: int | None
    ) -> set[str]:
        """Settle all turns except those in deleted sessions; return these, which stay open in case of a crash."""
        with self.writing(alone="collected") as db:
            late = stragglers(db, {outcome_of_turn.turn: outcome_of_turn.session for outcome_of_turn in outcomes})
            gone = late | deleted(db, [outcome_of_turn.turn for outcome_of_turn in outcomes])
            outcomes = [outcome_of_turn for outcome_of_turn in outcomes if outcome_of_turn.turn not in gone]
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


# Judging's work list and rows: outcomes, late feedback and late rewards in, verdicts out.


class JudgeLedger(LedgerWriter, LedgerReader):
    """The ledger's writer for judging."""

    writer: ClassVar[Writer | None] = "judge"

    def __init__(self, place: AnyPlace, *, migrations: Sequence[str] | None = None) -> None:
        super().__init__(place, migrations=migrations)
        self._seen: dict[str, tuple[int, int]] = {}  # the newest feedback and reward that a case was read with, by turn

    def unjudged(self, limit: int) -> list[Case | UnreadableTurn]:
        """Return outcomes without a verdict, oldest first."""
        unjudged = "o.seq > ? AND NOT EXISTS (SELECT 1 FROM verdicts v WHERE v.turn = o.turn)"
        with self.lock:
            low = self.advance("outcomes", f"SELECT min(o.seq) FROM outcomes o WHERE {unjudged}")
            rows = self.rows(
                f"SELECT {OUTCOME}, {TURN} FROM outcomes o JOIN turns t ON t.id = o.turn WHERE {unjudged}"
                " ORDER BY o.seq LIMIT ?",
                low,
                limit,
            )
            return [self._case(row) for row in rows]

    def late_feedback(self, limit: int) -> list[Case | UnreadableTurn]:
        """Return turns that got feedback after their verdict and have not trained."""
        unseen = (
            "f.seq > ? AND NOT EXISTS (SELECT 1 FROM trained x WHERE x.turn = f.turn)"
            " AND f.seq > coalesce((SELECT max(v.feedback_seen) FROM verdicts v WHERE v.turn = f.turn), 0)"
        )
        with self.lock:
            low = self.advance("feedback", f"SELECT min(f.seq) FROM feedback f WHERE {unseen}")
            rows = self.rows(
                f"SELECT {OUTCOME}, {TURN} FROM feedback f JOIN turns t ON t.id = f.turn"
                f" JOIN outcomes o ON o.turn = f.turn WHERE {unseen}"
                " AND EXISTS (SELECT 1 FROM verdicts v WHERE v.turn = f.turn) ORDER BY f.seq LIMIT ?",
                low,
                limit,
            )
            once = {row["turn_id"]: row for row in rows}  # a turn may have had feedback several times
            return [self._case(row) for row in once.values()]

    def late_rewards(self, limit: int) -> list[Case | UnreadableTurn]:
        """Return turns whose session got a reward after their verdict and that have not trained, with that verdict."""
        untrained = "NOT EXISTS (SELECT 1 FROM trained x WHERE x.turn = t.id)"
        unjudged = (
            "NOT EXISTS (SELECT 1 FROM verdicts v WHERE v.turn = t.id)"
            " AND NOT EXISTS (SELECT 1 FROM drops d WHERE d.turn = t.id)"
        )
        unseen = "r.seq > (SELECT max(v.reward_seen) FROM verdicts v WHERE v.turn = t.id)"
        of_session = "FROM turns t WHERE t.session = r.session AND t.user = r.user"
        with self.lock:
            low = self.advance(  # a turn that is being judged may get a verdict that has not read the reward yet
                "session_rewards",
                "SELECT min(r.seq) FROM session_rewards r WHERE r.seq > ? AND EXISTS"
                f" (SELECT 1 {of_session} AND {untrained} AND ({unjudged} OR {unseen}))",
            )
            rows = self.rows(
                f"SELECT {VERDICT}, {OUTCOME}, {TURN} FROM session_rewards r"
                " JOIN turns t ON t.session = r.session AND t.user = r.user"
                " JOIN verdicts v ON v.seq = (SELECT max(w.seq) FROM verdicts w WHERE w.turn = t.id)"
                f" JOIN outcomes o ON o.turn = t.id WHERE r.seq > ? AND r.seq = {NEWEST_REWARD}"
                f" AND {unseen} AND {untrained} ORDER BY r.seq LIMIT ?",
                low,
                limit,
            )
            return [self._case(row, to_verdict) for row in rows]

    def _case(self, row: Row, verdict: Callable[[Row], Verdict] | None = None) -> Case | UnreadableTurn:
        feedback = self.feedback_rows(row["turn_id"])
        paid = self.row(
            "SELECT * FROM session_rewards WHERE session = ? AND user = ? ORDER BY seq DESC LIMIT 1",
            row["turn_session"],
            row["turn_user"],
        )
        self._seen[row["turn_id"]] = (feedback[-1]["seq"] if feedback else 0, paid["seq"] if paid else 0)
        explicit = tuple(map(to_feedback, feedback))
        reward = to_reward(paid) if paid else None

        def read(row: Row) -> Case:
            return Case(
                turn=to_turn(row),
                outcome=to_outcome(row),
                feedback=explicit,
                reward=reward,
                verdict=verdict(row) if verdict else None,
            )

        return decoded(read, row, turn=row["turn_id"])

    def add_verdicts(self, verdicts: Sequence[Verdict], drops: Sequence[Drop] = ()) -> None:
        """Write verdicts; a later verdict on a turn replaces the earlier one until the turn has trained.

        A turn that was deleted meanwhile gets none.
        """
        with self.writing(alone="judged") as db:
            gone = deleted(db, [verdict.turn for verdict in verdicts])
            for verdict in verdicts:
                feedback_seen, paid = self._seen.pop(verdict.turn, (0, 0))
                if verdict.turn in gone:
                    continue
                db.insert("verdicts", verdict_row(verdict) | {"feedback_seen": feedback_seen, "reward_seen": paid})
            insert_drops(db, drops)
            self.save_cursors(db)

    def scores(self, window: int) -> list[VerdictScore]:
        """Return the newest verdicts on people's main turns, newest first."""
        rows = self.rows(
            "SELECT t.user, v.score, v.source FROM verdicts v JOIN turns t ON t.id = v.turn"
            " JOIN outcomes o ON o.turn = v.turn AND o.kind = 'main'"
            f" WHERE {OF_A_PERSON} ORDER BY v.seq DESC LIMIT ?",
            window,
        )
        return [VerdictScore(**dict(row)) for row in rows]


# Imports' rows: recorded turns.


class ImportLedger(DurableWriter, LedgerReader):
    """The ledger's writer for imports."""

    writer: ClassVar[Writer | None] = "import"

    def add_recorded(self, turns: Sequence[tuple[Turn, ImportRecord]]) -> None:
        """Write one imported conversation, atomically."""
        with self.writing() as db:
            for turn, recorded in turns:
                db.execute("DELETE FROM deleted_turns WHERE turn = ?", (turn.id,))  # a new import revokes it
                db.insert("turns", turn_row(turn))
                db.insert("records", recorded_row(recorded))


# The writer that deletes a session or a note.


class DeletionLedger(SharedWriter, LedgerReader):
    """The ledger's writer for deletions, in any process, beside a run or without one."""

    access: ClassVar[Access] = "add"

    def delete_session(self, session: str, user: str, *, by: str) -> Deletion:
        """Delete a user's session with all its rows, atomically.

        For a session that was deleted before and has no turn since, returns that deletion. Raises NotInLedger if there
        was none.
        """
        with self.writing(alone="deletion") as db:
            turns = self.turns_of(session, user)
            if not turns:
                return self._deleted_before(session, user)
            deletion = replace(self.deletable(turns, user), at=time.time())
            purge(db, turns)
            purge_session(db, session, user)
            insert_deletion(db, session, user, by=by, done=deletion)
        self.db.shred()
        return deletion

    def forget_note(self, number: int) -> int:
        """Delete a note made by hand, and its text from every row; return the number of prompts that contained it.

        For a note that is gone, it deletes the text from prompts that a request under way has written since. Raises
        NotInLedger for a number that no note ever had, InvalidValue for a note from a conversation.
        """
        with self.writing(alone="notes") as db:
            note = db.row("SELECT turn FROM notes WHERE number = ?", (number,))
            if note is None and number > db.last_number("notes", "number"):
                raise NotInLedger(f"there is no note {number}", remedy="'openclaw-rl notes --all' lists them")
            if note is not None and note["turn"] is not None:
                what = f"note {number} came of turn {note['turn']}, whose conversation holds its words"
                raise InvalidValue("number", what, remedy="delete the session: its notes go with it")
            prompts = purge_note(db, number)
        self.db.shred()
        return prompts

    def _deleted_before(self, session: str, user: str) -> Deletion:
        earlier = self.deletion(session, user)
        if earlier is None:
            raise NotInLedger(f"{user} has no session {session!r}", remedy="'openclaw-rl show' lists the newest")
        return earlier
