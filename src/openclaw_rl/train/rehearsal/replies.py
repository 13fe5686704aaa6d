"""Replies of weights that are in no ledger, sampled behind users' requests and given up when one comes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from openclaw_rl.errors import BackendError, ContextOverflow
from openclaw_rl.ports import Policy, SupportsCandidates, whole_reply
from openclaw_rl.types import FIRST_DRAFT, Completion, Prompt, Sampling, Version

POLL = 0.25
"""seconds between two looks for users' requests while replies are sampled"""
CONCURRENCY = 64
"""replies at once: one pass of the weights serves them all"""

GetPolicy = Callable[[], Awaitable[Policy]]
Quiet = Callable[[], Awaitable[bool]]
"""whether nobody has sent a request of late"""

_numbers = itertools.count(FIRST_DRAFT)


class Interrupted(Exception):
    """A user's request came: what was under way is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One prompt to be answered, and how."""

    prompt: Prompt
    sampling: Sampling


class ReplySampler:
    """Samples replies of any weights. Those it holds are candidates to the policy: they yield to users' requests."""

    def __init__(self, policy: GetPolicy, quiet: Quiet) -> None:
        self._policy, self._quiet = policy, quiet

    async def quiet(self) -> bool:
        """Whether nobody has sent a request of late."""
        return await self._quiet()

    async def policy(self) -> Policy:
        return await self._policy()

    async def hold(self, adapter: str | None, *, base: str) -> int:
        """Load weights beside the live ones (None: the base model); the number under which they answer."""
        policy, number = await self._policy(), next(_numbers)
        if not isinstance(policy, SupportsCandidates):
            raise BackendError(
                f"policy {policy.name!r} cannot hold weights beside the live version, which rehearsal needs",
                remedy="give it admit() and dismiss() (openclaw_rl.ports.SupportsCandidates), "
                "or set train.rehearse.enabled = false",
            )
        await policy.admit(Version(number=number, parent=0, base=base, adapter=adapter))
        return number

    async def release(self, number: int | None) -> None:
        """Let weights go. Safe to call for None."""
        if number is None:
            return
        policy = await self._policy()
        if isinstance(policy, SupportsCandidates):
            await policy.dismiss(number)

    async def replies(self, asks: Sequence[Ask], number: int) -> list[Completion | None]:
        """A reply to each, None where the prompt does not fit; raises Interrupted when a user's request comes."""
        policy, room = await self._policy(), asyncio.Semaphore(CONCURRENCY)

        async def one(ask: Ask) -> Completion | None:
            async with room:
                try:
                    return await whole_reply(policy.generate(ask.prompt, ask.sampling, version=number))
                except ContextOverflow:
                    return None

        tasks = [asyncio.create_task(one(ask)) for ask in asks]
        try:
            pending = set(tasks)
            while pending:
                _, pending = await asyncio.wait(pending, timeout=POLL, return_when=asyncio.FIRST_EXCEPTION)
                if any(task.done() and task.exception() for task in tasks):
                    break
                if pending and not await self._quiet():
                    raise Interrupted
            return [await task for task in tasks]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
