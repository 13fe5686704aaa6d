"""The turns that wait to be trained, read anew when they change, and whether it is time for a step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from openclaw_rl.train.consent import SHARE_ALL, Consent
from openclaw_rl.train.samples import SampleSettings, all_alike, next_batch, to_sample
from openclaw_rl.types import (
    Drop,
    GroupKey,
    GroupProgress,
    JudgedTurn,
    PlayedStep,
    Sample,
    UnreadableTurn,
    Verdict,
    WaitingTurns,
)
from openclaw_rl.versions import LiveVersions, VersionReader

_NOTHING = (-1, -1)
_GROUPS_REACH = 1024
"""judged turns read where groups train: unfinished groups at the front must not hide whole ones"""
_AGAIN = 5.0
"""seconds after which groups that miss something are read again: what settles them may be no verdict"""
_RULES_REACH = 10_000
"""the newest rules that count as given, so that reading them costs no more in a long run"""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """When a step is due. ``group_size`` episodes make a group where advantages are a group's.

    ``patience`` is how many seconds a step of an environment waits for the outcome of its episode, ``group_wait`` how
    many seconds after its newest turn a group is closed with the episodes it has, ``verdict_wait`` how many seconds
    after it a group of which a turn still lacks its verdict is dropped.
    ``people`` are the users who have a key, whether they have sent a request or not.
    """

    batch_size: int
    max_wait: float
    idle: float
    group_size: int
    patience: float
    group_wait: float
    verdict_wait: float
    people: Collection[str]


class QueueLedger(VersionReader, Protocol):
    """What the queue reads of the ledger; the only thing it writes there are drops."""

    def waiting(self, limit: int, *, patience: float) -> WaitingTurns: ...
    def add_drops(self, drops: Sequence[Drop]) -> None: ...
    def recall(self, turn: str, *, within: int) -> Verdict | None: ...
    def users(self) -> Sequence[str]: ...
    def rules_given(self, limit: int) -> Sequence[tuple[str, Sequence[str]]]: ...
    def last_turn_at(self) -> float | None: ...
    def newest(self, table: Any) -> int: ...


class TrainingQueue:
    """The judged turns in memory, as samples."""

    def __init__(
        self,
        ledger: QueueLedger,
        samples: SampleSettings,
        settings: QueueSettings,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._ledger = ledger
        self._versions = LiveVersions(ledger)
        self._settings = samples
        self._queue = settings
        self.max_wait, self.group_wait = settings.max_wait, settings.group_wait
        self._clock = clock
        self._begun_at = clock()
        self._samples: list[tuple[Sample, float]] = []
        self._groups: Mapping[GroupKey, GroupProgress] = {}
        self._seen, self._read_at = _NOTHING, -math.inf

    @property
    def waiting(self) -> int:
        """How many samples wait."""
        return len(self._samples)

    def forget(self) -> None:
        """Read the ledger anew at the next `read`."""
        self._samples, self._groups, self._seen = [], {}, _NOTHING

    def played(self) -> dict[str, PlayedStep]:
        """By turn, every step of the groups that wait, also those that have trained or cannot train."""
        return {
            turn: replace(step, task=f"{key.user}/{key.group}")
            for key, progress in self._groups.items()
            for turn, step in progress.steps.items()
        }

    def read(self) -> int:
        """Read the ledger if it has changed; drop at once what can never train. How many were dropped."""
        newest = self._ledger.newest("verdicts"), self._ledger.newest("deletions")
        again = bool(self._partial()) and self._clock() - self._read_at >= _AGAIN
        if newest == self._seen and not again:
            return 0
        self._read_at = self._clock()
        live, rolled_back = self._versions.live(), self._versions.ever("rolled back")
        assert live is not None, "version 0 is written before anything is read"
        consent = self.consent()
        samples: list[tuple[Sample, float]] = []
        drops: list[Drop] = []
        waiting = self._ledger.waiting(self._reach(), patience=self._queue.patience)
        whole = self._group_drops(waiting)
        drops += whole.values()
        for judged in waiting.turns:
            if isinstance(judged, UnreadableTurn):
                drops.append(Drop(turn=judged.turn, stage="train", reason="unreadable", detail=judged.why))
                continue
            if judged.turn.id in whole:
                continue
            made = self._sample(judged, live.number, rolled_back, consent)
            if isinstance(made, Drop):
                drops.append(made)
            else:
                samples.append((made, judged.verdict.at))
        if drops:
            self._ledger.add_drops(drops)
        else:
            self._seen = newest  # all of it is read; after a drop there may be more behind it
        self._samples, self._groups = samples, waiting.groups
        return len(drops)

    def consent(self) -> Consent:
        """The consent of the people of this run: those who have a key, and those who have sent a request."""
        share = self._settings.share
        if share == "all":
            return SHARE_ALL
        people = {*self._queue.people, *self._ledger.users()}
        return Consent.of(share, people, self._ledger.rules_given(_RULES_REACH) if share != "none" else ())

    def _sample(self, judged: JudgedTurn, live: int, rolled_back: set[int], consent: Consent) -> Sample | Drop:
        found = to_sample(
            judged.turn,
            judged.outcome,
            judged.verdict,
            live=live,
            settings=self._settings,
            recalled=self._recalled(judged),
            consent=consent,
        )
        if isinstance(found, Drop) or found.version not in rolled_back:
            return found
        detail = f"version {found.version} answered it"
        return Drop(turn=found.turn, stage="train", reason="taken back", detail=detail)

    def _group_drops(self, waiting: WaitingTurns) -> dict[str, Drop]:
        """By turn, the drops of groups that can no longer train whole: no part of a group trains by itself."""
        if not self._grouped:
            return {}
        drops: dict[str, Drop] = {}
        for judged in waiting.turns:
            if isinstance(judged, UnreadableTurn) or not judged.turn.group:
                continue
            group = waiting.groups[GroupKey(judged.turn.user, judged.turn.group)]
            if group.closed:
                detail = "its group has trained or was dropped before; a group's name is used once"
                drops[judged.turn.id] = Drop(turn=judged.turn.id, stage="train", reason="late", detail=detail)
            elif self._is_overdue(group):
                detail = f"verdicts missing in its group after {self._queue.verdict_wait:g} s: {len(group.unjudged)}"
                turns = (judged.turn.id, *group.unjudged)
                drops |= {turn: Drop(turn=turn, stage="train", reason="unjudged", detail=detail) for turn in turns}
        return drops

    def _is_overdue(self, group: GroupProgress) -> bool:
        """A judge that was away with this program has as long as any to catch up."""
        since = max(group.newest_at, self._begun_at)
        return bool(group.unjudged) and self._clock() - since >= self._queue.verdict_wait

    def _recalled(self, judged: JudgedTurn) -> Verdict | None:
        """The user's earlier rule, if it is recent enough and this turn gives none that is better.

        A vague rule of this turn gives way to an earlier one that says how far.
        """
        verdict = judged.verdict
        if not (self._settings.remember and self._settings.distillation) or verdict.precise:
            return None
        earlier = self._ledger.recall(judged.turn.id, within=self._settings.remember)
        return earlier if earlier is not None and (earlier.precise or not verdict.rules) else None

    def next_batch(self) -> list[Sample]:
        """The samples of the next step, none while it is not time for one."""
        partial = self._partial()
        self._drop_alike(partial)
        if not self._samples:
            return []
        return next_batch(
            self._samples,
            last_turn=self._ledger.last_turn_at(),
            now=self._clock(),
            batch_size=self._queue.batch_size,
            max_wait=self.max_wait,
            idle=self._queue.idle,
            grouped=self._grouped,
            partial=partial,
        )

    def _drop_alike(self, partial: Collection[tuple[str, str]]) -> None:
        """Tasks that are always or never solved fill no batch, and hold up no episodes."""
        samples = [sample for sample, _ in self._samples]
        drops = all_alike(samples, settings=self._settings, partial=partial, played=self.played())
        if drops:
            self._ledger.add_drops(drops)
            gone = {drop.turn for drop in drops}
            self._samples = [(sample, at) for sample, at in self._samples if sample.turn not in gone]

    def _reach(self) -> int:
        """How many turns to read: behind groups whose episodes still run there may be whole ones."""
        return max(self._queue.batch_size * 4, _GROUPS_REACH if self._grouped else 0)

    @property
    def _grouped(self) -> bool:
        return self._settings.advantage == "group" or self._settings.grouped

    def _partial(self) -> set[GroupKey]:
        """Groups of which not every episode has ended and been judged."""
        now = self._clock()
        return (
            {key for key, group in self._groups.items() if not self._is_whole(group, now)} if self._grouped else set()
        )

    def _is_whole(self, group: GroupProgress, now: float) -> bool:
        """A running episode always has a turn that is not settled: its newest."""
        closed = group.plays >= self._queue.group_size or now - group.newest_at >= self.group_wait
        return closed and group.unsettled == 0
