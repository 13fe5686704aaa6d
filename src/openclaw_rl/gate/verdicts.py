"""Do the verdicts that trained a candidate contradict what users plainly wrote?"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from openclaw_rl.gate.checks import Check, GateLimits, check_verdicts
from openclaw_rl.ports import Case
from openclaw_rl.store import LedgerReader
from openclaw_rl.types import Version

EARLIER_STEPS = 4
"""steps before one whose judge is in doubt that count as well"""


class VerdictCheck:
    """Compares a step's verdicts with the score that users' own words give (None where they give none)."""

    def __init__(self, ledger: LedgerReader, user_score: Callable[[Case], float | None], *, limits: GateLimits) -> None:
        self._ledger, self._user_score, self._limits = ledger, user_score, limits

    def check(self, candidate: Version) -> Check:
        """A judge whom users contradict, or never confirm in this step, is in doubt: the steps before count as well."""
        if candidate.step is None:
            return check_verdicts(0, 0, limits=self._limits)
        found = list(self._agreements(candidate.step))
        confirmed = {judge for judge, agrees in found if agrees}
        doubted = {judge for judge, agrees in found if agrees is False or judge not in confirmed}
        for number in range(max(candidate.step - EARLIER_STEPS, 1), candidate.step) if doubted else ():
            found += [one for one in self._agreements(number) if one[0] in doubted]
        both = [agrees for _, agrees in found if agrees is not None]
        return check_verdicts(both.count(False), len(both), limits=self._limits)

    def _agreements(self, step: int) -> Iterator[tuple[str, bool | None]]:
        """Of each verdict of a step: the judge, and whether the user's own words agree; None where they say nothing."""
        for name in self._ledger.step(step).turns:
            verdict, outcome = self._ledger.verdict(name), self._ledger.outcome(name)
            if verdict is None or outcome is None or verdict.source != "judge" or not verdict.score:
                continue
            plain = self._user_score(Case(turn=self._ledger.turn(name), outcome=outcome))
            yield verdict.judge, (plain > 0) == (verdict.score > 0) if plain else None
