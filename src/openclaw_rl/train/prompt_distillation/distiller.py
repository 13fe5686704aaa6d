"""Distil notes into the weights, one step per tick, while no request is under way."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from openclaw_rl.errors import DeletedMeanwhile
from openclaw_rl.ports import Trainer
from openclaw_rl.train.decisions import TrainingControl
from openclaw_rl.train.prompt_distillation.measure import Interrupted, ReplySampler
from openclaw_rl.train.prompt_distillation.notebook import LessonBook
from openclaw_rl.train.prompt_distillation.prompts import DistillationSettings, Lesson
from openclaw_rl.train.prompt_distillation.round import DistillationRound
from openclaw_rl.train.startup import RunOrigin
from openclaw_rl.types import Baseline, Distillation, Step, Version, distilling
from openclaw_rl.versions import VersionManager, checkpoints
from openclaw_rl.versions.checkpoints import TrainingProgress

log = logging.getLogger(__name__)

FOLDER = "distillation"
"""folder beside the versions that holds the drafts of a running distillation"""


class DistillationLedger(Protocol):
    """Part of the ledger that a finished distillation is written to."""

    def add_distillation(self, distillation: Distillation, step: Step, version: Version, *, deletions: int) -> None: ...
    def last_step(self) -> Step | None: ...
    def newest(self, table: Any) -> int: ...


class PromptDistiller:
    """Prompt distillation: each tick begins a round or takes one step of it; a finished round becomes a candidate.

    An interrupted round resumes; a killed one restarts from the live version.
    """

    def __init__(
        self,
        ledger: DistillationLedger,
        lessons: LessonBook,
        trainer: Trainer,
        sampler: ReplySampler,
        *,
        versions: VersionManager,
        control: TrainingControl,
        offer: Callable[[Version], None],
        progress: Callable[[], TrainingProgress],
        origin: RunOrigin,
        settings: DistillationSettings,
    ) -> None:
        self._ledger, self._lessons, self._trainer, self._sampler = ledger, lessons, trainer, sampler
        self._versions, self._control, self._offer, self._progress = versions, control, offer, progress
        self._origin, self._settings = origin, settings
        self._round: DistillationRound | None = None
        self._deletions = 0  # the newest deletion when the round's prompts were read

    @property
    def under_way(self) -> bool:
        """Return True if there are drafts that a training step on turns would make worthless."""
        return self._round is not None

    async def settle(self) -> int:
        """Update notes to their versions' state; return the number of changes."""
        return await asyncio.to_thread(self._lessons.settle)

    async def tick(self) -> int:
        """Begin a round or take one step of it if no request is under way; return the work done."""
        if not await self._sampler.quiet():
            return 0
        try:
            return await self._control.during(self._move())
        except Interrupted:
            return 0
        except BaseException:
            await self.abandon()
            raise

    async def _move(self) -> int:
        if self._round is None:
            return int(await self._begin())
        live = await asyncio.to_thread(self._versions.current)
        if live.number != self._round.live.number or self._deletions != await asyncio.to_thread(self._deleted):
            await self.abandon()
            return 1
        await self._round.step()
        if self._round.ended is not None:
            await self.finish()
        return 1

    def _deleted(self) -> int:
        return self._ledger.newest("deletions")

    async def _begin(self) -> bool:
        self._deletions = await asyncio.to_thread(self._deleted)
        lesson = await asyncio.to_thread(self._lessons.next)
        if lesson is None or not lesson.prompts.distilled or not lesson.prompts.held_back:
            return False
        live = await asyncio.to_thread(self._versions.current)
        replays = await asyncio.to_thread(self._lessons.replays, lesson)
        progress = await asyncio.to_thread(self._progress)
        begun = DistillationRound(
            lesson,
            replays,
            live=live,
            number=progress.step + 1,
            folder=self._origin.directory / FOLDER,
            trainer=self._trainer,
            sampler=self._sampler,
            settings=self._settings,
        )
        try:
            await begun.begin()
            if begun.hopeless is not None:
                await begun.close(keep=False)
                await asyncio.to_thread(self._lessons.give_up, lesson, begun.hopeless)
                return True
            cost = await asyncio.to_thread(self._cost, begun)
            await asyncio.to_thread(self._lessons.begin, lesson, cost)
        except BaseException:
            await begun.close(keep=False)
            raise
        log.info("%s on %d prompts: %s", _what(lesson), len(lesson.prompts.distilled), cost)
        self._round = begun
        return True

    def _cost(self, begun: DistillationRound) -> str:
        """Return the expected cost, estimated from earlier rounds; for the first, from the time that measuring took."""
        seconds = self._lessons.estimate(begun.most) or begun.seconds_left
        most = f"at most {begun.most} steps"
        return f"about {seconds:.0f} s of idle processor time, {most}" if seconds is not None else most

    async def finish(self) -> None:
        """End the running round: publish its draft as a candidate if a step was taken."""
        finished, self._round = self._round, None
        if finished is None:
            return
        if finished.draft is None:
            await finished.close(keep=False)
            if finished.ended is not None:
                self._control.alarm(
                    f"prompt distillation of note {finished.lesson.note} took no step: {finished.ended}"
                )
            return
        if finished.fallen is not None:
            await finished.close(keep=False)
            await asyncio.to_thread(self._lessons.give_up, finished.lesson, finished.fallen)
            return
        await finished.close(keep=True)
        try:
            version = await asyncio.to_thread(self._publish, finished, finished.draft)
        except DeletedMeanwhile as error:
            log.warning("prompt distillation of note %d restarts: %s", finished.lesson.note, error)
            return
        log.info("note %d distilled: %s", finished.lesson.note, finished.evidence())
        self._offer(version)

    async def abandon(self) -> None:
        """Discard the running round; the next starts from the live version."""
        lost, self._round = self._round, None
        if lost is not None:
            await lost.close(keep=False)

    def _publish(self, done: DistillationRound, draft: str) -> Version:
        progress, number = self._progress(), self._versions.next_number()
        target = self._origin.folder(number)
        if Path(draft).is_dir():
            target.parent.mkdir(parents=True, exist_ok=True)
            Path(draft).rename(target)
            shutil.rmtree(self._origin.directory / FOLDER, ignore_errors=True)
            draft = str(target)
        evidence = {**done.evidence(), "ended": done.ended or "turns were waiting to be trained"}
        checkpoints.save_progress(draft, TrainingProgress(step=done.number, baselines=progress.baselines))
        version = Version(
            number=number,
            parent=done.live.number,
            base=self._origin.base,
            adapter=draft,
            step=done.number,
            note=f"step {done.number}: {_what(done.lesson)}",
        )
        step = _step(done, progress.baselines)
        distillation = Distillation(note=done.lesson.note, step=done.number, learned=done.learned, evidence=evidence)
        self._ledger.add_distillation(distillation, step, version, deletions=self._deletions)
        return version

    def status(self) -> Mapping[str, Any] | None:
        """Return the running round for `status`; None if there is none."""
        now = self._round
        if now is None:
            return None
        seconds = now.seconds_left
        return {
            "note": now.lesson.note,
            "in_prompt": now.lesson.in_prompt,
            "step": now.steps,
            "of": now.most,
            "kl": [round(distance.kl, 4) for distance in now.distances],
            "met": list(now.sampled[-1][1:]) if now.sampled else None,
            "seconds_left": round(seconds, 1) if seconds is not None else None,
        }


def _what(lesson: Lesson) -> str:
    return distilling(lesson.note, in_prompt=lesson.in_prompt)


def _step(done: DistillationRound, baselines: Mapping[str, Baseline]) -> Step:
    kls = [distance.kl for distance in done.distances]
    metrics = {"distillation_steps": float(done.steps)}
    if not done.lesson.in_prompt:  # with the note in the prompt the KL does not measure progress
        metrics |= {"distillation_kl_first": kls[0], "distillation_kl_last": kls[-1]}
    return Step(
        number=done.number,
        turns=(),
        metrics={**done.metrics, **metrics, "samples": float(done.replies)},
        seconds=done.seconds,
        baselines=baselines,
    )
