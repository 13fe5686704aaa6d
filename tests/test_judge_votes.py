"""The vote rule, line by line."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_rl.errors import InvalidValue
from openclaw_rl.judge.votes import Tally, VoteRule

F = None  # a vote that failed


def tally(votes: Sequence[int | None], *, threshold: float = 0.5, quorum: int | None = None) -> Tally:
    return VoteRule(votes=len(votes), threshold=threshold, quorum=quorum).tally(votes)


TABLE = [
    # votes, with threshold 0.5, with threshold 0.6
    ((1,), 1, 1),
    ((0,), 0, 0),
    ((-1,), -1, -1),
    ((F,), None, None),
    ((1, 1, 1), 1, 1),
    ((1, 1, -1), 1, 1),  # 2 of 3 = 0.67
    ((1, -1, 0), None, None),
    ((1, F, F), None, None),
    ((F, F, F), None, None),
    ((0, 0, 1), 0, 0),
    ((-1, -1, F), -1, -1),  # 2 of 2
    ((1, -1, F), None, None),  # a tie of those who answered
    ((1, 1, 1, -1, -1), 1, 1),  # 3 of 5 = 0.6
    ((1, 1, 1, -1, 0), 1, 1),
    ((1, 1, -1, -1, 0), None, None),  # a tie at the top
    ((1, 1, -1, 0, F), 1, None),  # 2 of 4 = 0.5
    ((1, 1, F, F, F), None, None),  # 2 answers, 3 needed
    ((-1, -1, -1, F, F), -1, -1),
    ((1, 1, -1, F, F), 1, 1),  # 2 of 3
    ((0, 0, 0, 0, -1), 0, 0),
    ((1, 1, 1, 1, -1, -1, -1), 1, None),  # 4 of 7 = 0.57
    ((1, 1, 1, 1, 1, -1, -1), 1, 1),  # 5 of 7 = 0.71
    ((1, 1, 1, -1, -1, 0, 0), None, None),  # 3 of 7 = 0.43
    ((1, 1, 1, -1, -1, -1, 0), None, None),
    ((-1, -1, -1, 1, F, F, F), -1, -1),  # 3 of 4
    ((-1, -1, -1, F, F, F, F), None, None),  # 3 answers, 4 needed
    ((-1, -1, 1, 0, F, F, F), -1, None),  # 2 of 4
]


@pytest.mark.parametrize(("votes", "half", "three_fifths"), TABLE, ids=str)
def test_the_table_of_votes(votes: tuple[int | None, ...], half: int | None, three_fifths: int | None) -> None:
    assert tally(votes, threshold=0.5).score == half
    assert tally(votes, threshold=0.6).score == three_fifths


def test_two_of_three_do_not_reach_a_threshold_of_seven_tenths() -> None:
    assert tally((1, 1, -1), threshold=0.7).score is None


@pytest.mark.parametrize(("n", "needed"), [(1, 1), (3, 2), (5, 3), (7, 4), (2, 2), (4, 3)])
def test_a_quorum_is_more_than_half(n: int, needed: int) -> None:
    assert VoteRule(votes=n, threshold=0.5, quorum=None).needed == needed


def test_a_quorum_of_ones_own_counts_instead() -> None:
    assert tally((1, F, F), quorum=1).score == 1
    assert tally((1, 1, F), quorum=3).score is None


def test_the_order_of_votes_is_of_no_matter() -> None:
    assert {tally(votes).score for votes in permutations((1, 1, -1, 0, F))} == {1}


def test_a_tally_says_why_it_has_no_opinion() -> None:
    assert tally((1, F, F)).note == "1 of 3 votes answered, 2 needed"
    assert tally((1, -1, F)).note == "a tie: 1 votes each for +1 and -1"
    assert tally((1, 1, -1, 0), threshold=0.6).note == "2 of 4 for +1 is below the threshold 0.6"


def test_a_threshold_out_of_range_is_refused() -> None:
    with pytest.raises(InvalidValue, match="threshold"):
        tally((1,), threshold=0.0)


@given(st.lists(st.sampled_from([1, -1, 0, None]), min_size=1, max_size=9), st.floats(0.01, 1.0))
def test_a_score_is_always_the_one_most_frequent_answer(votes: list[int | None], threshold: float) -> None:
    score = tally(votes, threshold=threshold).score
    answers = [vote for vote in votes if vote is not None]
    if score is not None:
        assert all(answers.count(score) > answers.count(other) for other in {1, -1, 0} - {score})
        assert 2 * len(answers) > len(votes)


@given(st.integers(1, 9))
def test_no_answer_at_all_is_never_a_zero(n: int) -> None:
    assert tally([None] * n).score is None
