"""Step metrics for TensorBoard, trackio or Weights & Biases, if installed and enabled (``run.sinks``)."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from openclaw_rl.errors import MissingExtra
from openclaw_rl.train.records import Sink

PROJECT = "openclaw-rl"


class TensorBoard:
    """Event files in the run's directory; view them with ``tensorboard --logdir RUN_DIR/tensorboard``."""

    name = "tensorboard"

    def __init__(self, run: Path) -> None:
        module = importlib.import_module("tensorboard.summary")
        self._writer: Any = module.Writer(str(run / "tensorboard"))

    def step(self, number: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, number)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class Trackio:
    """Local trackio project with one run per run directory."""

    name = "trackio"

    def __init__(self, run: Path) -> None:
        self._module: Any = importlib.import_module("trackio")
        self._module.init(project=PROJECT, name=_name(run), resume="allow")

    def step(self, number: int, values: Mapping[str, float]) -> None:
        self._module.log(dict(values), step=number)

    def close(self) -> None:
        self._module.finish()


class WandB:
    """Weights & Biases run that continues after a restart."""

    name = "wandb"

    def __init__(self, run: Path) -> None:
        module: Any = importlib.import_module("wandb")
        self._run = module.init(project=PROJECT, name=_name(run), id=_name(run), resume="allow", dir=str(run))

    def step(self, number: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=number)

    def close(self) -> None:
        self._run.finish()


def _name(run: Path) -> str:
    """Return the run directory's name with a hash of its path: unique, and the same after a restart."""
    return f"{run.name}-{hashlib.sha256(str(run).encode()).hexdigest()[:8]}"


SINKS: Mapping[str, Callable[[Path], Sink]] = MappingProxyType(
    {"tensorboard": TensorBoard, "trackio": Trackio, "wandb": WandB}
)


class LazySink:
    """Sink that is opened with its first metrics, so that a remote service does not delay the start."""

    def __init__(self, name: str, run: Path) -> None:
        self.name = name
        self._run = run
        self._sink: Sink | None = None

    def step(self, number: int, values: Mapping[str, float]) -> None:
        if self._sink is None:
            self._sink = SINKS[self.name](self._run)
        self._sink.step(number, values)

    def close(self) -> None:
        if self._sink is not None:
            self._sink.close()


def open_sinks(names: Sequence[str], run: Path) -> tuple[Sink, ...]:
    """Return the named sinks; raise MissingExtra at once if a package is not installed."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise MissingExtra(name, name)
    return tuple(LazySink(name, run) for name in names)
