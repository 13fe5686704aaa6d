"""A judge of one's own: a function, sync or async, or a whole judge."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
from judges import LIMITS, custom_judge, rules_judge

from openclaw_rl.errors import JudgeUnavailable, PluginError
from openclaw_rl.judge import as_judge, explain
from openclaw_rl.ports import Case, Judge
from openclaw_rl.testing import make_completion, make_message, make_outcome, make_turn
from openclaw_rl.types import Message, Prompt


def case(after: str = "Please use metric units.") -> Case:
    turn = make_turn("how far?", completion=make_completion("six miles"))
    return Case(turn=turn, outcome=make_outcome(turn, next_state=(make_message("user", after),)))


def length(prompt: Prompt, reply: str, next_state: Sequence[Message]) -> float:
    return len(reply) / 10


async def later(prompt: Prompt, reply: str, next_state: Sequence[Message]) -> float | None:
    return 0.5 if next_state[0].content.startswith("Please") else None


@pytest.mark.anyio
async def test_a_function_scores_and_the_users_wish_is_still_heard() -> None:
    judge = as_judge(length, limits=LIMITS, name="length")
    assert isinstance(judge, Judge)
    verdict = await judge.judge(case())
    assert (verdict.score, verdict.judge, verdict.source) == (0.9, "length", "judge")
    assert [hint.text for hint in verdict.hints] == ["Please use metric units."]


@pytest.mark.anyio
async def test_an_async_function_may_abstain() -> None:
    judge = as_judge(later, limits=LIMITS, name="mine")
    assert (await judge.judge(case())).score == 0.5
    silent = await judge.judge(case("hm"))
    assert (silent.score, silent.note) == (None, "abstained")


@pytest.mark.anyio
async def test_a_plain_function_runs_beside_the_loop() -> None:
    seen: list[str] = []

    def where(prompt: Prompt, reply: str, next_state: Sequence[Message]) -> float:
        seen.append(threading.current_thread().name)
        return 1.0

    await custom_judge(where).judge(case())
    assert seen != [threading.main_thread().name]


@pytest.mark.anyio
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "1", True, [1]])
async def test_a_value_that_is_no_number_is_an_abstention_with_a_note(bad: Any) -> None:
    verdict = await custom_judge(lambda *_: bad).judge(case())
    assert verdict.score is None
    assert "no finite number" in verdict.note


@pytest.mark.anyio
async def test_an_error_is_an_abstention_and_unavailable_is_passed_on() -> None:
    def broken(prompt: Prompt, reply: str, next_state: Sequence[Message]) -> float:
        raise KeyError("x")

    def away(prompt: Prompt, reply: str, next_state: Sequence[Message]) -> float:
        raise JudgeUnavailable("loading")

    assert (await custom_judge(broken).judge(case())).note == "custom raised KeyError"
    with pytest.raises(JudgeUnavailable, match="loading"):
        await custom_judge(away).judge(case())


@pytest.mark.anyio
async def test_a_judge_of_ones_own_can_be_explained_too() -> None:
    told = await explain(case(), custom_judge(length), limits=LIMITS, trusted=(), behaviour=True)
    assert told.verdict is not None
    assert (told.judge, told.verdict.score) == ("custom", 0.9)


def test_a_judge_or_its_class_is_taken_as_it_is_and_anything_else_refused() -> None:
    judge = rules_judge()
    assert as_judge(judge, limits=LIMITS, name="mine") is judge
    assert as_judge(type("Mine", (), {"name": "mine", "judge": judge.judge}), limits=LIMITS, name="mine").name == "mine"
    with pytest.raises(PluginError, match="is no judge"):
        as_judge(7, limits=LIMITS, name="mine")
