"""Whether the judge's model may be asked now, and whether a case without an answer waits or is given up."""

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
    """Counts failures in a row. Open for ``pause`` seconds, twice as long each time it fails again, up to ``longest``.

    After the pause one caller is let through; its result closes the breaker or opens it again.
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
        """Closed lets all through, open none, half open one."""
        if self._open_until is None:
            return "closed"
        return "half open" if self._clock() >= self._open_until else "open"

    @property
    def retry_in(self) -> float:
        """Seconds until the next try is let through; 0 when one may go now."""
        return 0.0 if self._open_until is None else max(0.0, self._open_until - self._clock())

    def allow(self) -> bool:
        """Whether the caller may try now. In the half-open state only the first caller may, until it reports."""
        state = self.state
        if state == "closed":
            return True
        if state == "open" or self._probing:
            return False
        self._probing = True
        return True

    def success(self) -> None:
        """A try worked: closed, and the next pause is a short one again."""
        self._failed = 0
        self._pause = self._first_pause
        self._open_until = None
        self._probing = False
        self.reason = ""

    def release(self) -> None:
        """The one let through ended without a result (it was cancelled): another may try."""
        self._probing = False

    def failure(self, reason: str) -> None:
        """A try failed for ``reason``."""
        self._failed += 1
        self.reason = reason
        if self._probing:
            self._pause = min(2 * self._pause, self._longest)
        if self._probing or (self._failed >= self._limit and self._open_until is None):
            self._open_until = self._clock() + self._pause
        self._probing = False


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


# Cases whose judge was unavailable: when each is asked again, and which one is given up.

TRIES = 8
"""how often the judge may fail a case, answering others in between, before the case is given up"""


@dataclass(slots=True)
class _Wait:
    """The answers given to others when a case was last asked, when that was, how often it failed alone."""

    answers: int
    last_try: float = 0.0
    alone: int = 0


class WaitingList:
    """Asked again through a breaker whose pause doubles up to ``longest_pause`` seconds: one case first, then all."""

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
        """A case needs the judge no more."""
        self._waits.pop(turn, None)

    def choose(self, cases: Sequence[Case], *, most: int) -> list[Case]:
        """Cases for the judge: those that wait as far as the breaker lets them, longest unasked first; the new ones."""
        new = [case for case in cases if case.turn.id not in self._waits][:most]
        waited = [case for case in cases if case.turn.id in self._waits]
        waited.sort(key=lambda case: self._waits[case.turn.id].last_try)
        if not waited or not self.breaker.allow():
            return new
        return [*waited[: most if self.breaker.state == "closed" else 1], *new]

    def answered(self, turn: str) -> None:
        """The judge answered this case."""
        self._answers += 1
        if self._waits.pop(turn, None) is not None:
            self.breaker.success()

    def failed(self, turn: str, why: str) -> bool:
        """The judge was unavailable for this case, which waits; whether it fails alone and is to be given up."""
        self.breaker.failure(why)
        wait = self._waits.setdefault(turn, _Wait(answers=self._answers))
        if self._answers > wait.answers:
            wait.alone += 1
        wait.answers, wait.last_try = self._answers, self._clock()
        return wait.alone >= TRIES
