"""Hooks that make each sample of an evaluation a session of an OpenClaw-RL server, and pay it its score at the end.

They act where ``OPENCLAW_URL`` names a server (http://HOST:PORT/v1); ``OPENCLAW_API_KEY`` is an environment's key
(env:NAME in serve.keys_file). The epochs of a sample are a group: what they are worth is measured against each other.
"""

from __future__ import annotations

import asyncio
import json
import os
import urllib.error
import urllib.request
from contextvars import ContextVar
from typing import Any
from urllib.parse import quote

from inspect_ai.hooks import BeforeModelGenerate, Hooks, SampleEnd, SampleStart, hooks

SECONDS = 60.0
_headers: ContextVar[dict[str, str]] = ContextVar("openclaw_rl_headers", default={})
"""of the sample that runs here: its calls know another id of it than its start and its end do"""
LETTERS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""what Inspect's letters for right, partly right, wrong and no answer are worth"""


def worth(value: Any) -> float | None:
    """A score from 0 to 1; None for what is none.

    >>> worth("C"), worth(False), worth(0.25), worth({"a": 1, "b": 0}), worth("who knows")
    (1.0, 0.0, 0.25, 0.5, None)
    """
    if isinstance(value, dict):
        parts = [each for each in map(worth, value.values()) if each is not None]
        return sum(parts) / len(parts) if parts else None
    if isinstance(value, str):
        return LETTERS.get(value)
    return max(0.0, min(1.0, float(value))) if isinstance(value, (bool, int, float)) else None


def outcome_of(scores: dict[str, Any] | None) -> float | None:
    """The outcome of a sample from -1 to 1, the mean of its scorers; None where none says anything."""
    found = [each for score in (scores or {}).values() if (each := worth(score.value)) is not None]
    return 2 * sum(found) / len(found) - 1 if found else None


@hooks(name="openclaw_rl", description="Each sample is a session of an OpenClaw-RL server, paid its score")
class SessionHooks(Hooks):
    """See the module."""

    def enabled(self) -> bool:
        return bool(os.environ.get("OPENCLAW_URL"))

    async def on_sample_start(self, data: SampleStart) -> None:
        _headers.set({"x-session-id": data.sample_id, "x-openclaw-rl-group": f"{data.eval_id}-{data.summary.id}"})

    async def on_before_model_generate(self, data: BeforeModelGenerate) -> None:
        """Name the session in every call that a sample makes."""
        data.config.extra_headers = {**(data.config.extra_headers or {}), **_headers.get()}

    async def on_sample_end(self, data: SampleEnd) -> None:
        """Pay it and end it. A sample that failed was not the policy's fault: it trains nothing."""
        outcome = outcome_of(data.sample.scores)
        if data.sample.error is not None:
            paid: dict[str, Any] = {"failed": data.sample.error.message[:500]}
        else:
            paid = {"failed": "no scorer says anything"} if outcome is None else {"score": outcome}
        place = f"sessions/{quote(data.sample_id, safe='')}"
        await asyncio.to_thread(_post, f"{place}/reward", paid)
        await asyncio.to_thread(_post, f"{place}/end", {})


def _post(path: str, body: dict[str, Any]) -> None:
    headers = {"content-type": "application/json", "authorization": f"Bearer {os.environ.get('OPENCLAW_API_KEY', '')}"}
    url = f"{os.environ['OPENCLAW_URL'].rstrip('/')}/{path}"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=SECONDS):
            pass
    except urllib.error.HTTPError as error:
        if error.code != 404:  # a sample that has asked nothing is no session
            raise
