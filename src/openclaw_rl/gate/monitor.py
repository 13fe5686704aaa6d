"""The live monitor: looks for a regression in the newest evidence of the ledger."""

from __future__ import annotations

from openclaw_rl.gate.regression import MonitorRules, find_regression
from openclaw_rl.ports import Regression
from openclaw_rl.preferences.wording import put
from openclaw_rl.store import LedgerReader
from openclaw_rl.versions import LiveVersions

REACH = 1000
"""judged turns that the monitor looks back on"""


class VersionMonitor:
    """Looks at the newest evidence whenever there is any."""

    def __init__(self, ledger: LedgerReader, *, rules: MonitorRules) -> None:
        self._ledger = ledger
        self._versions = LiveVersions(ledger)
        self._rules = rules
        self._seen = -1

    def check(self) -> Regression | None:
        """The regression that the evidence shows, None while there is none."""
        newest = self._ledger.newest("verdicts")
        if newest == self._seen:
            return None
        self._seen = newest
        live = self._versions.live()
        if live is None:
            return None
        return find_regression(
            self._ledger.scored(REACH),
            self._versions.versions(),
            live=live,
            rules=self._rules,
            notes={note.number: put(note) for note in self._ledger.notes()},
        )
