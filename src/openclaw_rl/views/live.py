"""How serving is doing now, and how it did in the last hour: looked at from outside, and kept by whoever looks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from openclaw_rl.store import LedgerReader
from openclaw_rl.views.browse import Curve

EVERY: Final = 5.0
"""seconds between two looks"""
_KEPT: Final = 720
_FRESH: Final = 10.0
"""seconds after which what a server said of itself is old"""


class LiveSample(NamedTuple):
    """One look: requests that are answered and that wait, tokens of replies since the servers began."""

    at: float
    running: float
    waiting: float
    tokens: float


class LiveFigures:
    """The looks of the last hour, of all servers together."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._samples: deque[LiveSample] = deque(maxlen=_KEPT)

    def look(self, ledger: LedgerReader) -> None:
        """Look, unless it was done a moment ago."""
        now = self._clock()
        if self._samples and now - self._samples[-1].at < EVERY:
            return
        loads = [one.detail.get("load", {}) for one in ledger.health() if one.role == "serve" and now - one.at < _FRESH]
        if loads:
            sums = [sum(load.get(name, 0.0) for load in loads) for name in ("running", "waiting", "reply_tokens")]
            self._samples.append(LiveSample(now, *sums))

    def curves(self) -> list[Curve]:
        """The queue, and how many tokens came out of it; of minutes before the newest look."""
        found = [
            Curve(
                name="queue",
                title="Requests waiting",
                good="0 most of the time. A queue that stays: more people than sequence slots (policy.slots).",
                unit="now",
                points=tuple((self._minutes(one), one.waiting) for one in self._samples),
                axis="minute",
            ),
            Curve(
                name="served",
                title="Tokens served",
                good="Follows what people ask for. Low while requests wait: the engine shares its processor.",
                unit="tokens a second",
                points=tuple(self._rates()),
                axis="minute",
            ),
        ]
        return [curve for curve in found if curve.points]

    def _minutes(self, sample: LiveSample) -> float:
        return round((sample.at - self._samples[-1].at) / 60, 2)

    def _rates(self) -> list[tuple[float, float]]:
        pairs = zip(self._samples, list(self._samples)[1:], strict=False)
        return [
            (self._minutes(now), (now.tokens - before.tokens) / (now.at - before.at))
            for before, now in pairs
            if now.tokens >= before.tokens  # a server that began anew counts from 0
        ]
