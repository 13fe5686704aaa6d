"""What every trainer is built from, wherever it trains."""

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
    """The settings of `train` under their own names, those of the losses too."""

    model: str
    cache_dir: Path
    chat_template: str | None
    seed: int
    loss: str | None
    """``module:function``, ``file.py:function`` or ``file.py`` in place of ``method``"""
    loss_config: Mapping[str, Any]
    """what a custom loss is handed as its config"""
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
    rehearse_loss: str
    """reverse, forward, sft, or auto: reverse, and forward for replies of the teacher"""
    rehearse_teacher: str
    """whose weights see the note: base, live (as it was when the rehearsal began) or ema"""
    rehearse_lr: float
    rehearse_width: int | None
    """of the model that this rate suits, where wider ones want a smaller one; None: it is meant for this model"""

    def __post_init__(self) -> None:
        LossSettings.__post_init__(self)
        for name in (self.teacher, self.rehearse_teacher):
            if name not in TEACHERS:
                raise ConfigError(f"no teacher called {name!r}", remedy=f"known: {', '.join(TEACHERS)}")
        look_up(FORWARD, self.rehearse_loss, "rehearsal loss")
        if self.k < 1 or self.max_hints < 1:
            raise ConfigError(f"k is {self.k} and max_hints {self.max_hints}", remedy="both start at 1")

    @property
    def compares_with_base(self) -> bool:
        """Whether a step needs the base model's log-probs: for the KL penalty, or for a loss that may ask for them."""
        return self.kl_coef > 0 or self.loss is not None

    def rehearsal_rate(self, width: int) -> float:
        """The rate of a rehearsal of a model whose hidden states are so wide.

        An update moves what a layer gives by as much as all its inputs together, so the steps of Adam shrink with the
        width. Nothing narrower is given larger ones.
        """
        return self.rehearse_lr * min(1.0, (self.rehearse_width or width) / width)


# What of the optimizer, AdamW, is no setting.

ADAM_EPS: Final = 1e-8
"""AdamW's own, which nobody needs to set"""
REHEARSAL_BETA1: Final = 0.5
"""a rehearsal is a few large steps: a longer memory of gradients would point where the policy no longer is"""
