"""Loop 4: verdicts to steps to versions. It only sets the order; the parts do the work.

control     what a person requests: rollback, pause, resume, pins
decisions   what the gate decides on a candidate, and the automatic rollback of a version that made replies worse
queue       which turns wait, and whether a step is due
steps       one step: samples in, a candidate out
rehearsal   notes are learned while nobody waits
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from openclaw_rl.errors import LedgerDown
from openclaw_rl.notes import NotesBook
from openclaw_rl.ports import Gate, LiveMonitor, ReportsRunner, Trainer
from openclaw_rl.train.decisions import (
    AutomaticRollback,
    CandidateReview,
    ControlLedger,
    DecisionLedger,
    TrainingControl,
)
from openclaw_rl.train.queue import QueueLedger, QueueSettings, TrainingQueue
from openclaw_rl.train.records import Recorder
from openclaw_rl.train.rehearsal.measure import GetPolicy, ReplySampler
from openclaw_rl.train.rehearsal.notebook import LessonBook, NotebookLedger
from openclaw_rl.train.rehearsal.prompts import Checker, RehearsalSettings, Relevance
from openclaw_rl.train.rehearsal.rehearser import RehearsalLedger, Rehearser
from openclaw_rl.train.samples import SampleSettings
from openclaw_rl.train.startup import RunOrigin, begin, checkpoint_to_adopt
from openclaw_rl.train.steps import StepLedger, StepRunner
from openclaw_rl.versions import RetentionPolicy, VersionManager, checkpoints

__all__ = ["Housekeeping", "LoopLedger", "RehearsalParts", "Review", "TrainLoop"]


_FRESH = 5.0
"""seconds for which it holds that a server elsewhere said somebody waits"""


class HealthRow(Protocol):
    """What a loop, here or elsewhere, said last of itself."""

    @property
    def role(self) -> str: ...
    @property
    def at(self) -> float: ...
    @property
    def detail(self) -> Mapping[str, Any]: ...


class LoopLedger(QueueLedger, ControlLedger, DecisionLedger, StepLedger, RehearsalLedger, NotebookLedger, Protocol):
    """What this loop needs of the ledger."""

    def paused(self) -> str | None: ...
    def health(self) -> Sequence[HealthRow]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """Who decides on versions: before they are served, and after.

    Without a ``gate`` every version is served; a candidate that it holds is examined again after ``retry`` seconds.
    """

    gate: Gate | None
    monitor: LiveMonitor | None
    retry: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Housekeeping:
    """What follows each step. ``retain`` None deletes no version, ``recorder`` None keeps no record."""

    retain: RetentionPolicy | None
    recorder: Recorder | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalParts:
    """What rehearsal needs: the notes, a policy that samples, what a rule asks, shipped prompts, and who waits.

    ``checker`` gives what finds out whether a reply does what a rule asks, None for a rule that it does not know;
    ``relevant`` says of a question and a reply whether the one is about the other; ``busy`` whether requests are under
    way.
    """

    book: NotesBook
    policy: GetPolicy
    checker: Callable[[str], Checker | None]
    relevant: Relevance
    everyday: Sequence[str]
    busy: Callable[[], bool]
    settings: RehearsalSettings


class TrainLoop:
    """One tick: carry out requests, drop what cannot train, and take one step if a batch is ready."""

    name = "train"

    def __init__(
        self,
        ledger: LoopLedger,
        trainer: Trainer,
        *,
        origin: RunOrigin,
        samples: SampleSettings,
        queue: QueueSettings,
        review: Review,
        housekeeping: Housekeeping,
        pause_after: int,
        rehearsal: RehearsalParts | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``pause_after`` alarms in a row pause training. Without a ``rehearsal`` notes stay notes.

        Raises ConfigError for a checkpoint that this run cannot resume from.
        """
        self._ledger = ledger
        self._trainer = trainer
        self._origin = origin
        self._versions = VersionManager(ledger)
        checkpoint_to_adopt(self._versions, origin)  # raises before anything is begun
        self._housekeeping = housekeeping
        self._clock = clock
        self._queue = TrainingQueue(ledger, samples, queue, clock=clock)
        self._control = TrainingControl(ledger, pause_after=pause_after)
        self._review = CandidateReview(ledger, self._control, gate=review.gate, retry=review.retry, clock=clock)
        self._rollback = AutomaticRollback(ledger, review.monitor)
        lessons = self._lesson_book(rehearsal) if rehearsal is not None else None
        self._steps = StepRunner(
            ledger,
            trainer,
            self._control,
            offer=self._review.offer,
            samples=samples,
            origin=origin,
            beside=lessons.beside if lessons is not None else None,
        )
        self._rehearser = self._build_rehearser(rehearsal, lessons) if rehearsal and lessons else None
        self._begun = False
        self._trainer_up = False

    def _lesson_book(self, parts: RehearsalParts) -> LessonBook:
        return LessonBook(
            self._ledger,
            parts.book,
            self._versions,
            consent=self._queue.consent,
            checker=parts.checker,
            relevant=parts.relevant,
            everyday=parts.everyday,
            settings=parts.settings,
        )

    def _build_rehearser(self, parts: RehearsalParts, lessons: LessonBook) -> Rehearser:
        return Rehearser(
            self._ledger,
            lessons,
            self._trainer,
            ReplySampler(parts.policy, self._quiet_for(parts)),
            versions=self._versions,
            control=self._control,
            offer=self._review.offer,
            progress=self._steps.progress,
            origin=self._origin,
            settings=parts.settings,
        )

    def _quiet_for(self, parts: RehearsalParts) -> Callable[[], Awaitable[bool]]:
        def quiet() -> bool:
            last, now = self._ledger.last_turn_at(), self._clock()
            waits = parts.busy() or any(
                one.role == "serve" and bool(one.detail.get("busy")) and now - one.at < _FRESH
                for one in self._ledger.health()
            )
            return not waits and (last is None or now - last >= parts.settings.idle)

        return lambda: asyncio.to_thread(quiet)

    async def tick(self) -> int:
        """How much moved. After a ledger that was down it goes on from what the ledger has: with a server that went
        away nobody knows whether the last write was committed.
        """
        try:
            return await self._tick()
        except LedgerDown:
            self._begun = False
            self._queue.forget()
            raise

    async def _tick(self) -> int:
        if not self._begun:
            await asyncio.to_thread(self._begin)
            self._begun = True
        moved = await asyncio.to_thread(self._control.carry_out_requests)
        moved += await asyncio.to_thread(self._roll_back)
        if moved:
            await asyncio.to_thread(self._link)
            if self._rehearser is not None:  # a rollback brings its notes back, also while training is paused
                moved += await self._rehearser.settle()
        if await asyncio.to_thread(self._ledger.paused):
            return moved
        if not await self._review.decided():  # no step is taken before the one before it is decided
            return moved
        if not self._trainer_up:  # after the requests: a trainer that cannot start must not hold up a rollback
            await self._control.during(self._trainer.start())
            self._trainer_up = True
            await asyncio.to_thread(self._keep_house)  # what a crash left undone
        moved += await asyncio.to_thread(self._queue.read)
        moved += await self._step()
        return moved or await self._rehearse()

    def _begin(self) -> None:
        checkpoint = checkpoint_to_adopt(self._versions, self._origin)
        candidate = begin(self._versions, self._origin, checkpoint)
        if candidate is not None:
            self._review.offer(candidate)

    async def _step(self) -> int:
        """Take a step if one is due; how many samples it used up."""
        chosen = await asyncio.to_thread(self._queue.next_batch)
        if not chosen:
            return 0
        if self._rehearser is not None and self._rehearser.under_way:  # its drafts would not outlive this step
            await self._rehearser.finish()
            if not await self._review.decided():
                return 0
        used = await self._steps.run(chosen, self._queue.played())
        self._queue.forget()
        await self._review.decided()
        await asyncio.to_thread(self._keep_house)
        return used

    async def _rehearse(self) -> int:
        """Take one step of a rehearsal, if there is a note to learn and nobody waits; how much moved."""
        if self._rehearser is None:
            return 0
        moved = await self._rehearser.settle() + await self._rehearser.tick()
        if await self._review.decided() and moved:
            await asyncio.to_thread(self._keep_house)
            moved += await self._rehearser.settle()
        return moved

    def _roll_back(self) -> int:
        if not self._rollback.carry_out():
            return 0
        self._queue.forget()
        return 1

    def _keep_house(self) -> None:
        """Bring the record up to the newest step, delete versions that no rule keeps, name the others by their step."""
        recorder, retain = self._housekeeping.recorder, self._housekeeping.retain
        while recorder is not None and recorder.catch_up():
            pass
        if retain is not None:
            self._versions.retain(self._origin.directory, retain, now=self._clock())
        self._link()

    def _link(self) -> None:
        checkpoints.link(self._origin.directory, self._versions.versions(), self._versions.live())

    def hurry(self) -> None:
        """From now on train what is there instead of waiting for a batch to fill or for further episodes of a group."""
        self._queue.max_wait = self._queue.group_wait = 0.0

    async def status(self) -> Mapping[str, Any]:
        """What `status` shows: how many samples wait, and why training is paused, if it is."""
        why = await asyncio.to_thread(self._ledger.paused)
        remedy = "fix the cause, then 'openclaw-rl resume'"
        alarms = [{"what": f"training is paused: {why}", "remedy": remedy}] if why else []
        if self._housekeeping.recorder is not None:
            failures = self._housekeeping.recorder.failures
            alarms += [{"what": what, "remedy": "see the log, then restart"} for what in failures]
        if self._review.held is not None:
            what = f"version {self._review.held.version} waits for the gate: {self._review.held.reason}"
            alarms.append({"what": what, "remedy": "the live version goes on; the gate tries again automatically"})
        rehearsal = self._rehearser.status() if self._rehearser is not None else None
        runner = self._trainer.runner if isinstance(self._trainer, ReportsRunner) else None
        said = {"runner": runner} if runner else {}
        return {"waiting": self._queue.waiting, "paused": why, "alarms": alarms, "rehearsal": rehearsal, **said}
