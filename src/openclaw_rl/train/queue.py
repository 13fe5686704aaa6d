"""Queue of turns that wait for training, read again when they change, with the condition for a step."""

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
"""judged turns read if groups train: unfinished groups at the front must not hide complete ones"""
_AGAIN = 5.0
"""seconds until incomplete groups are read again, since an event other than a verdict may settle them"""
_RULES_REACH = 10_000
"""newest rules that count as given, so that reading them costs no more in a long run"""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """Conditions for a step. ``group_size`` episodes make a group if advantages are measured within groups.

    ``patience`` is the time in seconds that an environment's step waits for its episode's outcome. A group closes with
    the episodes it has ``group_wait`` seconds after its newest turn, and is dropped if a verdict is missing
    ``verdict_wait`` seconds after that turn.
    ``people`` are the users who have a key, with or without a request so far.
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
    """Part of the ledger that the queue reads; it writes only drops."""

    def waiting(self, limit: int, *, patience: float) -> WaitingTurns: ...
    def add_drops(self, drops: Sequence[Drop]) -> None: ...
    def recall(self, turn: str, *, within: int) -> Verdict | None: ...
    def users(self) -> Sequence[str]: ...
    def rules_given(self, limit: int) -> Sequence[tuple[str, Sequence[str]]]: ...
    def last_turn_at(self) -> float | None: ...
    def newest(self, table: Any) -> int: ...


class TrainingQueue:
    """Judged turns in memory, as samples."""

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
        """Return the number of waiting samples."""
        return len(self._samples)

    def forget(self) -> None:
        """Discard the cache, so that the next `read` reads the ledger."""
        self._samples, self._groups, self._seen = [], {}, _NOTHING

    def played(self) -> dict[str, PlayedStep]:
        """Return every step of the waiting groups by turn, including those that have trained or cannot train."""
        return {
            turn: replace(step, task=f"{key.user}/{key.group}")
            for key, progress in self._groups.items()
            for turn, step in progress.steps.items()
        }

    def read(self) -> int:
        """Read the ledger if it has changed and drop turns that can never train; return the number of drops."""
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
        group_drops = self._group_drops(waiting)
        drops += group_drops.values()
        for judged in waiting.turns:
            if isinstance(judged, UnreadableTurn):
                drops.append(Drop(turn=judged.turn, stage="train", reason="unreadable", detail=judged.why))
                continue
            if judged.turn.id in group_drops:
                continue
            sample = self._sample(judged, live.number, rolled_back, consent)
            if isinstance(sample, Drop):
                drops.append(sample)
            else:
                samples.append((sample, judged.verdict.at))
        if drops:
            self._ledger.add_drops(drops)
        else:
            self._seen = newest  # everything is read; after a drop more rows may follow
        self._samples, self._groups = samples, waiting.groups
        return len(drops)

    def consent(self) -> Consent:
        """Return the sharing terms of this run, for users with a key and users who have sent a request."""
        share = self._settings.share
        if share == "all":
            return SHARE_ALL
        people = {*self._queue.people, *self._ledger.users()}
        return Consent.of(share, people, self._ledger.rules_given(_RULES_REACH) if share != "none" else ())

    def _sample(self, judged: JudgedTurn, live: int, rolled_back: set[int], consent: Consent) -> Sample | Drop:
        sample = to_sample(
            judged.turn,
            judged.outcome,
            judged.verdict,
            live=live,
            settings=self._settings,
            recalled=self._recalled(judged),
            consent=consent,
        )
        if isinstance(sample, Drop) or sample.version not in rolled_back:
            return sample
        detail = f"version {sample.version} answered it"
        return Drop(turn=sample.turn, stage="train", reason="taken back", detail=detail)

    def _group_drops(self, waiting: WaitingTurns) -> dict[str, Drop]:
        """Return drops by turn for groups that can no longer train completely; groups never train in part."""
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
        """Return True if a verdict is overdue; the wait restarts with this process: the judge may have stopped too."""
        since = max(group.newest_at, self._begun_at)
        return bool(group.unjudged) and self._clock() - since >= self._queue.verdict_wait

    def _recalled(self, judged: JudgedTurn) -> Verdict | None:
        """Return the user's earlier verdict if it is recent enough and this turn's rules are no better.

        A vague rule of this turn yields to an earlier one that states a limit.
        """
        verdict = judged.verdict
        if not (self._settings.remember and self._settings.distillation) or verdict.precise:
            return None
        earlier = self._ledger.recall(judged.turn.id, within=self._settings.remember)
        return earlier if earlier is not None and (earlier.precise or not verdict.rules) else None

    def next_batch(self) -> list[Sample]:
        """Return the next step's samples, none until it is due."""
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
        """Drop groups with equal rewards: tasks always or never solved fill no batch and hold up no episodes."""
        samples = [sample for sample, _ in self._samples]
        drops = all_alike(samples, settings=self._settings, partial=partial, played=self.played())
        if drops:
            self._ledger.add_drops(drops)
            gone = {drop.turn for drop in drops}
            self._samples = [(sample, at) for sample, at in self._samples if sample.turn not in gone]

    def _reach(self) -> int:
        """Return the number of turns to read: complete groups may follow groups whose episodes still run."""
        return max(self._queue.batch_size * 4, _GROUPS_REACH if self._grouped else 0)

    @property
    def _grouped(self) -> bool:
        return self._settings.advantage == "group" or self._settings.grouped

    def _partial(self) -> set[GroupKey]:
        """Return the groups with an episode that is running or not judged."""
        now = self._clock()
        return (
            {key for key, group in self._groups.items() if not self._is_whole(group, now)} if self._grouped else set()
        )

    def _is_whole(self, group: GroupProgress, now: float) -> bool:
        """Return True if the group is closed and settled; a running episode's newest turn is always unsettled."""
        closed = group.plays >= self._queue.group_size or now - group.newest_at >= self.group_wait
        return closed and group.unsettled == 0
