"""What a trainer is built from, as one value that is sent to the worker process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from openclaw_rl.backends.hf.adam import ADAM_EPS
from openclaw_rl.errors import ConfigError
from openclaw_rl.losses import FORWARD, LossSettings, look_up

TEACHERS = ("base", "live", "ema")
_NO_RECORD = ("cache_dir", "chat_template", "threads", "loader", "compile", "niceness")
_LORA = ("rank", "alpha", "dropout", "targets")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerArgs(LossSettings):
    """All that a training worker must know: the settings of `train` under their own names, those of the losses too."""

    model: str
    cache_dir: str | Path
    chat_template: str | None
    device: str
    dtype: str
    threads: int | None
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
    ema_decay: float
    lora: bool
    lora_rank: int
    lora_alpha: float
    lora_dropout: float
    lora_targets: tuple[str, ...]
    tree: bool
    micro_tokens: int | None
    recompute: bool | None
    compile: bool | None
    offload_optimizer: bool
    gap_alarm: float
    ess_alarm: float
    norm_alarm: float
    rehearse_loss: str
    """reverse, forward, sft, or auto: reverse, and forward for replies of the teacher"""
    rehearse_teacher: str
    """whose weights see the note: base, live (as it was when the rehearsal began) or ema"""
    rehearse_lr: float
    rehearse_decay: float
    """of the average over the steps of a rehearsal that is served"""
    niceness: int = 10
    loader: Callable[..., Any] | None = None
    """with the signature of `models.load`, which None is, called in the worker; gives ``model`` and ``tokenizer``"""

    def __post_init__(self) -> None:
        LossSettings.__post_init__(self)
        for name in (self.teacher, self.rehearse_teacher):
            if name not in TEACHERS:
                raise ConfigError(f"no teacher called {name!r}", remedy=f"known: {', '.join(TEACHERS)}")
        look_up(FORWARD, self.rehearse_loss, "rehearsal loss")
        if self.k < 1 or self.max_hints < 1:
            raise ConfigError(f"k is {self.k} and max_hints {self.max_hints}", remedy="both start at 1")

    @property
    def keeps_ema(self) -> bool:
        """Whether a moving average teaches, so that it must be kept."""
        return "ema" in (self.teacher, self.rehearse_teacher)

    @property
    def compares_with_base(self) -> bool:
        """Whether a step needs the base model's log-probs: for the KL penalty, or for a loss that may ask for them."""
        return self.kl_coef > 0 or self.loss is not None

    def record(self) -> Mapping[str, Any]:
        """What decides the numbers, for a manifest; where things lie is left out."""
        found = {name: value for name, value in asdict(self).items() if name not in _NO_RECORD}
        own = found.pop("loss_config")  # a user's table may hold what JSON cannot
        found |= {"loss_config": {name: repr(value) for name, value in own.items()}} if self.loss else {}
        losses = {each.name: found.pop(each.name) for each in fields(LossSettings)}
        lora = {name: found.pop(f"lora_{name}") for name in _LORA}
        return {**found, "adam_eps": ADAM_EPS, "losses": losses, "lora": lora if self.lora else None}
