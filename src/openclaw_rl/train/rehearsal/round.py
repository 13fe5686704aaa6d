"""One rehearsal of one note: drafts, step by step, until the policy is near enough, or no longer comes nearer.

Nothing of it is in the ledger before its end, so a killed one leaves nothing behind but a folder that the next removes.
"""

from __future__ import annotations

import math
import random
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from openclaw_rl.ports import Trainer
from openclaw_rl.train.rehearsal.measure import (
    Ask,
    Distance,
    DistanceMeter,
    OthersMeter,
    ReplySampler,
    does,
    enough,
    fell,
    hopeless,
    is_doubtful,
    is_learned,
    keeps_words,
    no_better,
    plain,
    pointless,
    steps_within,
)
from openclaw_rl.train.rehearsal.prompts import PLAIN, Lesson, PromptCycle, RehearsalSettings, question
from openclaw_rl.types import FIRST_DRAFT, Completion, Prompt, Sample, Sampling, Version

MEASURE_FROM, MEASURE_EVERY = 12, 4
"""steps before the first measurement, since little is learned well in fewer, and between two"""
AHEAD = 2
"""steps for which the policy's own replies are sampled at once: more at a time are cheaper, but of older weights"""
TEACHER_AHEAD = 4
"""the same of the teacher's, whose weights stay as they are; then it is seen how long the policy's own have become"""
LAST_RATE = 0.2
"""of the first step's rate that is left for the last: few replies a step make steps swing, and the last are served"""
PRACTICE = 3.0
"""times the reward's weight where a note is practised in the prompt: there is no teacher to come nearer to"""
KEPT = 0.5
"""share of a step that stays as it was where a note is practised: other prompts must not change by it"""
SHORTER = 0.5
"""of the policy's words, the teacher's have so many or fewer: then its replies are the cheaper ones to learn from"""
PATIENCE = 3
"""times the length of the teacher's usual reply: none is heard out longer, since by then it does not what is asked"""
LEAST_TOKENS = 64
"""that a reply may have all the same"""
TRAINING = 3.0
"""seconds that a reply takes to train for each that it took to sample, before any was trained (on two cores)"""


class RehearsalRound:
    """Drafts of one lesson, from the live version on. ``ended`` says why it is over, None while it goes on."""

    def __init__(
        self,
        lesson: Lesson,
        replays: Sequence[Lesson],
        *,
        live: Version,
        number: int,
        folder: Path,
        trainer: Trainer,
        sampler: ReplySampler,
        settings: RehearsalSettings,
    ) -> None:
        """``number`` is that of the step it will be in the ledger, ``folder`` where its drafts lie meanwhile."""
        self.lesson, self.live, self.number = lesson, live, number
        self.steps = self.replies = self.replies_of_teacher = 0
        self.most = settings.steps
        self.spent: dict[str, float] = {"measuring": 0.0, "sampling": 0.0, "training": 0.0, "loading": 0.0}
        self.ended: str | None = None
        self.metrics: dict[str, float] = {}
        self.distances: list[Distance] = []
        self._measured: list[int] = []
        self.sampled: list[tuple[int, int, int]] = []
        """after so many steps: of the policy's own replies to rehearsed prompts, how many did it, and of how many"""
        self._beginning = 0.0
        self.prompted: Distance | None = None
        self._closer: tuple[Distance, Distance] | None = None
        self.says: float | None = None  # the policy's newest replies in words, None where they are not known
        self._at_first: dict[int, Completion] = {}
        self._others: OthersMeter | None = None
        self._sampling = settings.sampling
        self._folder, self._trainer, self._sampler, self._settings = folder, trainer, sampler, settings
        self._at = live
        self._held: int | None = None
        self._held_adapter: str | None = live.adapter
        self._ready: list[list[Sample]] = []
        self._teacher: int | None = None
        self._meter: DistanceMeter | None = None
        taught = [lesson, *(one for one in replays if one.prompts.rehearsed)]
        self._cycles = [PromptCycle(one.prompts.rehearsed, seed=settings.seed + one.note) for one in taught]
        self._taught = taught
        self._replayed = 0

    @property
    def seconds(self) -> float:
        """What it has taken so far."""
        return sum(self.spent.values())

    @property
    def draft(self) -> str | None:
        """Where the newest draft lies, None before the first step."""
        return self._at.adapter if self.steps else None

    async def begin(self) -> None:
        """Load what is needed and measure how far there is to go."""
        shutil.rmtree(self._folder, ignore_errors=True)
        base = self.live.base
        taught_by = None if self._settings.teacher == "base" else self.live.adapter
        with self._timed("loading"):
            self._held = await self._sampler.hold(self.live.adapter, base=base)
            self._teacher = await self._sampler.hold(taught_by, base=base)
        self._meter = DistanceMeter(self._sampler, self.lesson, teacher=self._teacher, sampling=self._settings.sampling)
        with self._timed("measuring"):
            self.prompted = await self._meter.prompted()
            self._sampling = self._meter.sampling = heard_out(self._settings.sampling, self.prompted)
            self.distances = [await self._meter.policy(self._held)]
            self._at_first = dict(self._meter.latest)
            if self.lesson.in_prompt and self.hopeless is None:
                self._others = OthersMeter(self._sampler, self._taught[1:], sampling=self._settings.sampling)
                await self._others.before(self._held)
        self._measured, self._beginning, self.says = [0], self.seconds, self.distances[0].words
        self.most = steps_within(self.most, self.seconds_left, self._settings.seconds)

    async def step(self) -> None:
        """Sample replies, take one step on them, and measure now and then."""
        assert self._held is not None, "it has begun"
        if not self._ready:
            if not self.by_teacher:
                await self._answering()
            with self._timed("sampling"):
                self._ready = await self._sampled()
        samples = self._ready.pop(0)
        if not samples:
            self.ended = "no prompt could be answered"
            return
        target = self._folder / f"{self.number:06d}-{self.steps + 1:03d}"
        with self._timed("training"):
            result = await self._trainer.step(samples, number=self.number, parent=self._at, target=str(target))
        if result.adapter is None:
            self.ended = f"a step was skipped: {result.skipped}"
            return
        self.metrics = dict(result.metrics)
        self.steps += 1
        self.replies += len(samples)
        self.replies_of_teacher += sum(sample.logprobs is None for sample in samples)
        self._take(result.adapter)
        due = self.steps >= MEASURE_FROM and self.steps % MEASURE_EVERY == 0
        if due or self.steps >= self.most:
            await self.measure()
        if self.ended is None and self.steps >= self.most:
            self.ended = f"{self.steps} steps"
        if self.ended is not None and self._others is not None:
            number = await self._answering()
            with self._timed("measuring"):
                await self._others.after(number)
        elif self.ended is not None and not self.learned:
            await self._look_closer()

    async def measure(self) -> None:
        """How far there is to go now; it may be the end."""
        assert self._meter is not None
        number = await self._answering()
        with self._timed("measuring"):
            self.distances.append(await self._meter.policy(number))
        self._measured.append(self.steps)
        self.says = self.distances[-1].words
        assert self.prompted is not None, "it has begun"
        self.ended = enough(self.distances, self.prompted)

    async def _look_closer(self) -> None:
        """Ask more prompts, where those asked are too few to tell a learned note from one that was nearly learned.

        A few at a time, and the teacher the same where the policy's replies still look worse than what is known of it.
        """
        assert self._meter is not None
        assert self.prompted is not None
        more = self.lesson.prompts.in_doubt
        if not more or len(self.distances) < 2 or not is_doubtful(self.distances[-1], self.prompted):
            return
        number, some = await self._answering(), self._settings.held_back
        ours, theirs = self.distances[-1], self.prompted
        with self._timed("measuring"):
            for at in range(0, len(more), some):
                few = more[at : at + some]
                ours = ours.with_more(await self._meter.on_more(few, number))
                self._closer = ours, theirs
                if self.learned:
                    return
                theirs = theirs.with_more(await self._meter.prompted(few))
                self._closer = ours, theirs
                if self.learned:
                    return

    def _at_last(self) -> tuple[Distance, Distance]:
        """What is known of the newest weights without the note, and of the teacher with it."""
        assert self.prompted is not None
        return self._closer or (self.distances[-1], self.prompted)

    @property
    def by_teacher(self) -> bool:
        """Whether the next replies are the teacher's own: while it says much less than the policy is known to say."""
        if self.lesson.in_prompt:  # who has the note as well says as much
            return False
        if self._settings.loss != "auto":
            return self._settings.loss == "sft"
        assert self.prompted is not None, "it has begun"
        return self.says is not None and self.prompted.words <= SHORTER * self.says

    @property
    def seconds_left(self) -> float | None:
        """What the steps that it may still take will cost, by those it took; before any, by what sampling took."""
        left = self.most - self.steps
        if self.steps:
            sampled = self.spent["sampling"] / (self.steps + len(self._ready))
            others = self.seconds - self.spent["sampling"] - self._beginning
            return (sampled + others / self.steps) * left
        if self.prompted is None or not self.distances:
            return None
        replies = self.prompted if self.by_teacher else self.distances[0]
        said = sum(one.words * one.replies for one in (self.prompted, self.distances[0]))
        each = self.spent["measuring"] / max(said, 1.0) * replies.words * self._settings.batch
        return each * (1 + TRAINING) * left

    async def close(self, *, keep: bool) -> None:
        """Let the weights go; what is not to be kept leaves the disk as well."""
        for number in (self._held, self._teacher):
            await self._sampler.release(number)
        self._held = self._teacher = None
        if not keep:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def learned(self) -> bool:
        """Whether the note may leave the prompt, as far as the held-back prompts show."""
        if self.prompted is None or len(self.distances) < 2 or self.lesson.in_prompt:
            return False
        return is_learned(self.distances[0], *self._at_last(), tolerance=self._settings.tolerance)

    @property
    def hopeless(self) -> str | None:
        """Why it is not worth a step, None where it is."""
        if self.lesson.in_prompt:
            return pointless(self.distances[0]) if self.distances else None
        why = hopeless(self.prompted) if self.prompted is not None else None
        if why is None or not self.lesson.besides:
            return why
        return f"together with what is learned already ({_named(self.lesson.besides)}): {why}"

    @property
    def fallen(self) -> str | None:
        """What would be lost for this one: notes that were learned before; None where nothing is.

        What is practised says nothing of replies without a note; the gate asks for these.
        """
        if self.lesson.in_prompt:
            worse = no_better(self.distances[0], self.distances[-1])
            return worse or (self._others.lost if self._others is not None else None)
        undone = []
        for one in self._taught[1:]:
            if one.checker is None or one.in_prompt or self._meter is None:
                continue
            both = [(self._at_first[at], done) for at, done in self._meter.latest.items() if at in self._at_first]
            before, now = [[does(one.checker, pair[at]) for pair in both] for at in (0, 1)]
            if fell(before, now):
                undone.append(f"note {one.note} is kept by {sum(now)} of {len(both)} replies, {sum(before)} before")
        return f"it would undo what is learned: {'; '.join(undone)}" if undone else None

    def evidence(self) -> dict[str, Any]:
        """What the ledger keeps of it."""
        first, (last, prompted) = self.distances[0], self._at_last()
        return {
            **plain({"first": first, "last": last, "with_note": prompted}),
            "kl": [round(one.kl, 4) for one in self.distances],
            "measured_after": list(self._measured),
            "met": [one.met for one in self.distances],
            "sampled": [list(one) for one in self.sampled],
            "held_back": first.replies,
            "steps": self.steps,
            "replies": self.replies,
            "of_the_teacher": self.replies_of_teacher,
            "prompts": len(self.lesson.prompts.rehearsed),
            "own_prompts": self.lesson.prompts.own,
            "replayed_notes": [one.note for one in self._taught[1:] if one.note != PLAIN],
            **({"practised": self.lesson.rule} if self.lesson.in_prompt else {}),
            "ended": self.ended,
            "seconds": round(self.seconds, 1),
            "spent": {what: round(seconds, 1) for what, seconds in self.spent.items()},
        }

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.spent[what] += time.monotonic() - began

    # --- one step

    async def _sampled(self) -> list[list[Sample]]:
        """The samples of the next steps.

        A reply of the teacher that does not do what the note asks, or is not about the question, teaches nothing. Of
        the policy's own those that are good count for more than the others.
        """
        own = not self.by_teacher
        ahead = AHEAD if own else TEACHER_AHEAD
        steps = range(self.steps, min(self.steps + ahead - self.steps % ahead, self.most))
        asked = [(step, at, *one) for step in steps for at, one in enumerate(self._asked())]
        asks = [
            Ask(prompt=lesson.asked(prompt) if own else lesson.taught(prompt), sampling=self._seeded(step, at))
            for step, at, lesson, prompt in asked
        ]
        number = self._held if own else self._teacher
        assert number is not None
        found = await self._sampler.replies(asks, number)
        answered = [(*one, done) for one, done in zip(asked, found, strict=True) if done and done.reply_tokens]
        for (_, _, lesson, prompt), done in zip(asked, found, strict=True):
            if done is None or not done.reply_tokens:
                self._cycles[self._taught.index(lesson)].drop(prompt)
        self._note_sampled(answered if own else ())
        samples: dict[int, list[Sample]] = {step: [] for step in steps}
        better = self._advantages(answered) if own else {}
        for one in answered if own else filter(self._is_good, answered):
            samples[one[0]].append(self._sample(one, sampled_here=own, advantage=better.get(one[:2])))
        return [one for one in samples.values() if one] or [[]]

    def _note_sampled(self, own: Sequence[Answered]) -> None:
        """What is seen of the policy by its own replies; none: the steps to come will change it."""
        words = [len(one[-1].reply.content.split()) for one in own]
        self.says = sum(words) / len(words) if words else None
        checker, mine = self.lesson.checker, [one for one in own if one[2] is self.lesson]
        if checker is not None and mine:
            self.sampled.append((self.steps, sum(does(checker, one[-1]) for one in mine), len(mine)))

    def _is_good(self, answered: Answered) -> bool:
        """Whether a reply does what its note asks and is about the question, as far as that can be seen."""
        _, _, lesson, _, done = answered
        return does(lesson.checker, done) and self._is_about(answered)

    def _is_about(self, answered: Answered) -> bool:
        _, _, lesson, prompt, done = answered
        assert self.prompted is not None, "it has begun"
        if lesson is not self.lesson or not keeps_words(self.distances[0], self.prompted):
            return True
        return lesson.relevant(question(prompt), done.reply.content)

    def _advantages(self, answered: Sequence[Answered]) -> dict[tuple[int, int], float]:
        """By step and place: how much better a reply is than those of the lesson that it was sampled with.

        To lose sight of the question is worse than to forget the note: it counts by itself as well.
        """
        mine = [one for one in answered if one[2] is self.lesson]
        good, about = (_standardised([*map(what, mine)]) for what in (self._is_good, self._is_about))
        weight = self._settings.reward * (PRACTICE if self.lesson.in_prompt else 1.0)
        found = [weight * (one + other) for one, other in zip(good, about, strict=True)]
        return {one[:2]: value for one, value in zip(mine, found, strict=True)} if any(found) else {}

    def _asked(self) -> list[tuple[Lesson, Prompt]]:
        """The prompts of the next step: most of the lesson, a share of notes that were learned before, in turn."""
        batch, others = self._settings.batch, len(self._taught) - 1
        share = max(KEPT, self._settings.replay) if self.lesson.in_prompt else self._settings.replay
        replays = min(batch - 1, round(batch * share)) if others else 0
        asked = [(self.lesson, prompt) for prompt in self._cycles[0].take(batch - replays)]
        for _ in range(replays):
            which = 1 + self._replayed % others
            self._replayed += 1
            asked += [(self._taught[which], prompt) for prompt in self._cycles[which].take(1)]
        return asked

    def _seeded(self, step: int, at: int) -> Sampling:
        seed = random.Random(f"{self._settings.seed} {self.number} {step} {at}").getrandbits(31)
        return replace(self._sampling, seed=seed)

    def _sample(self, answered: Answered, *, sampled_here: bool, advantage: float | None = None) -> Sample:
        step, at, lesson, prompt, done = answered
        return Sample(
            turn=f"rehearsal-{self.number}-{step + 1}-{at}",
            user=lesson.user,
            prompt=lesson.asked(prompt),
            prompt_tokens=done.prompt_tokens if sampled_here else None,
            reply_tokens=done.reply_tokens,
            logprobs=done.logprobs if sampled_here else None,
            mask=(True,) * len(done.reply_tokens),
            advantage=advantage,
            teachers=(lesson.taught(prompt),),
            temperature=done.sampling.temperature,
            version=self._at.number,
            urgency=1 - (1 - LAST_RATE) * step / max(self.most - 1, 1),
            rehearses=str(lesson.note),
        )

    def _take(self, adapter: str) -> None:
        """These are the newest weights; the draft before them goes, unless it is loaded."""
        old = self._at
        if old.draft and old.adapter != self._held_adapter:
            self._remove(old.adapter)
        number = FIRST_DRAFT + self.steps
        self._at = Version(number=number, parent=self.live.number, base=self.live.base, adapter=adapter)

    async def _answering(self) -> int:
        """The number under which the newest weights answer; they are loaded when they are first asked."""
        assert self._held is not None, "it has begun"
        if self._held_adapter != self._at.adapter:
            with self._timed("loading"):
                before, old = self._held, self._held_adapter
                self._held = await self._sampler.hold(self._at.adapter, base=self.live.base)
                self._held_adapter = self._at.adapter
                await self._sampler.release(before)
            if old != self.live.adapter:
                self._remove(old)
        return self._held

    @staticmethod
    def _remove(adapter: str | None) -> None:
        if adapter is not None:
            shutil.rmtree(adapter, ignore_errors=True)


def heard_out(sampling: Sampling, prompted: Distance) -> Sampling:
    """How replies are sampled once it is known how long the teacher's are."""
    most = max(LEAST_TOKENS, PATIENCE * prompted.tokens)
    return replace(sampling, max_tokens=min(most, sampling.max_tokens or most))


Answered: TypeAlias = tuple[int, int, Lesson, Prompt, Completion]


def _standardised(flags: Sequence[bool]) -> list[float]:
    """In standard deviations from their mean; zeros where they are alike."""
    share = sum(flags) / max(len(flags), 1)
    deviation = math.sqrt(share * (1 - share))
    return [(flag - share) / deviation if deviation else 0.0 for flag in flags]


def _named(notes: Sequence[int]) -> str:
    return f"note{'s' if len(notes) > 1 else ''} {', '.join(map(str, notes))}"
