"""One distillation round for one note: draft weights, step by step, until the policy is near enough or stops improving.

The ledger gets the round only at its end, so a killed round leaves a folder and no rows; the next round removes it.
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
from openclaw_rl.train.prompt_distillation.measure import (
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
from openclaw_rl.train.prompt_distillation.prompts import PLAIN, DistillationSettings, Lesson, PromptCycle, question
from openclaw_rl.types import FIRST_DRAFT, Completion, Prompt, Sample, Sampling, Version

MEASURE_FROM, MEASURE_EVERY = 12, 4
"""steps before the first measurement, since fewer rarely teach a note well, and steps between two measurements"""
AHEAD = 2
"""steps whose replies the policy samples at once: more would be cheaper, but from older weights"""
TEACHER_AHEAD = 4
"""the same for the teacher, whose weights are fixed; afterwards the length of the policy's replies is checked again"""
LAST_RATE = 0.2
"""last step's learning rate as a share of the first: small batches make steps swing, and the last step is served"""
PRACTICE = 3.0
"""reward weight multiplier if the note is trained in the prompt, where no teacher provides a KL signal"""
KEPT = 0.5
"""least share of a step for other lessons if the note is trained in the prompt, so that other prompts do not change"""
SHORTER = 0.5
"""the teacher's replies train if their word count is at most this share of the policy's: they are cheaper then"""
PATIENCE = 3
"""length limit for replies as a multiple of the teacher's median: a longer reply does not follow the note"""
LEAST_TOKENS = 64
"""lower bound for that limit, in tokens"""
TRAINING = 3.0
"""training seconds per second of sampling, assumed before the first step (measured on two cores)"""


class DistillationRound:
    """Draft weights of one lesson, starting at the live version; ``ended`` is the reason for the end, or None."""

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
        settings: DistillationSettings,
    ) -> None:
        """``number`` is the step's number in the ledger, ``folder`` holds the drafts."""
        self.lesson, self.live, self.number = lesson, live, number
        self.steps = self.replies = self.replies_of_teacher = 0
        self.most = settings.steps
        self.spent: dict[str, float] = {"measuring": 0.0, "sampling": 0.0, "training": 0.0, "loading": 0.0}
        self.ended: str | None = None
        self.metrics: dict[str, float] = {}
        self.distances: list[Distance] = []
        self._measured: list[int] = []
        self.sampled: list[tuple[int, int, int]] = []
        """per sampling: steps so far, the policy's replies to training prompts that follow the note, and their total"""
        self._beginning = 0.0
        self.prompted: Distance | None = None
        self._closer: tuple[Distance, Distance] | None = None
        self.says: float | None = None  # mean words of the policy's newest replies, None if unknown
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
        lessons = [lesson, *(replay for replay in replays if replay.prompts.distilled)]
        self._cycles = [PromptCycle(replay.prompts.distilled, seed=settings.seed + replay.note) for replay in lessons]
        self._taught = lessons
        self._replayed = 0

    @property
    def seconds(self) -> float:
        """Return the time spent so far, in seconds."""
        return sum(self.spent.values())

    @property
    def draft(self) -> str | None:
        """Return the newest draft's folder, None before the first step."""
        return self._at.adapter if self.steps else None

    async def begin(self) -> None:
        """Load the weights and measure the starting distance."""
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
        """Take one step on sampled replies; sample ahead and measure when due."""
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
        """Measure the distance to the prompted policy; set ``ended`` if it suffices."""
        assert self._meter is not None
        number = await self._answering()
        with self._timed("measuring"):
            self.distances.append(await self._meter.policy(number))
        self._measured.append(self.steps)
        self.says = self.distances[-1].words
        assert self.prompted is not None, "it has begun"
        self.ended = enough(self.distances, self.prompted)

    async def _look_closer(self) -> None:
        """Measure on more prompts if the sample is too small to separate a learned note from a nearly learned one.

        Prompts are added in small groups; the teacher answers a group only if the policy's replies still fall behind.
        """
        assert self._meter is not None
        assert self.prompted is not None
        extra = self.lesson.prompts.in_doubt
        if not extra or len(self.distances) < 2 or not is_doubtful(self.distances[-1], self.prompted):
            return
        number, size = await self._answering(), self._settings.held_back
        policy, teacher = self.distances[-1], self.prompted
        with self._timed("measuring"):
            for at in range(0, len(extra), size):
                group = extra[at : at + size]
                policy = policy.with_more(await self._meter.on_more(group, number))
                self._closer = policy, teacher
                if self.learned:
                    return
                teacher = teacher.with_more(await self._meter.prompted(group))
                self._closer = policy, teacher
                if self.learned:
                    return

    def _at_last(self) -> tuple[Distance, Distance]:
        """Return the best measurements of the newest weights without the note and of the teacher with it."""
        assert self.prompted is not None
        return self._closer or (self.distances[-1], self.prompted)

    @property
    def by_teacher(self) -> bool:
        """Return True if the teacher samples the next replies: for loss "sft", or "auto" if its are much shorter."""
        if self.lesson.in_prompt:  # the policy also sees the note, so lengths match
            return False
        if self._settings.loss != "auto":
            return self._settings.loss == "sft"
        assert self.prompted is not None, "it has begun"
        return self.says is not None and self.prompted.words <= SHORTER * self.says

    @property
    def seconds_left(self) -> float | None:
        """Return the remaining steps' expected cost, from past steps or, before the first, from sampling times."""
        remaining = self.most - self.steps
        if self.steps:
            sampled = self.spent["sampling"] / (self.steps + len(self._ready))
            overhead = self.seconds - self.spent["sampling"] - self._beginning
            return (sampled + overhead / self.steps) * remaining
        if self.prompted is None or not self.distances:
            return None
        replies = self.prompted if self.by_teacher else self.distances[0]
        words = sum(distance.words * distance.replies for distance in (self.prompted, self.distances[0]))
        per_step = self.spent["measuring"] / max(words, 1.0) * replies.words * self._settings.batch
        return per_step * (1 + TRAINING) * remaining

    async def close(self, *, keep: bool) -> None:
        """Release the weights; delete the folder unless ``keep`` is True."""
        for number in (self._held, self._teacher):
            await self._sampler.release(number)
        self._held = self._teacher = None
        if not keep:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def learned(self) -> bool:
        """Return True if the note may leave the prompt, judged on the held-out prompts."""
        if self.prompted is None or len(self.distances) < 2 or self.lesson.in_prompt:
            return False
        return is_learned(self.distances[0], *self._at_last(), tolerance=self._settings.tolerance)

    @property
    def hopeless(self) -> str | None:
        """Return the reason why the round is not worth a step, None if it is."""
        if self.lesson.in_prompt:
            return pointless(self.distances[0]) if self.distances else None
        why = hopeless(self.prompted) if self.prompted is not None else None
        if why is None or not self.lesson.besides:
            return why
        return f"together with the notes learned already ({_named(self.lesson.besides)}): {why}"

    @property
    def fallen(self) -> str | None:
        """Return the damage to notes learned earlier; of a note in the prompt the gate examines it."""
        if self.lesson.in_prompt:
            worse = no_better(self.distances[0], self.distances[-1])
            return worse or (self._others.lost if self._others is not None else None)
        undone = []
        for lesson in self._taught[1:]:
            if lesson.checker is None or lesson.in_prompt or self._meter is None:
                continue
            places = self._meter.latest.keys() & self._at_first.keys()
            replies = ([source[at] for at in sorted(places)] for source in (self._at_first, self._meter.latest))
            before, now = ([does(lesson.checker, reply) for reply in part] for part in replies)
            if fell(before, now):
                follow = f"{sum(now)} of {len(places)} replies, {sum(before)} before"
                undone.append(f"note {lesson.note} is followed by {follow}")
        return f"it would undo learned notes: {'; '.join(undone)}" if undone else None

    def evidence(self) -> dict[str, Any]:
        """Return the round's measurements for the ledger."""
        first, (last, prompted) = self.distances[0], self._at_last()
        return {
            **plain({"first": first, "last": last, "with_note": prompted}),
            "kl": [round(item.kl, 4) for item in self.distances],
            "measured_after": list(self._measured),
            "met": [item.met for item in self.distances],
            "sampled": [list(item) for item in self.sampled],
            "held_back": first.replies,
            "steps": self.steps,
            "replies": self.replies,
            "of_the_teacher": self.replies_of_teacher,
            "prompts": len(self.lesson.prompts.distilled),
            "own_prompts": self.lesson.prompts.own,
            "replayed_notes": [item.note for item in self._taught[1:] if item.note != PLAIN],
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
        """Return the samples of the next steps.

        The teacher's replies train only if they follow the note and answer the question. Among the policy's own
        replies, good ones get a higher advantage.
        """
        by_policy = not self.by_teacher
        ahead = AHEAD if by_policy else TEACHER_AHEAD
        steps = range(self.steps, min(self.steps + ahead - self.steps % ahead, self.most))
        requests = [(step, at, *row) for step in steps for at, row in enumerate(self._asked())]
        asks = [
            Ask(prompt=lesson.asked(prompt) if by_policy else lesson.taught(prompt), sampling=self._seeded(step, at))
            for step, at, lesson, prompt in requests
        ]
        number = self._held if by_policy else self._teacher
        assert number is not None
        completions = await self._sampler.replies(asks, number)
        answered = [
            (*row, completion)
            for row, completion in zip(requests, completions, strict=True)
            if completion and completion.reply_tokens
        ]
        for (_, _, lesson, prompt), completion in zip(requests, completions, strict=True):
            if completion is None or not completion.reply_tokens:
                self._cycles[self._taught.index(lesson)].drop(prompt)
        self._note_sampled(answered if by_policy else ())
        samples: dict[int, list[Sample]] = {step: [] for step in steps}
        better = self._advantages(answered) if by_policy else {}
        for row in answered if by_policy else filter(self._is_good, answered):
            samples[row[0]].append(self._sample(row, sampled_here=by_policy, advantage=better.get(row[:2])))
        return [row for row in samples.values() if row] or [[]]

    def _note_sampled(self, own: Sequence[Answered]) -> None:
        """Record compliance and length of the policy's own replies; without any, the length is unknown."""
        words = [len(row[-1].reply.content.split()) for row in own]
        self.says = sum(words) / len(words) if words else None
        checker, lesson_rows = self.lesson.checker, [row for row in own if row[2] is self.lesson]
        if checker is not None and lesson_rows:
            self.sampled.append((self.steps, sum(does(checker, row[-1]) for row in lesson_rows), len(lesson_rows)))

    def _is_good(self, answered: Answered) -> bool:
        """Return True if a reply follows its note and answers the question, as far as the checks reach."""
        _, _, lesson, _, completion = answered
        return does(lesson.checker, completion) and self._is_about(answered)

    def _is_about(self, answered: Answered) -> bool:
        _, _, lesson, prompt, completion = answered
        assert self.prompted is not None, "it has begun"
        if lesson is not self.lesson or not keeps_words(self.distances[0], self.prompted):
            return True
        return lesson.relevant(question(prompt), completion.reply.content)

    def _advantages(self, answered: Sequence[Answered]) -> dict[tuple[int, int], float]:
        """Return the standardized reward of each reply, by step and position; relevance has its own term."""
        rows = [item for item in answered if item[2] is self.lesson]
        good, about = (_standardised([*map(what, rows)]) for what in (self._is_good, self._is_about))
        weight = self._settings.reward * (PRACTICE if self.lesson.in_prompt else 1.0)
        rewards = [weight * (item + relevance) for item, relevance in zip(good, about, strict=True)]
        return {item[:2]: value for item, value in zip(rows, rewards, strict=True)} if any(rewards) else {}

    def _asked(self) -> list[tuple[Lesson, Prompt]]:
        """Return the next step's prompts: most from the lesson, a share from previously learned notes in turn."""
        batch, replayed = self._settings.batch, len(self._taught) - 1
        share = max(KEPT, self._settings.replay) if self.lesson.in_prompt else self._settings.replay
        replays = min(batch - 1, round(batch * share)) if replayed else 0
        prompts = [(self.lesson, prompt) for prompt in self._cycles[0].take(batch - replays)]
        for _ in range(replays):
            which = 1 + self._replayed % replayed
            self._replayed += 1
            prompts += [(self._taught[which], prompt) for prompt in self._cycles[which].take(1)]
        return prompts

    def _seeded(self, step: int, at: int) -> Sampling:
        seed = random.Random(f"{self._settings.seed} {self.number} {step} {at}").getrandbits(31)
        return replace(self._sampling, seed=seed)

    def _sample(self, answered: Answered, *, sampled_here: bool, advantage: float | None = None) -> Sample:
        step, at, lesson, prompt, completion = answered
        return Sample(
            turn=f"distillation-{self.number}-{step + 1}-{at}",
            user=lesson.user,
            prompt=lesson.asked(prompt),
            prompt_tokens=completion.prompt_tokens if sampled_here else None,
            reply_tokens=completion.reply_tokens,
            logprobs=completion.logprobs if sampled_here else None,
            mask=(True,) * len(completion.reply_tokens),
            advantage=advantage,
            teachers=(lesson.taught(prompt),),
            temperature=completion.sampling.temperature,
            version=self._at.number,
            urgency=1 - (1 - LAST_RATE) * step / max(self.most - 1, 1),
            distills=str(lesson.note),
        )

    def _take(self, adapter: str) -> None:
        """Set the newest weights and delete the previous draft unless it is loaded."""
        old = self._at
        if old.draft and old.adapter != self._held_adapter:
            self._remove(old.adapter)
        number = FIRST_DRAFT + self.steps
        self._at = Version(number=number, parent=self.live.number, base=self.live.base, adapter=adapter)

    async def _answering(self) -> int:
        """Return the number under which the newest weights answer, loading them if necessary."""
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
    """Return the sampling settings, with replies limited by the teacher's length."""
    most = max(LEAST_TOKENS, PATIENCE * prompted.tokens)
    return replace(sampling, max_tokens=min(most, sampling.max_tokens or most))


Answered: TypeAlias = tuple[int, int, Lesson, Prompt, Completion]


def _standardised(flags: Sequence[bool]) -> list[float]:
    """Return the flags in standard deviations from their mean; zeros if all are equal."""
    share = sum(flags) / max(len(flags), 1)
    deviation = math.sqrt(share * (1 - share))
    return [(flag - share) / deviation if deviation else 0.0 for flag in flags]


def _named(notes: Sequence[int]) -> str:
    return f"note{'s' if len(notes) > 1 else ''} {', '.join(map(str, notes))}"
