"""Best results among the versions promoted so far: the reference for small losses over many versions.

Each promotion's evidence carries them on, so that they outlive a restart and the versions themselves. A rollback
restores its target version's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self

from openclaw_rl.store import LedgerReader
from openclaw_rl.types import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class BestResults:
    """``tasks``: held-out tasks with the results of the version that solved most; empty if not measured.

    ``leans``: per correction's turn, any version's strongest alignment with the correction.
    """

    tasks: Mapping[str, bool] = field(default_factory=lambda: MappingProxyType({}))
    leans: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def read(cls, ledger: LedgerReader, live: Version) -> Self:
        """Read the results recorded when ``live``, or a version with equal weights, was promoted."""
        same = {version.number for version in ledger.versions() if version.adapter == live.adapter}
        for number in sorted(same, reverse=True):
            for decision in reversed(ledger.gate_decisions(number)):
                if decision.decision == "promote" and "best" in decision.evidence:
                    return cls(**decision.evidence["best"])
        return cls()

    def most_tasks(self, *results: Mapping[str, bool]) -> Mapping[str, bool]:
        """Return the results with the most solved tasks, the oldest on a tie."""
        return max((self.tasks, *results), key=lambda tasks: sum(tasks.values()))

    def farthest_leans(self, *leans: Mapping[str, float]) -> dict[str, float]:
        """Return the strongest alignment per correction in ``leans``; corrections no longer examined are left out."""
        turns = dict.fromkeys(turn for result in leans for turn in result)
        return {turn: max(result[turn] for result in (self.leans, *leans) if turn in result) for turn in turns}

    def json(self) -> dict[str, Any]:
        return {"tasks": dict(self.tasks), "leans": dict(self.leans)}
