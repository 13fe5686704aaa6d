"""Poison in small doses: versions that each lose a little beside the last one are refused for what all of them lost."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from test_gate_checks import LIMITS, replied
from test_gate_faults import pin, walking

from openclaw_rl.backends.fake import FakePolicy
from openclaw_rl.gate.checks import Check, ProbeReply, check_ability, check_drift, check_entropy, check_flaws, check_kl
from openclaw_rl.ports import Scores
from openclaw_rl.types import Tokens


@pytest.mark.anyio
async def test_pinned_replies_that_fade_a_little_with_each_promotion_stop_the_third(tmp_path: Path) -> None:
    """Each version finds them less likely by 0.14 nats per token, less than the 0.3 that one may lose: 0.28 after the
    second, 0.42 after the third."""

    class Fading(FakePolicy):
        async def score(self, prompt: Tokens, reply: Tokens, **more: Any) -> Scores:
            found = await super().score(prompt, reply, **more)
            known = self._known(more.get("version") or 0)
            return Scores(logprobs=tuple(value - 0.14 * len(known) for value in found.logprobs))

    rules = ("Please keep it under 30 words.", "Please use a list.", "Please be warm.")
    async with walking(tmp_path, "gate.limits.kl_budget=50", "gate.limits.relevance_drop=1", policy=Fading()) as walk:
        for number in range(3):
            said = await walk.ask(f"What is your favourite number {number}?")
            pin(said["id"], tmp_path)
        for rule in rules:
            await walk.talk(sentence=f"No. {rule}")
        assert [version.state for version in walk.ledger.versions()] == ["live", "live", "live", "refused"]
        [decision] = walk.ledger.gate_decisions(3)
        assert decision.reason == "pinned: pinned replies: -0.420 nats per token on 3"


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
