"""A wrong value cannot be built."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl import types
from openclaw_rl.errors import InvalidValue
from openclaw_rl.testing import make_completion, make_message, make_prompt, make_turn
from openclaw_rl.types import Feedback, Hint, Message, Prompt, Sample, Sampling, Step, ToolCall, Version, new_id

logprob_lists = st.lists(st.floats(max_value=0.0, allow_infinity=False, allow_nan=False), max_size=20)


def test_ids_sort_by_the_time_they_were_made() -> None:
    ids = [new_id() for _ in range(1000)]
    assert ids == sorted(ids)
    assert len(set(ids)) == 1000
    assert {len(one) for one in ids} == {26}


def test_a_completion_keeps_one_logprob_per_reply_token() -> None:
    with pytest.raises(InvalidValue, match="logprobs: 1 log-probs for 2 reply tokens"):
        make_completion(logprobs=(-0.5,))


@pytest.mark.parametrize("bad", [0.5, math.nan, -math.inf, math.inf, 1e-9])
def test_a_logprob_above_zero_or_not_finite_cannot_be_built(bad: float) -> None:
    with pytest.raises(InvalidValue, match="logprobs: a log-prob must be finite and at most 0"):
        make_completion(logprobs=(-0.5, bad))


@given(values=logprob_lists, extra=st.integers(1, 3))
def test_any_finite_logprobs_up_to_zero_are_kept_and_any_other_length_is_refused(
    values: list[float], extra: int
) -> None:
    ids = tuple(range(len(values)))
    assert make_completion(reply_tokens=ids, logprobs=tuple(values)).logprobs == tuple(values)
    with pytest.raises(InvalidValue):
        make_completion(reply_tokens=ids + (1,) * extra, logprobs=tuple(values))


@pytest.mark.parametrize("ids", [(-1,), (2**32,), (True,), (1.0,), [1]])
def test_token_ids_are_plain_integers_in_range(ids: object) -> None:
    with pytest.raises(InvalidValue, match="prompt_tokens"):
        make_completion(prompt_tokens=ids)


def test_a_version_without_a_parent_cannot_be_built_unless_it_is_the_base() -> None:
    assert Version(number=0, parent=None, base="b").adapter is None
    with pytest.raises(InvalidValue, match="parent: version 3 needs a parent"):
        Version(number=3, parent=None, base="b")
    with pytest.raises(InvalidValue, match="parent: 3 is not below 3"):
        Version(number=3, parent=3, base="b")
    with pytest.raises(
        InvalidValue, match="adapter: .runs/1. is relative: from another directory it would lead elsewhere"
    ):
        Version(number=1, parent=0, base="b", adapter="runs/1")
    with pytest.raises(InvalidValue, match="base model"):
        Version(number=0, parent=None, base="b", adapter="/a")


def test_a_hint_goes_to_the_end_of_the_last_user_message_and_nowhere_else() -> None:
    prompt = make_prompt("first", "reply", "second")
    view = prompt.hinted("Be brief.")
    assert [m.content for m in view.messages] == ["first", "reply", "second\n\nBe brief."]
    assert [m.content for m in prompt.messages] == ["first", "reply", "second"]


def test_a_hint_after_tool_results_still_goes_to_the_user() -> None:
    call = ToolCall(id="1", name="ls", arguments="{}")
    prompt = Prompt(
        messages=(
            make_message("user", "look"),
            make_message("assistant", "", tool_calls=(call,)),
            make_message("tool", "a.txt"),
        )
    )
    assert [m.content for m in prompt.hinted("No lists.").messages] == ["look\n\nNo lists.", "", "a.txt"]


def test_only_an_assistant_calls_tools() -> None:
    with pytest.raises(InvalidValue, match="a user message cannot call tools"):
        Message(role="user", content="", tool_calls=(ToolCall(id="1", name="f", arguments="{}"),))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("max_tokens", 0),
        ("min_p", 2.0),
        ("dry_multiplier", -0.5),
    ],
)
def test_sampling_out_of_range_names_its_field(field: str, value: float) -> None:
    with pytest.raises(InvalidValue, match=f"^{field}: "):
        Sampling(**{field: value})


def test_feedback_must_say_something_and_a_thumb_stays_in_its_range() -> None:
    with pytest.raises(InvalidValue, match="is empty"):
        Feedback(turn="t")
    with pytest.raises(InvalidValue, match="not in -1 .. 1"):
        Feedback(turn="t", score=2.0)
    assert Feedback(turn="t", score=12.0, source="environment").score == 12.0


def test_a_sample_without_any_signal_cannot_be_built() -> None:
    turn = make_turn()
    parts = {
        "turn": turn.id,
        "user": "u1",
        "prompt": turn.prompt,
        "prompt_tokens": (1,),
        "reply_tokens": (2, 3),
        "logprobs": (-1.0, -1.0),
        "mask": (True, True),
        "temperature": 1.0,
        "version": 0,
    }
    assert Sample(**parts, advantage=0.0, teachers=()).advantage == 0.0
    with pytest.raises(InvalidValue, match="without any signal"):
        Sample(**parts, advantage=None, teachers=())
    with pytest.raises(InvalidValue, match="mask: 1 for 2 reply tokens"):
        Sample(**{**parts, "mask": (True,)}, advantage=1.0, teachers=())


def test_a_step_cannot_name_a_turn_twice() -> None:
    with pytest.raises(InvalidValue, match="a turn trains once"):
        Step(number=1, turns=("a", "a"), metrics={}, seconds=0.0)


def test_a_hint_says_something() -> None:
    with pytest.raises(InvalidValue, match="needs a text"):
        Hint(text="  ")


def test_every_noun_is_frozen_slotted_and_keyword_only() -> None:
    nouns = [n for n in vars(types).values() if dataclasses.is_dataclass(n)]
    assert len(nouns) >= 14
    for noun in nouns:
        assert noun.__dataclass_params__.frozen, noun
        assert "__slots__" in vars(noun), noun
        assert all(f.kw_only for f in dataclasses.fields(noun)), noun
