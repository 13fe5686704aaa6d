"""What the policy and the trainer at the service are built from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from openclaw_rl.backends.hf.trainer_settings import ADAM_EPS, TrainerSettings
from openclaw_rl.errors import ConfigError
from openclaw_rl.losses import LossSettings

# What the service is reached with, and what it may cost.

PATIENCE = 600.0
"""seconds in which the service must have answered a request"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudAccess:
    """The model by the service's name, the account, and the most money a day. ``url`` None: the service's own."""

    model: str
    key: str | None = field(repr=False)
    url: str | None
    prices: Mapping[str, float]
    """money for a million tokens, by what is done with them: prefill, sample, train; what is absent costs nothing"""
    budget: float | None
    run_dir: Path
    patience: float = PATIENCE


ALPHA: Final = 32.0
"""the scale of the service's adapters, which no request changes"""
_DECIDES: Final = (
    "model", "seed", "loss", "k", "max_hints", "lr", "lr_by_signal", "weight_decay", "adam_beta1", "adam_beta2",
    "grad_clip", "teacher", "lora_rank", "gap_alarm", "ess_alarm", "norm_alarm", "rehearse_loss", "rehearse_lr",
)  # fmt: skip
"""settings that decide a step's numbers, beside those of the loss"""


@dataclass(frozen=True, kw_only=True)
class CloudSettings:
    """The model by the service's name, and the settings of `cloud`. ``cloud_tokenizer`` None: that of the model."""

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
        """Where the tokenizer and the chat template are."""
        return self.cloud_tokenizer or self.model

    def access(self) -> CloudAccess:
        """What the service is reached with."""
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
    """Settings of `policy` and `cloud`."""

    cache_dir: Path
    context: int | None
    chat_template: str | None
    tool_format: str | None


@dataclass(frozen=True, kw_only=True)
class TinkerTrainerSettings(TrainerSettings, CloudSettings):
    """Settings of `train` and `cloud`; raises ConfigError for what the service has no word for."""

    cloud_download: bool

    def __post_init__(self) -> None:
        TrainerSettings.__post_init__(self)
        for what, wrong, remedy in (
            ("train.lora.enabled is off", not self.lora, "the service trains adapters: set it to true"),
            ("train.loss.teacher = ema", self.teacher == "ema", "the service keeps no average: take base or live"),
            ("train.loss.teacher_model is set", self.teacher_model is not None, "take train.loss.teacher = base"),
            ("train.rehearse.teacher is not base", self.rehearse_teacher != "base", "take base"),
            (f"train.optim.average = {self.average}", self.average != 1, "the service keeps no average: take 1"),
            (f"train.lora.alpha = {self.lora_alpha:g}", self.lora_alpha != ALPHA, f"it is always {ALPHA:g} there"),
            (f"train.lora.dropout = {self.lora_dropout:g}", self.lora_dropout != 0, "there is none there: take 0"),
            ("train.lora.targets is set", bool(self.lora_targets), "all linear layers are adapted there: unset it"),
        ):
            if wrong:
                raise ConfigError(f"{what}, and train.backend = tinker cannot do that", remedy=remedy)

    def record(self) -> dict[str, Any]:
        """What decides the numbers, for a manifest."""
        found = asdict(self)
        losses = {each.name: found[each.name] for each in fields(LossSettings)}
        return {name: found[name] for name in _DECIDES} | {"losses": losses, "adam_eps": ADAM_EPS}
