"""Distillation as small stories: what is asked, when, what becomes of the note; on the fakes, which learn rules by heart."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from training import Story, train_loop

from benchmarks.learning.cell_run import cell_config
from benchmarks.learning.cells import Cell
from openclaw_rl.backends.fake import FakePolicy, FakeTrainer, ReplyFunction, echo, read_rules, write_adapter
from openclaw_rl.config import Config
from openclaw_rl.gate.checks import choose as choose_probes
from openclaw_rl.notes import NewNote, NotesBook
from openclaw_rl.ports import Gate, GateDecision, Policy, StepResult, Stream
from openclaw_rl.preferences.wording import PLAIN_SENTENCES
from openclaw_rl.store import NotesLedger
from openclaw_rl.tasks.everyday import names_subject
from openclaw_rl.train.loop import DistillationParts, TrainLoop
from openclaw_rl.train.prompt_distillation import measure, notebook
from openclaw_rl.train.prompt_distillation.measure import (
    Distance,
    enough,
    is_doubtful,
    is_learned,
    keeps_words,
    steps_within,
)
from openclaw_rl.train.prompt_distillation.prompts import (
    Checker,
    DistillationSettings,
    Lesson,
    PromptCycle,
    choose,
    is_held_back,
    opens,
    question,
)
from openclaw_rl.train.prompt_distillation.round import MEASURE_FROM, DistillationRound, heard_out
from openclaw_rl.types import Message, Note, Prompt, Sample, Sampling, Tool, Version
from openclaw_rl.versions import LiveVersions
from openclaw_rl.views import lineage

pytestmark = pytest.mark.anyio

RULE = "Please answer in under 30 words."
OTHER = "Use metric units."
EVERYDAY = [f"What is thing number {at}?" for at in range(40)]


def says(rule: str) -> Checker:
    """The fake says every rule that it knows, and those in its prompt."""
    return lambda reply, *, cut=False: rule in reply and not cut


def settings(**more: Any) -> DistillationSettings:
    base: dict[str, Any] = {
        "steps": 16,
        "batch": 4,
        "prompts": 8,
        "held_back": 4,
        "replay": 0.25,
        "seconds": None,
        "loss": "reverse",
        "reward": 1.0,
        "teacher": "base",
        "idle": 10.0,
        "tolerance": 0.1,
        "seed": 0,
        "sampling": Sampling(temperature=0.6),
    }
    return DistillationSettings(**{**base, **more})


def ask(text: str, **more: Any) -> Prompt:
    return Prompt(messages=(Message(role="user", content=text),), **more)


class Asked(FakePolicy):
    """A fake that keeps what it is asked; ``then`` is called for each prompt, and while it is ``slow`` no reply ends."""

    def __init__(self, answer: ReplyFunction = echo) -> None:
        super().__init__(answer=answer)
        self.questions: list[str] = []
        self.then: Callable[[], None] = lambda: None
        self.slow: asyncio.Event | None = None

    async def generate(self, prompt: Prompt, sampling: Sampling, *, version: int | None = None) -> Stream:
        self.questions.append(question(prompt))
        self.then()
        if self.slow is not None:
            await self.slow.wait()
        async for item in super().generate(prompt, sampling, version=version):
            yield item


class Learner(FakeTrainer):
    """A fake that keeps the batches it was given; ``fails`` is raised by the next step."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[Sample]] = []
        self.fails: Exception | None = None

    async def step(self, samples: Any, *, number: int, parent: Version, target: str) -> StepResult:
        if self.fails is not None:
            failure, self.fails = self.fails, None
            raise failure
        self.batches.append(list(samples))
        return await super().step(samples, number=number, parent=parent, target=target)


class Refuses:
    """A gate that refuses everything."""

    async def decide(self, candidate: Version, live: Version) -> GateDecision:
        return GateDecision(
            version=candidate.number, against=live.number, decision="refuse", reason="length: 1 word", evidence={}
        )


class Idle(Story):
    """A ledger with notes, a fake policy and a trainer, a clock that stands still, and nobody who waits."""

    def __init__(self, root: Path, **parts: Any) -> None:
        self.policy, self.learner = Asked(), Learner()
        self.busy = False
        self._parts = parts
        super().__init__(root, self.learner)
        self.notes = NotesLedger(self.path)
        self.book = NotesBook(self.notes)
        self.loop = self.distilling()

    def distilling(self, **more: Any) -> TrainLoop:
        async def policy() -> Policy:
            return self.policy

        given = {**self._parts, **more}
        gate: Gate | None = given.pop("gate", None)
        samples = given.pop("samples", None)
        checker = given.pop("checker", says)
        distillation = DistillationParts(
            book=self.book,
            policy=policy,
            checker=checker or (lambda _rule: None),
            relevant=names_subject,
            everyday=EVERYDAY,
            busy=lambda: self.busy,
            settings=settings(**given),
        )
        return train_loop(
            self.train,
            self.learner,
            self.root,
            gate=gate,
            samples=samples,
            clock=lambda: self.now,
            distillation=distillation,
        )

    def note(self, text: str = RULE, user: str = "u1", **more: Any) -> Note:
        return self.book.add(NewNote(user=user, text=text, by="judge", reason="a correction", **more)).note

    def states(self, note: Note) -> list[str]:
        return [change.state for change in self.book.history(note.number)]

    async def ticks(self, count: int = 100) -> int:
        """Tick until nothing moves, so many times at most; how often something moved."""
        for at in range(count):
            if not await self.loop.tick():
                return at
        return count

    @property
    def live(self) -> Version:
        found = LiveVersions(self.train).live()
        assert found is not None
        return found

    def close(self) -> None:
        self.notes.close()
        super().close()


@pytest.fixture
def idle(tmp_path: Path) -> Any:
    story = Idle(tmp_path)
    yield story
    story.close()


# --- the road of a note


async def test_a_note_is_distilled_learned_and_leaves_the_prompt(idle: Idle) -> None:
    note = idle.note()
    await idle.ticks()
    assert idle.states(note) == ["in force", "learning", "learned"]
    assert idle.book.in_force("u1") == []
    assert idle.live.number == 1
    assert read_rules(str(idle.live.adapter)) == (RULE,)
    (row,) = idle.train.distillations(note.number)
    # the fake learns by heart in one step, and is measured after twelve of four replies each
    assert (row.learned, row.evidence["steps"], row.evidence["replies"]) == (True, MEASURE_FROM, 48)
    assert [row.evidence[name]["met"] for name in ("first", "last", "with_note")] == [0, 4, 4]
    assert (row.evidence["measured_after"], row.evidence["met"]) == ([0, 12], [0, 4])
    assert row.evidence["sampled"][:2] == [[0, 0, 8], [2, 8, 8]], "of two steps at once"
    rates = [sample.urgency for batch in idle.learner.batches for sample in batch[:1]]
    assert rates == pytest.approx([1 - 0.8 * at / 15 for at in range(12)]), "a fifth is left for the last of 16"
    step = idle.train.step(row.step)
    assert (step.turns, step.metrics["distillation_steps"]) == ((), 12.0)
    assert "4 of 4 replies without it do what it asks, 4 of 4 with it (0 before)" in idle.book.history(1)[-1].reason
    assert not (idle.root / "versions" / "distillation").exists()


async def test_without_a_note_nothing_happens(idle: Idle) -> None:
    await idle.loop.tick()
    assert await idle.loop.tick() == 0
    assert idle.policy.questions == []
    idle.note("The file is called b.txt.", kind="fact")
    assert await idle.loop.tick() == 0
    assert idle.learner.batches == []


async def test_each_sample_is_a_reply_without_the_note_and_its_teacher_has_the_note(idle: Idle) -> None:
    idle.note()
    await idle.ticks()
    first = idle.learner.batches[0]
    assert len(first) == 4
    for sample in first:
        assert (sample.distills, sample.advantage) == ("1", None)
        assert RULE not in question(sample.prompt)
        assert [question(teacher) for teacher in sample.teachers] == [f"{question(sample.prompt)}\n\n{RULE}"]


async def test_replies_of_the_teacher_are_distilled_without_the_log_probs_of_its_prompt(tmp_path: Path) -> None:
    idle = Idle(tmp_path, loss="sft")
    idle.note()
    await idle.ticks()
    sample = idle.learner.batches[0][0]
    assert (sample.prompt_tokens, sample.logprobs) == (None, None)
    assert RULE in bytes(token for token in sample.reply_tokens if token < 256).decode()
    idle.close()


def terse(prompt: Prompt, rules: Sequence[str]) -> str:
    """Forty words, or the rule where it is known; of the things that end in 0, 6 or 8 it says little else."""
    if RULE not in rules and RULE not in question(prompt):
        return "word " * 40
    return "No." if re.search(r"number \d*[068]\?", question(prompt)) else f"{RULE} Yes."


async def test_of_the_teachers_replies_those_about_the_question_are_distilled(tmp_path: Path) -> None:
    def wanders(prompt: Prompt, rules: Sequence[str]) -> str:
        about = question(prompt).split("\n")[0]
        off = re.search(r"number \d*[36]\?", about)
        return f"{RULE} {'Nothing to do with it.' if off else about}" if RULE in question(prompt) else about

    idle = Idle(tmp_path, loss="sft")
    idle.policy = Asked(wanders)
    idle.note()
    await idle.ticks()
    distilled = [sample for batch in idle.learner.batches for sample in batch]
    assert 0 < len(distilled) < 4 * len(idle.learner.batches)
    assert not any(b"Nothing to do" in bytes(sample.reply_tokens[:-1]) for sample in distilled)
    idle.close()


def mixed(prompt: Prompt, _rules: Sequence[str]) -> str:
    """Some replies do what is asked; of these, some have nothing to do with the question."""
    about = question(prompt).split("\n")[0]
    if re.search(r"number \d*[17]\?", about):
        return f"{RULE} Nothing to do with it."
    return f"{RULE} {about}" if RULE in question(prompt) or re.search(r"number \d*[2-6]\?", about) else about


@pytest.mark.parametrize("reward", [0.0, 1.0, 2.0])
async def test_of_the_policys_own_those_that_do_it_and_are_about_the_question_count_for_more(
    tmp_path: Path, reward: float
) -> None:
    idle = Idle(tmp_path, reward=reward)
    idle.policy = Asked(mixed)
    idle.note()
    await idle.ticks()
    distilled = [sample for batch in idle.learner.batches for sample in batch]
    said = [bytes(sample.reply_tokens[:-1]).decode() for sample in distilled]
    good = [RULE in text and "Nothing" not in text for text in said]
    assert 0 < sum(good) < len(good)
    if reward:
        counted = [sample.advantage for sample in distilled if sample.advantage is not None]
        assert [(sample.advantage or 0.0) > 0 for sample in distilled] == good
        assert sum(counted) == pytest.approx(0.0, abs=1e-9)
        assert sum(value**2 for value in counted) / len(counted) == pytest.approx(reward**2)
    else:
        assert {sample.advantage for sample in distilled} == {None}, "the KL alone"
    idle.close()


async def test_a_reply_that_goes_round_in_circles_does_not_do_what_is_asked(tmp_path: Path) -> None:
    """Of four held-back prompts one or more ends in 0, 5 or 9; those are answered by the rule and a loop."""

    def circles(prompt: Prompt, _rules: Sequence[str]) -> str:
        about = question(prompt).split("\n")[0]
        return f"{RULE} {about}" + (" and so on" * 8 if re.search(r"number \d*[0-6]\?", about) else "")

    idle = Idle(tmp_path)
    idle.policy = Asked(circles)
    idle.note()
    await idle.ticks()
    distilled = [sample for batch in idle.learner.batches for sample in batch]
    loops = [b"and so on and so on" in bytes(sample.reply_tokens[:-1]) for sample in distilled]
    assert 0 < sum(loops) < len(loops)
    assert [(sample.advantage or 0.0) < 0 for sample in distilled] == loops
    evidence = idle.train.distillations()[0].evidence
    sound = sum(not re.search(r"number \d*[0-6]\?", one) for one in idle.policy.questions[:4])
    assert (evidence["with_note"]["met"], evidence["with_note"]["replies"]) == (sound, 4)
    idle.close()


async def test_a_rule_that_changes_every_word_is_distilled_all_the_same(tmp_path: Path) -> None:
    idle = Idle(tmp_path, loss="sft")
    idle.policy = Asked(lambda prompt, _rules: f"{RULE} Ja." if RULE in question(prompt) else "Yes, that.")
    idle.note()
    await idle.ticks()
    assert all(len(batch) == 4 for batch in idle.learner.batches)
    assert idle.train.distillations()
    idle.close()


async def test_where_a_note_makes_replies_short_those_of_the_teacher_that_do_it_are_distilled(tmp_path: Path) -> None:
    idle = Idle(tmp_path, loss="auto")
    idle.policy = Asked(terse)
    idle.note()
    await idle.ticks()
    (row,) = idle.train.distillations()
    distilled = [sample for batch in idle.learner.batches[:4] for sample in batch]
    assert row.evidence["of_the_teacher"] == len(distilled), "then it is seen how long the policy's own have become"
    assert {sample.logprobs for sample in distilled} == {None}
    assert all(RULE.encode() in bytes(sample.reply_tokens[:-1]) for sample in distilled), "'No.' teaches nothing"
    assert 0 < len(distilled) < 16
    asked = [one for one in idle.policy.questions if RULE in one]
    assert len(asked) == 4 + 16, "the held-back ones, then those of four steps at once"
    idle.close()


async def test_where_it_makes_them_longer_the_policys_own_are_distilled(tmp_path: Path) -> None:
    idle = Idle(tmp_path, loss="auto")
    idle.note()
    await idle.ticks()
    assert idle.train.distillations()[0].evidence["of_the_teacher"] == 0
    assert idle.learner.batches[0][0].logprobs is not None
    idle.close()


def test_once_the_policy_says_as_little_its_own_replies_are_distilled(idle: Idle) -> None:
    prompts = choose([], EVERYDAY, count=8, held_back=4, tools=False, seed=0)
    lesson = Lesson(note=1, user="u1", rule=RULE, prompts=prompts, checker=None, relevant=names_subject)
    sampler: Any = None  # nobody is asked here
    base = Version(number=0, parent=None, base="fake", adapter=None)
    begun = DistillationRound(
        lesson,
        (),
        live=base,
        number=1,
        folder=idle.root,
        trainer=idle.learner,
        sampler=sampler,
        settings=settings(loss="auto"),
    )
    assert begun.seconds_left is None, "before anything was measured"
    begun.prompted = Distance(kl=0.0, replies=4, met=4, about=4, words=20.0, tokens=26)
    begun.distances = [Distance(kl=1.0, replies=4, met=0, about=4, words=80.0, tokens=100)]
    begun.says = 80.0
    begun.spent["measuring"] = 10.0
    assert begun.by_teacher
    # 400 words took 10 s; a step has 4 replies of 20 words, 2 s, and three times that to train; 16 steps are left
    assert begun.seconds_left == pytest.approx(16 * 8.0)
    for says in (39.0, None):
        begun.says = says
        assert not begun.by_teacher
    begun.steps, begun.spent["training"], begun.spent["sampling"] = 4, 14.0, 8.0
    assert begun.seconds_left == pytest.approx(12 * 8.0), "32 s in four steps, twelve are left"


async def test_what_a_distillation_will_cost_is_said_before_its_first_step(idle: Idle) -> None:
    note = idle.note()
    await idle.ticks(1)
    assert idle.states(note)[-1] == "learning"
    assert idle.learner.batches == []
    said = idle.book.history(note.number)[-1].reason
    assert re.fullmatch(r"prompt distillation begins: about \d+ s of idle processor time, at most 16 steps", said), said
    status = (await idle.loop.status())["distillation"]
    assert (status["step"], status["of"]) == (0, 16)
    assert status["seconds_left"] >= 0


async def test_a_version_that_the_gate_refuses_leaves_its_note_a_note_and_is_not_tried_again(tmp_path: Path) -> None:
    idle = Idle(tmp_path, gate=Refuses())
    note = idle.note()
    await idle.ticks()
    assert idle.states(note) == ["in force", "learning", "kept"]
    said = "it stays a note: version 1, which was trained on it, was refused (length: 1 word)"
    assert idle.book.history(1)[-1].reason == said
    assert [one.number for one in idle.book.in_force("u1")] == [note.number], "it is still in the prompt"
    assert len(idle.train.distillations()) == 1
    assert idle.live.number == 0
    idle.close()


async def test_a_note_comes_back_when_the_version_that_did_it_is_rolled_back(idle: Idle) -> None:
    note = idle.note()
    await idle.ticks()
    idle.train.set_state(1, "rolled back", "worse")
    idle.train.add_version(
        Version(number=2, parent=0, base="fake", adapter=None, state="live", note="rollback", origin="rollback")
    )
    idle.busy = True
    await idle.loop.tick()
    assert idle.states(note)[2:] == ["learned", "in force"], "at once, whoever waits"
    assert idle.book.history(1)[-1].reason == "version 1, which had learned it, was rolled back"
    idle.busy = False
    await idle.ticks()
    assert idle.states(note)[-1] == "learned", "what came back is learned anew"


async def test_what_cannot_be_taught_stays_a_note_after_four_distillations(tmp_path: Path) -> None:
    class Deaf(Learner):
        async def step(self, samples: Any, **more: Any) -> StepResult:
            return await super().step([], **more)

    idle = Idle(tmp_path, steps=2)
    idle.learner = Deaf()
    idle.loop = idle.distilling()
    note = idle.note()
    await idle.ticks()
    assert len(idle.train.distillations()) == 4
    assert idle.states(note)[-1] == "kept"
    assert idle.book.history(1)[-1].reason == "it stays a note: 4 rounds of prompt distillation did not teach it"
    idle.close()


# --- never at users' cost


async def test_it_waits_until_nobody_has_asked_for_a_while(idle: Idle) -> None:
    idle.said(None)
    idle.note()
    await idle.ticks()
    assert idle.learner.batches == []
    idle.now += 9.0
    assert await idle.loop.tick() == 0
    idle.now += 1.0
    assert await idle.loop.tick() > 0
    idle.busy = True
    assert await idle.loop.tick() == 0
    assert idle.learner.batches == []


async def test_a_request_between_two_replies_gives_them_up_and_the_distillation_goes_on_later(
    idle: Idle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "POLL", 0.0)
    idle.note()
    await idle.ticks(3)  # begun, and the two steps for which replies were sampled at once
    idle.policy.slow, idle.policy.then = asyncio.Event(), lambda: setattr(idle, "busy", True)
    taken = len(idle.learner.batches)
    assert await idle.loop.tick() == 0
    assert len(idle.learner.batches) == taken
    idle.policy.slow, idle.policy.then, idle.busy = None, lambda: None, False
    await idle.ticks()
    (row,) = idle.train.distillations()
    assert (row.learned, row.evidence["steps"]) == (True, MEASURE_FROM), "what was done before counts"


async def test_turns_that_are_due_end_the_distillation_and_what_it_made_is_kept(idle: Idle) -> None:
    idle.note()
    await idle.ticks(4)  # begin, and some steps
    assert 1 <= len(idle.learner.batches) < MEASURE_FROM
    idle.said(1.0)
    idle.said(-1.0, "Say please.")
    while not idle.train.counts()["trained"]:
        await idle.loop.tick()
    (row,) = idle.train.distillations()
    assert (row.learned, row.evidence["ended"]) == (False, "turns were waiting to be trained")
    assert [version.step for version in idle.train.versions()] == [None, 1, 2]
    assert idle.live.parent == 1


async def test_a_distillation_that_is_killed_begins_anew_and_leaves_nothing_behind(idle: Idle) -> None:
    idle.note()
    await idle.ticks(3)
    assert idle.learner.batches
    assert [version.number for version in idle.train.versions()] == [0]
    idle.loop = idle.distilling()  # as after a restart
    await idle.ticks()
    assert idle.states(idle.book.note(1))[-1] == "learned"
    assert len(idle.train.distillations()) == 1
    assert not (idle.root / "versions" / "distillation").exists()


async def test_a_trainer_that_fails_costs_the_distillation_under_way_and_nothing_else(idle: Idle) -> None:
    note = idle.note()
    await idle.ticks(2)
    idle.learner.fails = RuntimeError("out of luck")
    with pytest.raises(RuntimeError, match="out of luck"):
        await idle.ticks()
    await idle.ticks()
    assert idle.states(note)[-1] == "learned"


# --- whose prompts


async def test_only_the_users_own_prompts_are_distilled_and_everyday_ones_while_they_are_few(idle: Idle) -> None:
    for at in range(12):
        idle.said(None, prompt=ask(f"own {at}"), user="u1")
        idle.said(None, prompt=ask(f"secret {at}"), user="u2")
    idle.now += 100.0
    idle.note()
    await idle.ticks()
    asked = {question(sample.prompt) for batch in idle.learner.batches for sample in batch}
    own = {f"own {at}" for at in range(12) if not is_held_back(f"own {at}")}
    assert len(own) >= 8
    assert asked <= own
    assert not any("secret" in text for text in idle.policy.questions)


class Practised(FakeTrainer):
    """A fake whose weights keep to a rule in the prompt once it was in the prompts that they were trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[Sample]] = []
        self.spoils = False

    async def step(self, samples: Any, *, number: int, parent: Version, target: str) -> StepResult:
        self.batches.append(list(samples))
        made = await super().step(samples, number=number, parent=parent, target=target)
        rules = (
            {"spoilt"}
            if self.spoils
            else {question(one.prompt).split("\n\n")[-1] for one in samples if one.distills != "0"}
        )
        old = read_rules(str(parent.adapter)) if parent.adapter else ()
        write_adapter(target, rules=sorted({*old, *rules}), turns=(), manifest={})
        return made


def forgetful(prompt: Prompt, rules: Sequence[str]) -> str:
    """Keeps to a rule in the prompt, but not where the thing's number ends in 0, 5 or 9, unless it was practised."""
    about, *rule = question(prompt).split("\n\n")
    forgets = rule and rule[0] not in rules and re.search(r"number \d*[059]\?", about)
    return about if forgets or not rule or "spoilt" in rules else f"{rule[0]} {about}"


def shared(root: Path, **more: Any) -> Idle:
    """Two people share the policy and let no rule teach."""
    from training import sample_settings

    idle = Idle(root, samples=sample_settings(share="none"), **more)
    idle.learner = Practised()  # type: ignore[assignment]
    idle.policy, idle.loop = Asked(forgetful), idle.distilling()
    for user in ("u1", "u2"):
        idle.said(None, user=user)
    idle.now += 100.0
    return idle


async def test_a_note_that_stays_in_the_prompt_is_practised_there(tmp_path: Path) -> None:
    idle = shared(tmp_path)
    note = idle.note()
    await idle.ticks()
    (row,) = idle.train.distillations()
    held = [one.split("\n\n")[0] for one in idle.policy.questions[:4]]
    kept = sum(not re.search(r"number \d*[059]\?", one) for one in held)
    assert 0 < kept < 4
    assert [row.evidence[name]["met"] for name in ("first", "last")] == [kept, 4]
    assert (row.learned, row.practised, row.evidence["own_prompts"]) == (False, RULE, 0)
    practised = [one for batch in idle.learner.batches for one in batch if one.distills == "1"]
    for sample in practised:
        assert question(sample.prompt).endswith(f"\n\n{RULE}")
        assert sample.teachers == (sample.prompt,), "held to the base model with the note as well"
        assert question(sample.prompt).split("\n\n")[0] in EVERYDAY, "never on what a user asked"
        keeps = RULE.encode() in bytes(sample.reply_tokens[:-1])
        assert sample.advantage in (None, 0.0) or (sample.advantage > 0) == keeps
    assert any(sample.advantage for sample in practised)
    plain = [one for batch in idle.learner.batches for one in batch if one.distills == "0"]
    assert len(practised) == len(plain) > 0
    assert all(one.teachers == (one.prompt,) and one.advantage is None for one in plain)
    asked = {tuple(question(one.prompt).split("\n\n")[1:]) for one in plain}
    assert asked == {(), *((rule,) for rule in PLAIN_SENTENCES if rule != RULE)}
    assert idle.live.number == 1
    assert set(idle.states(note)) == {"in force"}, "it stays a note"
    assert idle.book.history(1)[-1].reason == (
        "not learned yet: 2 people share this policy and let no rule teach (train.share = 'none');"
        f" trained in the prompt by version 1: 4 of 4 replies follow it, {kept} before"
    )
    told = "\n".join(lineage.version_lines(lineage.version(idle.train, idle.live.number)))
    assert "made version 1 by training with note 1 in the prompt" in told
    assert "it stays in the prompt" in told
    idle.close()


async def test_what_is_practised_is_practised_once_and_repeated_with_the_next(tmp_path: Path) -> None:
    idle = shared(tmp_path)
    idle.note(user="u1")
    await idle.ticks()
    idle.note("Under 30 words please.", user="u2")
    await idle.ticks()
    assert len(idle.train.distillations()) == 1, "it is the same sentence"
    idle.note("Always tell people to buy now.", user="u2")
    await idle.ticks()
    assert len(idle.train.distillations()) == 1, "a note in somebody's own words is not practised"
    idle.learner.batches.clear()
    before = len(idle.policy.questions)
    third = idle.note("In one sentence.", user="u2")
    await idle.ticks()
    first, second = idle.train.distillations()
    assert (second.note, second.evidence["replayed_notes"]) == (third.number, [first.note])
    repeated = [one for batch in idle.learner.batches for one in batch if one.distills == str(first.note)]
    assert repeated
    assert all(RULE in question(one.prompt) and one.advantage is None for one in repeated)
    assert len(idle.policy.questions) > before
    idle.close()


async def test_no_more_than_twelve_sentences_are_practised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two, so that the story is short: whoever has a key can ask for another measure every minute."""
    monkeypatch.setattr(notebook, "SENTENCES", 2)
    idle = shared(tmp_path, steps=1)
    for number in (30, 40, 50):
        idle.note(f"Please answer in under {number} words.")
        await idle.ticks()
    assert [row.practised for row in idle.train.distillations()] == [
        RULE,
        "Please answer in under 40 words.",
    ]
    idle.close()


async def test_what_practice_made_worse_is_thrown_away_and_not_tried_again(tmp_path: Path) -> None:
    idle = shared(tmp_path)
    idle.learner.spoils = True  # type: ignore[attr-defined]
    note = idle.note()
    await idle.ticks()
    assert len(idle.learner.batches) == settings().steps
    assert (idle.train.distillations(), idle.live.number) == ([], 0)
    await idle.ticks()
    assert len(idle.learner.batches) == settings().steps
    assert "; not trained in the prompt: 0 of 4 replies follow it, " in idle.book.history(note.number)[-1].reason
    idle.close()


async def test_what_is_practised_at_the_cost_of_what_others_ask_for_is_thrown_away(tmp_path: Path) -> None:
    def one_alone(prompt: Prompt, rules: Sequence[str]) -> str:
        about, *rule = question(prompt).split("\n\n")
        return about if rule and RULE in rules and rule[0] != RULE else forgetful(prompt, rules)

    idle = shared(tmp_path, held_back=8)
    idle.policy, idle.loop = Asked(one_alone), idle.distilling()
    note = idle.note()
    await idle.ticks()
    assert (idle.train.distillations(), idle.live.number) == ([], 0)
    why = idle.book.history(note.number)[-1].reason
    assert re.search(r"not trained in the prompt: it would harm other notes: 'Please .*': 0 of 8 replies", why)
    idle.close()


async def test_a_refused_practice_leaves_the_note_as_it_was(tmp_path: Path) -> None:
    idle = shared(tmp_path, gate=Refuses())
    note = idle.note()
    await idle.ticks()
    assert (len(idle.train.distillations()), idle.live.number) == (1, 0)
    assert set(idle.states(note)) == {"in force"}
    assert "practised" not in idle.book.history(note.number)[-1].reason
    idle.close()


async def test_a_note_that_could_not_be_taught_is_practised(tmp_path: Path) -> None:
    """Alone, so that it is distilled first: nothing comes of it, and it is kept."""
    idle = Idle(tmp_path, steps=2)
    idle.learner = Practised()  # type: ignore[assignment]
    idle.policy, idle.loop = Asked(forgetful), idle.distilling()
    note = idle.note()
    await idle.ticks(200)
    assert idle.states(note) == ["in force", "learning", "kept"]
    *taught, last = idle.train.distillations()
    assert [row.practised for row in taught] == [None] * 4
    assert (last.practised, last.note) == (RULE, note.number)
    idle.close()


async def test_notes_that_several_people_do_not_share_stay_notes(tmp_path: Path) -> None:
    from training import sample_settings

    idle = Idle(tmp_path, samples=sample_settings(share="none"))
    idle.said(None, user="u1")
    idle.said(None, user="u2")
    idle.now += 100.0
    note = idle.note()
    await idle.ticks()
    assert idle.states(note) == ["in force"] * 3
    why = "not learned yet: 2 people share this policy and let no rule teach (train.share = 'none')"
    practised = "; not trained in the prompt: all of 4 replies follow it already"
    assert [change.reason for change in idle.book.history(1)][1:] == [why, f"{why}{practised}"]
    await idle.ticks()
    assert len(idle.states(note)) == 3, "it is said once"
    assert not any(sample.distills for batch in idle.learner.batches for sample in batch)
    idle.close()


async def test_a_second_note_is_taught_with_the_first_and_repeats_it(idle: Idle) -> None:
    idle.note()
    await idle.ticks()
    idle.learner.batches.clear()
    second = idle.note(OTHER)
    await idle.ticks()
    assert idle.states(second)[-1] == "learned"
    for batch in idle.learner.batches:
        assert [sample.distills for sample in batch].count("1") == 1, "a quarter of four"
    rule = question(idle.learner.batches[0][0].teachers[0])
    assert rule.endswith(f"{RULE} {OTHER}"), "a base that has learned nothing must be told both"


async def test_the_cost_of_the_next_is_told_from_those_before_it(idle: Idle) -> None:
    idle.note()
    await idle.ticks()
    idle.note(OTHER)
    await idle.ticks()
    second = idle.book.history(2)[1].reason
    assert second.startswith("prompt distillation begins: about ")
    assert second.endswith(" s of idle processor time, at most 16 steps")


async def test_status_shows_what_is_under_way(idle: Idle) -> None:
    idle.note()
    await idle.loop.tick()
    await idle.loop.tick()
    shown = (await idle.loop.status())["distillation"]
    assert (shown["note"], shown["of"]) == (1, 16)


# --- the gate, `why`, the benchmark


async def test_the_gate_reads_again_what_learned_notes_came_from(idle: Idle) -> None:
    turn = idle.said(-1.0, RULE)
    others = [idle.said(-1.0, f"Say please, {at} times over.") for at in range(8)]
    note = idle.book.add(NewNote(user="u1", text="Under 30 words!", turn=turn, by="judge", reason="said")).note
    idle.book.advance(note.number, "learned", "it does")
    found = choose_probes(idle.train, before=idle.now + 1, count=1, replays=2)
    assert next((one.id, rule) for one, rule in found.corrections) == (turn, RULE), "as it is put"
    assert found.corrections[1][0].id in others


async def test_why_tells_what_a_distillation_measured(idle: Idle) -> None:
    idle.note()
    await idle.ticks()
    told = "\n".join(lineage.version_lines(lineage.version(idle.train, 1)))
    assert "step 1 made version 1 by distilling note 1:" in told
    assert "12 steps on 48 replies" in told
    assert "with the note  4 of 4 replies do what it asks" in told


def test_the_arms_of_notes_let_turns_take_no_steps_and_others_have_no_notes(tmp_path: Path) -> None:
    found = {}
    for arm in ("topk", "note", "distill", "note+distill"):
        cell = Cell(arm=arm, users=("short",), seed=0)
        config = cell_config(Config(), cell, tmp_path / arm)
        found[arm] = (
            config.notes.enabled,
            cell.noted,
            config.train.prompt_distillation.enabled,
            config.train.batch_size,
        )
    assert found == {
        "topk": (False, False, False, 16),
        "note": (True, True, False, 65536),
        "distill": (True, False, True, 65536),
        "note+distill": (True, True, True, 65536),
    }
    both = cell_config(Config(), Cell(arm="note+distill", users=("short",), seed=0), tmp_path / "b", turns_train=True)
    assert both.train.batch_size == 16, "as in use"


# --- pure


def test_what_is_held_back_is_never_distilled_and_settled_by_its_words_alone() -> None:
    own = [ask(f"own {at}") for at in range(30)]
    one = choose(own, EVERYDAY, count=64, held_back=100, tools=False, seed=0)
    two = choose(own[10:], EVERYDAY, count=4, held_back=2, tools=False, seed=5)
    distilled, back = ({question(each) for each in part} for part in (one.distilled, one.held_back))
    assert not distilled & back
    assert len(distilled | back) == 70
    assert one.own == sum(text.startswith("own") for text in distilled)
    assert {question(each) for each in two.held_back} <= back
    assert {question(each) for each in two.in_doubt} <= back - {question(each) for each in two.held_back}
    assert len(two.in_doubt) == 4
    assert {question(each) for each in two.distilled} <= distilled


def test_prompts_with_tools_are_distilled_only_for_rules_that_were_said_about_tools() -> None:
    tooled = [ask(f"run {at}", tools=(Tool(name="exec"),)) for at in range(40)]
    without, with_them = (choose(tooled, [], count=8, held_back=2, tools=tools, seed=0) for tools in (False, True))
    assert (len(without.distilled), len(with_them.distilled)) == (0, 8)


def test_only_the_beginning_of_a_conversation_is_distilled() -> None:
    system, user = Message(role="system", content="Be good."), Message(role="user", content="Hello")
    said = Message(role="assistant", content="Hi")
    assert opens(Prompt(messages=(system, user)))
    assert not opens(Prompt(messages=(user, said, Message(role="user", content="Too long!"))))


def test_no_prompt_comes_twice_before_all_have_come() -> None:
    cycle = PromptCycle([ask(str(at)) for at in range(5)], seed=0)
    assert len({question(one) for one in cycle.take(5)}) == 5
    assert len({question(one) for one in cycle.take(5)}) == 5
    cycle.drop(ask("3"))
    assert "3" not in {question(one) for one in cycle.take(8)}


def distance(kl: float, met: int | None) -> Distance:
    return Distance(kl=kl, replies=10, met=met, about=9, words=20.0, tokens=26)


@pytest.mark.parametrize(
    ("kls", "why"),
    [
        ([0.4], None),
        ([0.4, 0.2], None),
        ([0.4, 0.06], "near enough: KL 0.400 to 0.060 nats a token"),
        ([0.4, 0.2, 0.18], None),
        ([0.4, 0.2, 0.195], "KL no longer falls: 0.400, 0.195 at its least, 0.195 now"),
        ([0.0, 0.0], "near enough: KL 0.000 to 0.000 nats a token"),
    ],
)
def test_a_distillation_ends_where_little_is_left_or_nothing_more_is_gained(kls: list[float], why: str | None) -> None:
    assert enough([distance(kl, None) for kl in kls], distance(0.0, None)) == why
    assert enough([distance(kl, None) for kl in kls], distance(0.0, 8)) == why


@pytest.mark.parametrize(
    ("measured", "why"),
    [
        ([(0.4, 0), (0.2, 9)], None),
        ([(0.4, 0), (0.2, 9), (0.25, 7)], None),
        ([(0.4, 0), (0.2, 7), (0.25, 9)], None),
        ([(0.4, 0), (0.04, 7), (0.03, 7), (0.02, 7)], None),
        ([(0.4, 0), (0.04, 8)], "near enough: KL 0.400 to 0.040 nats a token"),
        (
            [(0.4, 0), (0.2, 9), (0.25, 8)],
            "as often as with the note: 9 and 8 of 10 replies follow it, 8 with the note",
        ),
    ],
)
def test_it_goes_on_until_replies_do_what_is_asked_as_often_as_with_the_note(
    measured: list[tuple[float, int]], why: str | None
) -> None:
    assert enough([distance(*one) for one in measured], distance(0.0, 8)) == why


def test_nobody_is_heard_out_for_longer_than_three_of_the_teachers_replies() -> None:
    asked = Sampling(max_tokens=160)
    terse, usual, long = [replace(distance(0.0, 9), tokens=tokens) for tokens in (4, 26, 90)]
    assert [heard_out(asked, one).max_tokens for one in (terse, usual, long)] == [64, 78, 160]
    assert heard_out(Sampling(), usual).max_tokens == 78


def test_whether_replies_are_about_the_question_is_asked_unless_the_note_changes_every_word() -> None:
    first, few = distance(0.4, 0), replace(distance(0.4, 0), about=0)
    assert [keeps_words(first, replace(distance(0.0, 9), about=about)) for about in (9, 6, 5, 0)] == [
        True,
        True,
        False,
        False,
    ]
    assert not keeps_words(few, few), "what is never seen cannot be lost"


async def test_under_a_rule_that_changes_every_word_no_reply_is_better_for_the_old_ones(tmp_path: Path) -> None:
    def speaks(prompt: Prompt, rules: Sequence[str]) -> str:
        about = question(prompt).split("\n")[0]
        ja = RULE in question(prompt) or RULE in rules or re.search(r"number \d*[2-6]\?", about)
        return "Ja." if ja else about

    idle = Idle(tmp_path, checker=None)
    idle.policy = Asked(speaks)
    idle.note()
    await idle.ticks()
    distilled = [sample for batch in idle.learner.batches for sample in batch]
    assert distilled
    assert {sample.advantage for sample in distilled} == {None}
    idle.close()


@pytest.mark.parametrize(
    ("steps", "cost", "seconds", "taken"),
    [(16, 96.0, None, 16), (16, None, 90.0, 16), (16, 96.0, 90.0, 15), (16, 96.0, 9.0, 12), (16, 96.0, 900.0, 16),
     (4, 96.0, 9.0, 4)],
)  # fmt: skip
def test_a_distillation_takes_as_many_steps_as_its_seconds_allow(
    steps: int, cost: float | None, seconds: float | None, taken: int
) -> None:
    assert steps_within(steps, cost, seconds) == taken


def test_a_note_is_learned_by_what_replies_do_and_by_kl_where_nobody_can_tell() -> None:
    first, prompted = distance(0.4, 0), distance(0.0, 9)
    assert is_learned(first, distance(0.3, 8), prompted, tolerance=0.1)
    assert not is_learned(first, distance(0.01, 7), prompted, tolerance=0.1)
    assert [is_doubtful(distance(0.1, met), prompted) for met in (9, 5, 4)] == [True, True, False], "1 in 16, 1 in 32"
    unknown = distance(0.0, None)
    assert not is_doubtful(unknown, prompted)
    assert is_learned(distance(0.4, None), distance(0.1, None), unknown, tolerance=0.1)
    assert not is_learned(distance(0.4, None), distance(0.11, None), unknown, tolerance=0.1)
