"""Cases whose judge was unavailable: when each is asked again, and which one is given up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from openclaw_rl.judge.breaker import Breaker
from openclaw_rl.ports import Case

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
