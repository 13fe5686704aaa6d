"""A train loop as the app builds it, with the settings of a small story."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from openclaw_rl.backends.fake import FakeTrainer
from openclaw_rl.ports import Gate, LiveMonitor, Trainer
from openclaw_rl.testing import TemporaryLedger
from openclaw_rl.train.credit import CreditSettings
from openclaw_rl.train.loop import DistillationParts, Housekeeping, LoopLedger, Review, TrainLoop
from openclaw_rl.train.queue import QueueSettings
from openclaw_rl.train.records import Recorder
from openclaw_rl.train.samples import SampleSettings
from openclaw_rl.train.startup import RunOrigin
from openclaw_rl.types import Hint
from openclaw_rl.versions import RetentionPolicy


def credit_settings(**more: Any) -> CreditSettings:
    """Outcome and votes, against the mean of the group, in standard deviations."""
    base: dict[str, Any] = {"mode": "step", "weight": 1.0, "baseline": "mean", "scaled": True, "overlong": False}
    return CreditSettings(**{**base, **more})


def sample_settings(**more: Any) -> SampleSettings:
    """What a turn may teach, in a run where everything teaches."""
    base: dict[str, Any] = {
        "policy_gradient": True,
        "distillation": True,
        "max_lag": 4,
        "max_hints": 3,
        "train_truncated": False,
        "advantage": "baseline",
        "normalize": False,
        "decay": 0.95,
        "remember": 0,
        "credit": credit_settings(),
        "grouped": False,
        "share": "all",
    }
    return SampleSettings(**{**base, **more})


def queue_settings(**more: Any) -> QueueSettings:
    base: dict[str, Any] = {
        "batch_size": 2,
        "max_wait": 600.0,
        "idle": 60.0,
        "group_size": 1,
        "patience": 0.0,
        "group_wait": 900.0,
        "verdict_wait": 1800.0,
        "people": (),
    }
    return QueueSettings(**{**base, **more})


def train_loop(
    ledger: LoopLedger,
    trainer: Trainer,
    root: Path,
    *,
    base: str = "fake",
    resume: Path | None = None,
    samples: SampleSettings | None = None,
    gate: Gate | None = None,
    monitor: LiveMonitor | None = None,
    retain: RetentionPolicy | None = None,
    recorder: Recorder | None = None,
    distillation: DistillationParts | None = None,
    clock: Callable[[], float] = time.time,
    **queue: Any,
) -> TrainLoop:
    """A train loop that steps on two samples and promotes what it makes, unless told otherwise."""
    return TrainLoop(
        ledger,
        trainer,
        origin=RunOrigin(base=base, directory=root / "versions", resume=resume),
        samples=samples or sample_settings(),
        queue=queue_settings(**queue),
        review=Review(gate=gate, monitor=monitor, retry=30.0),
        housekeeping=Housekeeping(retain=retain, recorder=recorder),
        pause_after=3,
        distillation=distillation,
        clock=clock,
    )


class Story(TemporaryLedger):
    """A ledger with every writer at hand, and a clock that stands still."""

    def __init__(self, root: Path, trainer: object | None = None) -> None:
        super().__init__(root)
        self.root, self.now = root, 1000.0
        self.loop = self.begin(trainer or FakeTrainer())

    def begin(self, trainer: object, base: str = "fake", **more: object) -> TrainLoop:
        return train_loop(self.train, trainer, self.root, base=base, clock=lambda: self.now, **more)  # type: ignore[arg-type]

    def said(self, score: float | None, hint: str | Hint | None = None, *, kind: str = "main", **turn_is: Any) -> str:
        hints = (hint,) if hint else ()
        return self.add(score, *hints, outcome={"kind": kind}, at=self.now, **turn_is).id
