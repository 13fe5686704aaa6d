"""The one-pass judge on real weights of 1.5B; `make real-weights` assembles them, without them this is skipped."""

from __future__ import annotations

import pytest
from defaults import engine_args

from openclaw_rl.backends.local.engine.policy import LocalPolicy
from openclaw_rl.config import cache_dir
from openclaw_rl.judge.channel import Channel
from openclaw_rl.judge.one_pass import OnePass
from openclaw_rl.judge.raters import PolicyRater
from openclaw_rl.testing import make_case

FILE = cache_dir() / "real-weights" / "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
CASES: tuple[tuple[Channel, str, str, str], ...] = (
    ("chat", "It is in Lyon.", "no, that is wrong. it is in Paris", "bad"),
    ("chat", "Dear Sir or Madam, ...", "Now write the same letter to the bank", "neutral"),
    ("chat", "Press the red button.", "that worked, thank you so much", "good"),
    ("coding", "I fixed the import.", "ModuleNotFoundError: No module named 'utils'", "bad"),
    ("coding", "Shall I go on with the tests?", "yes, continue", "neutral"),
)


@pytest.mark.slow
@pytest.mark.skipif(not FILE.is_file(), reason="no weights of 1.5B: run `make real-weights`")
@pytest.mark.anyio
async def test_a_model_of_1_5b_tells_plain_complaints_from_next_tasks_and_thanks() -> None:
    policy = LocalPolicy(engine_args(model=str(FILE), context=6144), progress=lambda text: None)
    await policy.start()
    try:
        asks = OnePass(PolicyRater(policy))
        found = []
        for channel, reply, message, _ in CASES:
            odds = await asks.odds(make_case(message, reply=reply), channel)
            found.append(max((odds.bad, "bad"), (odds.neutral, "neutral"), (odds.good, "good"))[1])
    finally:
        await policy.stop()
    assert found == [wanted for *_, wanted in CASES]
