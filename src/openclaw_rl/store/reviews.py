"""What the gate, the watch and a person who asks "why" read from the ledger, and the gate's rulings."""

from __future__ import annotations

import json
from dataclasses import dataclass

from openclaw_rl.ports import GateDecision
from openclaw_rl.store import codec
from openclaw_rl.store.file import LedgerFile
from openclaw_rl.store.rows import insert
from openclaw_rl.types import VersionState, rules

PIN, UNPIN = "pin turn", "unpin turn"
"""how a person asks that a turn be an example for the gate, and no longer"""

_SCORED = (
    " FROM verdicts v JOIN turns t ON t.id = v.turn JOIN outcomes o ON o.turn = v.turn AND o.kind = 'main'"
    " WHERE v.score IS NOT NULL AND t.trainable"
    " AND NOT EXISTS (SELECT 1 FROM verdicts w WHERE w.turn = v.turn AND w.seq > v.seq)"
)
_FALLEN = "EXISTS (SELECT 1 FROM states s WHERE s.version = v.number AND s.state IN ('refused', 'rolled back'))"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One judged main turn, as the watch sees it: who answered whom, how it went, the rules that were asked for."""

    turn: str
    version: int
    user: str
    score: float
    rules: tuple[str, ...] = ()


class Reviews(LedgerFile):
    """Questions about versions and what they were made of."""

    def add_ruling(self, ruling: GateDecision) -> None:
        """Write what the gate decided, with its numbers and examples."""
        row = {name: getattr(ruling, name) for name in ("version", "against", "decision", "reason", "seconds", "at")}
        with self.writing("train") as db:
            insert(db, "rulings", row | {"evidence": json.dumps(dict(ruling.evidence), ensure_ascii=False)})

    def rulings(self, version: int) -> list[GateDecision]:
        """Every ruling on a version, oldest first."""
        names = ("version", "against", "decision", "reason", "evidence", "seconds", "at")
        found = self.rows(f"SELECT {', '.join(names)} FROM rulings WHERE version = ? ORDER BY seq", version)
        return [GateDecision(**{**dict(zip(names, row, strict=True)), "evidence": json.loads(row[4])}) for row in found]

    def replayed(self, turn: str) -> list[GateDecision]:
        """The rulings that show how a candidate answered a turn's prompt again, oldest first."""
        found = self.rows("SELECT DISTINCT version FROM rulings WHERE evidence LIKE ? ORDER BY version", f'%"{turn}"%')
        return [ruling for (version,) in found for ruling in self.rulings(version)]

    def scored(self, limit: int) -> list[Scored]:
        """The newest judged main turns that have a score, oldest first."""
        found = self.rows(
            f"SELECT t.id, t.version, t.user, v.score, v.hints{_SCORED} ORDER BY t.seq DESC LIMIT ?", limit
        )
        return [
            Scored(turn=turn, version=version, user=user, score=score, rules=_rules(hints))
            for turn, version, user, score, hints in reversed(found)
        ]

    def bad_rates(self) -> dict[int, tuple[int, int]]:
        """By version that answered: how many of its scored main turns were bad, and how many there are."""
        found = self.rows(f"SELECT t.version, sum(v.score < 0), count(*){_SCORED} GROUP BY t.version")
        return {version: (bad, count) for version, bad, count in found}

    def corrections(self, limit: int, *, before: float) -> list[str]:
        """The newest main turns judged before a moment whose verdict asks for a rule, newest first."""
        found = self.rows(
            "SELECT v.turn, v.hints FROM verdicts v JOIN outcomes o ON o.turn = v.turn AND o.kind = 'main'"
            " WHERE v.at <= ? AND v.hints != '[]'"
            " AND NOT EXISTS (SELECT 1 FROM verdicts w WHERE w.turn = v.turn AND w.seq > v.seq)"
            " ORDER BY v.seq DESC LIMIT ?",
            before,
            limit * 4,  # hints that are no rules are passed by
        )
        return [turn for turn, hints in found if _rules(hints)][:limit]

    def examples(self) -> list[str]:
        """The turns that a person pinned and has not let go, in the order of pinning."""
        found: dict[str, None] = {}
        for verb, argument in self.rows(
            "SELECT verb, argument FROM requests WHERE verb IN (?, ?) ORDER BY seq", PIN, UNPIN
        ):
            turn = json.loads(argument)["turn"]
            found.pop(turn, None)
            if verb == PIN:
                found[turn] = None
        return list(found)

    def fallen(self, turn: str) -> tuple[int, str] | None:
        """The refused or rolled back version that a turn trained, and which of the two it is; None if there is none."""
        row = self.row(
            "SELECT v.number, (SELECT s.state FROM states s WHERE s.version = v.number"
            "  AND s.state IN ('refused', 'rolled back') ORDER BY s.seq DESC LIMIT 1)"
            f" FROM trained x JOIN versions v ON v.step = x.step WHERE x.turn = ? AND {_FALLEN}"
            " ORDER BY v.number LIMIT 1",
            turn,
        )
        return (row[0], row[1]) if row else None

    def ever(self, state: VersionState) -> set[int]:
        """The numbers of versions that were in a state once, whatever became of them since."""
        return {number for (number,) in self.rows("SELECT DISTINCT version FROM states WHERE state = ?", state)}


def _rules(hints: str) -> tuple[str, ...]:
    return rules(codec.hints(json.loads(hints)))
