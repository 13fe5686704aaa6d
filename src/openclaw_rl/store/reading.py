"""Looking things up in the ledger, while the system runs or not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

from openclaw_rl.store import codec
from openclaw_rl.store.file import missing
from openclaw_rl.store.reviews import Reviews
from openclaw_rl.store.rows import (
    OUTCOME,
    TURN,
    UNTRAINED,
    VERDICT,
    VERSION,
    to_feedback,
    to_outcome,
    to_turn,
    to_verdict,
    to_version,
)
from openclaw_rl.types import Baseline, Drop, Feedback, Outcome, Step, Turn, Verdict, Version, rules


class Reader(Reviews):
    """Every question that does not change the ledger."""

    def turn(self, turn: str) -> Turn:
        """A turn by its id."""
        row = self.row(f"SELECT {TURN} FROM turns t WHERE t.id = ?", turn)
        if row is None:
            raise missing("turn", turn)
        return to_turn(row)

    def has_turn(self, turn: str) -> bool:
        """Whether a turn of this id was written."""
        return self.row("SELECT 1 FROM turns WHERE id = ?", turn) is not None

    def outcome(self, turn: str) -> Outcome | None:
        """What came after a turn, None while it is open."""
        row = self.row(f"SELECT {OUTCOME} FROM outcomes o WHERE o.turn = ?", turn)
        return to_outcome(row) if row else None

    def verdict(self, turn: str) -> Verdict | None:
        """The verdict in force, None while there is none."""
        row = self.row(f"SELECT {VERDICT} FROM verdicts v WHERE v.turn = ? ORDER BY v.seq DESC LIMIT 1", turn)
        return to_verdict(row) if row else None

    def recall(self, turn: str, *, within: int) -> Verdict | None:
        """What the user of a turn had asked for last: the newest verdict with a rule, before this turn and its verdict.

        Of ``within`` turns before it, only main ones that may be trained on count. A vague rule does not
        displace an earlier one that is none: who says "under 30 words" and then "shorter" still means the former.
        """
        rule = "SELECT 1 FROM json_each(v.hints) h WHERE coalesce(json_extract(h.value, '$.kind'), 'rule') = 'rule'"
        row = self.row(
            f"SELECT {VERDICT} FROM (SELECT p.id, p.seq FROM turns t JOIN turns p ON p.user = t.user AND p.seq < t.seq"
            "  WHERE t.id = ?1 ORDER BY p.seq DESC LIMIT ?2) p JOIN verdicts v ON v.turn = p.id"
            " WHERE v.hints != '[]' AND v.seq < (SELECT max(seq) FROM verdicts WHERE turn = ?1)"
            f" AND EXISTS ({rule})"
            " AND NOT EXISTS (SELECT 1 FROM verdicts w WHERE w.turn = v.turn AND w.seq > v.seq)"
            " AND EXISTS (SELECT 1 FROM turns x WHERE x.id = p.id AND x.trainable)"
            " AND EXISTS (SELECT 1 FROM outcomes o WHERE o.turn = p.id AND o.kind = 'main')"
            f" ORDER BY EXISTS ({rule} AND NOT coalesce(json_extract(h.value, '$.vague'), 0)) DESC, p.seq DESC LIMIT 1",
            turn,
            within,
        )
        return to_verdict(row) if row else None

    def feedback(self, turn: str) -> tuple[Feedback, ...]:
        """All that was said of a turn outright, oldest first."""
        sql = "SELECT turn, score, hint, edit, source, at FROM feedback WHERE turn = ? ORDER BY seq"
        return tuple(to_feedback(row) for row in self.rows(sql, turn))

    def dropped(self, turn: str) -> Drop | None:
        """The newest drop of a turn, None if it was never dropped or has been judged again or trained since."""
        row = self.row(
            "SELECT turn, stage, reason, detail, at FROM drops d WHERE turn = ? AND NOT EXISTS"
            " (SELECT 1 FROM verdicts v WHERE v.turn = d.turn AND v.seq > d.verdict) ORDER BY seq DESC LIMIT 1",
            turn,
        )
        if row is None or self.trained_in(turn) is not None:
            return None
        return Drop(turn=row[0], stage=row[1], reason=row[2], detail=row[3], at=row[4])

    def trained_in(self, turn: str) -> int | None:
        """The number of the step that used a turn, None if none did."""
        row = self.row("SELECT step FROM trained WHERE turn = ?", turn)
        return row[0] if row else None

    def session(self, session: str, user: str) -> list[str]:
        """The ids of a session's turns in order, as found out or declared; empty if the user has no such session."""
        rows = self.rows(
            "SELECT t.id, t.seq FROM outcomes o JOIN turns t ON t.id = o.turn WHERE o.session = ?1 AND t.user = ?2"
            " UNION SELECT t.id, t.seq FROM turns t WHERE t.session = ?1 AND t.user = ?2"
            " AND NOT EXISTS (SELECT 1 FROM outcomes o WHERE o.turn = t.id) ORDER BY 2",
            session,
            user,
        )
        return [row[0] for row in rows]

    def session_users(self, session: str) -> list[str]:
        """The users who have a session of this name, each one their own."""
        rows = self.rows(
            "SELECT t.user FROM outcomes o JOIN turns t ON t.id = o.turn WHERE o.session = ?1"
            " UNION SELECT t.user FROM turns t WHERE t.session = ?1 ORDER BY 1",
            session,
        )
        return [row[0] for row in rows]

    def sessions(self) -> Iterator[tuple[str, str]]:
        """The name and the user of every session, in the order of their first turns."""
        sql = (
            "SELECT coalesce(o.session, t.session, t.id) AS name, t.user FROM turns t"
            " LEFT JOIN outcomes o ON o.turn = t.id GROUP BY name, t.user ORDER BY min(t.seq)"
        )
        yield from self.rows(sql)

    def step(self, number: int) -> Step:
        """A step by its number."""
        row = self.row("SELECT number, metrics, seconds, skipped, baselines, at FROM steps WHERE number = ?", number)
        if row is None:
            raise missing("step", str(number))
        trained = self.rows("SELECT turn, part FROM trained WHERE step = ? ORDER BY turn", number)
        return Step(
            number=row[0],
            turns=tuple(turn for turn, _ in trained),
            parts={turn: json.loads(part) for turn, part in trained if part != "{}"},
            metrics=json.loads(row[1]),
            seconds=row[2],
            skipped=row[3],
            baselines={user: Baseline.read(written) for user, written in json.loads(row[4]).items()},
            at=row[5],
        )

    def steps_after(self, number: int, limit: int) -> list[int]:
        """The numbers of the steps after ``number``, oldest first."""
        return [
            n for (n,) in self.rows("SELECT number FROM steps WHERE number > ? ORDER BY number LIMIT ?", number, limit)
        ]

    def made_by(self, step: int) -> Version | None:
        """The version that a step made, None if it made none."""
        row = self.row(f"SELECT {VERSION} FROM versions v WHERE v.step = ? ORDER BY v.number LIMIT 1", step)
        return to_version(row, self.root) if row else None

    def version(self, number: int) -> Version:
        """A version by its number, in its present state."""
        row = self.row(f"SELECT {VERSION} FROM versions v WHERE v.number = ?", number)
        if row is None:
            raise missing("version", str(number))
        return to_version(row, self.root)

    def versions(self) -> list[Version]:
        """All versions, oldest first."""
        return [to_version(row, self.root) for row in self.rows(f"SELECT {VERSION} FROM versions v ORDER BY v.number")]

    def live_version(self) -> Version | None:
        """The version that new requests take, None before the first."""
        row = self.row("SELECT version FROM states WHERE state = 'live' ORDER BY seq DESC LIMIT 1")
        return self.version(row[0]) if row else None

    def reigns(self) -> list[tuple[int, float]]:
        """The number of each version that became live, and when, oldest first."""
        return self.rows("SELECT version, at FROM states WHERE state = 'live' ORDER BY seq")

    def pinned(self) -> set[int]:
        """Versions that a person asked to keep, and has not let go since."""
        found: set[int] = set()
        for verb, argument in self.rows(
            "SELECT verb, argument FROM requests WHERE verb IN ('pin', 'unpin') ORDER BY seq"
        ):
            number = json.loads(argument)["version"]
            found = found | {number} if verb == "pin" else found - {number}
        return found

    def group(self, user: str, group: str) -> tuple[int, int]:
        """How many sessions of a user play a group, and how many of its turns have neither a verdict nor a drop yet."""
        row = self.row(
            "SELECT count(DISTINCT coalesce(t.session, t.id)), coalesce(sum("
            " NOT EXISTS (SELECT 1 FROM verdicts v WHERE v.turn = t.id)"
            " AND NOT EXISTS (SELECT 1 FROM drops d WHERE d.turn = t.id)), 0)"
            " FROM turns t WHERE t.grp = ? AND t.user = ?",
            group,
            user,
        )
        return int(row[0]), int(row[1])

    def users(self) -> list[str]:
        """Everybody who has a turn. Cheap: from one name to the next, not over all turns."""
        rows = self.rows(
            "WITH RECURSIVE next(user) AS (SELECT min(user) FROM turns UNION ALL"
            " SELECT (SELECT min(t.user) FROM turns t WHERE t.user > next.user) FROM next WHERE user IS NOT NULL)"
            " SELECT user FROM next WHERE user IS NOT NULL"
        )
        return [row[0] for row in rows]

    def rules_given(self, limit: int) -> list[tuple[str, tuple[str, ...]]]:
        """User and rules of the newest verdicts that have any."""
        rows = self.rows(
            "SELECT t.user, v.hints FROM verdicts v JOIN turns t ON t.id = v.turn"
            " WHERE v.hints != '[]' ORDER BY v.seq DESC LIMIT ?",
            limit,
        )
        return [(user, rules(codec.hints(json.loads(hints)))) for user, hints in rows]

    def history(self, version: int) -> list[tuple[str, str, float]]:
        """State, reason and time of each change of a version, oldest first."""
        return self.rows("SELECT state, reason, at FROM states WHERE version = ? ORDER BY seq", version)

    def counts(self) -> dict[str, int]:
        """How many rows each table of facts has. Cheap: from the sequence numbers, not by counting."""
        tables = ("turns", "feedback", "endings", "outcomes", "verdicts", "drops")
        known = dict(self.rows("SELECT name, seq FROM sqlite_sequence"))
        counted = {table: int(known.get(table, 0)) for table in tables}
        for table in ("open_turns", "trained", "steps", "versions"):
            (counted[table],) = self.row(f"SELECT count(*) FROM {table}")
        return counted

    def newest(self, table: Literal["turns", "feedback", "outcomes", "verdicts", "requests"]) -> int:
        """The sequence number of a table's newest row, 0 if it has none: has anything come in?"""
        row = self.row("SELECT seq FROM sqlite_sequence WHERE name = ?", table)
        return row[0] if row else 0

    def last_turn_at(self) -> float | None:
        """When the newest turn was answered, None before the first."""
        row = self.row("SELECT at FROM turns ORDER BY seq DESC LIMIT 1")
        return row[0] if row else None

    def paused(self) -> str | None:
        """Why training is paused, None if it is not: the newest word of a person or of the alarms."""
        row = self.row(
            "SELECT verb, argument FROM requests WHERE verb IN ('pause', 'resume') ORDER BY seq DESC LIMIT 1"
        )
        return str(json.loads(row[1]).get("why", "asked for")) if row and row[0] == "pause" else None

    def carried_out(self, request: int) -> bool:
        """Whether the train loop is done with what a person asked."""
        row = self.row("SELECT seq FROM cursors WHERE name = 'requests'")
        return row is not None and row[0] >= request

    def backlog(self) -> int:
        """How many settled turns wait to be judged, trained or dropped."""
        marks = dict(self.rows("SELECT name, seq FROM cursors WHERE name IN ('outcomes', 'verdicts')"))
        (unjudged,) = self.row(
            "SELECT count(*) FROM outcomes o WHERE o.seq > ?"
            " AND NOT EXISTS (SELECT 1 FROM verdicts v WHERE v.turn = o.turn)",
            marks.get("outcomes", 0),
        )
        (unused,) = self.row(f"SELECT count(*) FROM verdicts v WHERE {UNTRAINED}", marks.get("verdicts", 0))
        return int(unjudged + unused)

    def drop_counts(self) -> dict[str, int]:
        """How many turns were dropped, by reason."""
        return dict(self.rows("SELECT reason, sum(n) FROM tallies GROUP BY reason ORDER BY 2 DESC"))

    def check(self) -> list[str]:
        """Read the whole file for damage: what is wrong, empty if nothing."""
        found = [row[0] for row in self.rows("PRAGMA quick_check(10)")]
        return [] if found == ["ok"] else found

    def health(self) -> list[dict[str, Any]]:
        """The newest word of each loop."""
        names = ("loop", "pid", "host", "state", "at", "moved", "failures", "error", "detail")
        rows = self.rows(f"SELECT {', '.join(names)} FROM health ORDER BY loop")
        return [dict(zip(names, (*row[:-1], json.loads(row[-1])), strict=True)) for row in rows]
