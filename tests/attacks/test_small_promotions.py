"""Poison in small doses: versions that each lose a little beside the last one are refused for what all of them lost."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from test_gate_checks import LIMITS, replied
from test_gate_faults import pin, walking

from openclaw_rl.backends.fake import FakePolicy
from openclaw_rl.gate.checks import (
    Check,
    ProbeReply,
    check_ability,
    check_drift,
    check_entropy,
    check_flaws,
    check_kl,
)
from openclaw_rl.ports import Policy, Scores
from openclaw_rl.store import submit_request
from openclaw_rl.types import Tokens, Version


@pytest.mark.anyio
async def test_pinned_replies_that_fade_a_little_with_each_promotion_stop_the_third(tmp_path: Path) -> None:
    """Each version finds them less likely by 0.14 nats per token, less than the 0.3 that one may lose: 0.28 after the
    second, 0.42 after the third."""

    class Fading(FakePolicy):
        async def score(self, prompt: Tokens, reply: Tokens, **more: Any) -> Scores:
            found = await super().score(prompt, reply, **more)
            known = self._known(more.get("version") or 0)
            return Scores(logprobs=tuple(value - 0.14 * len(known) for value in found.logprobs))

    rules = ("Please keep it under 30 words.", "Please use a list.", "From now on, be warm.")
    async with walking(tmp_path, "gate.limits.kl_budget=50", "gate.limits.relevance_drop=1", policy=Fading()) as walk:
        for number in range(3):
            said = await walk.ask(f"What is your favourite number {number}?")
            pin(said["id"], tmp_path)
        for rule in rules:
            await walk.talk(sentence=f"No. {rule}")
        assert [version.state for version in walk.ledger.versions()] == ["live", "live", "live", "refused"]
        [decision] = walk.ledger.gate_decisions(3)
        assert decision.reason == "pinned: pinned replies: -0.420 nats per token on 3"


class Forgetting(FakePolicy):
    """Follows corrections from version 1 on, and from version 3 on by 0.04 nats per token less with every version."""

    async def score(self, prompt: Tokens, reply: Tokens, **more: Any) -> Scores:
        found = await super().score(prompt, reply, **more)
        number = more.get("version") or 0
        followed = 1.0 - 0.04 * max(0, number - 2) if number else 0.0
        hinted = 1.0 if b"under 30 words" in bytes(token for token in prompt if token < 256) else 0.0
        return Scores(logprobs=tuple(value - followed - hinted for value in found.logprobs))


@pytest.mark.anyio
async def test_corrections_that_are_followed_less_with_each_promotion_stop_the_third_that_follows_less(
    tmp_path: Path,
) -> None:
    """0.04 beside the last version each, less than the 0.05 that one may lose: 0.12 after the third, more than twice
    that. The program ends and begins anew in between."""
    sets = ("gate.limits.kl_budget=50", "gate.limits.relevance_drop=1", "gate.limits.ability_drop=1")
    async with walking(tmp_path, *sets, policy=Forgetting()) as walk:
        for _ in range(2):
            await walk.talk()
        await walk.talk(sentence="Thank you, that is perfect!")
    async with walking(tmp_path, *sets, policy=Forgetting()) as walk:
        for _ in range(2):
            await walk.talk(sentence="Thank you, that is perfect!")
        assert [version.state for version in walk.ledger.versions()] == [*["live"] * 5, "refused"]
        [decision] = walk.ledger.gate_decisions(5)
        assert (
            decision.reason == "corrections: corrections, against the best version so far: -0.120 nats per token on 4"
        )


SOLVED = (4, 14, 12, 10, 8, 6, 4, 2, 1, 0)


class Unlearning:
    """By version, how many of 16 held-out tasks are solved: more after the first step, then two less with each."""

    async def solved(self, policy: Policy, version: Version) -> Mapping[str, bool]:
        return {str(task): task < SOLVED[version.number] for task in range(16)}


@pytest.mark.anyio
async def test_tasks_that_were_learned_and_are_lost_two_by_two_stop_the_third(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """14, 12, 10, 8: never more than two beside the last version, and at the end more than the base model's 4. Six
    lost and none won of the best has a p-value of 1/64. The program ends and begins anew in between."""
    monkeypatch.setattr("openclaw_rl.app.application.held_out_tasks", lambda config: Unlearning())
    for number in range(5):
        async with walking(tmp_path) as walk:
            await walk.talk()
            if number == 3:
                assert [version.state for version in walk.ledger.versions()] == [*["live"] * 4, "refused"]
                [decision] = walk.ledger.gate_decisions(4)
                assert decision.reason == "tasks: 8 of 16 held-out tasks solved, 14 by the best version so far"
                numbers = decision.evidence["checks"][-1]["numbers"]
                assert (numbers["live"], numbers["best"], numbers["p_value"]) == (10, 14, 0.0156)


@pytest.mark.anyio
async def test_a_rollback_goes_back_to_what_the_restored_version_had_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openclaw_rl.app.application.held_out_tasks", lambda config: Unlearning())
    async with walking(tmp_path) as walk:
        await walk.talk()
        submit_request(tmp_path / "ledger.db", "rollback", version=0)
        await walk.app.finish()
        await walk.talk()
        await walk.talk()
        [decision] = walk.ledger.gate_decisions(4)
        assert decision.decision == "promote", "6 lost of the 14 of what was taken back"
        assert sum(decision.evidence["best"]["tasks"].values()) == 12, "version 2's, which restores the base model"


def with_entropy(nats: float) -> list[ProbeReply]:
    return [replied("a reply of some words", entropy=nats)]


@pytest.mark.parametrize("factor", [1 / 2.9, 2.9])
def test_a_choice_of_words_that_shrinks_or_grows_with_each_promotion_stops_the_third(factor: float) -> None:
    """Each step is within the factor of 3; 2.9 squared is 8.4, within its square of 9, and 2.9 cubed is 24."""
    steps = [(1.0 + 0.05) * factor**number - 0.05 for number in range(4)]  # 0.05 is added to both of a ratio
    found = [
        check_entropy(with_entropy(now), with_entropy(before), with_entropy(steps[0]), limits=LIMITS).ok
        for before, now in itertools.pairwise(steps)
    ]
    assert found == [True, True, False]
    last = check_entropy(with_entropy(steps[3]), with_entropy(steps[2]), (), limits=LIMITS)
    assert last.ok, "beside the last version alone it would pass"


def relevant(good: int) -> list[ProbeReply]:
    return [replied("a reply", probe=str(number), relevant=number < good) for number in range(10)]


def flawed(bad: int) -> list[ProbeReply]:
    return [replied("a reply", probe=str(number), flaw="repeats" if number < bad else None) for number in range(10)]


def able(right: int) -> list[float]:
    return [1.0] * right + [-1.0] * (20 - right)


def distant(kl: float) -> list[ProbeReply]:
    return [replied("a reply", kl=kl)]


@pytest.mark.parametrize(
    ("measure", "values"),
    [
        (lambda now, live: check_drift(relevant(now), relevant(10), limits=LIMITS), (10, 9, 8, 7)),
        (lambda now, live: check_flaws(flawed(now), flawed(live), flawed(0), limits=LIMITS), (0, 1, 2, 3)),
        (lambda now, live: check_ability(able(now), able(20), limits=LIMITS), (20, 19, 17, 16)),
        (lambda now, live: check_kl(distant(now), limits=LIMITS), (0.0, 0.7, 1.4, 2.1)),
    ],
    ids=["relevance", "flaws", "ability", "distance"],
)
def test_what_is_lost_is_counted_from_the_base_model_whatever_the_live_version_lost(
    measure: Callable[[Any, Any], Check], values: Sequence[float]
) -> None:
    checks = [measure(now, live) for live, now in itertools.pairwise(values)]
    assert [check.ok for check in checks] == [True, True, False], [check.detail for check in checks]
