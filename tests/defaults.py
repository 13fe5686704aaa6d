"""What parts are built from when nothing is set, as the configuration declares it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from openclaw_rl.app.factories import policy_arguments, trainer_arguments
from openclaw_rl.backends.local.engine.messages import EngineArgs
from openclaw_rl.backends.local.training.settings import TrainerArgs
from openclaw_rl.config import Config
from openclaw_rl.losses import LossSettings


def engine_args(**change: Any) -> EngineArgs:
    return EngineArgs(**_named(EngineArgs, policy_arguments(Config())) | change)


def trainer_args(**change: Any) -> TrainerArgs:
    return TrainerArgs(**_named(TrainerArgs, trainer_arguments(Config())) | change)


def loss_settings(**change: Any) -> LossSettings:
    return LossSettings(**_named(LossSettings, trainer_arguments(Config())) | change)


def _named(kind: type, offered: Mapping[str, Any]) -> dict[str, Any]:
    return {each.name: offered[each.name] for each in fields(kind) if each.name in offered}
