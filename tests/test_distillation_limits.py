"""What distillation does not teach: nonsense, what undoes what is learned, opposites; and what becomes of such a note."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from test_distillation import EVERYDAY, RULE, Idle

from openclaw_rl.app.factories import default_sampling, gate_limits
from openclaw_rl.backends.fake import echo
from openclaw_rl.config import load
from openclaw_rl.gate.checks import choose as choose_probes
from openclaw_rl.gate.examination import VersionGate
from openclaw_rl.ports import Policy
from openclaw_rl.train.prompt_distillation.prompts import choose, question
from openclaw_rl.types import Prompt
from openclaw_rl.views import notes as views

pytestmark = pytest.mark.anyio

NONSENSE = "Please answer with one word."


def beside_the_point(share: float) -> Callable[[Prompt, Sequence[str]], str]:
    """A policy that with what it learned misses the point of so many replies."""

    def answer(prompt: Prompt, rules: Sequence[str]) -> str:
        asked = prompt.messages[-1].content
        lost = bool(rules) and zlib.crc32(asked.encode()) % 100 < 100 * share
        rest = "".join(f" [learned: {rule}]" for rule in rules)
        return f"This is a thing that many people know and like.{rest}" if lost else echo(prompt, rules)

    return answer


def examined(root: Path, answer: Callable[[Prompt, Sequence[str]], str]) -> Idle:
    """Distillation with the gate as it is shipped, on a policy that answers so."""
    idle = Idle(root)
    idle.policy._answer = answer
    config = load(environ={}).config

    async def policy() -> Policy:
        return idle.policy

    gate = VersionGate(
        idle.train,
        policy,
        limits=gate_limits(config),
        sampling=default_sampling(config),
        user_score=lambda _case: None,
        probes=config.gate.probes,
        distillation_probes=config.gate.distillation_probes,
        replays=config.gate.replays,
        tokens=60 * config.gate.tokens,  # a token of the fake is a byte
        tasks=None,
    )
    idle.loop = idle.distilling(gate=gate)
    return idle


async def test_a_note_whose_version_lost_its_sense_stays_a_note(tmp_path: Path) -> None:
    """As nonsense did to the embedded model: of 40 prompts 45 in 100 are missed, and few of the gate's first six."""
    idle = examined(tmp_path, beside_the_point(0.45))
    note = idle.note(NONSENSE)
    await idle.ticks()
    (decision,) = idle.train.gate_decisions(1)
    checks = {check["name"]: check for check in decision.evidence["checks"]}
    assert (decision.decision, checks["relevance"]["ok"]) == ("refuse", True), "six prompts would not have told"
    lost = checks["drift"]["numbers"]
    assert (lost["pairs"], lost["lost"] > 8) == (40, True)
    assert idle.states(note) == ["in force", "learning", "kept"]
    reason = idle.book.history(1)[-1].reason
    assert reason.startswith("it stays a note: version 1, which was trained on it, was refused (drift: ")
    assert [one.text for one in idle.book.in_force("u1")] == [NONSENSE]
    assert idle.live.number == 0
    await idle.ticks()
    assert len(idle.train.distillations()) == 1, "it is not tried again"
    idle.close()


async def test_a_note_that_costs_little_sense_is_learned(tmp_path: Path) -> None:
    idle = examined(tmp_path, beside_the_point(0.09))
    note = idle.note(RULE)
    await idle.ticks()
    assert idle.train.gate_decisions(1)[-1].decision == "promote", idle.train.gate_decisions(1)
    assert idle.states(note)[-1] == "learned"
    idle.close()


async def test_a_kept_note_is_tried_again_when_its_user_switches_it_on(tmp_path: Path) -> None:
    idle = examined(tmp_path, beside_the_point(0.45))
    note = idle.note(NONSENSE)
    await idle.ticks()
    idle.book.switch(note.number, False, reason="by hand")
    idle.book.switch(note.number, True, reason="by hand")
    await idle.ticks()
    assert idle.states(note) == ["in force", "learning", "kept", "off", "in force", "learning", "kept"]
    idle.close()


# --- the teacher


async def test_what_the_teacher_itself_hardly_does_is_not_distilled(tmp_path: Path) -> None:
    """Four prompts are held back; told so, it does it at one of them."""
    idle = Idle(tmp_path)
    told: list[str] = []

    def stubborn(prompt: Prompt, rules: Sequence[str]) -> str:
        asked = prompt.messages[-1].content
        if RULE in asked and asked not in told:
            told.append(asked)
        return echo(prompt, rules) if RULE not in asked or told.index(asked) == 0 else "I say what I like."

    idle.policy._answer = stubborn
    note = idle.note(RULE)
    await idle.ticks()
    assert idle.states(note) == ["in force", "kept"]
    assert idle.book.history(1)[-1].reason == (
        "it stays a note: with the note in its prompt the model follows it in 1 of 4 replies, and under half of them there"
        " is nothing to learn from"
    )
    assert idle.learner.batches == []
    idle.close()


async def test_a_second_preference_that_goes_badly_with_the_first_says_so(tmp_path: Path) -> None:
    idle = Idle(tmp_path)

    def short_only(prompt: Prompt, rules: Sequence[str]) -> str:
        asked = prompt.messages[-1].content
        return (
            "Short it is: " + RULE if RULE in (*rules, *asked.split("\n\n")) or RULE in asked else echo(prompt, rules)
        )

    idle.policy._answer = short_only
    idle.note(RULE)
    await idle.ticks()
    second = idle.note("Please use a list.")
    await idle.ticks()
    assert idle.states(second)[-1] == "kept"
    reason = idle.book.history(second.number)[-1].reason
    assert reason.startswith(
        "it stays a note: together with the notes learned already (note 1): with the note in its prompt"
    )
    assert idle.book.note(1).state == "learned"
    idle.close()


async def test_what_contradicts_something_learned_is_distilled_instead_of_it(tmp_path: Path) -> None:
    """The older note is replaced, its words go to no teacher and are not repeated: the weights unlearn it."""
    idle = Idle(tmp_path)
    old = idle.note(RULE)
    await idle.ticks()
    assert idle.states(old)[-1] == "learned"
    idle.learner.batches.clear()
    new = idle.note("Please write at least 100 words.")
    assert idle.book.note(old.number).state == "replaced"
    await idle.ticks()
    assert idle.states(new) == ["in force", "learning", "learned"]
    samples = [sample for batch in idle.learner.batches for sample in batch]
    assert {sample.distills for sample in samples} == {str(new.number)}
    assert not any(RULE in teacher.messages[-1].content for sample in samples for teacher in sample.teachers)
    idle.close()


async def test_the_gate_reads_no_correction_again_that_its_user_has_taken_back(tmp_path: Path) -> None:
    """Or it would refuse to unlearn what nobody wants any more."""
    idle = Idle(tmp_path)
    told = [idle.said(-1.0, rule) for rule in ("Please be brief.", "Please keep it shorter.", "Say please.")]
    old = idle.note("Please be brief.", turn=told[0])
    assert [turn.id for turn, _ in _read_again(idle)] == [told[2], told[1], told[0]]
    new = idle.note("Please write at least 100 words.")
    assert idle.book.note(old.number).state == "replaced"
    assert [turn.id for turn, _ in _read_again(idle)] == [told[2]], (
        "the second was never a note, but is the opposite too"
    )
    idle.book.remove(new.number, reason="by hand")
    assert [turn.id for turn, _ in _read_again(idle)] == [told[2], told[1]], "what was replaced stays taken back"
    idle.close()


def _read_again(idle: Idle) -> list[Any]:
    found = choose_probes(idle.train, before=idle.now + 1, count=1, replays=8).corrections
    return sorted(found, key=lambda each: each[0].id, reverse=True)


async def test_a_learned_note_that_is_asked_for_again_is_learned_anew(tmp_path: Path) -> None:
    idle = Idle(tmp_path)
    note = idle.note(RULE)
    await idle.ticks()
    assert idle.note("Please keep it shorter.", vague=True).number == note.number
    assert [one.number for one in idle.book.in_force("u1")] == [note.number], "it helps at once"
    await idle.ticks()
    assert idle.states(note) == ["in force", "learning", "learned", "in force", "learning", "learned"]
    idle.close()


# --- what others have learned


async def test_opposite_notes_of_two_users_stay_notes_of_both_and_say_why(tmp_path: Path) -> None:
    idle = Idle(tmp_path)
    notes = [idle.note(RULE, user="ann"), idle.note("Please write at least 100 words.", user="bob")]
    await idle.ticks()
    for note in notes:
        why = "not learned yet: another user of this policy asks for the opposite (length), and it cannot do both"
        told = [change.reason for change in idle.book.history(note.number)][1:]
        if note.text == RULE:  # a plain sentence: practising it in the prompt is tried, and has nothing to gain here
            assert told == [why, f"{why}; not trained in the prompt: all of 4 replies follow it already"]
        else:
            assert told == [why]
        assert idle.states(note) == ["in force"] * (1 + len(told))
    assert idle.learner.batches == []
    told = list(views.lines(idle.book.all(), {1: idle.book.history(1)[-1]}))
    assert told[1].strip() == idle.book.history(1)[-1].reason
    idle.book.remove(notes[1].number, reason="by hand")
    await idle.ticks()
    assert idle.states(notes[0])[-1] == "learned", "nothing stands in its way now"
    idle.close()


async def test_a_note_that_would_undo_a_learned_one_stays_a_note(tmp_path: Path) -> None:
    """Eight prompts are held back. The new rule drives the old one out of all of them: 8 lost, 0 won, p = 1/256."""
    idle = Idle(tmp_path, held_back=8)

    def one_rule(prompt: Prompt, rules: Sequence[str]) -> str:
        return echo(prompt, rules[-1:])

    idle.policy._answer = one_rule
    first = idle.note(RULE, user="ann")
    await idle.ticks()
    assert idle.states(first)[-1] == "learned"
    live = idle.live.number
    second = idle.note("Please use a list.", user="bob")
    idle.learner.step = _only_the_newest(idle.learner.step)  # type: ignore[method-assign]
    await idle.ticks()
    assert idle.states(second) == ["in force", "learning", "kept"]
    assert idle.book.history(second.number)[-1].reason == (
        "it stays a note: it would undo learned notes: note 1 is followed by 0 of 8 replies, 8 before"
    )
    assert (idle.live.number, len(idle.train.distillations())) == (live, 1), "its drafts are gone"
    assert not (idle.root / "versions" / "distillation").exists()
    assert idle.book.note(first.number).state == "learned"
    idle.close()


def _only_the_newest(step: Any) -> Any:
    """A trainer that does not repeat what was learned before."""

    async def alone(samples: Any, **more: Any) -> Any:
        newest = max(int(sample.distills or 0) for sample in samples)
        return await step([one for one in samples if one.distills == str(newest)], **more)

    return alone


# --- too few replies to tell


def all_but(lost: Sequence[str]) -> Callable[[Prompt, Sequence[str]], str]:
    """A policy that does what it has learned, but at these questions."""

    def answer(prompt: Prompt, rules: Sequence[str]) -> str:
        return echo(prompt, () if prompt.messages[-1].content in lost else rules)

    return answer


async def test_one_reply_of_four_is_too_little_to_tell_and_more_are_asked(tmp_path: Path) -> None:
    idle = Idle(tmp_path, tolerance=0.15)
    prompts = choose([], EVERYDAY, count=8, held_back=4, tools=False, seed=0)
    idle.policy._answer = all_but([question(prompts.held_back[0])])
    note = idle.note(RULE)
    await idle.ticks()
    (row,) = idle.train.distillations()
    assert row.evidence["met"] == [0, 3, 3], "75 % without the note, 100 % with it"
    assert (row.evidence["last"]["met"], row.evidence["last"]["replies"]) == (7, 8), "four more settle it"
    assert (row.evidence["with_note"]["met"], row.evidence["with_note"]["replies"]) == (4, 4)
    assert idle.states(note)[-1] == "learned", "7 of 8 are near enough"
    assert "7 of 8 replies without it do what it asks, 4 of 4 with it" in idle.book.history(1)[-1].reason
    idle.close()


async def test_where_more_replies_still_look_worse_the_teacher_is_asked_too(tmp_path: Path) -> None:
    idle = Idle(tmp_path, tolerance=0.15)
    prompts = choose([], EVERYDAY, count=8, held_back=4, tools=False, seed=0)
    hard = [question(prompts.held_back[0]), question(prompts.in_doubt[-1])]

    def answer(prompt: Prompt, rules: Sequence[str]) -> str:
        asked = question(prompt)
        lost = asked in hard or asked.removesuffix(f"\n\n{RULE}") in hard[1:]
        return "No." if lost else echo(prompt, rules)

    idle.policy._answer = answer
    note = idle.note(RULE)
    await idle.ticks()
    (row,) = idle.train.distillations()
    count = 4 + len(prompts.in_doubt)
    assert (row.evidence["last"]["met"], row.evidence["last"]["replies"]) == (count - 2, count)
    assert (row.evidence["with_note"]["met"], row.evidence["with_note"]["replies"]) == (count - 1, count)
    assert idle.states(note)[-1] == "learned"
    idle.close()


async def test_more_replies_may_say_that_it_is_not_learned(tmp_path: Path) -> None:
    idle = Idle(tmp_path)
    prompts = choose([], EVERYDAY, count=8, held_back=4, tools=False, seed=0)
    idle.policy._answer = all_but([question(one) for one in (prompts.held_back[0], *prompts.in_doubt[:2])])
    note = idle.note(RULE)
    await idle.ticks()
    assert [row.learned for row in idle.train.distillations()] == [False] * 4
    assert idle.states(note) == ["in force", "learning", "kept"]
    idle.close()
