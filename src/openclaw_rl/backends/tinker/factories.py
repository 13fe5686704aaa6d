"""The policy and the trainer for the backend ``"tinker"``, called with the settings that their classes declare."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from openclaw_rl.backends.tinker.policy import TinkerPolicy
from openclaw_rl.backends.tinker.settings import TinkerPolicySettings, TinkerTrainerSettings

if TYPE_CHECKING:
    from openclaw_rl.backends.tinker.trainer import TinkerTrainer


@wraps(TinkerPolicySettings, assigned=(), updated=())
def tinker_policy(**settings: Any) -> TinkerPolicy:
    """Return a policy at the service."""
    return TinkerPolicy(TinkerPolicySettings(**settings))


@wraps(TinkerTrainerSettings, assigned=(), updated=())
def tinker_trainer(**settings: Any) -> TinkerTrainer:
    """Return a trainer at the service; torch is loaded here, so that a process that only serves does not load it."""
    from openclaw_rl.backends.tinker.trainer import TinkerTrainer

    return TinkerTrainer(TinkerTrainerSettings(**settings))
