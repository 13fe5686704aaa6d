"""A policy as one scope sees it."""

from __future__ import annotations

from typing import Any, Protocol

from openclaw_rl.ports import Stream
from openclaw_rl.types import Prompt, Sampling


class _Divided(Protocol):
    def generate(
        self, prompt: Prompt, sampling: Sampling, *, version: int | None = None, scope: str = ""
    ) -> Stream: ...


class ScopedPolicy:
    """All is the policy's own, but what it generates is of one scope."""

    def __init__(self, policy: _Divided, scope: str) -> None:
        self._policy = policy
        self._scope = scope

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def generate(self, prompt: Prompt, sampling: Sampling, *, version: int | None = None) -> Stream:
        return self._policy.generate(prompt, sampling, version=version, scope=self._scope)
