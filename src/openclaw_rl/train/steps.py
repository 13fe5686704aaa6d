"""One training step: takes samples with their advantages, writes a step row and a candidate version."""

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

# Bisection of a batch that fails: it is tried again, then halved until one turn is left.
#
# The state is in memory: after a restart the batch is tried from the beginning.

TRIES = 2
"""failures allowed for a batch, and for a single turn: a killed trainer gets another chance"""
UNTRAINABLE: DropReason = "cannot be trained"
"""reason of the drop"""


class BatchBisection:
    """Limit on the next batch, by the results of the last ones."""

    def __init__(self) -> None:
        self._failures = 0
        self._limit: int | None = None

    def size(self, waiting: int) -> int:
        """Return the number of ``waiting`` samples to try now: all of them, unless a batch has failed."""
        if self._limit is not None and self._limit >= waiting:
            self._limit = None if self._limit > 1 else self._limit
        return waiting if self._limit is None else min(waiting, self._limit)

    def passed(self) -> None:
        """Record success: the next batch may be twice as large."""
        self._failures = 0
        if self._limit is not None:
            self._limit *= 2

    def failed(self, batch: TrainingBatch, error: Exception) -> Drop | None:
        """Record a failure: repeat the batch, then halve it; return the drop of a single turn that fails too often."""
        self._failures += 1
        is_single = len(batch.samples) == 1
        if self._failures < TRIES and (is_single or self._limit is None):
            return None
        self._failures = 0
        self._limit = max(1, len(batch.samples) // 2)
        if not is_single:
            return None
        lines = f"{type(error).__name__}: {error}".strip().splitlines()
        detail = " ... ".join(dict.fromkeys((lines[0], lines[-1])))[:500]
        return Drop(turn=batch.samples[0].turn, stage="train", reason=UNTRAINABLE, detail=detail)


log = logging.getLogger(__name__)


class StepLedger(VersionLedger, Protocol):
    """Part of the ledger that steps are written to."""

    def add_step(self, step: Step, version: Version | None, drops: Sequence[Drop] = ()) -> None: ...
    def add_drops(self, drops: Sequence[Drop]) -> None: ...
    def last_step(self) -> Step | None: ...


class StepRunner:
    """Runner of training steps from the live version; it offers the results as candidates.

    A batch that fails is tried again and then halved, until the turn that causes it is isolated and dropped.
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
        """``beside`` returns the samples that repeat learned notes in a step."""
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
        """Take one step on these samples, or on part of them after a failure; return the number used up.

        ``played`` are the steps that they are measured against, by turn.
        """
        progress = await asyncio.to_thread(self.progress)
        batch = self._batch(chosen, progress, played)
        number = progress.step + 1
        parent = await asyncio.to_thread(self._versions.current)
        target = self._origin.folder(await asyncio.to_thread(self._versions.next_number))
        try:
            result = await self._control.during(self._train(batch, number=number, parent=parent, target=target))
        except (BackendDown, ModelRefused):  # no batch caused it
            raise
        except Exception as error:  # a batch may fail in any way, but not for ever
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
            log.warning("step %d repeats without the deleted turns: %s", number, error)
            return 0
        return len(batch.samples)

    def progress(self) -> TrainingProgress:
        """Return the newest step and its baselines; before this run's first step, those of the live version."""
        last = self._ledger.last_step()
        if last is not None:
            return TrainingProgress(step=last.number, baselines=last.baselines)
        adapter = self._versions.current().adapter
        return checkpoints.load_progress(Path(adapter)) if adapter else TrainingProgress()

    def _batch(
        self, chosen: Sequence[Sample], progress: TrainingProgress, played: Mapping[str, PlayedStep]
    ) -> TrainingBatch:
        """Return samples with their advantages; after a failure only part, with advantages from all of ``chosen``."""

        def advantages(samples: Sequence[Sample]) -> TrainingBatch:
            return with_advantages(samples, baselines=progress.baselines, settings=self._samples, played=played)

        complete = advantages(chosen)
        size = self._bisection.size(len(chosen))
        if size == len(chosen):
            return complete
        after = advantages(chosen[:size]).baselines
        return TrainingBatch(samples=complete.samples[:size], baselines=after, figures=complete.figures)

    async def _train(self, batch: TrainingBatch, *, number: int, parent: Version, target: Path) -> StepResult:
        if batch.without_signal:
            why = "every advantage is zero and there is no hint"
            return StepResult(adapter=None, metrics={}, seconds=0.0, skipped=why)
        await asyncio.to_thread(
            shutil.rmtree, target, ignore_errors=True
        )  # left by a crash before the step's row was written
        repeated = await asyncio.to_thread(self._beside, batch.samples) if self._beside is not None else ()
        return await self._trainer.step((*batch.samples, *repeated), number=number, parent=parent, target=str(target))

    def _drop(self, untrainable: Drop) -> None:
        """Drop a turn that fails the trainer and count an alarm, since the trainer may be at fault."""
        self._ledger.add_drops([untrainable])
        log.error("turn %s is dropped: %s", untrainable.turn, untrainable.detail)
        self._control.alarm(f"turn {untrainable.turn} was dropped: {untrainable.detail}")

    def _publish(self, batch: TrainingBatch, number: int, parent: Version, result: StepResult) -> None:
        """Write the step with the version that it made; a step that an alarm skipped makes none."""
        turns = {sample.turn for sample in batch.samples}  # repeated samples are in no row
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
    """Format a step as one log line."""
    loss = f", loss {step.metrics['loss']:.4f}" if "loss" in step.metrics else ""
    return f"{len(step.turns)} samples{loss}, {step.seconds:.1f} s{_spent(step.metrics)}"


def _spent(metrics: Mapping[str, float]) -> str:
    """Format the tokens and cost of a step on a paid service."""
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
    """Return the inputs of a turn to the step: hints, version lag, recalled rule and advantage."""
    part: dict[str, float | str] = {"hints": float(len(sample.teachers)), "lag": float(parent.number - sample.version)}
    if sample.recalled is not None:
        part["recalled"] = sample.recalled
    return part if sample.advantage is None else {"advantage": sample.advantage, **part}
