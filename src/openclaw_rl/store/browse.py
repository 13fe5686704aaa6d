"""Queries for browsing: newest first, a page at a time, for one user or (None) for all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from openclaw_rl.ports import GateDecision
from openclaw_rl.store import codec
from openclaw_rl.store.connection import LedgerConnection
from openclaw_rl.store.database import ALL, Row
from openclaw_rl.store.results import (
    EpisodeLine,
    ListedTurn,
    Reception,
    SaidTurn,
    ScoreMark,
    SessionTally,
    StepFigures,
    TaskTally,
    VersionWins,
)
from openclaw_rl.store.rows import OF_A_PERSON, VERSION, to_version
from openclaw_rl.types import Json, Version

WITHIN = 6_000
"""number of newest turns that a query without an index scans, so that it stays fast in a large ledger too"""

_GOOD = "coalesce(sum(CASE WHEN v.score > 0 THEN 1 ELSE 0 END), 0) AS good"
_BAD = "coalesce(sum(CASE WHEN v.score < 0 THEN 1 ELSE 0 END), 0) AS bad"
_CORRECTED = (
    "EXISTS (SELECT 1 FROM feedback f WHERE f.turn = t.id AND f.source = 'explicit'"
    " AND (f.score < 0 OR f.hint IS NOT NULL OR f.edit IS NOT NULL))"
    " OR EXISTS (SELECT 1 FROM verdicts v WHERE v.turn = t.id "
    " AND (v.hints != '[]' OR v.score < 0 AND v.source IN ('explicit', 'judge'))"
    " AND NOT EXISTS (SELECT 1 FROM verdicts w WHERE w.turn = v.turn AND w.seq > v.seq))"
)

_PAID = (
    "(SELECT seq, session, user, score, failed, at FROM session_rewards s WHERE NOT EXISTS (SELECT 1 FROM"
    " session_rewards n WHERE n.session = s.session AND n.user = s.user AND n.seq > s.seq)"
    " ORDER BY s.seq DESC LIMIT ?) r"
)
"""the newest sessions with a reward, each with its reward in force"""
_FIRST = (
    "turns t ON t.id = (SELECT id FROM turns x WHERE x.session = r.session AND x.user = r.user ORDER BY x.seq LIMIT 1)"
)


class BrowseQueries(LedgerConnection):
    """Queries for lists."""

    def corrected(self, user: str, *, before: int | None, limit: int, within: int = WITHIN) -> list[ListedTurn]:
        """Return the newest turns that a user corrected, newest first, among the ``within`` turns before a place."""
        rows = self.rows(
            "SELECT t.seq, t.id, t.user, t.at FROM (SELECT seq, id, user, at FROM turns"
            " WHERE user = ? AND seq < ? ORDER BY seq DESC LIMIT ?) t"
            f" WHERE {_CORRECTED} ORDER BY t.seq DESC LIMIT ?",
            user,
            _end(before),
            within,
            limit,
        )
        return [ListedTurn(**dict(row), session=None) for row in rows]

    def unheard(self, user: str, *, limit: int, within: int = 500) -> list[ListedTurn]:
        """Return a user's newest continued main turns with an empty verdict and no feedback, newest first."""
        rows = self.rows(
            "SELECT t.seq, t.id, t.user, t.at FROM (SELECT seq, id, user, at FROM turns"
            " WHERE user = ? ORDER BY seq DESC LIMIT ?) t"
            " JOIN outcomes o ON o.turn = t.id AND o.kind = 'main' AND o.ended IS NULL"
            " JOIN verdicts v ON v.turn = t.id AND v.score IS NULL AND v.hints = '[]'"
            " WHERE NOT EXISTS (SELECT 1 FROM verdicts w WHERE w.turn = v.turn AND w.seq > v.seq)"
            " AND NOT EXISTS (SELECT 1 FROM feedback f WHERE f.turn = t.id) ORDER BY t.seq DESC LIMIT ?",
            user,
            within,
            limit,
        )
        return [ListedTurn(**dict(row), session=None) for row in rows]

    def latest(self, user: str | None, *, before: int | None, limit: int) -> list[ListedTurn]:
        """Return the newest turns before a place, newest first, each with its session's name."""
        where, values = ("AND t.user = ?", [user]) if user is not None else ("", [])
        rows = self.rows(
            "SELECT t.seq, t.id, t.user, t.at, coalesce(o.session, t.session, t.id) AS session FROM turns t"
            f" LEFT JOIN outcomes o ON o.turn = t.id WHERE t.seq < ? {where} ORDER BY t.seq DESC LIMIT ?",
            _end(before),
            *values,
            limit,
        )
        return [ListedTurn(**dict(row)) for row in rows]

    def tally(self, turns: Sequence[str]) -> SessionTally:
        """Count the turns among these that are well or badly received, trained, or dropped."""
        if not turns:
            return SessionTally(good=0, bad=0, trained=0, dropped=0)
        marks = ", ".join("?" * len(turns))
        scores = self.one(
            f"SELECT {_GOOD}, {_BAD} FROM verdicts v"
            f" WHERE v.turn IN ({marks})"
            " AND NOT EXISTS (SELECT 1 FROM verdicts w WHERE w.turn = v.turn AND w.seq > v.seq)",
            *turns,
        )
        trained = self.one(f"SELECT count(*) AS n FROM trained WHERE turn IN ({marks})", *turns)
        dropped = self.one(f"SELECT count(DISTINCT turn) AS n FROM drops WHERE turn IN ({marks})", *turns)
        return SessionTally(good=scores["good"], bad=scores["bad"], trained=trained["n"], dropped=dropped["n"])

    def saying(self, user: str | None, words: str, *, before: int | None, limit: int) -> list[SaidTurn]:
        """Return the newest turns before a place, newest first, each with the text around the words in its messages.

        The last message and the reply are searched. Blobs are searched as JSON text; without a match they are not
        parsed.
        """
        needle = json.dumps(words.lower(), ensure_ascii=False)[1:-1]
        where, values = ("AND t.user = ?", [user]) if user is not None else ("", [])
        rows = self.rows(
            "SELECT t.seq, t.id, t.user, t.at, coalesce(o.session, t.session, t.id) AS session, t.prompt, t.reply"
            f" FROM turns t LEFT JOIN outcomes o ON o.turn = t.id WHERE t.seq < ? {where}"
            " ORDER BY t.seq DESC LIMIT ?",
            _end(before),
            *values,
            limit,
        )
        return [SaidTurn(_listed(row), _said(row, needle, words)) for row in rows]

    def waiting_for_judge(self, most: int) -> int:
        """Count the unjudged turns among the ``most`` newest settled ones."""
        row = self.one(
            "SELECT count(*) AS n FROM (SELECT turn FROM outcomes ORDER BY seq DESC LIMIT ?) o"
            " WHERE NOT EXISTS (SELECT 1 FROM verdicts v WHERE v.turn = o.turn)",
            most,
        )
        return int(row["n"])

    def newest_versions(self, limit: int) -> list[Version]:
        """Return the newest versions, newest first."""
        rows = self.rows(f"SELECT {VERSION} FROM versions v ORDER BY v.number DESC LIMIT ?", limit)
        return [to_version(row, self.root) for row in rows]

    def received(self, *, within: int = WITHIN) -> dict[int, Reception]:
        """Count good and bad replies by version, from the newest verdicts."""
        rows = self.rows(
            f"SELECT t.version, {_GOOD}, {_BAD}, count(*) AS scored"
            " FROM (SELECT seq, turn, score FROM verdicts ORDER BY seq DESC LIMIT ?) v JOIN turns t ON t.id = v.turn"
            f" WHERE v.score IS NOT NULL AND {OF_A_PERSON}"
            " AND NOT EXISTS (SELECT 1 FROM verdicts w WHERE w.turn = v.turn AND w.seq > v.seq) GROUP BY t.version",
            within,
        )
        return {row["version"]: Reception(good=row["good"], bad=row["bad"], scored=row["scored"]) for row in rows}

    def step_metrics(self, limit: int) -> list[StepFigures]:
        """Return the newest steps' figures, oldest first."""
        rows = self.rows(
            "SELECT s.number, s.metrics, s.seconds, s.skipped, s.at FROM steps s ORDER BY s.number DESC LIMIT ?", limit
        )
        return [StepFigures(**{**dict(row), "metrics": json.loads(row["metrics"])}) for row in reversed(rows)]

    def score_marks(self, user: str | None, limit: int) -> list[ScoreMark]:
        """Return the newest verdicts with a score, oldest first: one user's, or all people's."""
        where, values = ("t.user = ?", [user]) if user is not None else (OF_A_PERSON, [])
        rows = self.rows(
            "SELECT v.at, v.score, v.votes, t.version, length(t.reply_tokens) AS size"
            f" FROM (SELECT seq, turn, score, votes, at FROM verdicts ORDER BY seq DESC LIMIT {WITHIN}) v"
            f" CROSS JOIN turns t WHERE t.id = v.turn AND v.score IS NOT NULL AND {where} ORDER BY v.seq DESC LIMIT ?",
            *values,
            limit,
        )
        return [ScoreMark(**{**dict(row), "votes": json.loads(row["votes"])}) for row in reversed(rows)]

    def played(self, *, within: int = WITHIN) -> list[TaskTally]:
        """Count the newest environment sessions by environment, task and result, most recent first."""
        rows = self.rows(
            "SELECT r.user, coalesce(t.grp, r.session) AS task, count(*) AS episodes, avg(r.score) AS mean,"
            " max(r.at) AS at, sum(CASE WHEN r.score > 0 THEN 1 ELSE 0 END) AS won, count(r.failed) AS failed"
            f" FROM {_PAID} LEFT JOIN {_FIRST}"
            " GROUP BY r.user, coalesce(t.grp, r.session) ORDER BY max(r.seq) DESC LIMIT 200",
            within,
        )
        return [TaskTally(**dict(row)) for row in rows]

    def won(self, *, within: int = WITHIN) -> list[VersionWins]:
        """Count the newest episodes by environment, task and the version that began them; oldest version first."""
        rows = self.rows(
            "SELECT r.user, coalesce(t.grp, r.session) AS task, t.version, count(*) AS episodes,"
            " sum(CASE WHEN r.score > 0 THEN 1 ELSE 0 END) AS won"
            f" FROM {_PAID} JOIN {_FIRST} WHERE r.failed IS NULL"
            " GROUP BY r.user, coalesce(t.grp, r.session), t.version ORDER BY t.version, r.user, task",
            within,
        )
        return [VersionWins(**dict(row)) for row in rows]

    def episodes(
        self, user: str, task: str | None, *, limit: int, session: str | None = None, within: int = WITHIN
    ) -> list[EpisodeLine]:
        """Return the newest episodes of an environment, one of its tasks or one of its sessions, newest first."""
        where, values = ("AND coalesce(t.grp, r.session) = ?", [task]) if task is not None else ("", [])
        if session is not None:
            where, values = f"{where} AND r.session = ?", [*values, session]
        rows = self.rows(
            "SELECT r.session, r.user, coalesce(t.grp, r.session) AS task, r.score, r.failed, t.version, r.at,"
            " (SELECT count(*) FROM turns n WHERE n.session = r.session AND n.user = r.user) AS steps"
            f" FROM {_PAID} LEFT JOIN {_FIRST} WHERE r.user = ? {where} ORDER BY r.seq DESC LIMIT ?",
            within,
            user,
            *values,
            limit,
        )
        return [EpisodeLine(**dict(row)) for row in rows]

    def newest_decisions(self, limit: int) -> list[GateDecision]:
        """Return the gate's newest decisions, newest first, with their evidence."""
        rows = self.rows(
            "SELECT version, against, decision, reason, evidence, seconds, at FROM gate_decisions"
            " ORDER BY seq DESC LIMIT ?",
            limit,
        )
        return [GateDecision(**{**dict(row), "evidence": json.loads(row["evidence"])}) for row in rows]


def _listed(row: Row) -> ListedTurn:
    return ListedTurn(**{name: row[name] for name in ListedTurn._fields})


def _said(row: Row, sought: str, words: str) -> str | None:
    """Return the text around the words in a turn's last message or reply; None without a match."""
    for blob, read in ((row["prompt"], _last_message), (row["reply"], _reply)):
        written = codec.unpacked(blob)
        if sought in written.lower():
            text = read(json.loads(written))
            at = text.lower().find(words.lower())
            if at >= 0:
                return text[max(at - 60, 0) : at + len(words) + 60]
    return None


def _last_message(prompt: Json) -> str:
    return str(prompt["messages"][-1].get("content", ""))


def _reply(reply: Json) -> str:
    return str(reply["reply"].get("content", ""))


def _end(before: int | None) -> Any:
    return ALL if before is None else before
