"""Availability of the judge's model: when it may be asked, and when an unanswered case waits or is given up."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, NoReturn

from openclaw_rl.errors import JudgeUnavailable
from openclaw_rl.ports import Case

# The circuit breaker: after enough failures in a row, stop asking for a while, then try once.

State = Literal["closed", "open", "half open"]


class Breaker:
    """Counts failures in a row. Open for ``pause`` seconds, doubled with each further failure, up to ``longest``.

    After the pause one caller may try; its result closes the breaker or opens it again.
    """

    def __init__(
        self,
        *,
        failures: int,
        pause: float,
        longest: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit = failures
        self._first_pause = pause
        self._longest = longest
        self._clock = clock
        self._failed = 0
        self._pause = pause
        self._open_until: float | None = None
        self._probing = False
        self.reason = ""

    @property
    def state(self) -> State:
        """Return the state: closed admits all callers, open none, half open one."""
        if self._open_until is None:
            return "closed"
        return "half open" if self._clock() >= self._open_until else "open"

    @property
    def retry_in(self) -> float:
        """Return the seconds until the next try is allowed; 0 if one is allowed now."""
        return 0.0 if self._open_until is None else max(0.0, self._open_until - self._clock())

    def allow(self) -> bool:
        """Return True if the caller may try now. In the half-open state only the first caller may, until it reports."""
        state = self.state
        if state == "closed":
            return True
        if state == "open" or self._probing:
            return False
        self._probing = True
        return True

    def success(self) -> None:
        """Record a success: close, and reset the pause to a short one."""
        self._failed = 0
        self._pause = self._first_pause
        self._open_until = None
        self._probing = False
        self.reason = ""

    def release(self) -> None:
        """Release an admitted try that ended without a result (it was cancelled), so that another may run."""
        self._probing = False

    def failure(self, reason: str) -> None:
        """Record a failed try with its reason."""
        self._failed += 1
        self.reason = reason
        if self._probing:
            self._pause = min(2 * self._pause, self._longest)
        if self._probing or (self._failed >= self._limit and self._open_until is None):
            self._open_until = self._clock() + self._pause
        self._probing = False


PATIENCE = 600.0
"""seconds of nothing but unreadable answers after which a case is given up: longer than a model's restart"""
_TRIES = 3  # unreadable answers to one case, while others are answered, before it is given up
_REMEMBERED = 4096  # cases with unreadable answers


class TokenBudget:
    """A budget of tokens per UTC day; None is unlimited."""

    def __init__(self, limit: int | None, *, wall: Callable[[], float] = time.time) -> None:
        self.limit = limit
        self._wall = wall
        self._day = -1
        self._spent = 0

    @property
    def spent(self) -> int:
        """Return the tokens used today."""
        today = int(self._wall() // 86400)
        if today != self._day:
            self._day, self._spent = today, 0
        return self._spent

    @property
    def left(self) -> bool:
        """Return True if today's budget is not used up."""
        return self.limit is None or self.spent < self.limit

    def spend(self, tokens: int) -> None:
        """Record tokens as used."""
        self._spent = self.spent + tokens

    def renewal(self) -> str:
        """Return the start of the next day, for people to read."""
        midnight = (int(self._wall() // 86400) + 1) * 86400
        return datetime.fromtimestamp(midnight, UTC).isoformat(timespec="minutes")


@dataclass(slots=True)
class _Unreadable:
    """A case with only unreadable answers: the time of the first, and their number."""

    first: float
    tries: int = 0


class Availability:
    """Admits a case while budget and breaker allow it, and records each result.

    A case with only unreadable answers waits until the model answers other cases or ``patience`` seconds are over; then
    the fault is the case's own, and it is given up.
    """

    def __init__(
        self, breaker: Breaker, budget: TokenBudget, *, patience: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.breaker, self.budget = breaker, budget
        self._patience, self._clock = patience, clock
        self._unreadable: OrderedDict[str, _Unreadable] = OrderedDict()
        self._last_answer = float("-inf")

    def admit(self) -> None:
        """Return if the model may be asked; raises JudgeUnavailable otherwise."""
        if not self.budget.left:
            raise JudgeUnavailable(
                f"the judge has used its {self.budget.limit} tokens of today",
                remedy=f"judging resumes at {self.budget.renewal()}, or raise judge.llm.daily_tokens",
            )
        if not self.breaker.allow():
            raise JudgeUnavailable(
                f"judging is paused after failures ({self.breaker.reason})",
                remedy=f"it is retried in {self.breaker.retry_in:.0f} s; serving continues",
            )

    def cancelled(self) -> None:
        """Record that an admitted case ended without a result."""
        self.breaker.release()

    def answered(self, case: str) -> None:
        """Record that a case got at least one answer."""
        self._last_answer = self._clock()
        self.breaker.success()
        self._unreadable.pop(case, None)

    def failed(self, note: str) -> NoReturn:
        """Record that the model was unreachable; raises JudgeUnavailable."""
        self.breaker.failure(note)
        raise JudgeUnavailable(f"no vote could be had: {note}", remedy="the turn stays on the list")

    def unreadable(self, case: str, note: str) -> None:
        """Record a case without a readable answer: return if it is given up, raise JudgeUnavailable if it waits."""
        now = self._clock()
        record = self._unreadable.setdefault(case, _Unreadable(first=now))
        if len(self._unreadable) > _REMEMBERED:
            self._unreadable.popitem(last=False)
        record.tries += 1
        alone = record.tries >= _TRIES and self._last_answer > record.first
        if not alone and now - record.first < self._patience:
            self.failed(note)
        self.breaker.release()
        self._unreadable.pop(case, None)


# Cases whose judge was unavailable: when each is asked again, and which is given up.

TRIES = 8
"""failures of a case, with answers to other cases in between, before it is given up"""


@dataclass(slots=True)
class _Wait:
    """The number of answers and the time at a case's last try, and its failures while others were answered."""

    answers: int
    last_try: float = 0.0
    alone: int = 0


class WaitingList:
    """Cases to retry, through a breaker whose pause doubles up to ``longest_pause`` seconds: one first, then all."""

    def __init__(self, *, longest_pause: float, clock: Callable[[], float]) -> None:
        self.breaker = Breaker(failures=1, pause=min(1.0, longest_pause), longest=longest_pause, clock=clock)
        self._clock = clock
        self._waits: dict[str, _Wait] = {}
        self._answers = 0

    def __len__(self) -> int:
        return len(self._waits)

    def __contains__(self, turn: str) -> bool:
        return turn in self._waits

    def keep(self, turns: Collection[str]) -> None:
        """Forget every case that is not among ``turns``."""
        self._waits = {turn: wait for turn, wait in self._waits.items() if turn in turns}

    def remove(self, turn: str) -> None:
        """Remove a case that needs the judge no more."""
        self._waits.pop(turn, None)

    def choose(self, cases: Sequence[Case], *, most: int) -> list[Case]:
        """Return cases for the judge: waiting ones as the breaker allows, longest unasked first, then the new ones."""
        new = [case for case in cases if case.turn.id not in self._waits][:most]
        waited = [case for case in cases if case.turn.id in self._waits]
        waited.sort(key=lambda case: self._waits[case.turn.id].last_try)
        if not waited or not self.breaker.allow():
            return new
        return [*waited[: most if self.breaker.state == "closed" else 1], *new]

    def answered(self, turn: str) -> None:
        """Record that the judge answered this case."""
        self._answers += 1
        if self._waits.pop(turn, None) is not None:
            self.breaker.success()

    def failed(self, turn: str, why: str) -> bool:
        """Record that the judge was unavailable for this case; return True if it fails alone and must be given up."""
        self.breaker.failure(why)
        wait = self._waits.setdefault(turn, _Wait(answers=self._answers))
        if self._answers > wait.answers:
            wait.alone += 1
        wait.answers, wait.last_try = self._answers, self._clock()
        return wait.alone >= TRIES
