"""Queries about turns: their replies, outcomes, verdicts and training."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from openclaw_rl.errors import NotInLedger
from openclaw_rl.ports import Case
from openclaw_rl.store.connection import LedgerConnection, missing
from openclaw_rl.store.database import ALL, Row
from openclaw_rl.store.results import BadRate, FailedVersion, ReadTurn, ScoredTurn, SessionKey, UserRules
from openclaw_rl.store.rows import (
    FEEDBACK,
    OF_A_PERSON,
    OUTCOME,
    SETTLED,
    TURN,
    VERDICT,
    decoded,
    rules_of,
    to_feedback,
    to_outcome,
    to_read_turn,
    to_recorded,
    to_turn,
    to_verdict,
)
from openclaw_rl.types import Drop, Feedback, ImportRecord, Outcome, Turn, UnreadableTurn, Verdict

_SCORED = (
    " FROM verdicts v JOIN turns t ON t.id = v.turn JOIN outcomes o ON o.turn = v.turn AND o.kind = 'main'"
    " WHERE v.score IS NOT NULL AND t.trainable"
    " AND NOT EXISTS (SELECT 1 FROM verdicts w WHERE w.turn = v.turn AND w.seq > v.seq)"
)


class TurnQueries(LedgerConnection):
    """Queries about turns, and their sessions and users."""

    def turn(self, turn: str) -> Turn:
        """Return the turn with this id."""
        row = self.row(f"SELECT {TURN} FROM turns t WHERE t.id = ?", turn)
        if row is None:
            raise self._missing_turn(turn)
        return to_turn(row)

    def _missing_turn(self, turn: str) -> NotInLedger:
        if self.row("SELECT 1 FROM deleted_turns WHERE turn = ?", turn) is not None:
            return NotInLedger(f"turn {turn} was deleted with its session")
        return missing("turn", turn)

    def has_turn(self, turn: str) -> bool:
        """Check if a turn with this id was written."""
        return self.row("SELECT 1 FROM turns WHERE id = ?", turn) is not None

    def turns_after(self, seq: int, limit: int, *, up_to: int = ALL) -> list[ReadTurn]:
        """Return the turns after a place in the ledger, oldest first, each with its own place."""
        sql = f"SELECT t.seq, {TURN} FROM turns t WHERE t.seq > ? AND t.seq <= ? ORDER BY t.seq LIMIT ?"
        rows = self.rows(sql, seq, up_to, limit)
        return [to_read_turn(row) for row in rows]

    def latest_turns(self, user: str, *, session: str | None, limit: int) -> list[Turn]:
        """Return a user's newest readable turns, in one declared session or in all, oldest first."""
        where, names = ("t.user = ?", (user,)) if session is None else ("t.user = ? AND t.session = ?", (user, session))
        rows = self.rows(f"SELECT t.seq, {TURN} FROM turns t WHERE {where} ORDER BY t.seq DESC LIMIT ?", *names, limit)
        decoded_turns = (to_read_turn(row).turn for row in reversed(rows))
        return [turn for turn in decoded_turns if isinstance(turn, Turn)]

    def outcome(self, turn: str) -> Outcome | None:
        """Return a turn's outcome, None while it is open."""
        row = self.row(f"SELECT {OUTCOME} FROM outcomes o WHERE o.turn = ?", turn)
        return to_outcome(row) if row else None

    def verdict(self, turn: str) -> Verdict | None:
        """Return the verdict in force, None without one."""
        row = self.row(f"SELECT {VERDICT} FROM verdicts v WHERE v.turn = ? ORDER BY v.seq DESC LIMIT 1", turn)
        return to_verdict(row) if row else None

    def feedback(self, turn: str) -> tuple[Feedback, ...]:
        """Return all explicit feedback on a turn, oldest first."""
        return tuple(map(to_feedback, self.feedback_rows(turn)))

    def feedback_rows(self, turn: str) -> list[Row]:
        """Return the rows of a turn's feedback, oldest first."""
        return self.rows(f"SELECT {FEEDBACK} FROM feedback WHERE turn = ? ORDER BY seq", turn)

    def case(self, turn: str) -> Case:
        """Return a judge's whole view of one turn, judged or not."""
        outcome = self.outcome(turn)
        if outcome is None:
            raise NotInLedger(f"turn {turn} has no outcome yet", remedy="wait for the next request of its session")
        return Case(turn=self.turn(turn), outcome=outcome, feedback=self.feedback(turn))

    def recorded(self, turn: str) -> ImportRecord | UnreadableTurn | None:
        """Return a turn's imported record; None for a turn that was served."""
        row = self.row(
            "SELECT turn, session, idx, kind, next_state, trainable, extra FROM records WHERE turn = ?", turn
        )
        return decoded(to_recorded, row, turn=turn) if row is not None else None

    def recall(self, turn: str, *, within: int) -> Verdict | None:
        """Return the last rule of a turn's user: the newest verdict with one, before this turn and its verdict.

        Among the ``within`` turns before it, only main ones that may be trained on count. A vague rule does not replace
        an earlier precise one: after "under 30 words" and then "shorter", the former still applies.
        """
        rows = self.rows(
            f"SELECT {VERDICT} FROM (SELECT p.id, p.seq FROM turns t JOIN turns p ON p.user = t.user AND p.seq < t.seq"
            "  WHERE t.id = ?1 ORDER BY p.seq DESC LIMIT ?2) p JOIN verdicts v ON v.turn = p.id"
            " WHERE v.hints != '[]' AND v.seq < (SELECT max(seq) FROM verdicts WHERE turn = ?1)"
            " AND NOT EXISTS (SELECT 1 FROM verdicts w WHERE w.turn = v.turn AND w.seq > v.seq)"
            " AND EXISTS (SELECT 1 FROM turns x WHERE x.id = p.id AND x.trainable)"
            " AND EXISTS (SELECT 1 FROM outcomes o WHERE o.turn = p.id AND o.kind = 'main')"
            " ORDER BY p.seq DESC",
            turn,
            within,
        )
        return _last_rule([to_verdict(row) for row in rows])

    def dropped(self, turn: str) -> Drop | None:
        """Return a turn's newest drop, None if it was never dropped or has been judged again or trained since."""
        row = self.row(
            "SELECT turn, stage, reason, detail, at FROM drops d WHERE turn = ? AND NOT EXISTS"
            " (SELECT 1 FROM verdicts v WHERE v.turn = d.turn AND v.seq > d.verdict) ORDER BY seq DESC LIMIT 1",
            turn,
        )
        return Drop(**dict(row)) if row is not None and self.trained_in(turn) is None else None

    def trained_in(self, turn: str) -> int | None:
        """Return the number of the step that used a turn, None if none did."""
        row = self.row("SELECT step FROM trained WHERE turn = ?", turn)
        return row["step"] if row else None

    def failed_version(self, turn: str) -> FailedVersion | None:
        """Return the refused or rolled back version that a turn trained, None without one."""
        row = self.row(
            "SELECT v.number AS version, s.state FROM trained x JOIN versions v ON v.step = x.step"
            " JOIN states s ON s.version = v.number AND s.state IN ('refused', 'rolled back')"
            " WHERE x.turn = ? ORDER BY v.number, s.seq DESC LIMIT 1",
            turn,
        )
        return FailedVersion(**dict(row)) if row else None

    # --- sessions, groups, users ---

    def opted_out(self, session: str, user: str) -> bool:
        """Check if a user took a session out of training."""
        row = self.row("SELECT 1 FROM session_optouts WHERE user = ? AND session = ?", user, session)
        return row is not None

    def has_session(self, session: str, user: str) -> bool:
        """Check if a user has declared a session with this name; another user's is a different session."""
        row = self.row("SELECT 1 FROM turns WHERE session = ? AND user = ? LIMIT 1", session, user)
        return row is not None or self.opted_out(session, user)  # its turns may not be stored

    def session(self, session: str, user: str) -> list[str]:
        """Return a session's turn ids in order, as detected or declared; empty if the user has no such session."""
        rows = self.rows(
            f"{SETTLED} UNION SELECT t.id, t.seq FROM turns t WHERE t.session = ?1 AND t.user = ?2"
            " AND NOT EXISTS (SELECT 1 FROM outcomes o WHERE o.turn = t.id) ORDER BY seq",
            session,
            user,
        )
        return [row["id"] for row in rows]

    def session_users(self, session: str) -> list[str]:
        """Return the users who have a session with this name, each a different session."""
        rows = self.rows(
            "SELECT t.user FROM outcomes o JOIN turns t ON t.id = o.turn WHERE o.session = ?1"
            " UNION SELECT t.user FROM turns t WHERE t.session = ?1 ORDER BY user",
            session,
        )
        return [row["user"] for row in rows]

    def sessions(self) -> Iterator[SessionKey]:
        """Iterate over every session's name and user, in the order of their first turns."""
        sql = (
            "SELECT coalesce(o.session, t.session, t.id) AS session_name, t.user FROM turns t"
            " LEFT JOIN outcomes o ON o.turn = t.id GROUP BY session_name, t.user ORDER BY min(t.seq)"
        )
        return (SessionKey(session=row["session_name"], user=row["user"]) for row in self.rows(sql))

    def users(self) -> list[str]:
        """Return all users with a turn. Cheap: it skips from name to name instead of reading all turns."""
        rows = self.rows(
            "WITH RECURSIVE next(user) AS (SELECT min(user) FROM turns UNION ALL"
            " SELECT (SELECT min(t.user) FROM turns t WHERE t.user > next.user) FROM next WHERE user IS NOT NULL)"
            " SELECT user FROM next WHERE user IS NOT NULL"
        )
        return [row["user"] for row in rows]

    def asked(self, user: str, limit: int) -> list[Turn]:
        """Return the first turns of a user's sessions that may be trained on, newest first."""
        rows = self.rows(
            f"SELECT {TURN} FROM turns t JOIN outcomes o ON o.turn = t.id AND o.kind = 'main' AND o.idx = 0"
            " WHERE t.user = ? AND t.trainable ORDER BY t.seq DESC LIMIT ?",
            user,
            limit,
        )
        turns = [decoded(to_turn, row, turn=row["turn_id"]) for row in rows]
        return [turn for turn in turns if isinstance(turn, Turn)]

    def last_turn_at(self) -> float | None:
        """Return the time of the newest turn, None before the first."""
        row = self.row("SELECT at FROM turns ORDER BY seq DESC LIMIT 1")
        return row["at"] if row else None

    # --- scores and rules ---

    def scored(self, limit: int) -> list[ScoredTurn]:
        """Return people's newest judged main turns with a score, oldest first."""
        rows = self.rows(
            f"SELECT t.id, t.version, t.user, t.note, v.score, v.hints{_SCORED} AND {OF_A_PERSON}"
            " ORDER BY t.seq DESC LIMIT ?",
            limit,
        )
        return [
            ScoredTurn(
                turn=row["id"],
                version=row["version"],
                user=row["user"],
                score=row["score"],
                rules=rules_of(row["hints"]),
                noted=tuple(json.loads(row["note"])["notes"]) if row["note"] else (),
            )
            for row in reversed(rows)
        ]

    def bad_rates(self) -> dict[int, BadRate]:
        """Count bad and scored main turns by the version that answered."""
        bad = "count(*) FILTER (WHERE v.score < 0) AS bad"
        rows = self.rows(f"SELECT t.version, {bad}, count(*) AS scored{_SCORED} GROUP BY t.version")
        return {row["version"]: BadRate(bad=row["bad"], scored=row["scored"]) for row in rows}

    def corrections(self, limit: int, *, before: float) -> list[str]:
        """Return the newest main turns judged before a time whose verdict has a rule, newest first."""
        rows = self.rows(
            "SELECT v.turn, v.hints FROM verdicts v JOIN outcomes o ON o.turn = v.turn AND o.kind = 'main'"
            " WHERE v.at <= ? AND v.hints != '[]'"
            " AND NOT EXISTS (SELECT 1 FROM verdicts w WHERE w.turn = v.turn AND w.seq > v.seq)"
            " ORDER BY v.seq DESC LIMIT ?",
            before,
            limit * 4,  # hints that are no rules are skipped
        )
        return [row["turn"] for row in rows if rules_of(row["hints"])][:limit]

    def rules_given(self, limit: int) -> list[UserRules]:
        """Return user and rules for the newest verdicts that have any."""
        rows = self.rows(
            "SELECT t.user, v.hints FROM verdicts v JOIN turns t ON t.id = v.turn"
            " WHERE v.hints != '[]' ORDER BY v.seq DESC LIMIT ?",
            limit,
        )
        return [UserRules(user=row["user"], rules=rules_of(row["hints"])) for row in rows]


def _last_rule(verdicts: Sequence[Verdict]) -> Verdict | None:
    """Return the first verdict with a precise rule; else the first with any rule."""
    precise = (verdict for verdict in verdicts if verdict.precise)
    return next(precise, next((verdict for verdict in verdicts if verdict.rules), None))
