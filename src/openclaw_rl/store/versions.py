"""Queries about steps and versions, the gate's decisions on them, and what people ask of them."""

from __future__ import annotations

import json
from typing import Literal

from openclaw_rl.ports import GateDecision
from openclaw_rl.store.connection import LedgerConnection, missing
from openclaw_rl.store.database import Row
from openclaw_rl.store.results import LiveSince, StateChange
from openclaw_rl.store.rows import VERSION, to_version
from openclaw_rl.types import Baseline, Step, Version, VersionState


class VersionQueries(LedgerConnection):
    """What is known of steps and versions."""

    def step(self, number: int) -> Step:
        """A step by its number."""
        row = self.row("SELECT metrics, seconds, skipped, baselines, at FROM steps WHERE number = ?", number)
        if row is None:
            raise missing("step", str(number))
        trained = self.rows("SELECT turn, part FROM trained WHERE step = ? ORDER BY turn", number)
        return Step(
            number=number,
            turns=tuple(each["turn"] for each in trained),
            parts={each["turn"]: json.loads(each["part"]) for each in trained if each["part"] != "{}"},
            metrics=json.loads(row["metrics"]),
            seconds=row["seconds"],
            skipped=row["skipped"],
            baselines={user: Baseline.read(written) for user, written in json.loads(row["baselines"]).items()},
            at=row["at"],
        )

    def last_step(self) -> Step | None:
        """The newest step, None before the first."""
        row = self.row("SELECT number FROM steps ORDER BY number DESC LIMIT 1")
        return self.step(row["number"]) if row else None

    def steps_after(self, number: int, limit: int) -> list[int]:
        """The numbers of the steps after ``number``, oldest first."""
        rows = self.rows("SELECT number FROM steps WHERE number > ? ORDER BY number LIMIT ?", number, limit)
        return [row["number"] for row in rows]

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

    def last_live(self) -> int | None:
        """The number of the version that became live last, None before the first."""
        row = self.row("SELECT version FROM states WHERE state = 'live' ORDER BY seq DESC LIMIT 1")
        return row["version"] if row else None

    def live_history(self) -> list[LiveSince]:
        """Each version that became live, and when, oldest first."""
        rows = self.rows("SELECT version, at FROM states WHERE state = 'live' ORDER BY seq")
        return [LiveSince(**dict(row)) for row in rows]

    def history(self, version: int) -> list[StateChange]:
        """Each change of a version's state, oldest first."""
        rows = self.rows("SELECT state, reason, at FROM states WHERE version = ? ORDER BY seq", version)
        return [StateChange(**dict(row)) for row in rows]

    def ever(self, state: VersionState) -> set[int]:
        """The numbers of versions that were in a state once, whatever became of them since."""
        return {row["version"] for row in self.rows("SELECT DISTINCT version FROM states WHERE state = ?", state)}

    # --- the gate's decisions ---

    def gate_decisions(self, version: int) -> list[GateDecision]:
        """Every decision of the gate on a version, oldest first."""
        rows = self.rows(
            "SELECT version, against, decision, reason, evidence, seconds, at FROM gate_decisions WHERE version = ?"
            " ORDER BY seq",
            version,
        )
        return [GateDecision(**{**dict(row), "evidence": json.loads(row["evidence"])}) for row in rows]

    def replays(self, turn: str) -> list[GateDecision]:
        """The decisions that show how a candidate answered a turn's prompt again, oldest first."""
        rows = self.rows(
            "SELECT DISTINCT version FROM gate_decisions WHERE evidence LIKE ? ORDER BY version",
            f'%"turn": "{turn}"%',
        )
        return [decision for row in rows for decision in self.gate_decisions(row["version"])]

    # --- what people requested ---

    def pinned(self) -> set[int]:
        """The versions that a person pinned and has not unpinned since."""
        return {row["version"] for row in self._pins("version")}

    def pinned_turns(self) -> list[str]:
        """The turns that a person pinned and has not unpinned since, in the order of pinning."""
        return [row["turn"] for row in self._pins("turn")]

    def _pins(self, column: Literal["version", "turn"]) -> list[Row]:
        return self.rows(
            f"SELECT r.{column} FROM requests r WHERE r.command = 'pin {column}' AND NOT EXISTS ("
            f" SELECT 1 FROM requests s WHERE s.command IN ('pin {column}', 'unpin {column}')"
            f" AND s.{column} = r.{column} AND s.seq > r.seq) ORDER BY r.seq"
        )

    def paused(self) -> str | None:
        """Why training is paused, None if it is not: the newest request of a person or of the alarms counts."""
        row = self.row(
            "SELECT command, reason FROM requests WHERE command IN ('pause', 'resume') ORDER BY seq DESC LIMIT 1"
        )
        return str(row["reason"]) if row and row["command"] == "pause" else None

    def carried_out(self, request: int) -> bool:
        """Whether the train loop is done with a request."""
        row = self.row("SELECT seq FROM cursors WHERE name = 'requests'")
        return row is not None and row["seq"] >= request

    def version_of_request(self, request: int) -> Version | None:
        """The version that a request for a rollback made, None if it made none."""
        row = self.row(f"SELECT {VERSION} FROM versions v WHERE v.request = ?", request)
        return to_version(row, self.root) if row else None
