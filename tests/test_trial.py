"""The trial of a note: complaints of its kind against quiet turns, decided by a posterior worked by hand."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from openclaw_rl.notes.trial import TrialRecord, decide, describe, record_of
from openclaw_rl.types import Note

SHORT = Note(number=3, user="ann", kind="rule", text="Keep it under 30 words.", turn=None, state="in force", at=0.0)


@dataclass(frozen=True)
class Turn:
    noted: tuple[int, ...] = (3,)
    score: float | None = None
    rules: tuple[str, ...] = ()


def test_a_turn_counts_with_the_note_in_its_prompt_and_a_complaint_where_it_is_of_the_same_kind() -> None:
    turns = [
        Turn(rules=("Too long. Under 30 words!",), score=-1.0),
        Turn(rules=("shorter please",), score=-1.0),
        Turn(rules=("Answer in German.",), score=-1.0),
        Turn(score=1.0),
        Turn(noted=(4,), rules=("Keep it under 30 words.",)),
        Turn(noted=()),
    ]
    assert record_of(SHORT, turns) == TrialRecord(turns=4, complaints=2, praised=1)


@pytest.mark.parametrize(
    ("turns", "complaints", "decision"),
    [
        (0, 0, "too early"),  # Beta(1, 4): 1 - 0.8^4 = 0.590 below a fifth
        (4, 0, "too early"),  # 1 - 0.8^8 = 0.832
        (6, 0, "working"),  # 1 - 0.8^10 = 0.893
        (2, 2, "not working"),  # Beta(3, 4): 0.099 below
        (4, 2, "too early"),  # Beta(3, 6): 0.203
        (6, 3, "not working"),  # Beta(4, 7): 0.121
        (40, 3, "working"),
    ],
)
def test_the_decision_waits_for_nine_tenths(turns: int, complaints: int, decision: str) -> None:
    assert decide(TrialRecord(turns=turns, complaints=complaints)) == decision


def test_a_record_in_words() -> None:
    assert describe(TrialRecord()) == "no turn yet"
    assert describe(TrialRecord(turns=1)) == "not asked for again in 1 turn"
    assert describe(TrialRecord(turns=9, complaints=4)) == "asked for again after 4 of 9 turns"
