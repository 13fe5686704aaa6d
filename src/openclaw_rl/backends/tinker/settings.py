"""Settings for the policy and the trainer at the service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from openclaw_rl.backends.hf.trainer_settings import ADAM_EPS, TrainerSettings
from openclaw_rl.errors import ConfigError
from openclaw_rl.losses import LossSettings

# Access to the service, and its budget.

PATIENCE = 600.0
"""seconds in which the service must answer a request"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudAccess:
    """The model by the service's name, the account, and the daily budget. ``url`` None: the service's own."""

    model: str
    key: str | None = field(repr=False)
    url: str | None
    prices: Mapping[str, float]
    """money for a million tokens by use: prefill, sample, train; a missing use is free"""
    budget: float | None
    run_dir: Path
    patience: float = PATIENCE


ALPHA: Final = 32.0
"""the fixed scale in the service's adapters"""
_DECIDES: Final = (
    "model", "seed", "loss", "k", "max_hints", "lr", "lr_by_signal", "weight_decay", "adam_beta1", "adam_beta2",
    "grad_clip", "teacher", "lora_rank", "gap_alarm", "ess_alarm", "norm_alarm", "distillation_loss", "distillation_lr",
)  # fmt: skip
"""settings that determine a step's numbers, beside those for the loss"""


@dataclass(frozen=True, kw_only=True)
class CloudSettings:
    """The model by the service's name, and the settings in `cloud`. ``cloud_tokenizer`` None: the model's own."""

    model: str
    run_dir: Path
    cloud_key: str | None = field(repr=False)
    cloud_url: str | None
    cloud_tokenizer: str | None
    cloud_prices: Mapping[str, float]
    cloud_budget: float | None
    patience: float = PATIENCE

    @property
    def tokenizer(self) -> str:
        """Return the path or name with the tokenizer and the chat template."""
        return self.cloud_tokenizer or self.model

    def access(self) -> CloudAccess:
        """Return the settings for access to the service."""
        return CloudAccess(
            model=self.model,
            key=self.cloud_key,
            url=self.cloud_url,
            prices=self.cloud_prices,
            budget=self.cloud_budget,
            run_dir=self.run_dir,
            patience=self.patience,
        )


@dataclass(frozen=True, kw_only=True)
class TinkerPolicySettings(CloudSettings):
    """The settings in `policy` and `cloud`."""

    cache_dir: Path
    context: int | None
    chat_template: str | None
    tool_format: str | None


@dataclass(frozen=True, kw_only=True)
class TinkerTrainerSettings(TrainerSettings, CloudSettings):
    """The settings in `train` and `cloud`; raises ConfigError for settings that the service does not support."""

    cloud_download: bool

    def __post_init__(self) -> None:
        TrainerSettings.__post_init__(self)
        for what, wrong, remedy in (
            ("train.lora.enabled is off", not self.lora, "the service trains adapters: set it to true"),
            ("train.loss.teacher = ema", self.teacher == "ema", "the service keeps no average: take base or live"),
            ("train.loss.teacher_model is set", self.teacher_model is not None, "take train.loss.teacher = base"),
            ("train.prompt_distillation.teacher is not base", self.distillation_teacher != "base", "take base"),
            (f"train.optim.average = {self.average}", self.average != 1, "the service keeps no average: take 1"),
            (f"train.lora.alpha = {self.lora_alpha:g}", self.lora_alpha != ALPHA, f"it is always {ALPHA:g} there"),
            (f"train.lora.dropout = {self.lora_dropout:g}", self.lora_dropout != 0, "there is none there: take 0"),
            ("train.lora.targets is set", bool(self.lora_targets), "all linear layers are adapted there: unset it"),
        ):
            if wrong:
                raise ConfigError(f"{what}, and train.backend = tinker cannot do that", remedy=remedy)

    def record(self) -> dict[str, Any]:
        """Return the settings that determine the numbers, for a manifest."""
        values = asdict(self)
        losses = {setting.name: values[setting.name] for setting in fields(LossSettings)}
        return {name: values[name] for name in _DECIDES} | {"losses": losses, "adam_eps": ADAM_EPS}
