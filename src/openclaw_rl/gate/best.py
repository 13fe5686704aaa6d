"""The best results of the versions promoted so far: small losses of many versions are counted from there.

The evidence of each promotion carries them on, so that they outlive a restart and the versions themselves. A rollback
goes back to those of the version that it restores.
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
    """``tasks``: held-out tasks by whether the version that solved most of them solved each; empty: none was measured.

    ``leans``: by turn, how far the version that followed a correction best leans the way it points.
    """

    tasks: Mapping[str, bool] = field(default_factory=lambda: MappingProxyType({}))
    leans: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def read(cls, ledger: LedgerReader, live: Version) -> Self:
        """Those of the line that ends with ``live``, as its promotion recorded them."""
        same = {version.number for version in ledger.versions() if version.adapter == live.adapter}
        for number in sorted(same, reverse=True):
            for decision in reversed(ledger.gate_decisions(number)):
                if decision.decision == "promote" and "best" in decision.evidence:
                    return cls(**decision.evidence["best"])
        return cls()

    def most_tasks(self, *results: Mapping[str, bool]) -> Mapping[str, bool]:
        """The results with the most solved tasks, the older of equals."""
        return max((self.tasks, *results), key=lambda found: sum(found.values()))

    def farthest_leans(self, *leans: Mapping[str, float]) -> dict[str, float]:
        """Of each correction of ``leans`` the farthest lean; corrections that are examined no more are left out."""
        turns = dict.fromkeys(turn for each in leans for turn in each)
        return {turn: max(each[turn] for each in (self.leans, *leans) if turn in each) for turn in turns}

    def json(self) -> dict[str, Any]:
        return {"tasks": dict(self.tasks), "leans": dict(self.leans)}
