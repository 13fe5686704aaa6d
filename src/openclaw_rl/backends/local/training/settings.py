"""The trainer's settings as one value that travels to the worker process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from openclaw_rl.errors import ConfigError
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
