"""Whether the judge's model may be asked now, and whether a case without an answer waits or is given up."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NoReturn

from openclaw_rl.errors import JudgeUnavailable
from openclaw_rl.judge.breaker import Breaker

PATIENCE = 600.0
"""seconds of nothing but unreadable answers after which a case is given up: longer than a model takes to restart"""
_TRIES = 3  # unreadable answers to one case, while others are answered, before it is given up
_REMEMBERED = 4096  # cases with unreadable answers


class TokenBudget:
    """A budget of tokens per UTC day; None is without end."""

    def __init__(self, limit: int | None, *, wall: Callable[[], float] = time.time) -> None:
        self.limit = limit
        self._wall = wall
        self._day = -1
        self._spent = 0

    @property
    def spent(self) -> int:
        """Tokens used today."""
        today = int(self._wall() // 86400)
        if today != self._day:
            self._day, self._spent = today, 0
        return self._spent

    @property
    def left(self) -> bool:
        """Whether anything may still be asked today."""
        return self.limit is None or self.spent < self.limit

    def spend(self, tokens: int) -> None:
        """Note tokens as used."""
        self._spent = self.spent + tokens

    def renewal(self) -> str:
        """When the next day begins, for people to read."""
        midnight = (int(self._wall() // 86400) + 1) * 86400
        return datetime.fromtimestamp(midnight, UTC).isoformat(timespec="minutes")


@dataclass(slots=True)
class _Unreadable:
    """A case that got only unreadable answers: since when, how often."""

    first: float
    tries: int = 0


class Availability:
    """Admits a case while budget and breaker allow it, and learns from how each went.

    A case that gets only unreadable answers waits until the model answers other cases or ``patience`` seconds are over;
    then the fault is the case's own, and it is given up.
    """

    def __init__(
        self, breaker: Breaker, budget: TokenBudget, *, patience: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.breaker, self.budget = breaker, budget
        self._patience, self._clock = patience, clock
        self._unreadable: OrderedDict[str, _Unreadable] = OrderedDict()
        self._last_answer = float("-inf")

    def admit(self) -> None:
        """Return where the model may be asked; raises JudgeUnavailable where it may not."""
        if not self.budget.left:
            raise JudgeUnavailable(
                f"the judge has used its {self.budget.limit} tokens of today",
                remedy=f"it goes on at {self.budget.renewal()}, or raise judge.llm.daily_tokens",
            )
        if not self.breaker.allow():
            raise JudgeUnavailable(
                f"judging is paused after failures ({self.breaker.reason})",
                remedy=f"it is tried again in {self.breaker.retry_in:.0f} s; serving is not touched",
            )

    def cancelled(self) -> None:
        """A case that was admitted ended without a result."""
        self.breaker.release()

    def answered(self, case: str) -> None:
        """A case got at least one answer."""
        self._last_answer = self._clock()
        self.breaker.success()
        self._unreadable.pop(case, None)

    def failed(self, note: str) -> NoReturn:
        """The model was out of reach: raises JudgeUnavailable."""
        self.breaker.failure(note)
        raise JudgeUnavailable(f"no vote could be had: {note}", remedy="the turn stays on the list")

    def unreadable(self, case: str, note: str) -> None:
        """A case got no answer that can be read: return where it is given up, raise JudgeUnavailable where it waits."""
        now = self._clock()
        known = self._unreadable.setdefault(case, _Unreadable(first=now))
        if len(self._unreadable) > _REMEMBERED:
            self._unreadable.popitem(last=False)
        known.tries += 1
        alone = known.tries >= _TRIES and self._last_answer > known.first
        if not alone and now - known.first < self._patience:
            self.failed(note)
        self.breaker.release()
        self._unreadable.pop(case, None)
