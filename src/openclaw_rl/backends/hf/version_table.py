"""The versions that a policy knows: where each lies, what it was trained from, and which of them cannot be loaded."""

from __future__ import annotations

from collections import Counter
from typing import Any, Protocol

from openclaw_rl.errors import BackendError
from openclaw_rl.ports import Stream
from openclaw_rl.types import Prompt, Sampling, Version

DEATHS = 2
"""how many processes may die while they load a version before it counts as one that cannot be loaded"""


class VersionTable:
    """Versions by number; 0 is the base model."""

    def __init__(self) -> None:
        self.adapters: dict[int, str | None] = {0: None}
        self.live = 0
        """the one that new requests take"""
        self.unloadable: dict[int, str] = {}
        """why, for each that could not be loaded when it was last tried"""
        self._parents: dict[int, int] = {}
        self._deaths: Counter[int] = Counter()

    def know(self, version: Version) -> None:
        """Raises BackendError for a number that is known with another adapter."""
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
        """The version that ``number`` was trained from, which was live before it: no candidate and none refused."""
        return self._parents.get(number, 0)

    def died(self, number: int, why: str) -> bool:
        """A process died while it loaded this version; True when that makes it one that cannot be loaded."""
        self._deaths[number] += 1
        if self._deaths[number] >= DEATHS:
            self.unloadable[number] = why
        return number in self.unloadable

    def loaded(self, number: int) -> None:
        """It can be loaded after all."""
        self.unloadable.pop(number, None)
        del self._deaths[number]

    def names(self) -> str:
        """The known numbers, the newest of them one by one."""
        numbers = sorted(self.adapters)
        shown = ", ".join(map(str, numbers[-5:]))
        return shown if len(numbers) <= 5 else f"{numbers[0]} .. {numbers[-6]}, {shown}"


# A policy as one scope sees it.


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
