"""What is in a step: whole groups of episodes, and rules that go on teaching."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from training import Story, sample_settings

from openclaw_rl.backends.fake import FakeTrainer
from openclaw_rl.ports import StepResult
from openclaw_rl.testing import make_outcome, make_turn, make_verdict
from openclaw_rl.types import Hint, Sample, Turn

pytestmark = pytest.mark.anyio


class Episodes:
    """An environment's episodes of one task, each turn settled and judged when told."""

    def __init__(self, story: Story) -> None:
        self.story, self.counts, self.open = story, dict[str, int](), dict[str, Turn]()

    def reply(self, episode: str, group: str = "g") -> None:
        """The episode answers: its turn before this one, if any, is settled by it."""
        self.settle(episode)
        turn = make_turn(at=self.story.now, session=episode, group=group)
        self.story.serve.add_turn(turn)
        self.open[episode] = turn

    def settle(self, episode: str, reward: float | None = None, ended: str | None = None) -> None:
        turn = self.open.pop(episode, None)
        if turn is None:
            return
        index = self.counts[episode] = self.counts.get(episode, -1) + 1
        outcome = make_outcome(turn, session=episode, index=index, ended=ended, at=self.story.now)
        self.story.collect.settle([outcome], [], turns_read=self.story.serve.newest("turns"))
        score = reward if reward is not None else 0.0
        self.story.judge.add_verdicts([make_verdict(turn, score, source="environment", at=self.story.now)])

    def end(self, episode: str, reward: float) -> None:
        self.settle(episode, reward, "done")


async def test_a_group_trains_when_all_its_episodes_have_ended_and_been_judged(tmp_path: Path) -> None:
    story = Story(tmp_path)
    episodes = Episodes(story)
    loop = story.begin(FakeTrainer(), samples=sample_settings(advantage="group"), batch_size=1, group_size=3)
    episodes.reply("p1"), episodes.reply("p2")
    episodes.end("p1", 1.0)
    assert await loop.tick() == 0, "one of three has ended"
    episodes.reply("p2")
    episodes.end("p2", 0.0)
    assert await loop.tick() == 0, "the third has not begun"
    episodes.reply("p3")
    assert await loop.tick() == 0, "the third has not ended"
    episodes.end("p3", 0.5)
    assert await loop.tick() == 4
    found = sorted(
        (story.train.turn(turn).session, story.train.outcome(turn).index, part["advantage"])
        for turn, part in story.train.step(1).parts.items()
    )
    # step 0: rewards 1, 0, 0.5 against their mean 0.5; step 1: p2 alone, against itself
    assert found == [("p1", 0, 0.5), ("p2", 0, -0.5), ("p2", 1, 0.0), ("p3", 0, 0.0)]


async def test_an_episode_that_never_comes_holds_its_group_up_only_for_a_while(tmp_path: Path) -> None:
    story = Story(tmp_path)
    episodes = Episodes(story)
    loop = story.begin(FakeTrainer(), samples=sample_settings(advantage="group"), batch_size=1, group_size=2)
    episodes.reply("p1"), episodes.end("p1", 1.0)
    episodes.reply("q1", "h"), episodes.reply("q2", "h"), episodes.end("q1", 1.0), episodes.end("q2", 0.0)
    assert await loop.tick() == 2, "the other group is whole and does not wait"
    assert sorted(part["advantage"] for part in story.train.step(1).parts.values()) == [-0.5, 0.5]
    assert await loop.tick() == 0
    story.now += 61  # nobody plays any more
    assert await loop.tick() == 0
    story.now += 900  # as long as a group waits after its newest turn
    assert await loop.tick() == 1


async def test_what_was_known_of_each_sample_is_written_with_its_step(tmp_path: Path) -> None:
    story = Story(tmp_path)
    first, second = story.said(-1.0, "Be brief, please."), story.said(1.0)
    await story.loop.tick()
    parts = story.train.step(1).parts
    assert parts[first] == {"advantage": -1.0, "hints": 1.0, "lag": 0.0}
    assert parts[second] == {"advantage": 1.05, "hints": 0.0, "lag": 0.0}


class Counting(FakeTrainer):
    calls = 0

    async def step(self, samples: Sequence[Sample], **more: Any) -> StepResult:
        self.calls += 1
        return await super().step(samples, **more)


async def test_rewards_that_are_all_equal_take_no_step_make_no_version_and_are_no_alarm(tmp_path: Path) -> None:
    trainer = Counting()
    story = Story(tmp_path, trainer)
    episodes = Episodes(story)
    loop = story.begin(trainer, samples=sample_settings(advantage="group"), batch_size=2, group_size=2)
    for group in ("g", "h", "i"):
        for episode in (f"{group}1", f"{group}2"):
            episodes.reply(episode, group), episodes.end(episode, 1.0)
        assert await loop.tick() == 2
    assert trainer.calls == 0
    assert {story.train.step(n).skipped for n in (1, 2, 3)} == {"every advantage is zero and there is no hint"}
    assert [v.number for v in story.train.versions()] == [0]
    assert story.train.paused() is None, "three in a row, and none of them an alarm"


class Attentive(FakeTrainer):
    """Notes what taught each turn."""

    def __init__(self) -> None:
        super().__init__()
        self.taught: dict[str, list[str]] = {}

    async def step(self, samples: Sequence[Sample], **more: Any) -> StepResult:
        self.taught |= {one.turn: [t.messages[-1].content.split("\n\n")[1] for t in one.teachers] for one in samples}
        return await super().step(samples, **more)


async def test_a_rule_goes_on_teaching_its_users_next_turns_for_as_long_as_asked(tmp_path: Path) -> None:
    trainer = Attentive()
    story = Story(tmp_path, trainer)
    loop = story.begin(trainer, samples=sample_settings(remember=2), batch_size=1)
    vague = Hint(text="Please be clearer.", vague=True)
    first, other = story.said(-1.0, "Be brief, please."), story.said(-1.0, vague, user="u2")
    thanked, cross, late = story.said(1.0), story.said(-1.0), story.said(1.0)
    while await loop.tick():
        pass
    assert trainer.taught == {
        first: ["Be brief, please."],
        other: ["Please be clearer."],
        thanked: ["Be brief, please."],
        cross: ["Be brief, please."],
        late: [],
    }
    source = {
        turn: story.train.step(story.train.trained_in(turn) or 0).parts[turn].get("recalled")
        for turn in (first, thanked)
    }
    assert source == {first: None, thanked: first}


async def test_the_newest_rule_stands_and_nothing_is_recalled_from_what_may_not_teach(tmp_path: Path) -> None:
    trainer = Attentive()
    story = Story(tmp_path, trainer)
    loop = story.begin(trainer, samples=sample_settings(remember=9), batch_size=1)
    story.said(-1.0, "Be brief, please.")
    story.said(-1.0, "Use lists instead.")
    vague = story.said(-1.0, Hint(text="Please be clearer.", vague=True))
    story.said(-1.0, "Sing it to me.", kind="side")
    story.said(-1.0, "Shout it at me.", trainable=False)
    last = story.said(1.0)
    while await loop.tick():
        pass
    assert trainer.taught[last] == trainer.taught[vague] == ["Use lists instead."]
    assert len(trainer.taught) == 4, "neither the side turn nor the one kept out is trained"


async def test_without_the_setting_a_rule_teaches_its_own_turn_alone(tmp_path: Path) -> None:
    trainer = Attentive()
    story = Story(tmp_path, trainer)
    loop = story.begin(trainer, batch_size=1)
    story.said(-1.0, "Be brief, please.")
    thanked = story.said(1.0)
    while await loop.tick():
        pass
    assert trainer.taught[thanked] == []
