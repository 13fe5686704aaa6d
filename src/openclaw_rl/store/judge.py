"""The work list and the rows of judging: outcomes and late feedback in, verdicts out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from openclaw_rl.ports import Case
from openclaw_rl.store.file import LedgerWriter, Writer
from openclaw_rl.store.reader import LedgerReader
from openclaw_rl.store.results import VerdictScore
from openclaw_rl.store.rows import (
    OUTCOME,
    TURN,
    Row,
    decoded,
    insert,
    insert_drops,
    to_feedback,
    to_outcome,
    to_turn,
    verdict_row,
)
from openclaw_rl.store.schema import MIGRATIONS
from openclaw_rl.types import Drop, Feedback, UnreadableTurn, Verdict


class JudgeLedger(LedgerWriter, LedgerReader):
    """The ledger as judging writes it."""

    writer: ClassVar[Writer | None] = "judge"

    def __init__(self, path: str | Path, *, migrations: Sequence[str] = MIGRATIONS) -> None:
        super().__init__(path, migrations=migrations)
        self._seen: dict[str, int] = {}  # the newest feedback that the reader of a case has seen, by turn

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
                f"SELECT DISTINCT {OUTCOME}, {TURN} FROM feedback f JOIN turns t ON t.id = f.turn"
                f" JOIN outcomes o ON o.turn = f.turn WHERE {unseen}"
                " AND EXISTS (SELECT 1 FROM verdicts v WHERE v.turn = f.turn) ORDER BY f.seq LIMIT ?",
                low,
                limit,
            )
            return [self._case(row) for row in rows]

    def _case(self, row: Row) -> Case | UnreadableTurn:
        feedback = self.feedback_rows(row["turn_id"])
        self._seen[row["turn_id"]] = feedback[-1]["seq"] if feedback else 0
        given = tuple(map(to_feedback, feedback))
        return decoded(lambda row: _to_case(row, given), row, turn=row["turn_id"])

    def add_verdicts(self, verdicts: Sequence[Verdict], drops: Sequence[Drop] = ()) -> None:
        """Write verdicts; a later one of the same turn replaces the earlier while the turn has not trained."""
        with self.writing() as db:
            for verdict in verdicts:
                insert(db, "verdicts", verdict_row(verdict) | {"feedback_seen": self._seen.pop(verdict.turn, 0)})
            insert_drops(db, drops)
            self.save_cursors(db)

    def scores(self, window: int) -> list[VerdictScore]:
        """The newest verdicts of main turns, newest first."""
        rows = self.rows(
            "SELECT t.user, v.score, v.source FROM verdicts v JOIN turns t ON t.id = v.turn"
            " JOIN outcomes o ON o.turn = v.turn AND o.kind = 'main' ORDER BY v.seq DESC LIMIT ?",
            window,
        )
        return [VerdictScore(**dict(row)) for row in rows]


def _to_case(row: Row, feedback: tuple[Feedback, ...]) -> Case:
    return Case(turn=to_turn(row), outcome=to_outcome(row), feedback=feedback)
