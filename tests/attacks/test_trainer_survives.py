"""One bad turn never stops training: it becomes a drop with its reason, and the others train."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from training import Story

from openclaw_rl.backends.fake import FakeTrainer, read_turns
from openclaw_rl.errors import BackendDown, BackendError, ModelRefused
from openclaw_rl.ports import StepResult
from openclaw_rl.types import Drop, Sample
from openclaw_rl.versions import LiveVersions


class Poisoned(FakeTrainer):
    """Dies of certain turns, as often as it meets them."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: set[str] = set()
        self.sizes: list[int] = []

    async def step(self, samples: Sequence[Sample], **more: Any) -> StepResult:
        self.sizes.append(len(samples))
        if self.bad & {sample.turn for sample in samples}:
            raise BackendError("the training worker died (exit code 3)")
        return await super().step(samples, **more)


async def until_idle(story: Story) -> int:
    """Tick as the runner does, which goes on after a failure; how many ticks failed."""
    failed, idle = 0, 0
    for _ in range(100):
        try:
            idle = 0 if await story.loop.tick() else idle + 1
        except BackendError:
            failed, idle = failed + 1, 0
        if idle > 1:
            return failed
    raise AssertionError("it goes on for ever")


def dropped(story: Story, turns: Iterable[str]) -> list[Drop]:
    found = [drop for turn in turns if (drop := story.train.dropped(turn)) is not None]
    assert {drop.reason for drop in found} <= {"cannot be trained"}
    return found


async def test_a_turn_that_the_trainer_dies_of_is_found_dropped_and_costs_no_other(tmp_path: Path) -> None:
    trainer = Poisoned()
    story = Story(tmp_path, trainer)
    story.loop = story.begin(trainer, batch_size=8)
    turns = [story.said(-1.0, "Be brief, please.") for _ in range(8)]
    trainer.bad = {turns[5]}
    failed = await until_idle(story)
    story.now += 61  # the user stops talking: what is left trains too
    failed += await until_idle(story)
    (drop,) = dropped(story, turns)
    assert (drop.turn, drop.detail) == (turns[5], "BackendError: the training worker died (exit code 3)")
    live = LiveVersions(story.train).live()
    assert live is not None
    assert live.adapter is not None
    assert sorted(read_turns(live.adapter)) == sorted(set(turns) - {turns[5]}), "each of the others, once"
    # all of them twice, the first half; what is left twice, its half, one, two; the bad one twice; the last two
    assert trainer.sizes == [8, 8, 4, 4, 4, 2, 1, 2, 1, 1, 1, 1]
    assert failed == 7
    assert story.train.paused() is None


async def test_a_trainer_that_always_fails_costs_three_turns_and_pauses(tmp_path: Path) -> None:
    trainer = Poisoned()
    story = Story(tmp_path, trainer)
    trainer.bad = {story.said(1.0) for _ in range(2)} | {story.said(-1.0) for _ in range(6)}
    await until_idle(story)
    assert len(dropped(story, trainer.bad)) == 3
    assert "3 alarms in a row, the last: turn" in str(story.train.paused())


@pytest.mark.parametrize("error", [ModelRefused("it needs 64 GiB"), BackendDown("No space left on device")])
async def test_what_no_batch_has_done_drops_nothing(tmp_path: Path, error: BackendError) -> None:
    class Full(FakeTrainer):
        async def step(self, samples: Sequence[Sample], **more: Any) -> StepResult:
            raise error

    story = Story(tmp_path, Full())
    turns = story.said(1.0), story.said(-1.0)
    for _ in range(20):
        with pytest.raises(type(error)):
            await story.loop.tick()
    assert dropped(story, turns) == []


async def test_turns_that_the_trainer_gives_back_are_dropped_with_its_reason(tmp_path: Path) -> None:
    class Choosy(FakeTrainer):
        async def step(self, samples: Sequence[Sample], **more: Any) -> StepResult:
            done = await super().step(samples[1:], **more)
            return replace(done, dropped={samples[0].turn: "its hinted prompt is unavailable: half a character"})

    story = Story(tmp_path, Choosy())
    first, second = story.said(-1.0, "Be brief, please."), story.said(1.0)
    assert await story.loop.tick() == 2
    (drop,) = dropped(story, (first, second))
    assert (drop.turn, story.train.step(1).turns) == (first, (second,))
    assert await story.loop.tick() == 0
