"""One training step: samples with their advantages in, a step's row and a candidate version out."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from openclaw_rl.errors import BackendDown, DeletedMeanwhile, ModelRefused
from openclaw_rl.ports import StepResult, Trainer
from openclaw_rl.train.decisions import TrainingControl
from openclaw_rl.train.samples import SampleSettings, TrainingBatch, with_advantages
from openclaw_rl.train.startup import RunOrigin
from openclaw_rl.types import Drop, DropReason, PlayedStep, Sample, Step, Version
from openclaw_rl.versions import VersionLedger, VersionManager, checkpoints
from openclaw_rl.versions.checkpoints import TrainingProgress

# Which turn of a batch makes the trainer fail: the batch is tried again, then halved until one turn is left.
#
# Kept in memory only: after a restart the same batch is tried from the beginning.

TRIES = 2
"""how often a batch, and at last a single turn, may fail: a trainer that was killed gets another chance"""
UNTRAINABLE: DropReason = "cannot be trained"
"""the reason of the drop"""


class BatchBisection:
    """How large the next batch may be, by how the last ones ended."""

    def __init__(self) -> None:
        self._failures = 0
        self._limit: int | None = None

    def size(self, waiting: int) -> int:
        """How many of ``waiting`` samples are tried now: all of them, unless a batch has failed."""
        if self._limit is not None and self._limit >= waiting:
            self._limit = None if self._limit > 1 else self._limit
        return waiting if self._limit is None else min(waiting, self._limit)

    def passed(self) -> None:
        """A batch was trained: the next may be twice as large."""
        self._failures = 0
        if self._limit is not None:
            self._limit *= 2

    def failed(self, batch: TrainingBatch, error: Exception) -> Drop | None:
        """A batch failed: the next is the same, then half of it; a single turn that fails too often gives its drop."""
        self._failures += 1
        alone = len(batch.samples) == 1
        if self._failures < TRIES and (alone or self._limit is None):
            return None
        self._failures = 0
        self._limit = max(1, len(batch.samples) // 2)
        if not alone:
            return None
        lines = f"{type(error).__name__}: {error}".strip().splitlines()
        detail = " ... ".join(dict.fromkeys((lines[0], lines[-1])))[:500]
        return Drop(turn=batch.samples[0].turn, stage="train", reason=UNTRAINABLE, detail=detail)


log = logging.getLogger(__name__)


class StepLedger(VersionLedger, Protocol):
    """Where steps are written."""

    def add_step(self, step: Step, version: Version | None, drops: Sequence[Drop] = ()) -> None: ...
    def add_drops(self, drops: Sequence[Drop]) -> None: ...
    def last_step(self) -> Step | None: ...


class StepRunner:
    """Takes steps from the live version and offers what they make as candidates.

    A batch that fails the trainer is tried again and then halved, until the turn that does it is found and dropped.
    """

    def __init__(
        self,
        ledger: StepLedger,
        trainer: Trainer,
        control: TrainingControl,
        *,
        offer: Callable[[Version], None],
        samples: SampleSettings,
        origin: RunOrigin,
        beside: Callable[[Sequence[Sample]], Sequence[Sample]] | None,
    ) -> None:
        """``beside`` says what is repeated in a step of what was learned before."""
        self._ledger = ledger
        self._versions = VersionManager(ledger)
        self._trainer = trainer
        self._control = control
        self._offer = offer
        self._samples = samples
        self._origin = origin
        self._beside = beside
        self._bisection = BatchBisection()

    async def run(self, chosen: Sequence[Sample], played: Mapping[str, PlayedStep]) -> int:
        """Take one step with these samples, or with a part of them after a failure; how many it used up.

        ``played`` are the steps that they are measured against, by turn.
        """
        progress = await asyncio.to_thread(self.progress)
        batch = self._batch(chosen, progress, played)
        number = progress.step + 1
        parent = await asyncio.to_thread(self._versions.current)
        target = self._origin.folder(await asyncio.to_thread(self._versions.next_number))
        try:
            result = await self._control.during(self._train(batch, number=number, parent=parent, target=target))
        except (BackendDown, ModelRefused):  # no batch is to blame
            raise
        except Exception as error:  # whatever a batch does to a trainer, it may not do it for ever
            untrainable = self._bisection.failed(batch, error)
            if untrainable is None:
                raise
            await asyncio.to_thread(self._drop, untrainable)
            return 1
        self._bisection.passed()
        try:
            await asyncio.to_thread(self._publish, batch, number, parent, result)
        except DeletedMeanwhile as error:
            await asyncio.to_thread(shutil.rmtree, target, ignore_errors=True)
            log.warning("step %d is taken again without them: %s", number, error)
            return 0
        return len(batch.samples)

    def progress(self) -> TrainingProgress:
        """The newest step and the baselines after it; before the first step of this run, those of the live version."""
        last = self._ledger.last_step()
        if last is not None:
            return TrainingProgress(step=last.number, baselines=last.baselines)
        adapter = self._versions.current().adapter
        return checkpoints.load_progress(Path(adapter)) if adapter else TrainingProgress()

    def _batch(
        self, chosen: Sequence[Sample], progress: TrainingProgress, played: Mapping[str, PlayedStep]
    ) -> TrainingBatch:
        """The samples with their advantages; after a failure a part of them, with those that they have in the whole."""

        def advantages(samples: Sequence[Sample]) -> TrainingBatch:
            return with_advantages(samples, baselines=progress.baselines, settings=self._samples, played=played)

        whole = advantages(chosen)
        size = self._bisection.size(len(chosen))
        if size == len(chosen):
            return whole
        after = advantages(chosen[:size]).baselines
        return TrainingBatch(samples=whole.samples[:size], baselines=after, figures=whole.figures)

    async def _train(self, batch: TrainingBatch, *, number: int, parent: Version, target: Path) -> StepResult:
        if batch.without_signal:
            why = "every advantage is zero and there is no hint"
            return StepResult(adapter=None, metrics={}, seconds=0.0, skipped=why)
        await asyncio.to_thread(shutil.rmtree, target, ignore_errors=True)  # a step that a crash cut off before its row
        repeated = await asyncio.to_thread(self._beside, batch.samples) if self._beside is not None else ()
        return await self._trainer.step((*batch.samples, *repeated), number=number, parent=parent, target=str(target))

    def _drop(self, untrainable: Drop) -> None:
        """A turn that fails the trainer is dropped; so many in a row pause training, for it may be the trainer."""
        self._ledger.add_drops([untrainable])
        log.error("turn %s is dropped: %s", untrainable.turn, untrainable.detail)
        self._control.alarm(f"turn {untrainable.turn} was dropped: {untrainable.detail}")

    def _publish(self, batch: TrainingBatch, number: int, parent: Version, result: StepResult) -> None:
        """Write the step with the version it made; a step that an alarm skipped makes none."""
        turns = {sample.turn for sample in batch.samples}  # what was only repeated is in no row
        drops = [
            Drop(turn=turn, stage="train", reason=UNTRAINABLE, detail=why)
            for turn, why in result.dropped.items()
            if turn in turns
        ]
        step = _step(batch, number, parent, result)
        if not step.turns:
            self._ledger.add_drops(drops)
        elif result.adapter is None:
            self._ledger.add_step(step, None, drops)
            log.warning("step %d skipped: %s", number, result.skipped)
            if not batch.without_signal:
                self._control.alarm(str(result.skipped))
        else:
            checkpoints.save_progress(result.adapter, TrainingProgress(step=number, baselines=batch.baselines))
            version = self._version(step, parent, result.adapter)
            self._ledger.add_step(step, version, drops)
            log.info("step %d: %s, version %d", number, figures(step), version.number)
            self._offer(version)

    def _version(self, step: Step, parent: Version, adapter: str) -> Version:
        return Version(
            number=self._versions.next_number(),
            parent=parent.number,
            base=self._origin.base,
            adapter=adapter,
            step=step.number,
            note=f"step {step.number}",
        )


def figures(step: Step) -> str:
    """A step in a line of a log."""
    loss = f", loss {step.metrics['loss']:.4f}" if "loss" in step.metrics else ""
    return f"{len(step.turns)} samples{loss}, {step.seconds:.1f} s{_spent(step.metrics)}"


def _spent(metrics: Mapping[str, float]) -> str:
    """What a step took of a service that is paid by the token."""
    if "cloud_cost" not in metrics:
        return ""
    tokens = sum(metrics.get(f"cloud_{kind}", 0.0) for kind in ("prefill", "sample", "train"))
    return f", {tokens:.0f} tokens of the service (about {metrics['cloud_cost']:.4f})"


def _step(batch: TrainingBatch, number: int, parent: Version, result: StepResult) -> Step:
    samples = [sample for sample in batch.samples if sample.turn not in result.dropped]
    return Step(
        number=number,
        turns=tuple(sample.turn for sample in samples),
        metrics={**result.metrics, **batch.figures},
        seconds=result.seconds,
        skipped=result.skipped,
        baselines=batch.baselines,
        parts={sample.turn: _part(sample, parent) for sample in samples},
    )


def _part(sample: Sample, parent: Version) -> dict[str, float | str]:
    """With what a turn took part in a step."""
    known: dict[str, float | str] = {"hints": float(len(sample.teachers)), "lag": float(parent.number - sample.version)}
    if sample.recalled is not None:
        known["recalled"] = sample.recalled
    return known if sample.advantage is None else {"advantage": sample.advantage, **known}
