"""Fakes and checks, for this package's tests and a plugin's.

    rows       one-line builders of each type: `make_message`, `make_prompt`, `make_completion`, `make_turn`, ...
    policies   `ScriptedPolicy`, which replies by a script and fails on demand; `FakePolicy`, which learns hints
    judges     `FakeJudge`; `JudgeEndpoint`, an endpoint for the LLM judge
    envs       `FakeEnv`, an environment with fixed rewards; `FakeChatClient`, a client without a server
    ledgers    `MemoryLedger`, the API's ledger in memory; `TemporaryLedger`, a real one with every writer;
               `MemoryVersions`, versions for `LiveVersions`
    servers    `serving`: the API on a free port for a block's duration; `fake_api` without one; `request_limits`;
               `sse_events`, `chat_chunks`
    apps       `ticking_app`, `running_app`: the whole application on fakes
    clocks     `FakeClock`; `wait_until` for an event in another process
    checks     `check_judge(judge)`, `check_env(env)` ...: check that a plugin fulfils its port's contract

All of it runs without weights, network or GPU; `check_loss` alone needs torch.
"""

from __future__ import annotations

from openclaw_rl.backends.fake import FakePolicy, FakeTrainer
from openclaw_rl.testing.checks import (
    check_env,
    check_generate,
    check_judge,
    check_loss,
    check_policy,
    check_rollout,
    check_trainer,
)
from openclaw_rl.testing.envs import FakeChatClient, FakeEnv
from openclaw_rl.testing.ledgers import MemoryLedger, MemoryVersions, TemporaryLedger
from openclaw_rl.testing.policies import FakeJudge, JudgeEndpoint, ScriptedPolicy, chat_answer, vote_json
from openclaw_rl.testing.rows import (
    FakeClock,
    make_case,
    make_completion,
    make_message,
    make_outcome,
    make_prompt,
    make_sample,
    make_turn,
    make_verdict,
    until,
    wait_until,
)
from openclaw_rl.testing.servers import (
    RunningApp,
    RunningServer,
    chat_chunks,
    fake_api,
    fake_config,
    listening,
    request_limits,
    running_app,
    serving,
    sse_events,
    ticking_app,
)

__all__ = [
    "FakeChatClient",
    "FakeClock",
    "FakeEnv",
    "FakeJudge",
    "FakePolicy",
    "FakeTrainer",
    "JudgeEndpoint",
    "MemoryLedger",
    "MemoryVersions",
    "RunningApp",
    "RunningServer",
    "ScriptedPolicy",
    "TemporaryLedger",
    "chat_answer",
    "chat_chunks",
    "check_env",
    "check_generate",
    "check_judge",
    "check_loss",
    "check_policy",
    "check_rollout",
    "check_trainer",
    "fake_api",
    "fake_config",
    "listening",
    "make_case",
    "make_completion",
    "make_message",
    "make_outcome",
    "make_prompt",
    "make_sample",
    "make_turn",
    "make_verdict",
    "request_limits",
    "running_app",
    "serving",
    "sse_events",
    "ticking_app",
    "until",
    "vote_json",
    "wait_until",
]
