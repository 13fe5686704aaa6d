"""The fakes that the test suite uses, for the tests of a plugin too.

    rows       one line for each noun: `make_message`, `make_prompt`, `make_completion`, `make_turn`, ...
    policies   `ScriptedPolicy`, which replies as a script says and fails on demand
    ledgers    `MemoryLedger`, the ledger as the API sees it
    servers    `serving`: the API on a free port for the length of a block; `sse_events`, `chat_chunks`

Nothing here needs weights, a network or a GPU.
"""

from __future__ import annotations

from openclaw_rl.backends.fake import FakePolicy, FakeTrainer
from openclaw_rl.testing.ledgers import MemoryLedger
from openclaw_rl.testing.policies import ScriptedPolicy
from openclaw_rl.testing.rows import (
    make_completion,
    make_message,
    make_outcome,
    make_prompt,
    make_turn,
    make_verdict,
)
from openclaw_rl.testing.servers import RunningServer, chat_chunks, listening, serving, sse_events

__all__ = [
    "FakePolicy",
    "FakeTrainer",
    "MemoryLedger",
    "RunningServer",
    "ScriptedPolicy",
    "chat_chunks",
    "listening",
    "make_completion",
    "make_message",
    "make_outcome",
    "make_prompt",
    "make_turn",
    "make_verdict",
    "serving",
    "sse_events",
]
