"""Reading the ledger, while the system runs or not."""

from __future__ import annotations

import json
from typing import Literal

from openclaw_rl.ports import GateDecision
from openclaw_rl.store.browse import BrowseQueries
from openclaw_rl.store.connection import LedgerConnection, missing
from openclaw_rl.store.database import Row
from openclaw_rl.store.deletions import DeletionQueries
from openclaw_rl.store.notes import NoteQueries
from openclaw_rl.store.results import LiveSince, LoopHealth, StateChange
from openclaw_rl.store.rows import UNTRAINED, VERSION, to_version
from openclaw_rl.store.turns import TurnQueries
from openclaw_rl.types import Baseline, DropReason, Step, Version, VersionState

# Queries about steps, versions, the gate's decisions on them, and users' requests.


class VersionQueries(LedgerConnection):
    """Queries about steps and versions."""

    def step(self, number: int) -> Step:
        """Return the step with this number."""
        row = self.row("SELECT metrics, seconds, skipped, baselines, at FROM steps WHERE number = ?", number)
        if row is None:
            raise missing("step", str(number))
        trained = self.rows("SELECT turn, part FROM trained WHERE step = ? ORDER BY turn", number)
        return Step(
            number=number,
            turns=tuple(part["turn"] for part in trained),
            parts={part["turn"]: json.loads(part["part"]) for part in trained if part["part"] != "{}"},
            metrics=json.loads(row["metrics"]),
            seconds=row["seconds"],
            skipped=row["skipped"],
            baselines={user: Baseline.read(written) for user, written in json.loads(row["baselines"]).items()},
            at=row["at"],
        )

    def last_step(self) -> Step | None:
        """Return the newest step, None before the first."""
        row = self.row("SELECT number FROM steps ORDER BY number DESC LIMIT 1")
        return self.step(row["number"]) if row else None

    def steps_after(self, number: int, limit: int) -> list[int]:
        """Return the numbers of the steps after ``number``, oldest first."""
        rows = self.rows("SELECT number FROM steps WHERE number > ? ORDER BY number LIMIT ?", number, limit)
        return [row["number"] for row in rows]

    def made_by(self, step: int) -> Version | None:
        """Return the version that a step made, None if it made none."""
        row = self.row(f"SELECT {VERSION} FROM versions v WHERE v.step = ? ORDER BY v.number LIMIT 1", step)
        return to_version(row, self.root) if row else None

    def version(self, number: int) -> Version:
        """Return the version with this number, in its present state."""
        row = self.row(f"SELECT {VERSION} FROM versions v WHERE v.number = ?", number)
        if row is None:
            raise missing("version", str(number))
        return to_version(row, self.root)

    def versions(self) -> list[Version]:
        """Return all versions, oldest first."""
        return [to_version(row, self.root) for row in self.rows(f"SELECT {VERSION} FROM versions v ORDER BY v.number")]

    def last_live(self) -> int | None:
        """Return the number of the version that became live last, None before the first."""
        row = self.row("SELECT version FROM states WHERE state = 'live' ORDER BY seq DESC LIMIT 1")
        return row["version"] if row else None

    def live_history(self) -> list[LiveSince]:
        """Return each version that became live, with the time, oldest first."""
        rows = self.rows("SELECT version, at FROM states WHERE state = 'live' ORDER BY seq")
        return [LiveSince(**dict(row)) for row in rows]

    def history(self, version: int) -> list[StateChange]:
        """Return each change to a version's state, oldest first."""
        rows = self.rows("SELECT state, reason, at FROM states WHERE version = ? ORDER BY seq", version)
        return [StateChange(**dict(row)) for row in rows]

    def ever(self, state: VersionState) -> set[int]:
        """Return the numbers of versions that ever had a state."""
        return {row["version"] for row in self.rows("SELECT DISTINCT version FROM states WHERE state = ?", state)}

    # --- the gate's decisions ---

    def gate_decisions(self, version: int) -> list[GateDecision]:
        """Return the gate's decisions on a version, oldest first."""
        rows = self.rows(
            "SELECT version, against, decision, reason, evidence, seconds, at FROM gate_decisions WHERE version = ?"
            " ORDER BY seq",
            version,
        )
        return [GateDecision(**{**dict(row), "evidence": json.loads(row["evidence"])}) for row in rows]

    def replays(self, turn: str) -> list[GateDecision]:
        """Return the decisions that contain a candidate's new answer to a turn's prompt, oldest first."""
        rows = self.rows(
            "SELECT DISTINCT version FROM gate_decisions WHERE evidence LIKE ? ORDER BY version",
            f'%"turn": "{turn}"%',
        )
        return [decision for row in rows for decision in self.gate_decisions(row["version"])]

    # --- users' requests ---

    def pinned(self) -> set[int]:
        """Return the versions that are pinned."""
        return {row["version"] for row in self._pins("version")}

    def pinned_turns(self) -> list[str]:
        """Return the turns that are pinned, in the order of pinning."""
        return [row["turn"] for row in self._pins("turn")]

    def _pins(self, column: Literal["version", "turn"]) -> list[Row]:
        return self.rows(
            f"SELECT r.{column} FROM requests r WHERE r.command = 'pin {column}' AND NOT EXISTS ("
            f" SELECT 1 FROM requests s WHERE s.command IN ('pin {column}', 'unpin {column}')"
            f" AND s.{column} = r.{column} AND s.seq > r.seq) ORDER BY r.seq"
        )

    def paused(self) -> str | None:
        """Return why training is paused, None if it is not: the newest request by a person or an alarm counts."""
        row = self.row(
            "SELECT command, reason FROM requests WHERE command IN ('pause', 'resume') ORDER BY seq DESC LIMIT 1"
        )
        return str(row["reason"]) if row and row["command"] == "pause" else None

    def carried_out(self, request: int) -> bool:
        """Check if the train loop has finished a request."""
        row = self.row("SELECT seq FROM cursors WHERE name = 'requests'")
        return row is not None and row["seq"] >= request

    def version_of_request(self, request: int) -> Version | None:
        """Return the version that a rollback request made, None if it made none."""
        row = self.row(f"SELECT {VERSION} FROM versions v WHERE v.request = ?", request)
        return to_version(row, self.root) if row else None


class LedgerReader(TurnQueries, VersionQueries, NoteQueries, BrowseQueries, DeletionQueries):
    """All queries that do not change the ledger; a connection with this class cannot write."""

    def counts(self) -> dict[str, int]:
        """Return the row count of each fact table, without counting if the store can.

        A turn may have several verdicts, the last of which counts: ``judged_turns`` are turns with any.
        """
        tables = ("turns", "feedback", "endings", "outcomes", "verdicts", "drops")
        counts = {table: self.db.count(table) for table in tables}
        for table in ("open_turns", "trained", "steps", "versions"):
            counts[table] = self.one(f"SELECT count(*) AS n FROM {table}")["n"]
        counts["judged_turns"] = self.one("SELECT count(DISTINCT turn) AS n FROM verdicts")["n"]
        return counts

    def stale_and_trained(self, since: float) -> tuple[int, int]:
        """Count the turns dropped as stale since a time, and those that have trained."""
        stale = self.one("SELECT count(*) AS n FROM drops WHERE reason = 'stale' AND at >= ?", since)
        trained = self.one(
            "SELECT count(*) AS n FROM trained WHERE step >= (SELECT min(number) FROM steps WHERE at >= ?)", since
        )
        return int(stale["n"]), int(trained["n"])

    def newest(self, table: Literal["turns", "feedback", "outcomes", "verdicts", "requests", "deletions"]) -> int:
        """Return the sequence number of a table's newest row, 0 without one, to check for new rows."""
        return int(self.one(f"SELECT coalesce(max(seq), 0) AS newest FROM {table}")["newest"])

    def backlog(self) -> int:
        """Count the settled turns that wait to be judged, trained or dropped."""
        rows = self.rows("SELECT name, seq FROM cursors WHERE name IN ('outcomes', 'verdicts')")
        marks = {row["name"]: row["seq"] for row in rows}
        unjudged = self.one(
            "SELECT count(*) AS n FROM outcomes o WHERE o.seq > ?"
            " AND NOT EXISTS (SELECT 1 FROM verdicts v WHERE v.turn = o.turn)",
            marks.get("outcomes", 0),
        )
        unused = self.one(f"SELECT count(*) AS n FROM verdicts v WHERE {UNTRAINED}", marks.get("verdicts", 0))
        return int(unjudged["n"] + unused["n"])

    def drop_counts(self) -> dict[DropReason, int]:
        """Count dropped turns by reason."""
        rows = self.rows("SELECT reason, sum(n) AS n FROM tallies GROUP BY reason ORDER BY sum(n) DESC")
        return {row["reason"]: row["n"] for row in rows}

    def check(self) -> list[str]:
        """Read the whole ledger for damage; return the faults, empty without any."""
        with self.lock:
            return self.db.faults()

    def size(self) -> int:
        """Return the ledger's size in bytes."""
        with self.lock:
            return self.db.size()

    def health(self) -> list[LoopHealth]:
        """Return each loop's newest report."""
        rows = self.rows("SELECT loop, pid, host, state, at, moved, failures, error, detail FROM health ORDER BY loop")
        return [LoopHealth(**{**dict(row), "detail": json.loads(row["detail"])}) for row in rows]
