"""Groups of episodes train whole or not at all: every advantage follows from what the environment itself paid."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from training import Story, queue_settings, sample_settings

from openclaw_rl.backends.fake import FakeTrainer
from openclaw_rl.testing import make_completion, make_outcome, make_turn, make_verdict
from openclaw_rl.train.queue import TrainingQueue
from openclaw_rl.types import SessionReward, Turn

pytestmark = pytest.mark.anyio

USER = "env:door"


class Plays:
    """Plays of an environment: each reply is judged at once, and again when its session is paid."""

    def __init__(self, story: Story) -> None:
        self.story = story

    def step(self, session: str, index: int, group: str | None, **more: Any) -> Turn:
        turn = make_turn(at=self.story.now, session=session, group=group, user=USER, **more)
        self.story.serve.add_turn(turn)
        outcome = make_outcome(turn, session=session, index=index, at=self.story.now)
        self.story.collect.settle([outcome], [], turns_read=self.story.serve.newest("turns"))
        return turn

    def judge(self, turn: Turn, score: float | None, vote: float | None = None) -> None:
        self.story.judge.unjudged(1000), self.story.judge.late_rewards(1000)  # what is paid by now is known
        verdict = make_verdict(turn, score, step=vote, source="environment", at=self.story.now)
        self.story.judge.add_verdicts([verdict])

    def pay(self, session: str, score: float) -> None:
        self.story.serve.add_reward(SessionReward(session=session, user=USER, score=score))

    def play(self, session: str, group: str, score: float) -> Turn:
        """A play of one step, judged and paid."""
        turn = self.step(session, 0, group)
        self.pay(session, score)
        self.judge(turn, score)
        self.story.serve.add_ending(session, USER)
        return turn


def queue_of(story: Story, **more: Any) -> TrainingQueue:
    settings = queue_settings(**{"batch_size": 1, "group_size": 2, "patience": 1e12, "group_wait": 900.0, **more})
    return TrainingQueue(story.train, sample_settings(grouped=True), settings, clock=lambda: story.now)


def after_reading(story: Story, what: str, work: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have something happen right after the first query that holds these words."""
    plain, done = story.train.db.rows, list[bool]()

    def rows(sql: str, values: Sequence[Any] = ()) -> Any:
        found = plain(sql, values)
        if what in sql and not done:
            done.append(True)
            work()
        return found

    monkeypatch.setattr(story.train.db, "rows", rows)


async def test_what_is_judged_while_the_queue_reads_makes_no_group_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story(tmp_path)
    plays = Plays(story)
    loop = story.begin(FakeTrainer(), samples=sample_settings(grouped=True), batch_size=1, group_size=3, patience=1e12)
    plays.play("p1", "g", 1.0), plays.play("p2", "g", 0.0)
    late = plays.step("p3", 0, "g")
    plays.pay("p3", -1.0)
    after_reading(story, "JOIN outcomes", lambda: plays.judge(late, -1.0), monkeypatch)
    assert await loop.tick() == 0, "its last play was not judged yet when the queue was read"
    assert await loop.tick() == 3
    # rewards 1, 0, -1: mean 0, spread sqrt(2/3)
    found = sorted(part["advantage"] for part in story.train.step(1).parts.values())
    assert found == pytest.approx([-1.224745, 0.0, 1.224745], abs=1e-5)


async def test_a_play_whose_outcome_is_not_known_yet_holds_its_group_together(tmp_path: Path) -> None:
    story = Story(tmp_path)
    plays = Plays(story)
    loop = story.begin(FakeTrainer(), samples=sample_settings(grouped=True), batch_size=1, group_size=2, patience=1e12)
    plays.play("p1", "g", 1.0)
    plays.judge(plays.step("p2", 0, "g"), None, vote=1.0)  # judged, but neither paid nor ended
    story.now += 10_000
    assert await loop.tick() == 0


async def test_no_time_makes_a_group_train_in_parts(tmp_path: Path) -> None:
    story = Story(tmp_path)
    plays = Plays(story)
    loop = story.begin(
        FakeTrainer(),
        samples=sample_settings(grouped=True),
        batch_size=1,
        group_size=2,
        patience=1e12,
        max_wait=60.0,
        verdict_wait=1e12,
    )
    plays.play("p1", "g", 1.0)
    running = plays.step("p2", 0, "g")
    story.now += 100_000  # longer than any other turn may wait
    assert await loop.tick() == 0
    plays.pay("p2", 0.0)
    plays.judge(running, 0.0)
    assert await loop.tick() == 2
    assert sorted(part["advantage"] for part in story.train.step(1).parts.values()) == pytest.approx([-1, 1], abs=1e-4)


async def test_a_group_whose_other_plays_never_come_is_closed_with_those_it_has(tmp_path: Path) -> None:
    story = Story(tmp_path)
    plays = Plays(story)
    queue = queue_of(story, group_size=3, max_wait=math.inf, idle=math.inf)
    await story.loop.tick()
    plays.play("p1", "g", 1.0), plays.play("p2", "g", 0.0)
    queue.read()
    story.now += 899.0
    assert queue.next_batch() == []
    story.now += 1.0
    assert len(queue.next_batch()) == 2


async def test_a_play_that_comes_after_its_group_was_closed_is_dropped_with_that_reason(tmp_path: Path) -> None:
    story = Story(tmp_path)
    plays = Plays(story)
    settings = {"batch_size": 1, "group_size": 3, "patience": 1e12, "group_wait": 900.0}
    loop = story.begin(FakeTrainer(), samples=sample_settings(grouped=True), **settings)
    plays.play("p1", "g", 1.0), plays.play("p2", "g", 0.0)
    story.now += 900.0
    assert await loop.tick() == 2
    plays.play("p3", "g", 0.5), plays.play("p4", "g", 0.0), plays.play("p5", "g", 1.0)
    while await loop.tick():
        pass
    assert (story.train.last_step().number, story.train.drop_counts()) == (1, {"late": 3})


async def test_sessions_whose_requests_name_no_group_are_joined_as_they_are_paid(tmp_path: Path) -> None:
    story = Story(tmp_path)
    plays = Plays(story)
    loop = story.begin(FakeTrainer(), samples=sample_settings(grouped=True), batch_size=1, group_size=2, patience=1e12)
    for session, group, score in (("p1", None, 1.0), ("p2", None, 0.0), ("p3", "own", 0.5)):
        turn = plays.step(session, 0, group)
        story.serve.add_reward(SessionReward(session=session, user=USER, score=score, group="run/7"))
        plays.judge(turn, score)
    while await loop.tick():
        pass
    assert sorted(part["advantage"] for part in story.train.step(1).parts.values()) == pytest.approx([-1, 1], abs=1e-4)
    found = story.train.rows("SELECT session, grp FROM turns ORDER BY session")
    assert [tuple(row) for row in found] == [("p1", "run/7"), ("p2", "run/7"), ("p3", "own")]


async def test_a_group_behind_the_reach_of_one_read_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openclaw_rl.train.queue._GROUPS_REACH", 3)
    story = Story(tmp_path)
    plays = Plays(story)
    loop = story.begin(FakeTrainer(), samples=sample_settings(grouped=True), batch_size=1, group_size=6, patience=1e12)
    for number in range(6):
        plays.play(f"p{number}", "g", float(number % 2))
    assert await loop.tick() == 6
    parts = [round(part["advantage"], 3) for part in story.train.step(1).parts.values()]
    assert sorted(parts) == [-1.0] * 3 + [1.0] * 3


async def test_a_reply_that_cannot_train_still_counts_in_what_the_others_are_measured_against(tmp_path: Path) -> None:
    story = Story(tmp_path)
    plays = Plays(story)
    loop = story.begin(FakeTrainer(), samples=sample_settings(grouped=True), batch_size=1, group_size=3, patience=1e12)
    plays.play("p1", "g", 1.0), plays.play("p2", "g", 1.0)
    cut = plays.step("p3", 0, "g", completion=make_completion(finish="length"))
    plays.pay("p3", -1.0)
    plays.judge(cut, -1.0)
    while await loop.tick():
        pass
    assert story.train.drop_counts() == {"cut off": 1}
    # 1, 1, -1: mean 1/3, spread sqrt(8/9); without the third there were nothing to compare
    parts = [part["advantage"] for part in story.train.step(1).parts.values()]
    assert parts == pytest.approx([2 / 3 / math.sqrt(8 / 9)] * 2, abs=1e-5)


@pytest.mark.parametrize("group_size", [2, 3], ids=["of a whole group", "of a group that was closed without it"])
async def test_a_late_play_of_a_group_whose_plays_all_earned_the_same_is_dropped(
    tmp_path: Path, group_size: int
) -> None:
    story = Story(tmp_path)
    plays = Plays(story)
    settings = {"batch_size": 1, "group_size": group_size, "patience": 1e12, "group_wait": 900.0}
    loop = story.begin(FakeTrainer(), samples=sample_settings(grouped=True), **settings)
    plays.play("p1", "g", 1.0), plays.play("p2", "g", 1.0)
    story.now += 900.0
    while await loop.tick():
        pass
    assert story.train.drop_counts() == {"alike": 2}
    plays.play("p3", "g", 0.0)
    while await loop.tick():
        pass
    assert story.train.drop_counts() == {"alike": 2, "late": 1}, "beside the two it had an advantage"
    assert (story.train.last_step(), story.train.untrained(10)) == (None, [])


async def test_a_play_that_is_paid_anew_after_its_group_was_dropped_trains_no_more(tmp_path: Path) -> None:
    story = Story(tmp_path)
    plays = Plays(story)
    loop = story.begin(FakeTrainer(), samples=sample_settings(grouped=True), batch_size=1, group_size=2, patience=1e12)
    first = plays.play("p1", "g", 1.0)
    plays.play("p2", "g", 1.0)
    while await loop.tick():
        pass
    plays.pay("p1", 0.0)
    plays.judge(first, 0.0)
    while await loop.tick():
        pass
    assert (story.train.last_step(), story.train.drop_counts()) == (None, {"alike": 2, "late": 1})


async def test_a_turn_that_nobody_judges_drops_its_group_whole_when_it_has_waited_its_time(tmp_path: Path) -> None:
    story = Story(tmp_path)
    plays = Plays(story)
    settings = {"batch_size": 1, "group_size": 3, "patience": 1e12, "verdict_wait": 1800.0}
    loop = story.begin(FakeTrainer(), samples=sample_settings(grouped=True), **settings)
    first, second = plays.play("p1", "g", 1.0), plays.play("p2", "g", 0.0)
    unjudged = plays.step("p3", 0, "g")
    plays.pay("p3", 0.5)
    story.now += 1799.0
    assert await loop.tick() == 0
    story.now += 5.0
    while await loop.tick():
        pass
    assert (story.train.last_step(), story.train.drop_counts()) == (None, {"unjudged": 3})
    why = "verdicts missing in its group after 1800 s: 1"
    assert {story.train.dropped(turn.id).detail for turn in (first, second, unjudged)} == {why}
    plays.judge(unjudged, 0.5)  # at last
    while await loop.tick():
        pass
    assert (story.train.last_step(), story.train.dropped(unjudged.id).reason) == (None, "late")


async def test_a_group_that_was_not_judged_while_the_program_was_down_waits_as_long_again(tmp_path: Path) -> None:
    story = Story(tmp_path)
    plays = Plays(story)
    plays.play("p1", "g", 1.0)
    unjudged = plays.step("p2", 0, "g")
    plays.pay("p2", 0.0)
    story.now += 100_000.0
    loop = story.begin(FakeTrainer(), samples=sample_settings(grouped=True), batch_size=1, group_size=2, patience=1e12)
    assert await loop.tick() == 0
    plays.judge(unjudged, 0.0)
    assert await loop.tick() == 2


async def test_a_last_step_in_a_hurry_drops_no_group_that_is_being_judged(tmp_path: Path) -> None:
    story = Story(tmp_path)
    plays = Plays(story)
    loop = story.begin(FakeTrainer(), samples=sample_settings(grouped=True), batch_size=1, group_size=2, patience=1e12)
    plays.play("p1", "g", 1.0)
    plays.step("p2", 0, "g")
    plays.pay("p2", 0.0)
    loop.hurry()
    assert (await loop.tick(), story.train.drop_counts()) == (0, {})
