"""What waits to be trained: the work list, read when it changes, and whether it is time for a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from openclaw_rl.train.samples import EVERYTHING, Rules, due, sift, task_of
from openclaw_rl.train.sharing import Consent, consent
from openclaw_rl.types import Drop, JudgedTurn, Sample, UnreadableTurn, Verdict, Version, VersionState

_GROUPS_REACH = 1024
_RULES_REACH = 10_000


class WorkLedger(Protocol):
    """Where the work list is."""

    def untrained(self, limit: int) -> Sequence[JudgedTurn | UnreadableTurn]: ...
    def add_drops(self, drops: Sequence[Drop]) -> None: ...
    def live_version(self) -> Version | None: ...
    def ever(self, state: VersionState) -> set[int]: ...
    def recall(self, turn: str, *, within: int) -> Verdict | None: ...
    def group(self, user: str, group: str) -> tuple[int, int]: ...
    def users(self) -> Sequence[str]: ...
    def rules_given(self, limit: int) -> Sequence[tuple[str, Sequence[str]]]: ...
    def last_turn_at(self) -> float | None: ...
    def newest(self, table: Any) -> int: ...


class Work:
    """The judged turns in hand. ``group_size`` plays make a group where advantages are a group's.

    ``people`` are the users who have a key, whether they have spoken yet or not.
    """

    def __init__(
        self,
        ledger: WorkLedger,
        rules: Rules,
        *,
        batch_size: int,
        max_wait: float,
        idle: float,
        group_size: int = 1,
        people: Collection[str] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._ledger = ledger
        self._rules = rules
        self._batch_size = batch_size
        self.max_wait = max_wait
        self._idle = idle
        self._group_size = group_size
        self._people = frozenset(people)
        self._clock = clock
        self._samples: list[tuple[Sample, float]] = []
        self._seen = -1

    @property
    def waiting(self) -> int:
        """How many samples are in hand."""
        return len(self._samples)

    def forget(self) -> None:
        """Read the list anew at the next look."""
        self._samples, self._seen = [], -1

    def read(self) -> int:
        """Read the list if it has changed; drop at once what will never train. How many were dropped."""
        newest = self._ledger.newest("verdicts")
        if newest == self._seen:
            return 0
        live, taken_back = self._ledger.live_version(), self._ledger.ever("rolled back")
        assert live is not None, "version 0 is written before anything is read"
        agreed = self._consent()
        samples: list[tuple[Sample, float]] = []
        drops: list[Drop] = []
        for judged in self._ledger.untrained(self._reach()):
            if isinstance(judged, UnreadableTurn):
                drops.append(Drop(turn=judged.turn, stage="train", reason="unreadable", detail=judged.why))
                continue
            found = self._sifted(judged, live.number, taken_back, agreed)
            if isinstance(found, Drop):
                drops.append(found)
            else:
                samples.append((found, judged.verdict.at))
        if drops:
            self._ledger.add_drops(drops)
        else:
            self._seen = newest  # all of the list is in hand; after a drop there may be more behind it
        self._samples = samples
        return len(drops)

    def _consent(self) -> Consent:
        """What the people of this run agreed on: those who have a key, and those who have spoken."""
        share = self._rules.share
        if share == "all":
            return EVERYTHING
        people = {*self._people, *self._ledger.users()}
        return consent(share, people, self._ledger.rules_given(_RULES_REACH) if share != "none" else ())

    def _sifted(self, judged: JudgedTurn, live: int, taken_back: set[int], agreed: Consent) -> Sample | Drop:
        found = sift(
            judged.turn,
            judged.outcome,
            judged.verdict,
            live=live,
            rules=self._rules,
            recalled=self._recalled(judged),
            consent=agreed,
        )
        if isinstance(found, Drop) or found.version not in taken_back:
            return found
        detail = f"version {found.version} answered it"
        return Drop(turn=found.turn, stage="train", reason="taken back", detail=detail)

    def _recalled(self, judged: JudgedTurn) -> Verdict | None:
        """What the user asked for earlier, if that was not too long ago and this turn says nothing better.

        A vague rule of this turn gives way to an earlier one that says how far.
        """
        said = judged.verdict
        if not (self._rules.remember and self._rules.distil) or said.precise:
            return None
        earlier = self._ledger.recall(judged.turn.id, within=self._rules.remember)
        return earlier if earlier is not None and (earlier.precise or not said.rules) else None

    def due(self) -> list[Sample]:
        """The samples of the next step, none while it is not time for one."""
        if not self._samples:
            return []
        return due(
            self._samples,
            last_turn=self._ledger.last_turn_at(),
            now=self._clock(),
            batch_size=self._batch_size,
            max_wait=self.max_wait,
            idle=self._idle,
            grouped=self._grouped,
            partial=self._partial() if self._grouped else (),
        )

    def _reach(self) -> int:
        """How far to look down the list: past groups that still play there may be whole ones."""
        return max(self._batch_size * 4, _GROUPS_REACH if self._grouped else 0)

    @property
    def _grouped(self) -> bool:
        return self._rules.advantage == "group"

    def _partial(self) -> set[tuple[str, str]]:
        """Groups of which not every play has ended and been judged."""
        groups = {group for sample, _ in self._samples if (group := task_of(sample)) is not None}
        return {group for group in groups if not self._is_whole(*self._ledger.group(*group))}

    def _is_whole(self, sessions: int, unjudged: int) -> bool:
        """A play under way always has a turn without a verdict: its newest."""
        return sessions >= self._group_size and unjudged == 0
