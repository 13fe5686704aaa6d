"""Settings of every trainer, wherever it trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from openclaw_rl.errors import ConfigError
from openclaw_rl.losses import FORWARD, LossSettings, look_up

TEACHERS: Final = ("base", "live", "ema")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings(LossSettings):
    """The settings of `train` and of the losses, under their own names."""

    model: str
    cache_dir: Path
    chat_template: str | None
    seed: int
    loss: str | None
    """``module:function``, ``file.py:function`` or ``file.py`` in place of ``method``"""
    loss_config: Mapping[str, Any]
    """configuration passed to a custom loss"""
    k: int
    max_hints: int
    lr: float
    lr_by_signal: bool
    average: int
    weight_decay: float
    adam_beta1: float
    adam_beta2: float
    grad_clip: float
    teacher: str
    teacher_model: str | None
    lora: bool
    lora_rank: int
    lora_alpha: float
    lora_dropout: float
    lora_targets: tuple[str, ...]
    gap_alarm: float
    ess_alarm: float
    norm_alarm: float
    distillation_loss: str
    """reverse, forward, sft, or auto: reverse, and forward for the teacher's replies"""
    distillation_teacher: str
    """weights that see the note: base, live (as prompt distillation started) or ema"""
    distillation_lr: float
    distillation_width: int | None
    """hidden width that this rate suits, as wider models need a lower rate; None: it is meant for this model"""

    def __post_init__(self) -> None:
        LossSettings.__post_init__(self)
        for name in (self.teacher, self.distillation_teacher):
            if name not in TEACHERS:
                raise ConfigError(f"no teacher called {name!r}", remedy=f"known: {', '.join(TEACHERS)}")
        look_up(FORWARD, self.distillation_loss, "distillation loss")
        if self.k < 1 or self.max_hints < 1:
            raise ConfigError(f"k is {self.k} and max_hints {self.max_hints}", remedy="both start at 1")

    @property
    def compares_with_base(self) -> bool:
        """True if a step needs the base model's log-probs: for the KL penalty, or for a custom loss."""
        return self.kl_coef > 0 or self.loss is not None

    def distillation_rate(self, width: int) -> float:
        """Return the prompt distillation rate for a model with hidden states of this width.

        An update changes a layer's output by the sum over all its inputs, so Adam's steps shrink with the width.
        Narrower models get no larger steps.
        """
        return self.distillation_lr * min(1.0, (self.distillation_width or width) / width)


# AdamW constants that are not settings.

ADAM_EPS: Final = 1e-8
"""AdamW's epsilon, which needs no tuning"""
DISTILLATION_BETA1: Final = 0.5
"""prompt distillation takes a few large steps: a longer gradient memory would point away from the current policy"""
