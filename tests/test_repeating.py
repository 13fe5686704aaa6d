"""What a step of turns repeats of notes that were learned: pure, and through the loop."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from test_distillation import RULE, Idle, question

from openclaw_rl.backends.hf.batches import batch_weight
from openclaw_rl.backends.local.training import worker as local_worker
from openclaw_rl.train.prompt_distillation.notebook import Said, beside
from openclaw_rl.types import Message, PlayedStep, Prompt, Sample

SAID = {"ann": Said(7, "In one sentence.")}


def turn(number: int, **more: object) -> Sample:
    base = Sample(
        turn=f"t{number}",
        user="ann",
        prompt=Prompt(messages=(Message(role="user", content=f"What is {number}?"),)),
        prompt_tokens=(1, 2),
        reply_tokens=(3, 4),
        logprobs=(-0.5, -0.5),
        mask=(True, True),
        advantage=0.5,
        score=1.0,
        group="g/0",
        recalled="t0",
        teachers=(),
        temperature=0.6,
        version=3,
    )
    return replace(base, **more)  # type: ignore[arg-type]


def test_a_share_of_the_turns_is_repeated_spread_over_the_step() -> None:
    found = beside([turn(at) for at in range(8)], SAID, share=0.25)
    assert [one.turn for one in found] == ["t0 under note 7", "t4 under note 7"]
    assert [one.turn for one in beside([turn(1)], SAID, share=0.25)] == ["t1 under note 7"], "of few turns one"
    assert beside([turn(1)], SAID, share=0.0) == []


def test_it_is_the_turns_own_reply_towards_the_same_prompt_with_the_note() -> None:
    (one,) = beside([turn(1)], SAID, share=1.0)
    assert (one.prompt_tokens, one.reply_tokens, one.logprobs) == ((1, 2), (3, 4), (-0.5, -0.5))
    assert [question(teacher) for teacher in one.teachers] == ["What is 1?\n\nIn one sentence."]
    assert (one.distills, one.advantage, one.score, one.group, one.recalled) == ("7", None, None, None, None)


def test_what_has_another_prompt_or_is_another_users_or_was_played_is_not_repeated() -> None:
    played = PlayedStep(episode="e", task=None, index=0, outcome=1.0, vote=None)
    others = [turn(1, user="bob"), turn(2, logprobs=None, prompt_tokens=None), turn(3, played=played)]
    assert beside(others, SAID, share=1.0) == []
    assert [one.turn for one in beside([*others, turn(4)], SAID, share=1.0)] == ["t4 under note 7"]
    assert beside([turn(1)], {}, share=1.0) == []


def test_a_step_goes_as_far_as_its_turns_say_whatever_it_repeats() -> None:
    """A turn with an advantage of 0.1 weighs 0.1; a distillation alone weighs by its urgency."""

    def weigh(*, hinted: bool, advantage: float | None, urgency: float) -> float:
        return abs(advantage or 0.0) * urgency

    (repeated,) = beside([turn(1)], SAID, share=1.0)
    both = [turn(1, advantage=0.1), repeated]
    assert batch_weight(weigh, both, [(), ((1,),)], by_urgency=True) == pytest.approx(0.1)
    assert batch_weight(weigh, [replace(repeated, urgency=0.3)], [((1,),)], by_urgency=True) == pytest.approx(0.3)
    assert not local_worker.distils_alone(both)
    assert local_worker.distils_alone([repeated])


async def test_a_step_of_turns_repeats_what_their_user_had_learned(tmp_path: Path) -> None:
    idle = Idle(tmp_path)
    idle.note()
    await idle.ticks()
    assert idle.book.history(1)[-1].state == "learned"
    idle.learner.batches.clear()
    turns = [idle.said(1.0), idle.said(-1.0, user="u2")]
    await idle.ticks()
    ((*mine, repeated),) = idle.learner.batches
    assert [one.turn for one in mine] == turns
    assert (repeated.turn, repeated.distills) == (f"{turns[0]} under note 1", "1")
    assert question(repeated.teachers[0]) == f"{question(repeated.prompt)}\n\n{RULE}"
    step = idle.train.last_step()
    assert step is not None
    assert step.turns == tuple(turns), "what is repeated is no turn of the step"
    idle.close()


@pytest.mark.parametrize("switch", ["the note", "every note"])
async def test_nothing_is_repeated_of_a_note_that_its_user_switched_off(tmp_path: Path, switch: str) -> None:
    idle = Idle(tmp_path)
    idle.note()
    await idle.ticks()
    if switch == "the note":
        idle.book.switch(1, on=False, reason="off")
    else:
        idle.book.enable("u1", False, reason="off")
    idle.learner.batches.clear()
    idle.said(1.0)
    idle.said(-1.0)
    await idle.ticks()
    assert [one.distills for batch in idle.learner.batches for one in batch] == [None, None]
    idle.close()
