"""What an engine's refusal means for the request that it refused."""

from __future__ import annotations

from typing import Any

from openclaw_rl.backends.engines.dialect import Dialect
from openclaw_rl.backends.engines.http import ConnectionLost, EngineAnswer
from openclaw_rl.errors import BackendDown, RequestError


class Forgotten(Exception):
    """The engine does not know the adapter of a request."""


def refusal(dialect: Dialect, answer: EngineAnswer) -> Exception:
    """The error that an answer other than 200 stands for."""
    if dialect.forgot(answer):
        return Forgotten(answer.words)
    words = f"the engine refused the request: {answer.words}"
    if answer.status == 429:
        return BackendDown(words)
    if answer.status >= 500:  # an engine whose core died says so once, then ends
        return ConnectionLost(f"the engine failed: {answer.words}")
    return RequestError(words, status=400)


def code_of(error: Any) -> int:
    """The status that an error inside of a stream stands for."""
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) and 400 <= code < 600 else 500
