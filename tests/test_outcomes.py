"""The outcome of an episode on its way to every step: paid, judged, replaced, waited for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from openclaw_rl.errors import JudgeUnavailable
from openclaw_rl.judge.hints import HintLimits
from openclaw_rl.judge.loop import JudgeLoop, JudgeLoopSettings
from openclaw_rl.ports import Case
from openclaw_rl.testing import TemporaryLedger, make_completion, make_outcome, make_turn
from openclaw_rl.types import Feedback, SessionReward, Step, Turn, Verdict

pytestmark = pytest.mark.anyio


class Voter:
    """A judge whose votes are given, by session and step; it is away for those that are not."""

    name = "voter"

    def __init__(self, **votes: tuple[int | None, ...]) -> None:
        self.votes = votes
        self.asked: list[str] = []

    async def judge(self, case: Case) -> Verdict:
        place = f"{case.turn.session}{case.outcome.index}"
        self.asked.append(place)
        if place not in self.votes:
            raise JudgeUnavailable("it is away")
        return Verdict(turn=case.turn.id, score=1.0, source="judge", votes=self.votes[place])


@pytest.fixture
def ledger() -> Iterator[TemporaryLedger]:
    with TemporaryLedger() as opened:
        yield opened


def play(ledger: TemporaryLedger, session: str, *indices: int, user: str = "env:door", **turn: Any) -> list[Turn]:
    """Steps of an episode, with what came after each."""
    made = [make_turn(session=session, user=user, group="g", **turn) for _ in indices]
    for one, index in zip(made, indices, strict=True):
        ledger.serve.add_turn(one)
        outcome = make_outcome(one, session=session, index=index)
        ledger.collect.settle([outcome], [], turns_read=ledger.serve.newest("turns"))
    return made


def pay(ledger: TemporaryLedger, session: str, score: float | None = None, failed: str | None = None) -> bool:
    return ledger.serve.add_reward(SessionReward(session=session, user="env:door", score=score, failed=failed))


def loop(ledger: TemporaryLedger, judge: Voter, *, step_votes: bool) -> JudgeLoop:
    settings = JudgeLoopSettings(
        workers=2,
        trusted=frozenset(),
        hints=HintLimits(most=3, shortest=1, longest=600),
        behaviour=False,
        step_votes=step_votes,
        calibrate=False,
        window=10,
        longest_pause=1.0,
    )
    return JudgeLoop(ledger.judge, judge, settings)


def verdicts(ledger: TemporaryLedger, turns: list[Turn]) -> list[tuple[float | None, float | None, str]]:
    found = [ledger.train.verdict(turn.id) for turn in turns]
    return [(one.score, one.step, one.source) for one in found if one is not None]


def trainable(ledger: TemporaryLedger, *, patience: float = 1e9) -> list[str]:
    return [one.turn.id for one in ledger.train.untrained(99, patience=patience) if not hasattr(one, "why")]


async def test_the_outcome_reaches_every_step_and_none_trains_before_it(ledger: TemporaryLedger) -> None:
    steps = play(ledger, "s", 0, 1, 2)
    judge = loop(ledger, Voter(), step_votes=False)
    await judge.tick()
    assert trainable(ledger) == [], "the episode may still be paid"
    assert pay(ledger, "s", 0.5)
    assert trainable(ledger) == [], "no verdict knows of it yet"
    await judge.tick()
    assert verdicts(ledger, steps) == [(0.5, None, "environment")] * 3
    assert trainable(ledger) == [turn.id for turn in steps]
    assert await judge.tick() == 0


async def test_a_reward_sent_again_is_the_same_and_another_replaces_it(ledger: TemporaryLedger) -> None:
    play(ledger, "s", 0)
    play(ledger, "other", 0)
    for score in (0.5, 0.5, -1.0, 0.5):
        assert pay(ledger, "s", score)
    for _ in range(2):
        assert pay(ledger, "other", failed="no network")
    found = ledger.train.rows("SELECT session, score FROM session_rewards ORDER BY seq")
    assert [(row["session"], row["score"]) for row in found] == [("s", 0.5), ("s", -1.0), ("s", 0.5), ("other", None)]


async def test_votes_on_steps_are_matched_by_step_and_a_missing_one_leaves_the_outcome_alone(
    ledger: TemporaryLedger,
) -> None:
    steps = play(ledger, "s", 0, 1)
    voter = Voter(s0=(1, 1, -1), s1=(None, 0, -1))
    judge = loop(ledger, voter, step_votes=True)
    await judge.tick()
    assert trainable(ledger) == []
    last = play(ledger, "s", 2)
    pay(ledger, "s", -1.0)
    await judge.tick()
    assert sorted(voter.asked) == ["s0", "s1", "s2"], "each step once"
    assert verdicts(ledger, steps + last) == [
        (-1.0, pytest.approx(1 / 3), "environment"),
        (-1.0, -0.5, "environment"),
        (-1.0, None, "environment"),
    ]


async def test_a_steps_own_reward_is_one_more_vote(ledger: TemporaryLedger) -> None:
    steps = play(ledger, "s", 0)
    ledger.serve.add_feedback(Feedback(turn=steps[0].id, score=0.25, source="environment"))
    pay(ledger, "s", 1.0)
    await loop(ledger, Voter(), step_votes=False).tick()
    assert verdicts(ledger, steps) == [(1.0, 0.25, "environment")]


@pytest.mark.parametrize("step_votes", [False, True])
@pytest.mark.parametrize("paid_at_once", [False, True])
async def test_a_step_that_was_cut_off_is_worth_its_outcome_and_the_judges_votes_alone(
    ledger: TemporaryLedger, paid_at_once: bool, step_votes: bool
) -> None:
    steps = play(ledger, "s", 0, completion=make_completion(finish="length"))
    judge = loop(ledger, Voter(s0=(1, 1, 0)), step_votes=step_votes)
    if not paid_at_once:
        await judge.tick()
        score, _, _ = verdicts(ledger, steps)[0]
        assert score is None or step_votes, "nothing is said of it before its outcome"
    pay(ledger, "s", 1.0)
    await judge.tick()
    assert verdicts(ledger, steps) == [(1.0, pytest.approx(2 / 3) if step_votes else None, "environment")]


async def test_a_step_that_was_cut_off_and_calls_nothing_readable_is_still_marked_down(ledger: TemporaryLedger) -> None:
    cut = make_completion(finish="length", flaws=("malformed_tool_call",))
    steps = play(ledger, "s", 0, completion=cut)
    pay(ledger, "s", 1.0)
    await loop(ledger, Voter(), step_votes=False).tick()
    assert verdicts(ledger, steps) == [(1.0, -1.0, "environment")]


async def test_a_late_reward_replaces_while_nothing_has_trained(ledger: TemporaryLedger) -> None:
    steps = play(ledger, "s", 0, 1)
    judge = loop(ledger, Voter(s0=(1,), s1=(1,)), step_votes=True)
    pay(ledger, "s", -1.0)
    await judge.tick()
    pay(ledger, "s", 1.0)
    await judge.tick()
    assert verdicts(ledger, steps) == [(1.0, 1.0, "environment")] * 2
    ledger.train.add_step(Step(number=1, turns=(steps[0].id,), metrics={}, seconds=0.0), None)
    assert not pay(ledger, "s", 0.0)
    await judge.tick()
    assert verdicts(ledger, steps) == [(1.0, 1.0, "environment")] * 2


async def test_an_episode_that_failed_elsewhere_is_dropped_with_its_reason_and_never_trains(
    ledger: TemporaryLedger,
) -> None:
    play(ledger, "s", 0, 1)
    judge = loop(ledger, Voter(), step_votes=False)
    await judge.tick()
    later = play(ledger, "s", 2)
    pay(ledger, "s", failed="the sandbox is gone")
    await judge.tick()
    assert trainable(ledger) == []
    assert ledger.train.drop_counts() == {"environment failed": 3}
    drop = ledger.train.dropped(later[0].id)
    assert drop is not None
    assert (drop.stage, drop.detail) == ("judge", "the sandbox is gone")


async def test_an_episode_that_nobody_pays_waits_no_longer_than_its_session(ledger: TemporaryLedger) -> None:
    steps = play(ledger, "s", 0)
    await loop(ledger, Voter(), step_votes=False).tick()
    assert trainable(ledger) == []
    assert trainable(ledger, patience=0.0) == [steps[0].id]
    ledger.serve.add_ending("s", "env:door")
    assert trainable(ledger) == [steps[0].id]


async def test_the_first_step_of_a_long_episode_waits_as_long_as_its_last(ledger: TemporaryLedger) -> None:
    now = time.time()
    steps = [*play(ledger, "s", 0, at=now - 500.0), *play(ledger, "s", 1, at=now)]
    await loop(ledger, Voter(), step_votes=False).tick()
    assert trainable(ledger, patience=100.0) == []
    assert trainable(ledger, patience=0.0) == [step.id for step in steps]


async def test_what_environments_pay_is_no_sign_that_a_judge_has_collapsed(ledger: TemporaryLedger) -> None:
    play(ledger, "s", *range(40))
    pay(ledger, "s", -1.0)
    play(ledger, "t", 0, user="ann")
    judge = loop(ledger, Voter(t0=(1,)), step_votes=False)
    for _ in range(3):
        await judge.tick()
    assert [one.user for one in ledger.judge.scores(50)] == ["ann"]
    assert (await judge.status())["alarms"] == []
    assert [one.user for one in ledger.train.scored(50)] == ["ann"], "nor that a version became worse"


async def test_a_session_of_the_same_name_of_another_environment_is_not_paid(ledger: TemporaryLedger) -> None:
    other = play(ledger, "s", 0, user="env:other")
    pay(ledger, "s", 1.0)
    await loop(ledger, Voter(), step_votes=False).tick()
    assert verdicts(ledger, other) == [(None, None, "environment")]


async def test_people_are_judged_as_ever(ledger: TemporaryLedger) -> None:
    [turn] = play(ledger, "s", 0, user="ann")
    await loop(ledger, Voter(s0=(1,)), step_votes=False).tick()
    assert verdicts(ledger, [turn]) == [(1.0, None, "judge")]
    assert trainable(ledger) == [], "whoever names a group may still pay its session"
    ledger.serve.add_ending("s", "ann")
    assert trainable(ledger) == [turn.id]


async def test_a_group_is_whole_when_every_verdict_knows_what_its_session_was_paid(ledger: TemporaryLedger) -> None:
    play(ledger, "s", 0)
    judge = loop(ledger, Voter(), step_votes=False)
    await judge.tick()
    assert progress(ledger, patience=1e9) is None, "it may still be paid"
    assert progress(ledger) == (1, 0)
    pay(ledger, "s", 1.0)
    assert progress(ledger) is None, "its verdict does not know of it"
    await judge.tick()
    assert progress(ledger, patience=1e9) == (1, 0)


def progress(ledger: TemporaryLedger, *, patience: float = -1e9) -> tuple[int, int] | None:
    """Plays of the only group that waits, and its turns that are not settled."""
    groups = ledger.train.waiting(99, patience=patience).groups
    return next(((group.plays, group.unsettled) for group in groups.values()), None)
