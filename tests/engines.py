"""Policies on fake engines, for the tests of engines: `engine` and `model` are fixtures."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fakes.engines import FakeEngine, fake_engine, write_engine_model

from openclaw_rl.backends.engines.policy import EnginePolicy, sglang_policy, vllm_policy
from openclaw_rl.backends.fake import write_adapter
from openclaw_rl.ports import whole_reply
from openclaw_rl.testing import make_prompt
from openclaw_rl.types import Completion, Sampling, Version

MAKERS = {"vllm": vllm_policy, "sglang": sglang_policy}
SHORT = Sampling(max_tokens=64)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_engine_model(tmp_path_factory.mktemp("model") / "toy")


@pytest.fixture(params=["vllm", "sglang"])
def engine(request: pytest.FixtureRequest, model: Path) -> Iterator[FakeEngine]:
    with fake_engine(request.param, model) as running:
        yield running


def policy_on(engine: FakeEngine, model: Path, run: Path, **changes: Any) -> EnginePolicy:
    settings: dict[str, Any] = {
        "model": str(model),
        "cache_dir": run,
        "device": "cpu",
        "dtype": "auto",
        "context": None,
        "max_batch": 8,
        "chat_template": None,
        "tool_format": None,
        "url": engine.url,
        "launch": None,
        "key": None,
        "engine_python": None,
        "engine_flags": (),
        "memory_share": None,
        "gpus": (),
        "lora": True,
        "lora_rank": 8,
        "turns": False,
        "follow": False,
        "run_dir": run,
    }
    made: EnginePolicy = MAKERS[engine.kind](**{**settings, **changes})
    return made


@asynccontextmanager
async def started(engine: FakeEngine, model: Path, run: Path, **changes: Any) -> AsyncIterator[EnginePolicy]:
    policy = policy_on(engine, model, run, **changes)
    await policy.start()
    try:
        yield policy
    finally:
        await policy.stop()


def version(number: int, run: Path, *rules: str) -> Version:
    folder = run / f"v{number}"
    write_adapter(str(folder), rules=rules, turns=(), manifest={})
    return Version(number=number, parent=number - 1, base="toy", adapter=str(folder))


async def reply(policy: EnginePolicy, text: str, sampling: Sampling = SHORT, **given: Any) -> Completion:
    return await whole_reply(policy.generate(make_prompt(text), sampling, **given))
