"""What the service has been asked to do today, in tokens and by estimate in money; and where it ends."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from openclaw_rl.errors import BackendGone

KINDS: Final = ("prefill", "sample", "train")
"""what is done with a token, as prices name it"""
_SECONDS: Final = 1.0
"""between two writes of the file, and two looks at those of other processes"""
_MILLION: Final = 1e6


class Spending:
    """The tokens of today (UTC), of this process and of others of the same run. Each writes a file of its own."""

    def __init__(
        self,
        run_dir: Path,
        *,
        prices: Mapping[str, float],
        budget: float | None,
        clock: Callable[[], float] = time.time,
        owner: str | None = None,
    ) -> None:
        self._folder = run_dir / "cloud"
        self._prices, self._budget, self._clock = prices, budget, clock
        self._owner = owner or f"{os.getpid()}-{id(self)}"
        self._day = ""
        self._own = dict.fromkeys(KINDS, 0)
        self._others = 0.0
        self._written = self._looked = float("-inf")

    def add(self, **tokens: int) -> None:
        """Count tokens by what was done with them: ``add(prefill=12, sample=3)``."""
        self._turn_page()
        for kind, count in tokens.items():
            self._own[kind] += count
        if self._clock() - self._written >= _SECONDS:
            self.write()

    def cost(self, tokens: Mapping[str, int]) -> float:
        """The money for so many tokens, by the prices that were given."""
        return sum(count * self._prices.get(kind, 0.0) for kind, count in tokens.items()) / _MILLION

    @property
    def tokens(self) -> Mapping[str, int]:
        """Of this process, today."""
        self._turn_page()
        return dict(self._own)

    @property
    def today(self) -> float:
        """The money that today's tokens of all processes cost, by estimate."""
        self._turn_page()
        if self._clock() - self._looked >= _SECONDS:
            self._looked, self._others = self._clock(), self._of_others()
        return self.cost(self._own) + self._others

    def refuse_beyond(self) -> None:
        """Raise BackendGone once the budget of the day is spent."""
        if self._budget is not None and self.today >= self._budget:
            raise BackendGone(
                f"cloud.daily_budget = {self._budget:g} is spent: {self.today:.2f} by estimate since midnight (UTC)",
                remedy="raise it, or wait for tomorrow",
            )

    def write(self) -> None:
        """Put what this process has used where others see it."""
        self._written = self._clock()
        self._folder.mkdir(parents=True, exist_ok=True)
        draft = self._folder / f".{self._owner}.tmp"
        draft.write_text(json.dumps(self._own))
        draft.replace(self._file(self._owner))

    def _turn_page(self) -> None:
        day = datetime.fromtimestamp(self._clock(), UTC).date().isoformat()
        if day != self._day:
            self._day, self._own, self._others = day, dict.fromkeys(KINDS, 0), 0.0
            self._written = self._looked = float("-inf")

    def _of_others(self) -> float:
        mine = self._file(self._owner)
        return sum(self.cost(_read(file)) for file in self._folder.glob(f"{self._day}.*.json") if file != mine)

    def _file(self, owner: str) -> Path:
        return self._folder / f"{self._day}.{owner}.json"


def _read(file: Path) -> Mapping[str, int]:
    try:
        found: dict[str, int] = json.loads(file.read_text())
    except (OSError, ValueError):  # it is being replaced: the next look finds it
        return {}
    return found
