"""Reading the ledger, while the system runs or not."""

from __future__ import annotations

import json
from typing import Literal

from openclaw_rl.store.browse import BrowseQueries
from openclaw_rl.store.deletions import DeletionQueries
from openclaw_rl.store.notes import NoteQueries
from openclaw_rl.store.results import LoopHealth
from openclaw_rl.store.rows import UNTRAINED
from openclaw_rl.store.turns import TurnQueries
from openclaw_rl.store.versions import VersionQueries
from openclaw_rl.types import DropReason


class LedgerReader(TurnQueries, VersionQueries, NoteQueries, BrowseQueries, DeletionQueries):
    """Every query that does not change the ledger; a connection of this class cannot write."""

    def counts(self) -> dict[str, int]:
        """How many rows each table of facts has: without counting them, where the store can.

        A turn may have several verdicts, the last of which counts: ``judged_turns`` are turns that have any.
        """
        tables = ("turns", "feedback", "endings", "outcomes", "verdicts", "drops")
        counted = {table: self.db.count(table) for table in tables}
        for table in ("open_turns", "trained", "steps", "versions"):
            counted[table] = self.one(f"SELECT count(*) AS n FROM {table}")["n"]
        counted["judged_turns"] = self.one("SELECT count(DISTINCT turn) AS n FROM verdicts")["n"]
        return counted

    def stale_and_trained(self, since: float) -> tuple[int, int]:
        """How many turns were dropped as stale since a time, and how many have trained."""
        stale = self.one("SELECT count(*) AS n FROM drops WHERE reason = 'stale' AND at >= ?", since)
        trained = self.one(
            "SELECT count(*) AS n FROM trained WHERE step >= (SELECT min(number) FROM steps WHERE at >= ?)", since
        )
        return int(stale["n"]), int(trained["n"])

    def newest(self, table: Literal["turns", "feedback", "outcomes", "verdicts", "requests", "deletions"]) -> int:
        """The sequence number of a table's newest row, 0 if it has none: has anything come in?"""
        return int(self.one(f"SELECT coalesce(max(seq), 0) AS newest FROM {table}")["newest"])

    def backlog(self) -> int:
        """How many settled turns wait to be judged, trained or dropped."""
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
        """How many turns were dropped, by reason."""
        rows = self.rows("SELECT reason, sum(n) AS n FROM tallies GROUP BY reason ORDER BY sum(n) DESC")
        return {row["reason"]: row["n"] for row in rows}

    def check(self) -> list[str]:
        """Read the whole ledger for damage: what is wrong, empty if nothing."""
        with self.lock:
            return self.db.faults()

    def size(self) -> int:
        """How many bytes the ledger takes."""
        with self.lock:
            return self.db.size()

    def health(self) -> list[LoopHealth]:
        """The newest report of each loop."""
        rows = self.rows("SELECT loop, pid, host, state, at, moved, failures, error, detail FROM health ORDER BY loop")
        return [LoopHealth(**{**dict(row), "detail": json.loads(row["detail"])}) for row in rows]
