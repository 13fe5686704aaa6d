"""The trainer's settings as one value that travels to the worker process."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from openclaw_rl.errors import ConfigError, PluginError
from openclaw_rl.losses import LossSettings

TEACHERS = ("base", "live", "ema")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSettings:
    """An adapter of ``rank`` that acts with alpha / rank on ``targets`` (empty: all linear layers but the head)."""

    rank: int = 16
    alpha: float = 32.0
    dropout: float = 0.0
    targets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """All that a worker must know. ``lora`` None is full fine-tuning."""

    model: str
    loader: str
    cache_dir: str
    chat_template: str | None
    device: str
    dtype: str
    threads: int | None
    seed: int
    losses: LossSettings
    loss: str | None
    k: int
    max_hints: int
    lr: float
    lr_by_signal: bool
    average: int
    weight_decay: float
    adam_beta1: float
    adam_beta2: float
    adam_eps: float
    grad_clip: float
    teacher: str
    teacher_model: str | None
    ema_decay: float
    tree: bool
    micro_tokens: int | None
    recompute: bool | None
    compile: bool | None
    offload_optimizer: bool
    gap_alarm: float
    ess_alarm: float
    norm_alarm: float
    lora: LoraSettings | None = field(default_factory=LoraSettings)

    def __post_init__(self) -> None:
        if self.teacher not in TEACHERS:
            raise ConfigError(f"no teacher called {self.teacher!r}", remedy=f"known: {', '.join(TEACHERS)}")
        if self.k < 1 or self.max_hints < 1:
            raise ConfigError(f"k is {self.k} and max_hints {self.max_hints}", remedy="both start at 1")

    def record(self) -> Mapping[str, Any]:
        """What decides the numbers, for a manifest; where things lie is left out."""
        left_out = ("cache_dir", "chat_template", "threads", "loader", "compile")
        return {name: value for name, value in asdict(self).items() if name not in left_out}


def attribute(target: str) -> Any:
    """What ``module:name`` or ``file.py:name`` leads to; raises PluginError that says which half is wrong."""
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise PluginError(f"{target!r} is no address", remedy="write 'module:attribute' or 'file.py:attribute'")
    module = _from_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    if not hasattr(module, name):
        raise PluginError(f"{place!r} has no {name!r}")
    return getattr(module, name)


def _from_file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise PluginError(f"no Python file at {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
