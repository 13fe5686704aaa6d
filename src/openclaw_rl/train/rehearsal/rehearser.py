"""Rehearses notes, a step a tick, while nobody waits for the machine."""

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
from openclaw_rl.train.rehearsal.measure import Interrupted, ReplySampler
from openclaw_rl.train.rehearsal.notebook import LessonBook
from openclaw_rl.train.rehearsal.prompts import Lesson, RehearsalSettings
from openclaw_rl.train.rehearsal.round import RehearsalRound
from openclaw_rl.train.startup import RunOrigin
from openclaw_rl.types import Baseline, Rehearsal, Step, Version, rehearsing
from openclaw_rl.versions import VersionManager, checkpoints
from openclaw_rl.versions.checkpoints import TrainingProgress

log = logging.getLogger(__name__)

FOLDER = "rehearsal"
"""beside the versions: the drafts of a rehearsal under way"""


class RehearsalLedger(Protocol):
    """Where a rehearsal is written."""

    def add_rehearsal(self, rehearsal: Rehearsal, step: Step, version: Version, *, deletions: int) -> None: ...
    def last_step(self) -> Step | None: ...
    def newest(self, table: Any) -> int: ...


class Rehearser:
    """Takes one step of the rehearsal under way in each tick, or begins one. At its end there is a candidate.

    Whatever stops it costs nothing: an interrupted one goes on, a killed one begins anew from the live version.
    """

    def __init__(
        self,
        ledger: RehearsalLedger,
        lessons: LessonBook,
        trainer: Trainer,
        sampler: ReplySampler,
        *,
        versions: VersionManager,
        control: TrainingControl,
        offer: Callable[[Version], None],
        progress: Callable[[], TrainingProgress],
        origin: RunOrigin,
        settings: RehearsalSettings,
    ) -> None:
        self._ledger, self._lessons, self._trainer, self._sampler = ledger, lessons, trainer, sampler
        self._versions, self._control, self._offer, self._progress = versions, control, offer, progress
        self._origin, self._settings = origin, settings
        self._round: RehearsalRound | None = None
        self._deletions = 0  # the newest when the prompts of the rehearsal under way were read

    @property
    def under_way(self) -> bool:
        """Whether there are drafts that a step of turns would make worthless."""
        return self._round is not None

    async def settle(self) -> int:
        """Bring notes to where their versions are; how many changed."""
        return await asyncio.to_thread(self._lessons.settle)

    async def tick(self) -> int:
        """Begin a rehearsal or take one step of it, if nobody waits; how much moved."""
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
        if lesson is None or not lesson.prompts.rehearsed or not lesson.prompts.held_back:
            return False
        live = await asyncio.to_thread(self._versions.current)
        replays = await asyncio.to_thread(self._lessons.replays, lesson)
        progress = await asyncio.to_thread(self._progress)
        begun = RehearsalRound(
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
        log.info("%s on %d prompts: %s", _what(lesson), len(lesson.prompts.rehearsed), cost)
        self._round = begun
        return True

    def _cost(self, begun: RehearsalRound) -> str:
        """By earlier rehearsals; for the first, by what measuring took."""
        seconds = self._lessons.estimate(begun.most) or begun.seconds_left
        most = f"at most {begun.most} steps"
        return f"about {seconds:.0f} s of idle processor time, {most}" if seconds is not None else most

    async def finish(self) -> None:
        """End the rehearsal under way: what it made is a candidate, unless no step was taken."""
        done, self._round = self._round, None
        if done is None:
            return
        if done.draft is None:
            await done.close(keep=False)
            if done.ended is not None:
                self._control.alarm(f"the rehearsal of note {done.lesson.note} made nothing: {done.ended}")
            return
        if done.fallen is not None:
            await done.close(keep=False)
            await asyncio.to_thread(self._lessons.give_up, done.lesson, done.fallen)
            return
        await done.close(keep=True)
        try:
            version = await asyncio.to_thread(self._publish, done, done.draft)
        except DeletedMeanwhile as error:
            log.warning("note %d is rehearsed anew: %s", done.lesson.note, error)
            return
        log.info("note %d was rehearsed: %s", done.lesson.note, done.evidence())
        self._offer(version)

    async def abandon(self) -> None:
        """Give up the rehearsal under way; the next begins anew."""
        lost, self._round = self._round, None
        if lost is not None:
            await lost.close(keep=False)

    def _publish(self, done: RehearsalRound, draft: str) -> Version:
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
        rehearsal = Rehearsal(note=done.lesson.note, step=done.number, learned=done.learned, evidence=evidence)
        self._ledger.add_rehearsal(rehearsal, step, version, deletions=self._deletions)
        return version

    def status(self) -> Mapping[str, Any] | None:
        """What is under way, for `status`; None while nothing is."""
        now = self._round
        if now is None:
            return None
        left = now.seconds_left
        return {
            "note": now.lesson.note,
            "in_prompt": now.lesson.in_prompt,
            "step": now.steps,
            "of": now.most,
            "kl": [round(one.kl, 4) for one in now.distances],
            "met": list(now.sampled[-1][1:]) if now.sampled else None,
            "seconds_left": round(left, 1) if left is not None else None,
        }


def _what(lesson: Lesson) -> str:
    return rehearsing(lesson.note, in_prompt=lesson.in_prompt)


def _step(done: RehearsalRound, baselines: Mapping[str, Baseline]) -> Step:
    kls = [one.kl for one in done.distances]
    metrics = {"rehearsal_steps": float(done.steps)}
    if not done.lesson.in_prompt:  # what is practised says nothing of what is left to learn
        metrics |= {"rehearsal_kl_first": kls[0], "rehearsal_kl_last": kls[-1]}
    return Step(
        number=done.number,
        turns=(),
        metrics={**done.metrics, **metrics, "samples": float(done.replies)},
        seconds=done.seconds,
        baselines=baselines,
    )
