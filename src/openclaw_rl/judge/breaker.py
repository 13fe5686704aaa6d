"""The circuit breaker: after enough failures in a row, stop asking for a while, then try once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

State = Literal["closed", "open", "half open"]


class Breaker:
    """Counts failures in a row. Open for ``pause`` seconds, twice as long each time it fails again, up to ``longest``.

    After the pause one caller is let through; its result closes the breaker or opens it again.
    """

    def __init__(
        self,
        *,
        failures: int,
        pause: float,
        longest: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit = failures
        self._first_pause = pause
        self._longest = longest
        self._clock = clock
        self._failed = 0
        self._pause = pause
        self._open_until: float | None = None
        self._probing = False
        self.reason = ""

    @property
    def state(self) -> State:
        """Closed lets all through, open none, half open one."""
        if self._open_until is None:
            return "closed"
        return "half open" if self._clock() >= self._open_until else "open"

    @property
    def retry_in(self) -> float:
        """Seconds until the next try is let through; 0 when one may go now."""
        return 0.0 if self._open_until is None else max(0.0, self._open_until - self._clock())

    def allow(self) -> bool:
        """Whether the caller may try now. In the half-open state only the first caller may, until it reports."""
        state = self.state
        if state == "closed":
            return True
        if state == "open" or self._probing:
            return False
        self._probing = True
        return True

    def success(self) -> None:
        """A try worked: closed, and the next pause is a short one again."""
        self._failed = 0
        self._pause = self._first_pause
        self._open_until = None
        self._probing = False
        self.reason = ""

    def release(self) -> None:
        """The one let through ended without a result (it was cancelled): another may try."""
        self._probing = False

    def failure(self, reason: str) -> None:
        """A try failed for ``reason``."""
        self._failed += 1
        self.reason = reason
        if self._probing:
            self._pause = min(2 * self._pause, self._longest)
        if self._probing or (self._failed >= self._limit and self._open_until is None):
            self._open_until = self._clock() + self._pause
        self._probing = False
