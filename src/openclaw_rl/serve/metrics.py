"""What the server counts, for Prometheus, in a registry of its own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_FIRST = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """Counters of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        within = {"registry": self.registry, "namespace": "openclaw_rl"}
        self.requests = Counter("requests", "requests answered", ["wire", "status"], **within)
        self.running = Gauge("requests_running", "requests being answered now", **within)
        self.waiting = Gauge("requests_waiting", "requests waiting for a place", **within)
        self.held = Counter("requests_held", "requests held because the backend was down", **within)
        self.first = Histogram("first_token_seconds", "time to the first token", buckets=_FIRST, **within)
        self.tokens = Counter("tokens", "tokens", ["side"], **within)
        self.turns = Counter("turns", "turns by how they ended", ["finish"], **within)
        self.lost = Counter("turns_lost", "turns that the ledger could not take", **within)
        self.version = Gauge("version", "the policy version that new requests take", **within)
        self.prompt_tokens = self.tokens.labels("prompt")
        self.reply_tokens = self.tokens.labels("reply")

    def page(self) -> bytes:
        return generate_latest(self.registry)
