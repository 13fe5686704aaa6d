"""Each of several users has a part of the prefix cache of their own: who asks is said to the policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from defaults import engine_args

from openclaw_rl.backends.local.engine.policy import LocalPolicy
from openclaw_rl.ports import Policy, Stream, SupportsScopes
from openclaw_rl.testing import ScriptedPolicy, serving
from openclaw_rl.types import Message, Prompt, Sampling

ALICE, BOB = {"authorization": "Bearer a"}, {"authorization": "Bearer b"}


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
