"""Training loop: turns verdicts into steps and versions. It only sets the order; the parts do the work.

control     users' requests: rollback, pause, resume, pins
decisions   gate decisions on candidates, and automatic rollback of a version that made replies worse
queue       the waiting turns, and the condition for a step
steps       one step: samples in, a candidate out
distillation   prompt distillation: notes are learned in idle time
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
from openclaw_rl.train.prompt_distillation.distiller import DistillationLedger, PromptDistiller
from openclaw_rl.train.prompt_distillation.measure import GetPolicy, ReplySampler
from openclaw_rl.train.prompt_distillation.notebook import LessonBook, NotebookLedger
from openclaw_rl.train.prompt_distillation.prompts import Checker, DistillationSettings, Relevance
from openclaw_rl.train.queue import QueueLedger, QueueSettings, TrainingQueue
from openclaw_rl.train.records import Recorder
from openclaw_rl.train.samples import SampleSettings
from openclaw_rl.train.startup import RunOrigin, begin, checkpoint_to_adopt
from openclaw_rl.train.steps import StepLedger, StepRunner
from openclaw_rl.versions import RetentionPolicy, VersionManager, checkpoints

__all__ = ["DistillationParts", "Housekeeping", "LoopLedger", "Review", "TrainLoop"]


_FRESH = 5.0
"""validity of a remote busy signal, in seconds"""


class HealthRow(Protocol):
    """Latest health report of a loop, local or remote."""

    @property
    def role(self) -> str: ...
    @property
    def at(self) -> float: ...
    @property
    def detail(self) -> Mapping[str, Any]: ...


class LoopLedger(QueueLedger, ControlLedger, DecisionLedger, StepLedger, DistillationLedger, NotebookLedger, Protocol):
    """Part of the ledger that the training loop needs."""

    def paused(self) -> str | None: ...
    def health(self) -> Sequence[HealthRow]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """Decisions on versions, before and after they are served.

    Without a ``gate`` every version is served; a held candidate is examined again after ``retry`` seconds.
    """

    gate: Gate | None
    monitor: LiveMonitor | None
    retry: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Housekeeping:
    """Work that follows each step; ``retain`` None deletes no version, ``recorder`` None keeps no record."""

    retain: RetentionPolicy | None
    recorder: Recorder | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillationParts:
    """Parts that prompt distillation needs: notes, a sampling policy, checks, shipped prompts and a busy signal.

    ``checker`` returns the check that decides if a reply follows a rule, None for an unknown rule; ``relevant``
    compares a question with a reply; ``busy`` returns True while requests are running.
    """

    book: NotesBook
    policy: GetPolicy
    checker: Callable[[str], Checker | None]
    relevant: Relevance
    everyday: Sequence[str]
    busy: Callable[[], bool]
    settings: DistillationSettings


class TrainLoop:
    """Training loop: a tick carries out requests, drops unfit turns, and takes one step if a batch is ready."""

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
        distillation: DistillationParts | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Pause training after ``pause_after`` alarms in a row; without ``distillation`` notes stay in the prompt.

        Raises ConfigError for a checkpoint that this run cannot resume from.
        """
        self._ledger = ledger
        self._trainer = trainer
        self._origin = origin
        self._versions = VersionManager(ledger)
        checkpoint_to_adopt(self._versions, origin)  # raises before any work starts
        self._housekeeping = housekeeping
        self._clock = clock
        self._queue = TrainingQueue(ledger, samples, queue, clock=clock)
        self._control = TrainingControl(ledger, pause_after=pause_after)
        self._review = CandidateReview(ledger, self._control, gate=review.gate, retry=review.retry, clock=clock)
        self._rollback = AutomaticRollback(ledger, review.monitor)
        lessons = self._lesson_book(distillation) if distillation is not None else None
        self._steps = StepRunner(
            ledger,
            trainer,
            self._control,
            offer=self._review.offer,
            samples=samples,
            origin=origin,
            beside=lessons.beside if lessons is not None else None,
        )
        self._distiller = self._build_distiller(distillation, lessons) if distillation and lessons else None
        self._begun = False
        self._trainer_up = False

    def _lesson_book(self, parts: DistillationParts) -> LessonBook:
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

    def _build_distiller(self, parts: DistillationParts, lessons: LessonBook) -> PromptDistiller:
        return PromptDistiller(
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

    def _quiet_for(self, parts: DistillationParts) -> Callable[[], Awaitable[bool]]:
        def quiet() -> bool:
            last, now = self._ledger.last_turn_at(), self._clock()
            waits = parts.busy() or any(
                row.role == "serve" and bool(row.detail.get("busy")) and now - row.at < _FRESH
                for row in self._ledger.health()
            )
            return not waits and (last is None or now - last >= parts.settings.idle)

        return lambda: asyncio.to_thread(quiet)

    async def tick(self) -> int:
        """Do one unit of work and return its amount.

        If the ledger is down, raise and start from its rows at the next tick: a failed connection leaves the last
        write in doubt.
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
            if self._distiller is not None:  # a rollback restores its notes, also while training is paused
                moved += await self._distiller.settle()
        if await asyncio.to_thread(self._ledger.paused):
            return moved
        if not await self._review.decided():  # the previous candidate must be decided before the next step
            return moved
        if not self._trainer_up:  # after the requests: a trainer that cannot start must not hold up a rollback
            await self._control.during(self._trainer.start())
            self._trainer_up = True
            await asyncio.to_thread(self._keep_house)  # work that a crash left unfinished
        moved += await asyncio.to_thread(self._queue.read)
        moved += await self._step()
        return moved or await self._distill()

    def _begin(self) -> None:
        checkpoint = checkpoint_to_adopt(self._versions, self._origin)
        candidate = begin(self._versions, self._origin, checkpoint)
        if candidate is not None:
            self._review.offer(candidate)

    async def _step(self) -> int:
        """Take a step if one is due; return the number of samples used."""
        chosen = await asyncio.to_thread(self._queue.next_batch)
        if not chosen:
            return 0
        if self._distiller is not None and self._distiller.under_way:  # this step makes its drafts worthless
            await self._distiller.finish()
            if not await self._review.decided():
                return 0
        used = await self._steps.run(chosen, self._queue.played())
        self._queue.forget()
        await self._review.decided()
        await asyncio.to_thread(self._keep_house)
        return used

    async def _distill(self) -> int:
        """Take one step of prompt distillation if there is a note to learn and no request; return the work done."""
        if self._distiller is None:
            return 0
        moved = await self._distiller.settle() + await self._distiller.tick()
        if await self._review.decided() and moved:
            await asyncio.to_thread(self._keep_house)
            moved += await self._distiller.settle()
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
        """Train the present samples from now on, without waiting for a full batch or for a group's further episodes."""
        self._queue.max_wait = self._queue.group_wait = 0.0

    async def status(self) -> Mapping[str, Any]:
        """Return the state for `status`: number of waiting samples, alarms, and the reason if training is paused."""
        why = await asyncio.to_thread(self._ledger.paused)
        remedy = "fix the cause, then 'openclaw-rl resume'"
        alarms = [{"what": f"training is paused: {why}", "remedy": remedy}] if why else []
        if self._housekeeping.recorder is not None:
            failures = self._housekeeping.recorder.failures
            alarms += [{"what": what, "remedy": "see the log, then restart"} for what in failures]
        if self._review.held is not None:
            what = f"version {self._review.held.version} waits for the gate: {self._review.held.reason}"
            alarms.append({"what": what, "remedy": "the live version stays; the gate tries again automatically"})
        distillation = self._distiller.status() if self._distiller is not None else None
        runner = self._trainer.runner if isinstance(self._trainer, ReportsRunner) else None
        details = {"runner": runner} if runner else {}
        return {
            "waiting": self._queue.waiting,
            "paused": why,
            "alarms": alarms,
            "distillation": distillation,
            **details,
        }
