"""The live monitor: looks for a regression in the newest evidence of the ledger."""

from __future__ import annotations

from openclaw_rl.gate.regression import MonitorRules, find_regression
from openclaw_rl.ports import Regression
from openclaw_rl.store import LedgerReader

REACH = 1000
"""judged turns that the monitor looks back on"""


class VersionMonitor:
    """Looks at the newest evidence whenever there is any."""

    def __init__(self, ledger: LedgerReader, *, rules: MonitorRules) -> None:
        self._ledger = ledger
        self._rules = rules
        self._seen = -1

    def check(self) -> Regression | None:
        """The regression that the evidence shows, None while there is none."""
        newest = self._ledger.newest("verdicts")
        if newest == self._seen:
            return None
        self._seen = newest
        return find_regression(self._ledger.scored(REACH), self._ledger.versions(), rules=self._rules)
