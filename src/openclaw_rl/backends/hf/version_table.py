"""A policy's versions: their adapters, their parents, and the versions that cannot be loaded."""

from __future__ import annotations

from collections import Counter
from typing import Any, Protocol

from openclaw_rl.errors import BackendError
from openclaw_rl.ports import Stream
from openclaw_rl.types import Prompt, Sampling, Version

DEATHS = 2
"""process crashes during a version's loading after which it counts as unloadable"""


class VersionTable:
    """Versions by number; 0 is the base model."""

    def __init__(self) -> None:
        self.adapters: dict[int, str | None] = {0: None}
        self.live = 0
        """version for new requests"""
        self.unloadable: dict[int, str] = {}
        """reason for each version whose last loading failed"""
        self._parents: dict[int, int] = {}
        self._deaths: Counter[int] = Counter()

    def know(self, version: Version) -> None:
        """Register a version; raise `BackendError` if its number is registered with another adapter."""
        number, adapter = version.number, version.adapter
        if self.adapters.get(number, adapter) != adapter:
            raise BackendError(
                f"version {number} is {self.adapters[number]}, not {adapter}",
                remedy="an adapter is never changed in place: give it a new number",
            )
        self.adapters[number] = adapter
        if version.parent is not None:
            self._parents[number] = version.parent

    def before(self, number: int) -> int:
        """Return the version that ``number`` was trained from: it was live, so neither a candidate nor refused."""
        return self._parents.get(number, 0)

    def died(self, number: int, why: str) -> bool:
        """Count a crash during this version's loading; return True if it is now unloadable."""
        self._deaths[number] += 1
        if self._deaths[number] >= DEATHS:
            self.unloadable[number] = why
        return number in self.unloadable

    def loaded(self, number: int) -> None:
        """Clear a version's failures after a successful load."""
        self.unloadable.pop(number, None)
        del self._deaths[number]

    def names(self) -> str:
        """List the known numbers, the newest individually."""
        numbers = sorted(self.adapters)
        newest = ", ".join(map(str, numbers[-5:]))
        return newest if len(numbers) <= 5 else f"{numbers[0]} .. {numbers[-6]}, {newest}"


# A policy within one scope.


class _Divided(Protocol):
    def generate(
        self, prompt: Prompt, sampling: Sampling, *, version: int | None = None, scope: str = ""
    ) -> Stream: ...


class ScopedPolicy:
    """The policy itself, except that it generates in one scope."""

    def __init__(self, policy: _Divided, scope: str) -> None:
        self._policy = policy
        self._scope = scope

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def generate(self, prompt: Prompt, sampling: Sampling, *, version: int | None = None) -> Stream:
        return self._policy.generate(prompt, sampling, version=version, scope=self._scope)
