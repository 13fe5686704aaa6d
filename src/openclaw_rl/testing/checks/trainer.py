"""Whether a trainer keeps its port's promises."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from openclaw_rl.ports import StepResult
from openclaw_rl.testing.checks.promises import Promises
from openclaw_rl.testing.rows import make_sample
from openclaw_rl.types import Version


def check_trainer(trainer: Any, *, base: str = "base", weights: str = "*") -> None:
    """A trainer: one step from ``base``, twice; ``weights`` is the pattern of the files that must come out the same.

    The directory is there whole, and the metrics are finite numbers. A skipped step says why and leaves nothing.

    >>> from openclaw_rl.testing import FakeTrainer
    >>> check_trainer(FakeTrainer())
    """
    promises = Promises("trainer", trainer)
    with tempfile.TemporaryDirectory() as folder:
        promises.report(_trainer_keeps(promises, trainer, Path(folder) / "000001", base, weights))


async def _trainer_keeps(promises: Promises, trainer: Any, target: Path, base: str, weights: str) -> None:
    await promises.tried("start()", trainer.start())
    samples = [make_sample(1.0), make_sample(None, "Be brief, please.")]
    parent = Version(number=0, parent=None, base=base, state="live")
    try:
        found = []
        for _ in range(2):
            work = trainer.step(samples, number=1, parent=parent, target=str(target))
            _step_keeps(promises, await promises.tried("step()", work), target)
            found.append(_files(target, weights))
            shutil.rmtree(target, ignore_errors=True)
        promises.hold(found[0] == found[1], "the same step twice gives different weights")
    finally:
        await promises.closes("stop", trainer.stop)


def _files(folder: Path, pattern: str) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.rglob(pattern)) if file.is_file()}


def _step_keeps(promises: Promises, trained: Any, target: Path) -> None:
    if not isinstance(trained, StepResult):
        promises.hold(trained is None, f"step() gives {type(trained).__name__}, not a StepResult")
        return
    promises.plain_numbers(trained.metrics)
    if trained.adapter is None:
        promises.hold(bool(trained.skipped), "a step without an adapter does not say why it was skipped")
        promises.hold(not target.exists(), "a skipped step leaves its directory behind")
    else:
        promises.hold(trained.adapter == str(target), f"the adapter is {trained.adapter}, not the target {target}")
        promises.hold(target.is_dir(), "the target directory is not there after the step")
