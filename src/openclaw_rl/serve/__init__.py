"""Loop 1, answer: the API, its wire formats, and the loop that loads new versions."""

from openclaw_rl.serve.api import build_app
from openclaw_rl.serve.loop import ServeLoop
from openclaw_rl.serve.redact import patterns
from openclaw_rl.serve.request import RequestLimits, TurnLedger

__all__ = ["RequestLimits", "ServeLoop", "TurnLedger", "build_app", "patterns"]
