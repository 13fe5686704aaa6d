"""The prefix cache does not tell users of each other: what one has asked makes no other's request faster."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_local_models import make_folder, quiet

from openclaw_rl.backends.hf.models import load
from openclaw_rl.backends.local.engine.engine import Engine
from openclaw_rl.backends.local.engine.runner_choice import model_runner_of
from openclaw_rl.backends.local.engine.scheduler import Generation, Scoring
from openclaw_rl.types import Sampling

pytestmark = pytest.mark.slow
SECRET = list(range(3, 3 + 64))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = make_folder(tmp_path_factory.mktemp("models") / "tiny")
    loaded = load(str(folder), cache_dir=Path(folder), device="cpu", dtype="float32", progress=quiet)
    return Engine(model_runner_of(loaded.model), loaded.model, cache_tokens=1024, max_batch=8)


def writing(id: int, scope: str) -> Generation:
    ask = Sampling(temperature=0.0, max_tokens=2)
    return Generation.of(
        id, 0, SECRET, ask, context=256, ends=frozenset(), scope=scope, decode=lambda ids: "x" * len(ids)
    )


def reused(engine: Engine, *jobs: Generation | Scoring) -> int:
    """How many tokens these jobs did not have to read, all run at once."""
    before = engine.counts.prefix_hits
    for job in jobs:
        engine.submit(job)
    while not engine.idle:
        engine.step()
    return engine.counts.prefix_hits - before


def test_a_prefix_is_reused_in_its_own_scope_only(engine: Engine) -> None:
    assert reused(engine, writing(1, "alice")) == 0
    assert reused(engine, writing(2, "bob")) == 0
    assert reused(engine, writing(3, "")) == 0
    assert reused(engine, writing(4, "alice"), writing(5, "bob"), writing(6, "")) == 3 * (len(SECRET) - 1)
    scoring = Scoring(
        id=7, version=0, tokens=[*SECRET, 4], prompt=64, reply=(4, 5), temperature=1.0, top_k=0, scope="carol"
    )
    assert reused(engine, scoring) == 0


def test_nobody_waits_for_what_another_is_just_reading(engine: Engine) -> None:
    """Two at once: the second of one scope waits for the first and reuses it, one of another scope reads for itself."""
    assert reused(engine, writing(1, "dave"), writing(2, "dave")) == len(SECRET) - 1
    assert reused(engine, writing(3, "erin"), writing(4, "frank")) == 0
