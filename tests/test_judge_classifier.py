"""The shipped classifier on the real engine: it says of a message what it said when it was trained."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path

import pytest
from defaults import engine_args
from test_local_models import embedded, quiet  # noqa: F401 (a fixture)

from openclaw_rl.backends.local.engine.policy import LocalPolicy
from openclaw_rl.judge.feedback_classifier.judge import SHIPPED, PolicyClassifier, classifier_for, classifier_in

pytestmark = pytest.mark.slow

PROBE = Path(__file__).parent / "data" / "classifier_probe.jsonl"


def test_the_engine_reads_messages_as_the_trained_classifier_did(embedded: Path) -> None:  # noqa: F811 (the fixture)
    shipped = classifier_in(SHIPPED)
    assert shipped is not None
    lines = [json.loads(text) for text in PROBE.read_text(encoding="utf-8").splitlines()]

    async def story() -> None:
        policy = LocalPolicy(
            engine_args(model="embedded", cache_dir=embedded, dtype="float32", context=1024, max_batch=4),
            progress=quiet,
        )
        await policy.start()
        try:
            reader = PolicyClassifier(policy, lambda base: classifier_for(base, embedded), seconds=60)
            assert reader.trained == shipped
            for line in lines:
                found = await reader.read(line["request"], line["reply"], line["message"])
                assert found is not None
                trained = [math.exp(value) for value in line["logprobs"]]
                assert [math.exp(value) for value in found] == pytest.approx(trained, abs=0.1)
        finally:
            await policy.stop()

    asyncio.run(story())
