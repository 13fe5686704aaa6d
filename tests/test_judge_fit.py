"""`judge --fit`: the reader's classifier for a model that it did not ship for, from lines to verdicts."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest
from click.testing import CliRunner
from defaults import engine_args
from test_local_models import quiet
from tiny import save_tiny

from openclaw_rl.backends.local.classifier.model import BATCH_TOKENS, batches
from openclaw_rl.backends.local.engine.policy import LocalPolicy
from openclaw_rl.cli import cli
from openclaw_rl.errors import ConfigError
from openclaw_rl.judge.feedback_classifier.combination import KINDS
from openclaw_rl.judge.feedback_classifier.judge import PolicyClassifier, classifier_for

pytestmark = pytest.mark.slow

SAID = {"complaint": "no no no", "neutral": "and the next one", "praise": "yes yes"}


def voices(folder: Path, count: int = 8) -> Path:
    """People who all say the same three things, each in a conversation of their own."""
    folder.mkdir(parents=True)
    for number in range(count):
        rows = [
            {"request": f"q{number}", "reply": f"a{at}", "next": f"{said} {at}", "kind": kind, "hint": None, "tags": []}
            for at in range(20)
            for kind, said in SAID.items()
        ]
        head = {"voice": f"v{number}", "language": "en", "about": "a person"}
        text = "\n".join(json.dumps(row) for row in (head, *rows))
        (folder / f"v{number}.jsonl").write_text(text)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "small"
    save_tiny(folder, words=["User:", "Assistant:", "This", "message", "is", *KINDS, *" ".join(SAID.values()).split()])
    return folder


@pytest.mark.parametrize("rng", [None, random.Random(0)])
def test_every_text_is_in_one_batch_and_long_ones_come_in_smaller_batches(rng: random.Random | None) -> None:
    lengths = [3, 9, BATCH_TOKENS + 1, *[BATCH_TOKENS // 2] * 3, *[4] * 10]
    found = list(batches([(at, [0] * length) for at, length in enumerate(lengths)], 8, rng))
    assert sorted(at for batch in found for at, _ in batch) == list(range(len(lengths)))
    assert all(0 < len(batch) <= 8 for batch in found)
    padded = [len(batch) * max(len(tokens) for _, tokens in batch) for batch in found]
    assert sum(size > BATCH_TOKENS for size in padded) == 1, "the one that is too long by itself"


def test_a_model_is_fitted_kept_and_asked_by_its_own_engine(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("OPENCLAW_RL_CACHE", str(cache))
    given = ["judge", "--fit", "--model", str(model), "--voices", str(voices(tmp_path / "voices", count=15)), "--json"]
    done = CliRunner().invoke(cli, [*given, "--epochs", "12"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["groups"]["english"]["messages"] == 180
    assert found["groups"]["english"]["good"] == {"precision": 1.0, "recall": 1.0}

    async def story() -> None:
        policy = LocalPolicy(engine_args(model=str(model), cache_dir=cache, dtype="float32"), progress=quiet)
        await policy.start()
        try:
            reader = PolicyClassifier(policy, lambda base: classifier_for(base, cache / "readers"), seconds=60)
            for kind, said in SAID.items():
                logprobs = await reader.read("q", "a", f"{said} 3")
                assert logprobs is not None
                assert KINDS[logprobs.index(max(logprobs))] == kind
        finally:
            await policy.stop()

    asyncio.run(story())


def test_too_few_voices_are_refused_with_the_remedy(model: Path, tmp_path: Path) -> None:
    few = voices(tmp_path / "few", count=1)
    done = CliRunner().invoke(cli, ["judge", "--fit", "--model", str(model), "--voices", str(few)])
    assert isinstance(done.exception, ConfigError)
    assert ("too few voices: 1" in str(done.exception), done.exception.remedy) == (True, "it needs 7 or more")
