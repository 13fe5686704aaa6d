"""Write answered turns to the ledger: at once, or from a queue in memory once the ledger accepts them again."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from openclaw_rl.errors import LedgerDown
from openclaw_rl.types import Json, Turn

# The server's counters, for Prometheus, in a separate registry.

_FIRST = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """One server's counters."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self.requests = Counter("openclaw_rl_requests", "requests answered", ["wire", "status"], registry=registry)
        self.running = Gauge("openclaw_rl_requests_running", "requests being answered now", registry=registry)
        self.waiting = Gauge("openclaw_rl_requests_waiting", "requests waiting for a place", registry=registry)
        self.held = Counter(
            "openclaw_rl_requests_held", "requests held because the backend was down", registry=registry
        )
        self.first = Histogram(
            "openclaw_rl_first_token_seconds", "time to the first token", buckets=_FIRST, registry=registry
        )
        self.tokens = Counter("openclaw_rl_tokens", "tokens", ["side"], registry=registry)
        self.turns = Counter("openclaw_rl_turns", "turns by finish reason", ["finish"], registry=registry)
        self.lost = Counter("openclaw_rl_turns_lost", "turns that the ledger could not take", registry=registry)
        self.unwritten = Gauge(
            "openclaw_rl_turns_waiting", "answered turns that wait for the ledger", registry=registry
        )
        self.version = Gauge("openclaw_rl_version", "policy version for new requests", registry=registry)
        self.engine = Gauge("openclaw_rl_engine", "figures of the engine", ["figure"], registry=registry)
        self.prompt_tokens = self.tokens.labels("prompt")
        self.reply_tokens = self.tokens.labels("reply")

    def measure(self, health: Mapping[str, Any]) -> None:
        """Record the numbers in the engine's health report."""
        for figure, value in health.items():
            if isinstance(value, int | float) and figure not in ("pid", "live"):
                self.engine.labels(figure).set(value)

    def load(self) -> dict[str, float]:
        """Return the requests that run and wait now, and the total number of reply tokens."""
        named = {"running": "requests_running", "waiting": "requests_waiting"}
        counts = {name: self.registry.get_sample_value(f"openclaw_rl_{gauge}") or 0.0 for name, gauge in named.items()}
        tokens = self.registry.get_sample_value("openclaw_rl_tokens_total", {"side": "reply"})
        return {**counts, "reply_tokens": tokens or 0.0}

    def page(self) -> bytes:
        return generate_latest(self.registry)


log = logging.getLogger(__name__)
T = TypeVar("T")

_ROOM = 4_000_000
"""maximum tokens in the queue, some hundred megabytes; a turn counts as 2,000 tokens more than it has"""
_EVERY = 1.0
"""seconds between two write attempts while turns wait"""


class TurnSink(Protocol):
    """The ledger's interface for turns."""

    def add_turn(self, turn: Turn) -> None: ...


class TurnRecorder:
    """Writes turns in the order of their answers. ``lost`` counts the turns that no ledger will ever contain.

    If the ledger is down (`LedgerDown`: no space, no disk), its turns are written automatically as soon as it is back;
    turns beyond the queue's limit, and turns that still wait when the process ends, are lost. `add`, `flush`, `then`,
    `find` and `end` run on the single writer thread.
    """

    def __init__(self, ledger: TurnSink, metrics: Metrics, *, room: int = _ROOM) -> None:
        self._ledger = ledger
        self._metrics = metrics
        self._room = room
        self._waiting: deque[Turn] = deque()
        self._weight = 0
        self._trouble: LedgerDown | None = None
        self._task: asyncio.Task[None] | None = None
        self.lost = 0

    def add(self, turn: Turn) -> None:
        """Write a turn durably, or queue it while the ledger is down; any other error is raised and loses the turn."""
        if self._waiting:
            self._wait(turn)
            self.flush()
            return
        try:
            self._ledger.add_turn(turn)
        except LedgerDown as error:
            self._down(error)
            self._wait(turn)
        except BaseException:
            self.lose()
            raise

    def flush(self) -> None:
        """Write the queued turns, oldest first, as far as the ledger accepts them."""
        while self._waiting:
            turn = self._waiting[0]
            try:
                self._ledger.add_turn(turn)
            except LedgerDown as error:
                self._down(error)
                return
            except Exception as error:
                self.lose()
                log.error("turn lost id=%s: it could not be written: %s", turn.id, type(error).__name__)
            self._waiting.popleft()
            self._weigh(-1, turn)
        if self._trouble is not None:
            log.warning("the ledger accepts turns again")
        self._trouble = None

    def then(self, work: Callable[[], T]) -> T:
        """Run ``work`` after the queued turns are written; raise LedgerDown while one of them waits."""
        self.flush()
        if self._trouble is not None:
            raise self._trouble
        return work()

    def find(self, turn: str) -> Turn | None:
        """Return a queued turn, None if it is not queued."""
        return next((queued for queued in self._waiting if queued.id == turn), None)

    def end(self) -> None:
        """Make the last attempt; count and log the remaining turns as lost."""
        self.flush()
        for _ in self._waiting:
            self.lose()
        if self._waiting:
            log.error("%d answered turns are lost: %s", len(self._waiting), self._trouble)

    async def retry(self, write: Callable[[Callable[[], None]], Awaitable[None]]) -> None:
        """Retry queued turns at intervals, until none waits."""
        if self._waiting and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._keep_trying(write))

    async def _keep_trying(self, write: Callable[[Callable[[], None]], Awaitable[None]]) -> None:
        while self._waiting:
            await asyncio.sleep(_EVERY)
            await write(self.flush)

    def stop(self) -> None:
        """Make no further attempts."""
        if self._task is not None:
            self._task.cancel()

    def reasons(self) -> list[str]:
        """Return the reasons for sending no more requests to the server, in plain words; empty if all is well."""
        trouble = self._trouble
        if trouble is None:
            return []
        return [f"{len(self._waiting)} answered turns wait for the ledger: {trouble.why}; {trouble.remedy}"]

    def alarms(self) -> list[dict[str, Json]]:
        """Return the alarms for a person to check."""
        alarms = [
            {"what": reason, "remedy": "they are written automatically once it accepts them"}
            for reason in self.reasons()
        ]
        if self.lost:
            what = f"{self.lost} answered turns are lost: the ledger could not take them"
            alarms.append({"what": what, "remedy": "the log names each one and why; check the free space on its disk"})
        return alarms

    def _down(self, error: LedgerDown) -> None:
        if self._trouble is None:
            log.error("the ledger accepts no turns; they wait in memory: %s", error)
        self._trouble = error

    def _wait(self, turn: Turn) -> None:
        if self._weight + _weight(turn) > self._room:
            self.lose()
            log.error("turn lost id=%s: the ledger is down, and %d turns wait already", turn.id, len(self._waiting))
            return
        self._waiting.append(turn)
        self._weigh(1, turn)

    def _weigh(self, sign: int, turn: Turn) -> None:
        self._weight += sign * _weight(turn)
        self._metrics.unwritten.set(len(self._waiting))

    def lose(self) -> None:
        """Count a turn that will never be written."""
        self.lost += 1
        self._metrics.lost.inc()


def _weight(turn: Turn) -> int:
    return 2_000 + len(turn.completion.prompt_tokens) + len(turn.completion.reply_tokens)
