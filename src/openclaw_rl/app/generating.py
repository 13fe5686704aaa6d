"""Between the API and the policy: the step that a setting may replace, and the wait until the model is loaded."""

from __future__ import annotations

import asyncio

from openclaw_rl.errors import BackendDown
from openclaw_rl.ports import Generate, Policy, Stream
from openclaw_rl.types import Prompt, Sampling


def generate_directly(policy: Policy, prompt: Prompt, sampling: Sampling, *, version: int | None) -> Stream:
    """Ask the policy as it is."""
    return policy.generate(prompt, sampling, version=version)


def when_ready(ready: asyncio.Event, generate: Generate) -> Generate:
    """Until the model is loaded, say "not yet" in the way that makes the API hold the request."""

    async def not_yet() -> Stream:
        raise BackendDown("the model is still being loaded", retry_after=0.2)
        yield  # makes this a stream, so that it fails where a stream is first read

    def waiting(policy: Policy, prompt: Prompt, sampling: Sampling, *, version: int | None) -> Stream:
        return generate(policy, prompt, sampling, version=version) if ready.is_set() else not_yet()

    return waiting
