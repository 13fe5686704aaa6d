"""Time in tests: a clock that a test moves, and a wait for something to become true."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PATIENCE = 60.0
"""seconds after which a wait is given up: only a test that fails takes so long"""


class FakeClock:
    """Time that passes only by `sleep` or by hand.

    >>> clock = FakeClock(100.0)
    >>> asyncio.run(clock.sleep(5.0))
    >>> clock(), clock.slept
    (105.0, [5.0])
    """

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Pass the time at once."""
        self.slept.append(seconds)
        self.now += seconds


def wait_until(condition: Callable[[], bool], *, pause: float = 0.02) -> None:
    """Return when ``condition()`` holds; raises TimeoutError after a minute. For what another process or thread does.

    >>> wait_until(lambda: True)
    """
    until = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"not true after {PATIENCE:.0f} s: {condition}")
        time.sleep(pause)


async def until(condition: Callable[[], bool], *, pause: float = 0.01) -> None:
    """The same in an event loop.

    >>> asyncio.run(until(lambda: True))
    """
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 (the condition is of another process or thread)
            await asyncio.sleep(pause)
