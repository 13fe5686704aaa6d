"""Which words of a user hold for all replies: a sign or a measure in the user's own message, and nothing else."""

from __future__ import annotations

import re

import pytest
from standing_messages import NOT_STANDING, PASTES, STANDING

from openclaw_rl.preferences.standing import reach


def reaches(message: str) -> list[str]:
    """The reach of each sentence of a message, as if a judge had taken it for a rule."""
    sentences = [sentence for sentence in re.split(r"(?<=[.!?])\s+|(?<=[。！？])|\n", message) if sentence.strip()]
    return [reach(sentence, "rule", message) for sentence in sentences]


@pytest.mark.parametrize("message", STANDING)
def test_an_order_with_a_sign_or_a_measure_stands(message: str) -> None:
    assert "standing" in reaches(message)


@pytest.mark.parametrize("message", NOT_STANDING)
def test_a_task_a_question_or_a_statement_never_stands(message: str) -> None:
    assert "standing" not in reaches(message)


@pytest.mark.parametrize("message", PASTES)
def test_an_order_inside_another_text_never_stands(message: str) -> None:
    assert "standing" not in reaches(message)
