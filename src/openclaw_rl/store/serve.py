"""The rows that serving writes: turns, feedback, rewards and ends of sessions, sessions that may not train."""

from __future__ import annotations

import time
from typing import ClassVar

from openclaw_rl.store.file import DurableWriter, Writer, missing
from openclaw_rl.store.reader import LedgerReader
from openclaw_rl.store.rows import feedback_row, insert, turn_row
from openclaw_rl.types import Feedback, SessionReward, Turn

REWARD = ("session", "user", "score", "failed", "at")


class ServeLedger(DurableWriter, LedgerReader):
    """The ledger as serving writes it."""

    writer: ClassVar[Writer | None] = "serve"

    def add_turn(self, turn: Turn) -> None:
        """Write an answered turn; durable when this returns."""
        row = turn_row(turn)  # packed before the file is locked
        with self.writing() as db:
            insert(db, "turns", row)

    def add_feedback(self, feedback: Feedback) -> None:
        """Write explicit feedback on a turn."""
        with self.writing() as db:
            if db.execute("SELECT 1 FROM turns WHERE id = ?", (feedback.turn,)).fetchone() is None:
                raise missing("turn", feedback.turn)
            insert(db, "feedback", feedback_row(feedback))

    def add_ending(self, session: str, user: str) -> None:
        """Write that a session is over."""
        with self.writing() as db:
            insert(db, "endings", {"session": session, "user": user, "at": time.time()})

    def add_reward(self, reward: SessionReward) -> bool:
        """Write what a session is worth; False, and nothing written, once a turn of it has trained."""
        with self.writing() as db:
            trained = db.execute(
                "SELECT 1 FROM turns t JOIN trained x ON x.turn = t.id WHERE t.session = ? AND t.user = ? LIMIT 1",
                (reward.session, reward.user),
            ).fetchone()
            if trained is None:
                insert(db, "session_rewards", {name: getattr(reward, name) for name in REWARD})
            return trained is None

    def add_optout(self, session: str, user: str) -> None:
        """Write that no turn of a session may train from now on."""
        with self.writing() as db:
            db.execute(
                "INSERT OR IGNORE INTO session_optouts (user, session, at) VALUES (?, ?, ?)",
                (user, session, time.time()),
            )
