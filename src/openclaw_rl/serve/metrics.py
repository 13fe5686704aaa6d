"""What the server counts, for Prometheus, in a registry of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

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
