"""Loop 1, answer: the API, its wire formats, and the loop that takes up new versions."""

from openclaw_rl.serve.api import build_app
from openclaw_rl.serve.asked import Book, Limits
from openclaw_rl.serve.loop import ServeLoop
from openclaw_rl.serve.redact import patterns

__all__ = ["Book", "Limits", "ServeLoop", "build_app", "patterns"]
