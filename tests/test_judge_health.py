"""Alarms: each with what was seen and what to do."""

from __future__ import annotations

from openclaw_rl.judge.reported import Scored, agreement, alarms, backlog, collapse, drift, starvation


def scores(plus: int, minus: int = 0, silent: int = 0, zero: int = 0) -> list[Scored]:
    values = [1.0] * plus + [-1.0] * minus + [None] * silent + [0.0] * zero
    return [("u1", value, "judge") for value in values]


def test_scores_all_alike_are_a_collapse() -> None:
    alarm = collapse(scores(39, 1))
    assert alarm is not None
    assert (alarm.name, alarm.what) == ("reward collapse", "39 of the last 40 scores are +1")
    assert "judge --explain" in alarm.remedy


def test_one_score_in_ten_of_the_other_kind_is_no_collapse() -> None:
    assert collapse(scores(36, 4)) is None


def test_a_few_scores_are_no_collapse_yet() -> None:
    assert collapse(scores(31, silent=100)) is None
    assert collapse(scores(32, silent=100)) is not None


def test_verdicts_that_say_nothing_starve_training() -> None:
    alarm = starvation(scores(3, silent=30, zero=7))
    assert alarm is not None
    assert alarm.what == "only 3 of the last 40 verdicts score for or against"
    assert starvation(scores(4, silent=36)) is None
    assert starvation(scores(0, silent=31)) is None


def test_a_judge_that_disagrees_with_a_user_drifts_for_that_user_alone() -> None:
    pairs = [("u1", 1.0, -1.0)] * 3 + [("u1", 1.0, 0.5)] * 5 + [("u2", -1.0, -0.2)] * 8 + [("cy", 1.0, -1.0)] * 7
    assert agreement(pairs) == {"u1": (5, 8), "u2": (8, 8), "cy": (0, 7)}
    assert [(alarm.user, alarm.what) for alarm in drift(pairs)] == [
        ("u1", "the judge agrees with 5 of 8 explicit scores")
    ]


def test_zeros_are_no_disagreement() -> None:
    assert agreement([("u1", 0.0, 1.0), ("u1", 1.0, 0.0)]) == {}


def test_many_waiting_turns_are_said_with_the_reason() -> None:
    alarm = backlog(201, reason="connection refused")
    assert alarm is not None
    assert alarm.what == "201 turns wait for the judge (connection refused)"
    assert backlog(200) is None


def test_all_is_well_without_alarms() -> None:
    assert alarms(scores(30, 20)) == ()
