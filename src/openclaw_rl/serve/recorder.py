"""Answered turns on their way to the ledger: written at once, or kept waiting in memory until it can take them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from openclaw_rl.errors import LedgerDown
from openclaw_rl.types import Json, Turn

# What the server counts, for Prometheus, in a registry of its own.

_FIRST = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """Counters of one server."""

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
        self.turns = Counter("openclaw_rl_turns", "turns by how they ended", ["finish"], registry=registry)
        self.lost = Counter("openclaw_rl_turns_lost", "turns that the ledger could not take", registry=registry)
        self.unwritten = Gauge(
            "openclaw_rl_turns_waiting", "answered turns that wait for the ledger", registry=registry
        )
        self.version = Gauge("openclaw_rl_version", "the policy version that new requests take", registry=registry)
        self.engine = Gauge("openclaw_rl_engine", "figures of the engine", ["figure"], registry=registry)
        self.prompt_tokens = self.tokens.labels("prompt")
        self.reply_tokens = self.tokens.labels("reply")

    def measure(self, health: Mapping[str, Any]) -> None:
        """Take what is a number of what the engine says of itself."""
        for figure, value in health.items():
            if isinstance(value, int | float) and figure not in ("pid", "live"):
                self.engine.labels(figure).set(value)

    def load(self) -> dict[str, float]:
        """What is asked of the server now, and how many tokens its replies have had."""
        named = {"running": "requests_running", "waiting": "requests_waiting"}
        found = {name: self.registry.get_sample_value(f"openclaw_rl_{one}") or 0.0 for name, one in named.items()}
        tokens = self.registry.get_sample_value("openclaw_rl_tokens_total", {"side": "reply"})
        return {**found, "reply_tokens": tokens or 0.0}

    def page(self) -> bytes:
        return generate_latest(self.registry)


log = logging.getLogger(__name__)
T = TypeVar("T")

_ROOM = 4_000_000
"""tokens that may wait, which is some hundred megabytes; a turn counts as 2,000 more than it has"""
_EVERY = 1.0
"""seconds between two attempts while turns wait"""


class TurnSink(Protocol):
    """Where turns are written."""

    def add_turn(self, turn: Turn) -> None: ...


class TurnRecorder:
    """Writes turns in the order of their answers. ``lost`` counts those that no ledger will ever have.

    A ledger that is down (`LedgerDown`: no room, no disk) gets its turns as soon as it is back, without anybody's help;
    only what exceeds the room in memory, or is still waiting when the process ends, is lost. All methods but `retry`,
    `reasons` and `alarms` are for the one thread that writes.
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
        """Durable when it returns, unless the ledger is down; raises what else went wrong, and the turn is lost."""
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
        """Write what waits, oldest first, as far as the ledger takes it."""
        while self._waiting:
            turn = self._waiting[0]
            try:
                self._ledger.add_turn(turn)
            except LedgerDown as error:
                self._down(error)
                return
            except Exception as error:
                self.lose()
                log.error("turn lost id=%s: it could not be kept: %s", turn.id, type(error).__name__)
            self._waiting.popleft()
            self._weigh(-1, turn)
        if self._trouble is not None:
            log.warning("the ledger takes turns again")
        self._trouble = None

    def then(self, work: Callable[[], T]) -> T:
        """Do what follows the turns that were answered; LedgerDown while one of them waits."""
        self.flush()
        if self._trouble is not None:
            raise self._trouble
        return work()

    def find(self, turn: str) -> Turn | None:
        """A turn that waits."""
        return next((each for each in self._waiting if each.id == turn), None)

    def end(self) -> None:
        """The last attempt; what is left is lost, and logged."""
        self.flush()
        for _ in self._waiting:
            self.lose()
        if self._waiting:
            log.error("%d answered turns are lost: %s", len(self._waiting), self._trouble)

    async def retry(self, write: Callable[[Callable[[], None]], Awaitable[None]]) -> None:
        """See that what waits is tried again, until nothing waits any more."""
        if self._waiting and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._keep_trying(write))

    async def _keep_trying(self, write: Callable[[Callable[[], None]], Awaitable[None]]) -> None:
        while self._waiting:
            await asyncio.sleep(_EVERY)
            await write(self.flush)

    def stop(self) -> None:
        """No further attempts."""
        if self._task is not None:
            self._task.cancel()

    def reasons(self) -> list[str]:
        """Why the server should get no more requests, in words for anybody; empty if all is well."""
        trouble = self._trouble
        if trouble is None:
            return []
        return [f"{len(self._waiting)} answered turns wait for the ledger: {trouble.why}; {trouble.remedy}"]

    def alarms(self) -> list[dict[str, Json]]:
        """What a person should look at."""
        found = [{"what": reason, "remedy": "they are written automatically then"} for reason in self.reasons()]
        if self.lost:
            what = f"{self.lost} answered turns are lost: the ledger could not take them"
            found.append({"what": what, "remedy": "the log names each one and why; see the room on its disk"})
        return found

    def _down(self, error: LedgerDown) -> None:
        if self._trouble is None:
            log.error("the ledger takes no turns; they wait in memory: %s", error)
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
