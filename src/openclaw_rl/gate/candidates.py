"""The policy that examines, and the candidates it holds beside the live version."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from openclaw_rl.errors import BackendError, ModelRefused
from openclaw_rl.gate.checks import Check
from openclaw_rl.ports import Policy, SupportsCandidates, SupportsVersions
from openclaw_rl.types import Version

log = logging.getLogger(__name__)

GetPolicy = Callable[[], Awaitable[Policy]]


class LazyPolicy:
    """A policy of this process alone, built and started when it is first needed."""

    def __init__(self, build: Callable[[], Policy]) -> None:
        self._build = build
        self._policy: Policy | None = None
        self._lock = asyncio.Lock()

    async def __call__(self) -> Policy:
        """The policy, ready; raises BackendError when it cannot be had."""
        async with self._lock:
            if self._policy is None:
                made = self._build()
                await made.start()
                self._policy = made
            return self._policy

    async def stop(self) -> None:
        """End it, if it was started. Safe to call twice."""
        policy, self._policy = self._policy, None
        if policy is not None:
            await policy.stop()


class Candidates:
    """The versions that the policy was given for examination."""

    def __init__(self, policy: GetPolicy) -> None:
        self._policy = policy
        self._admitted: set[int] = set()

    async def admit(self, policy: Policy, candidate: Version, live: Version) -> Check:
        """Load the candidate beside the live version; whether its weights can be read."""
        if not isinstance(policy, SupportsCandidates):
            raise BackendError(
                f"policy {policy.name!r} cannot hold a candidate beside the live version",
                remedy="give it admit() and dismiss() (openclaw_rl.ports.SupportsCandidates), or set gate.mode = 'off'",
            )
        await self.dismiss(self._admitted - {candidate.number, live.number})
        if isinstance(policy, SupportsVersions):
            policy.know(live)
        self._admitted.add(candidate.number)
        try:
            await policy.admit(candidate)
        except ModelRefused as error:
            return Check(name="weights", ok=False, detail=str(error))
        return Check(name="weights", ok=True, detail="readable and finite")

    async def dismiss(self, numbers: set[int]) -> None:
        """Unload versions. One that was promoted stays until the next examination: serving takes it up meanwhile."""
        leaving = numbers & self._admitted
        self._admitted -= leaving
        try:
            policy = await self._policy() if leaving else None
            for number in leaving:
                if isinstance(policy, SupportsCandidates):
                    await policy.dismiss(number)
        except BackendError as error:  # a policy that is down holds nothing
            log.debug("versions %s could not be dismissed: %s", leaving, error)
