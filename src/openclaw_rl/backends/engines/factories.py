"""The policies of ``policy.backend = "vllm"`` and ``"sglang"``, called with the settings of `EngineSettings`."""

from __future__ import annotations

from functools import wraps
from typing import Any

from openclaw_rl.backends.engines.policy import EnginePolicy
from openclaw_rl.backends.engines.settings import EngineSettings
from openclaw_rl.backends.engines.sglang import SglangDialect
from openclaw_rl.backends.engines.vllm import VllmDialect


@wraps(EngineSettings, assigned=(), updated=())
def vllm_policy(**settings: Any) -> EnginePolicy:
    """A policy on vLLM."""
    return EnginePolicy(VllmDialect(), EngineSettings(**settings))


@wraps(EngineSettings, assigned=(), updated=())
def sglang_policy(**settings: Any) -> EnginePolicy:
    """A policy on SGLang."""
    return EnginePolicy(SglangDialect(), EngineSettings(**settings))
