"""What a request to the engine process is, and how its end is told to whoever waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, TypeVar

from openclaw_rl.backends.local.engine.events import Finished
from openclaw_rl.errors import BackendDown, FatalRequest, OpenClawError
from openclaw_rl.types import Completion, Message, Prompt, Sampling

HOLD = 120.0
"""seconds a request waits for an engine that is being started again"""

T = TypeVar("T")


class EngineLost(BackendDown):
    """The process ended under a request."""


@dataclass(frozen=True, slots=True)
class GenerateCall:
    """A reply that is asked for. ``live``: of whatever version is live, which was ``version``."""

    prompt: Prompt
    sampling: Sampling
    version: int
    live: bool
    scope: str


def fatal(lost: EngineLost) -> FatalRequest:
    return FatalRequest(
        f"the engine ended twice while it worked on this request, which is not tried again ({lost.what})",
        remedy="change the request, or report what the server's log says",
    )


def completion(done: Finished, sampling: Sampling) -> Completion:
    return Completion(
        reply=Message(role="assistant", content=done.text),
        prompt_tokens=done.prompt,
        reply_tokens=done.tokens,
        logprobs=done.logprobs,
        sampling=sampling,
        finish=done.finish,
        version=done.version,
    )


def settle(future: asyncio.Future[Any] | None, value: object) -> None:
    """Give a value or an error to a future that still waits."""
    if future is None or future.done():
        return
    if isinstance(value, OpenClawError):
        future.set_exception(value)
    else:
        future.set_result(value)


async def within(waited: Awaitable[T], what: str) -> T:
    try:
        return await asyncio.wait_for(waited, HOLD)
    except TimeoutError as error:
        raise BackendDown(f"{what} for more than {HOLD:.0f} s") from error
