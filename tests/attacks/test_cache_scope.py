"""The prefix cache does not tell users of each other: what one has asked makes no other's request faster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from defaults import engine_args
from test_local_models import make_folder, quiet

from openclaw_rl.backends.hf.models import load
from openclaw_rl.backends.local.engine.engine import Engine
from openclaw_rl.backends.local.engine.policy import LocalPolicy
from openclaw_rl.backends.local.engine.runner_choice import model_runner_of
from openclaw_rl.backends.local.engine.sequences import Generation, Scoring
from openclaw_rl.ports import Policy, Stream, SupportsScopes
from openclaw_rl.testing import ScriptedPolicy, serving
from openclaw_rl.types import Message, Prompt, Sampling

SECRET = list(range(3, 3 + 64))
ALICE, BOB = {"authorization": "Bearer a"}, {"authorization": "Bearer b"}


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


class Divided(ScriptedPolicy):
    """Notes for which scope it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.scopes: list[str] = []

    def scoped(self, scope: str) -> Policy:
        self.scopes.append(scope)
        return self


def plain(policy: Policy, prompt: Prompt, sampling: Sampling, *, version: int | None) -> Stream:
    """A user's own generate, which knows nothing of scopes."""
    return policy.generate(prompt, sampling, version=version)


@pytest.mark.parametrize("generate", [None, plain])
def test_each_of_several_users_has_a_scope_and_a_single_one_needs_none(generate: Any) -> None:
    several, alone = Divided(), Divided()
    with serving(several, keys={"a": "alice", "b": "bob", "a2": "alice"}, generate=generate) as server:
        for who in (ALICE, BOB, {"authorization": "Bearer a2"}):
            assert server.chat(headers=who).status_code == 200
    assert several.scopes == ["alice", "bob", "alice"]
    with serving(alone, keys={"a": "alice", "a2": "alice"}, generate=generate) as server:
        assert server.chat(headers=ALICE).status_code == 200
    with serving(alone) as server:
        assert server.chat().status_code == 200
    assert alone.scopes == []


def test_the_local_policy_keeps_scopes_apart(tmp_path: Path) -> None:
    policy = LocalPolicy(engine_args(model="m", cache_dir=tmp_path))
    assert isinstance(policy, SupportsScopes)
    assert isinstance(policy.scoped("alice"), Policy)
    assert policy.scoped("") is policy
    seen: list[Any] = []
    policy._generate = lambda *asked: seen.append(asked[-1])  # type: ignore[method-assign, assignment, return-value]
    asked = Prompt(messages=(Message(role="user", content="hi"),))
    policy.scoped("alice").generate(asked, Sampling())
    policy.generate(asked, Sampling())
    assert seen == ["alice", ""]
