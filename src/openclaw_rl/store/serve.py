"""The rows that serving writes: turns, feedback, rewards and ends of sessions, sessions that may not train."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from openclaw_rl.errors import DeletedMeanwhile, LedgerDown
from openclaw_rl.store.connection import DurableWriter, missing
from openclaw_rl.store.database import Database, Sync
from openclaw_rl.store.deletions import digest
from openclaw_rl.store.places import AnyPlace
from openclaw_rl.store.reader import LedgerReader
from openclaw_rl.store.results import LoopState
from openclaw_rl.store.roles import Writer
from openclaw_rl.store.rows import feedback_row, turn_row
from openclaw_rl.types import Feedback, SessionReward, Turn
from openclaw_rl.types.validation import need_name

REWARD = ("session", "user", "score", "failed", "at")


class ServeLedger(DurableWriter, LedgerReader):
    """The ledger as serving writes it."""

    writer: ClassVar[Writer | None] = "serve"

    def __init__(self, place: AnyPlace, *, sync: Sync, migrations: Sequence[str] | None = None) -> None:
        super().__init__(place, sync=sync, migrations=migrations)
        self._unsure: set[str] = set()  # turns of which it is not known whether they were committed

    def add_turn(self, turn: Turn) -> None:
        """Write an answered turn; durable when this returns. Nothing is kept of a session deleted meanwhile."""
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
            db.insert("feedback", feedback_row(feedback))  # first: from here on nobody deletes the turn
            if db.row("SELECT 1 FROM turns WHERE id = ?", (feedback.turn,)) is None:
                raise missing("turn", feedback.turn)

    def add_ending(self, session: str, user: str) -> None:
        """Write that a session is over."""
        with self.writing() as db:
            db.insert("endings", {"session": session, "user": user, "at": time.time()})

    def add_reward(self, reward: SessionReward) -> bool:
        """Write what a session is worth, and its group; False, and nothing written, once a turn of it has trained.

        One that is sent again, since its sender never saw the answer, is the same one.
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
            known = newest is not None and (newest["score"], newest["failed"]) == (reward.score, reward.failed)
            if trained is None and not known:
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
        """Write how a loop is doing, in place of its report before; each gateway has its own."""
        name = loop if self.db.slot == 1 else f"{loop} {self.db.slot}"
        super().report(name, state=state, moved=moved, failures=failures, error=error, detail=detail)


def _refuse_deleted(db: Database, turn: str, session: str | None, user: str) -> None:
    """Ids are made as requests come in, so an id before the tombstone's is of a request that came before it."""
    where = "session = ? AND user = ? AND id > ?"
    if session is not None and db.row(f"SELECT 1 FROM deletions WHERE {where}", (digest(session), user, turn)):
        raise DeletedMeanwhile(f"the session of turn {turn} was deleted while it was answered")
