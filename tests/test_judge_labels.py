"""The rules judge against the labelled next messages: precise before complete, on what it was tuned on and on what it was not."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.judge.custom import reaction_of
from openclaw_rl.ports import Case
from openclaw_rl.types import Completion, Hint, Message, Outcome, Prompt, Sampling, Turn

ROWS: list[dict[str, Any]] = [
    json.loads(line) for line in (Path(__file__).parent / "data" / "next_messages.jsonl").read_text().splitlines()
]
FLOORS = {"tune": {1: 0.85, -1: 0.8}, "held": {1: 0.75, -1: 0.65}}
"""recall that must be kept, by split and score"""


def case(row: dict[str, Any]) -> Case:
    completion = Completion(
        reply=Message(role="assistant", content=row["reply"]),
        prompt_tokens=(1,),
        reply_tokens=(2,),
        logprobs=(-0.1,),
        sampling=Sampling(),
        finish="stop",
        version=0,
    )
    turn = Turn(
        prompt=Prompt(messages=(Message(role="user", content=row["request"]),)), completion=completion, user="u1"
    )
    said = Message(role=row["role"], content=row["next"])
    return Case(
        turn=turn,
        outcome=Outcome(turn=turn.id, session="s", kind="main", kind_reason="test", index=0, next_state=(said,)),
    )


def read_all(split: str) -> list[tuple[dict[str, Any], float | None, tuple[Hint, ...]]]:
    readings = [(row, reaction_of(case(row))) for row in ROWS if row["split"] == split]
    return [(row, reading.score, reading.hints) for row, reading in readings]


def test_the_set_is_large_varied_and_a_third_of_it_is_held_out() -> None:
    assert len(ROWS) >= 400
    assert len({(row["request"], row["next"]) for row in ROWS}) == len(ROWS)
    scores = Counter(row["score"] for row in ROWS)
    assert min(scores[1], scores[-1], scores[None]) >= 100
    assert scores[0] >= 10
    assert sum(any("\u4e00" <= sign <= "\u9fff" for sign in row["next"]) for row in ROWS) >= 60
    assert sum(row["role"] == "tool" for row in ROWS) >= 30
    assert 0.3 <= sum(row["split"] == "held" for row in ROWS) / len(ROWS) <= 0.4


def test_what_is_held_out_was_drawn_by_the_text_itself_and_cannot_be_chosen() -> None:
    for row in ROWS:
        drawn = hashlib.sha256(f"{row['request']}\0{row['next']}".encode()).digest()[0] % 3 == 0
        assert (row["split"] == "held") == drawn, row["id"]


@pytest.mark.parametrize("split", ["tune", "held"])
@pytest.mark.parametrize("value", [1, -1])
def test_scores_are_right_at_least_nineteen_times_in_twenty(
    split: str, value: int, capsys: pytest.CaptureFixture[str]
) -> None:
    read = read_all(split)
    said = [row for row, score, _ in read if score == value]
    right = [row for row in said if row["score"] == value]
    there = [row for row, _, _ in read if row["score"] == value]
    precision, recall = len(right) / len(said), len(right) / len(there)
    with capsys.disabled():
        print(
            f"\nrules judge, {split}, {value:+d}: precision {precision:.3f} ({len(right)} of {len(said)}), recall {recall:.3f}"
        )
    assert precision >= 0.95, [row["next"] for row in said if row["score"] != value]
    assert recall >= FLOORS[split][value]


@pytest.mark.parametrize("split", ["tune", "held"])
def test_hints_are_of_the_right_kind_and_hold_what_the_user_wants(split: str) -> None:
    good, made = 0, 0
    for row, _, found in read_all(split):
        hints = [hint for hint in found if hint.kind != "complaint"]
        if hints:
            made += 1
            wanted = (row["hint"] or "").lower().replace("metres", "meters")
            texts = [hint.text.lower().replace("metres", "meters") for hint in hints if hint.kind == row["hint_kind"]]
            good += any(wanted in text for text in texts)
    assert made >= 40
    assert good / made >= 0.85


def test_a_tool_never_gives_a_hint() -> None:
    assert not [row["id"] for row in ROWS if row["role"] == "tool" and reaction_of(case(row)).hints]
