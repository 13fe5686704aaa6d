"""Who earned what in an environment, with numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.store import CollectLedger, JudgeLedger, ServeLedger, TrainLedger
from openclaw_rl.testing import make_completion, make_outcome, make_turn
from openclaw_rl.train.credit import credited
from openclaw_rl.train.queue import TrainingQueue
from openclaw_rl.train.samples import all_alike, to_sample, with_advantages
from openclaw_rl.types import PlayedStep, Sample, Verdict, Version
from tests.training import credit_settings, queue_settings, sample_settings

STEP = credit_settings()


def step(episode: str, index: int, outcome: float, vote: float | None = None, *, task: str = "t") -> PlayedStep:
    return PlayedStep(episode=episode, task=task, index=index, outcome=outcome, vote=vote)


def test_a_step_is_measured_against_the_others_at_the_same_place() -> None:
    # rewards at step 0: 1 + 1, 1 - 1, -1: mean 1/3, deviations 5/3, -1/3, -4/3, spread sqrt((25 + 1 + 16) / 27)
    found = credited({"a": step("A", 0, 1, 1.0), "b": step("B", 0, 1, -1.0), "c": step("C", 0, -1)}, STEP)
    spread = math.sqrt(42 / 27)
    expected = {"a": 5 / 3 / spread, "b": -1 / 3 / spread, "c": -4 / 3 / spread}
    assert found.advantages == pytest.approx(expected, abs=1e-5)
    assert (found.buckets, found.flat) == (1, 0)


def test_a_step_that_no_other_episode_reached_is_measured_against_all_steps_of_its_group() -> None:
    # rewards 1, 1.5 and -1: mean 0.5, spread sqrt((0.25 + 1 + 2.25) / 3); step 0: 1 and -1
    steps = {"a0": step("A", 0, 1), "a1": step("A", 1, 1, 0.5), "b0": step("B", 0, -1)}
    expected = {"a0": 1.0, "a1": 1 / math.sqrt(3.5 / 3), "b0": -1.0}
    assert credited(steps, STEP).advantages == pytest.approx(expected, abs=1e-5)


def test_no_spread_is_taken_for_less_than_a_tenth_of_the_range_and_no_advantage_goes_beyond_five() -> None:
    # rewards 0.5 and 0.54: the spread is 0.02, taken for 0.2
    close = credited({"a": step("A", 0, 0.5), "b": step("B", 0, 0.54)}, STEP)
    assert close.advantages == pytest.approx({"a": -0.1, "b": 0.1}, abs=1e-5)
    # 39 plays earn 1, one earns -1: mean 0.95, spread sqrt(39/40 * 1/40 * 4) = 0.3122, -1.95 / 0.3122 = -6.24
    many = {f"w{n}": step(f"W{n}", 0, 1) for n in range(39)} | {"l": step("L", 0, -1)}
    assert credited(many, STEP).advantages["l"] == -5.0


def test_a_lone_step_with_a_vote_does_not_explode_beside_outcomes_that_are_nearly_alike() -> None:
    # once measured against the outcomes 1, 1, 1, 0.96 this vote was worth more than fifty
    outcomes = {f"{n}0": step(n, 0, 1.0) for n in "ABC"} | {"D0": step("D", 0, 0.96)}
    credit = credited({**outcomes, "A1": step("A", 1, 1.0, 1.0)}, STEP)
    # rewards 1, 1, 1, 0.96, 2: mean 1.192, spread 0.4044
    assert credit.advantages["A1"] == pytest.approx(0.808 / 0.4043, abs=1e-3)


def test_an_episode_that_is_alone_has_no_advantage() -> None:
    assert credited({"a": step("A", 0, 1), "b": step("A", 1, 1)}, STEP).advantages == {"a": None, "b": None}


def test_a_bucket_without_variance_teaches_nothing_and_is_counted() -> None:
    steps = {"a0": step("A", 0, 1), "b0": step("B", 0, 1), "a1": step("A", 1, 1, 1.0), "b1": step("B", 1, 1, -1.0)}
    found = credited(steps, STEP)
    assert found.advantages == pytest.approx({"a0": 0.0, "b0": 0.0, "a1": 1.0, "b1": -1.0}, abs=1e-5)
    assert (found.buckets, found.flat) == (2, 1)
    lone = credited({"a0": step("A", 0, 1), "b0": step("B", 0, 1), "a1": step("A", 1, 1, 1.0)}, STEP)
    # 1, 1 and 2: mean 4/3, spread sqrt(2)/3
    assert lone.advantages == pytest.approx({"a0": 0.0, "b0": 0.0, "a1": math.sqrt(2)}, abs=1e-5)


def test_the_trajectory_shares_its_mean_vote_and_the_outcome_shares_itself() -> None:
    # A: 1 + (1 + 0) / 2 = 1.5 · B: 0 - 1 = -1: mean 0.25, spread 1.25
    steps = {"a0": step("A", 0, 1, 1.0), "a1": step("A", 1, 1, 0.0), "b0": step("B", 0, 0, -1.0), "b1": step("B", 1, 0)}
    whole = credited(steps, credit_settings(mode="trajectory", weight=1.0)).advantages
    assert whole == pytest.approx({"a0": 1, "a1": 1, "b0": -1, "b1": -1}, abs=1e-5)
    heavy = credited({**steps, "c0": step("C", 0, 0.5)}, credit_settings(mode="trajectory", weight=0.0)).advantages
    alone = credited({**steps, "c0": step("C", 0, 0.5)}, credit_settings(mode="outcome", weight=9.0)).advantages
    assert heavy == alone
    assert alone["c0"] == pytest.approx(0.0)


def test_votes_weigh_what_the_setting_says() -> None:
    steps = {"a": step("A", 0, 0, 1.0), "b": step("B", 0, 0.5)}
    assert credited(steps, credit_settings(mode="step", weight=0.0)).advantages["a"] == pytest.approx(-1, abs=1e-4)
    assert credited(steps, credit_settings(mode="step", weight=1.0)).advantages["a"] == pytest.approx(1, abs=1e-4)


def test_the_division_by_the_spread_can_be_left_out() -> None:
    steps = {"a": step("A", 0, 1), "b": step("B", 0, 0), "c": step("C", 0, -0.4)}  # mean 0.2
    plain = credited(steps, replace(STEP, scaled=False))
    assert plain.advantages == pytest.approx({"a": 0.8, "b": -0.2, "c": -0.6})


def test_leave_one_out_subtracts_the_mean_of_the_others() -> None:
    steps = {"a": step("A", 0, 1), "b": step("B", 0, 0), "c": step("C", 0, -0.4)}
    # 1 - (0 - 0.4) / 2, 0 - (1 - 0.4) / 2, -0.4 - (1 + 0) / 2
    rloo = credited(steps, replace(STEP, baseline="others", scaled=False))
    assert rloo.advantages == pytest.approx({"a": 1.2, "b": -0.3, "c": -0.9})


def test_over_the_batch_a_task_that_is_always_solved_is_above_one_that_never_is() -> None:
    easy = {name: step(name, 0, 1) for name in "AB"}
    hard = {name: step(name, 0, -1, task="u") for name in "CD"}
    credit = credited({**easy, **hard}, replace(STEP, baseline="batch"))
    assert credit.advantages == pytest.approx({"A": 1, "B": 1, "C": -1, "D": -1}, abs=1e-5)


def test_a_reply_that_nears_the_end_of_its_room_loses_reward() -> None:
    def long(name: str, tokens: int) -> PlayedStep:
        return replace(step(name, 0, 1), tokens=tokens, room=100)

    settings = credit_settings(mode="outcome", weight=0.0, scaled=False, overlong=True)
    # up to 80 of 100 tokens cost nothing, 90 cost 0.5, 100 cost 1: rewards 1, 0.5, 0, mean 0.5
    credit = credited({"a": long("A", 80), "b": long("B", 90), "c": long("C", 100)}, settings)
    assert credit.advantages == pytest.approx({"a": 0.5, "b": 0.0, "c": -0.5})


def test_tasks_are_not_measured_against_each_other() -> None:
    steps = {
        "a": step("A", 0, 1),
        "b": step("B", 0, -1),
        "c": step("C", 0, 1, task="u"),
        "d": step("D", 0, 1, task="u"),
    }
    found = credited(steps, STEP)
    assert found.advantages == pytest.approx({"a": 1, "b": -1, "c": 0, "d": 0}, abs=1e-5)
    assert (found.buckets, found.flat) == (2, 1)


def played(session: str, index: int, score: float, vote: float | None = None, **turn: Any) -> Sample:
    made = make_turn(session=session, group=turn.pop("group", "g"), user=turn.pop("user", "env:door"), **turn)
    outcome = make_outcome(made, session=session, index=index)
    verdict = Verdict(turn=made.id, score=score, step=vote, source="environment")
    found = to_sample(made, outcome, verdict, live=made.completion.version, settings=sample_settings(grouped=True))
    assert isinstance(found, Sample)
    return found


def test_every_step_of_a_group_trains_with_the_outcome_of_its_episode() -> None:
    batch = [played("A", 0, 1.0), played("A", 1, 1.0), played("B", 0, 0.0), played("B", 1, 0.0)]
    done = with_advantages(batch, baselines={}, settings=sample_settings(grouped=True))
    assert [sample.advantage for sample in done.samples] == pytest.approx([1, 1, -1, -1], abs=1e-5)
    assert done.figures == {"credit_buckets": 2.0, "credit_buckets_flat": 0.0}
    assert done.baselines == {}


def test_a_task_of_another_environment_with_the_same_name_is_another_task() -> None:
    batch = [played("A", 0, 1.0), played("B", 0, 0.0, user="env:other")]
    done = with_advantages(batch, baselines={}, settings=sample_settings(grouped=True))
    assert [sample.advantage for sample in done.samples] == [0.0, 0.0]
    assert done.without_signal


def test_without_groups_a_step_is_measured_as_any_turn() -> None:
    done = with_advantages([played("A", 0, 1.0, 0.5)], baselines={}, settings=sample_settings(advantage="raw"))
    assert [(sample.score, sample.advantage) for sample in done.samples] == [(1.5, 1.5)]


def test_plays_that_all_earned_the_same_are_left_out_once_their_group_is_whole() -> None:
    settings = sample_settings(grouped=True)
    alike = [played("A", 0, 1.0, group="easy"), played("B", 0, 1.0, group="easy")]
    mixed = [played("C", 0, 1.0, group="hard"), played("D", 0, 0.0, group="hard")]
    alone = [played("E", 0, 1.0, group="rare")]
    drops = all_alike([*alike, *mixed, *alone], settings=settings, partial=())
    assert [drop.turn for drop in drops] == [each.turn for each in (*alike, *alone)]
    assert {drop.reason for drop in drops} == {"alike"}
    waits = all_alike([*alike, *mixed, *alone], settings=settings, partial={("env:door", "easy"), ("env:door", "rare")})
    assert waits == []
    assert all_alike(alike, settings=sample_settings(grouped=False), partial=()) == []


def test_plays_that_earned_the_same_stay_where_a_vote_or_a_hint_tells_them_apart() -> None:
    settings = sample_settings(grouped=True)
    voted = [played("A", 0, 1.0, 1.0), played("B", 0, 1.0, -1.0)]
    assert all_alike(voted, settings=settings, partial=()) == []
    first, second = played("A", 0, 1.0), played("B", 0, 1.0)
    assert all_alike([first, replace(second, teachers=(second.prompt,))], settings=settings, partial=()) == []


def test_a_batch_fills_with_what_teaches_and_the_rest_waits_nowhere(ledger_path: Path) -> None:
    with (
        ServeLedger(ledger_path, sync="full") as serve,
        CollectLedger(ledger_path) as collect,
        JudgeLedger(ledger_path) as judge,
        TrainLedger(ledger_path, sync="full") as train,
    ):
        train.add_version(Version(number=0, parent=None, base="b", state="live"))
        scores = {("easy", "A"): 1.0, ("easy", "B"): 1.0, ("hard", "C"): 1.0, ("hard", "D"): -1.0}
        turns = [
            make_turn(session=session, group=task, user="env:door", completion=make_completion(version=0))
            for task, session in scores
        ]
        for turn in turns:
            serve.add_turn(turn)
        collect.settle([make_outcome(turn) for turn in turns], [], turns_read=serve.newest("turns"))
        judge.add_verdicts(
            [
                Verdict(turn=turn.id, score=score, source="environment")
                for turn, score in zip(turns, scores.values(), strict=True)
            ]
        )
        settings = queue_settings(batch_size=4, max_wait=math.inf, idle=math.inf, group_size=2)
        queue = TrainingQueue(train, sample_settings(grouped=True), settings)
        queue.read()
        assert (queue.next_batch(), queue.waiting) == ([], 2), "two of the four teach nothing: it is not full yet"
        assert train.drop_counts() == {"alike": 2}
        assert train.backlog() == 2, "they hold up no episodes"
        queue.max_wait = 0.0
        assert [sample.turn for sample in queue.next_batch()] == [turn.id for turn in turns[2:]]
