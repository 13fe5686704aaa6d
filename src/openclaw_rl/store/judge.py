"""The work list and the rows of judging: outcomes, late feedback and late rewards in, verdicts out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from openclaw_rl.ports import Case
from openclaw_rl.store.connection import LedgerWriter
from openclaw_rl.store.database import Row
from openclaw_rl.store.places import AnyPlace
from openclaw_rl.store.reader import LedgerReader
from openclaw_rl.store.results import VerdictScore
from openclaw_rl.store.roles import Writer
from openclaw_rl.store.rows import (
    NEWEST_REWARD,
    OF_A_PERSON,
    OUTCOME,
    TURN,
    VERDICT,
    decoded,
    deleted,
    insert_drops,
    to_feedback,
    to_outcome,
    to_reward,
    to_turn,
    to_verdict,
    verdict_row,
)
from openclaw_rl.types import Drop, UnreadableTurn, Verdict


class JudgeLedger(LedgerWriter, LedgerReader):
    """The ledger as judging writes it."""

    writer: ClassVar[Writer | None] = "judge"

    def __init__(self, place: AnyPlace, *, migrations: Sequence[str] | None = None) -> None:
        super().__init__(place, migrations=migrations)
        self._seen: dict[str, tuple[int, int]] = {}  # the newest feedback and reward that a case was read with, by turn

    def unjudged(self, limit: int) -> list[Case | UnreadableTurn]:
        """Outcomes without a verdict, oldest first."""
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
        """Turns that got feedback after their verdict and have not trained."""
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
        """Turns whose session was paid after their verdict and that have not trained, with that verdict."""
        untrained = "NOT EXISTS (SELECT 1 FROM trained x WHERE x.turn = t.id)"
        unjudged = (
            "NOT EXISTS (SELECT 1 FROM verdicts v WHERE v.turn = t.id)"
            " AND NOT EXISTS (SELECT 1 FROM drops d WHERE d.turn = t.id)"
        )
        unseen = "r.seq > (SELECT max(v.reward_seen) FROM verdicts v WHERE v.turn = t.id)"
        of_session = "FROM turns t WHERE t.session = r.session AND t.user = r.user"
        with self.lock:
            low = self.advance(  # a turn that is being judged may get a verdict that does not know the reward yet
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
        given = tuple(map(to_feedback, feedback))
        reward = to_reward(paid) if paid else None

        def read(row: Row) -> Case:
            return Case(
                turn=to_turn(row),
                outcome=to_outcome(row),
                feedback=given,
                reward=reward,
                verdict=verdict(row) if verdict else None,
            )

        return decoded(read, row, turn=row["turn_id"])

    def add_verdicts(self, verdicts: Sequence[Verdict], drops: Sequence[Drop] = ()) -> None:
        """Write verdicts; a later one of the same turn replaces the earlier while the turn has not trained.

        A turn that was deleted meanwhile gets none.
        """
        with self.writing(alone="judged") as db:
            gone = deleted(db, [verdict.turn for verdict in verdicts])
            for verdict in verdicts:
                heard, paid = self._seen.pop(verdict.turn, (0, 0))
                if verdict.turn in gone:
                    continue
                db.insert("verdicts", verdict_row(verdict) | {"feedback_seen": heard, "reward_seen": paid})
            insert_drops(db, drops)
            self.save_cursors(db)

    def scores(self, window: int) -> list[VerdictScore]:
        """The newest verdicts of people's main turns, newest first."""
        rows = self.rows(
            "SELECT t.user, v.score, v.source FROM verdicts v JOIN turns t ON t.id = v.turn"
            " JOIN outcomes o ON o.turn = v.turn AND o.kind = 'main'"
            f" WHERE {OF_A_PERSON} ORDER BY v.seq DESC LIMIT ?",
            window,
        )
        return [VerdictScore(**dict(row)) for row in rows]
