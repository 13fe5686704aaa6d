"""How far the policy without the note is from the policy with it, on prompts that are never rehearsed; when to stop."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from openclaw_rl.errors import ContextOverflow
from openclaw_rl.stats import sign_test
from openclaw_rl.text import degenerate
from openclaw_rl.train.rehearsal.lesson import Checker, Lesson
from openclaw_rl.train.rehearsal.prompts import question
from openclaw_rl.train.rehearsal.replies import Ask, ReplySampler
from openclaw_rl.types import Completion, Prompt, Sampling

NEAR = 0.15
"""share of the first KL under which there is little left to learn"""
FALLS = 0.95
"""share of the least KL so far under which the next must be, or it no longer falls"""
KL_ALONE = 0.25
"""share of the first KL at which a note counts as learned where no checker knows what it asks"""
OBEYED = 0.5
"""share of the teacher's own replies that must do what the note asks, or there is nothing to learn from"""
LEAST_STEPS = 12
"""of a rehearsal, however slow the machine is: with fewer the embedded model learns a note by half"""
WORDS_CHANGE = 0.6
"""share of the replies about the question that are left with the note, below which it changes the very words"""
ALPHA = 0.05
"""chance that replies which differ by accident count as a learned note that fell"""
_LEAST_KL = 1e-3
"""nats per token: nearer than this is the same"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """One measurement: KL in nats per token, and of so many ``replies`` how many do what the note asks (None: unknown).

    ``about`` says how many are about the question; ``words`` is their mean length, ``tokens`` the median.
    """

    kl: float
    replies: int
    met: int | None
    about: int
    words: float
    tokens: int

    @property
    def rate(self) -> float | None:
        return None if self.met is None else self.met / self.replies

    def plain(self) -> dict[str, Any]:
        return {name: round(value, 4) if isinstance(value, float) else value for name, value in asdict(self).items()}

    def with_more(self, other: Distance) -> Distance:
        """Together with replies to other prompts, whose KL was not measured."""
        replies = self.replies + other.replies
        words = (self.words * self.replies + other.words * other.replies) / max(replies, 1)
        met = None if self.met is None or other.met is None else self.met + other.met
        return replace(self, replies=replies, met=met, about=self.about + other.about, words=words)


def enough(measured: Sequence[Distance], prompted: Distance) -> str | None:
    """Why a rehearsal ends, by its measurements so far, the first before any step; None while it goes on.

    Where it is known what replies do, they must do it as often as the ``prompted`` ones; where not, the KL must fall.
    """
    if len(measured) < 2:
        return None
    first, *between, last = measured
    as_often = [one.rate is None or prompted.rate is None or one.rate >= prompted.rate for one in measured[1:]]
    if last.kl <= max(NEAR * first.kl, _LEAST_KL) and as_often[-1]:
        return f"near enough: KL {first.kl:.3f} to {last.kl:.3f} nats a token"
    if not between:
        return None
    if last.rate is not None and prompted.rate is not None:
        met = f"{between[-1].met} and {last.met} of {last.replies} replies do it, {prompted.met} with the note"
        return f"as often as with the note: {met}" if all(as_often[-2:]) else None
    if last.kl <= FALLS * min(one.kl for one in (first, *between)):
        return None
    least = min(one.kl for one in measured)
    return f"KL no longer falls: {first.kl:.3f}, {least:.3f} at its least, {last.kl:.3f} now"


def steps_within(steps: int, cost: float | None, seconds: float | None) -> int:
    """How many of these steps, which would cost so much, so many seconds allow; not fewer than `LEAST_STEPS`."""
    if seconds is None or not cost:
        return steps
    return min(steps, max(LEAST_STEPS, int(steps * seconds / cost)))


def is_learned(first: Distance, last: Distance, prompted: Distance, *, tolerance: float) -> bool:
    """Whether replies without the note do what it asks about as often as replies with it; by KL alone if unknown."""
    if last.rate is None or prompted.rate is None:
        return last.kl <= max(KL_ALONE * first.kl, _LEAST_KL)
    return last.rate >= prompted.rate - tolerance - 1e-9


def is_doubtful(last: Distance, prompted: Distance) -> bool:
    """Whether a difference between them may be an accident of so few replies, if each that is lost is lost for good."""
    if last.met is None or prompted.met is None:
        return False
    return sign_test(max(0, prompted.met - last.met), 0) >= ALPHA


def hopeless(prompted: Distance) -> str | None:
    """Why there is nothing to learn from the teacher; None where it does what the note asks, or nobody can tell."""
    if prompted.rate is None or prompted.rate >= OBEYED:
        return None
    told = f"with the note in its prompt the model does it in {prompted.met} of {prompted.replies} replies"
    return f"{told}, and under half of them there is nothing to learn from"


def pointless(first: Distance) -> str | None:
    """Why a note that is in the prompt is not worth practising; None where replies could keep to it more often."""
    if first.met == 0:
        return f"none of {first.replies} replies keeps to it: there is nothing to learn from"
    return f"all of {first.replies} replies keep to it already" if first.met == first.replies else None


def no_better(first: Distance, last: Distance) -> str | None:
    """Why what was practised is not served; None where replies keep to the note as often as before, or more often."""
    if first.met is None or last.met is None or last.met >= first.met:
        return None
    return f"{last.met} of {last.replies} replies keep to it, {first.met} before"


def lost(before: Distance, now: Distance) -> str | None:
    """Why replies keep to another note less often than before, and not by accident; None where they do not."""
    if before.met is None or now.met is None or sign_test(max(0, before.met - now.met), 0) >= ALPHA:
        return None
    return f"{now.met} of {now.replies} replies keep to it, {before.met} before"


def keeps_words(first: Distance, prompted: Distance) -> bool:
    """Whether replies with the note can be seen to be about the question; in another language they cannot."""
    return first.about > 0 and prompted.about * first.replies >= WORDS_CHANGE * first.about * prompted.replies


def fell(before: Sequence[bool], now: Sequence[bool]) -> bool:
    """Whether fewer of the same prompts are answered as a learned note asks, beyond accident: a paired sign test."""
    pairs = list(zip(before, now, strict=True))
    return sign_test(sum(a and not b for a, b in pairs), sum(b and not a for a, b in pairs)) < ALPHA


class DistanceMeter:
    """Measures weights on the held-back prompts of one note; ``teacher`` is the number under which the teacher answers.

    A prompt is always sampled with the same seed, so that two measurements differ by their weights alone.
    """

    def __init__(
        self,
        sampler: ReplySampler,
        lesson: Lesson,
        *,
        teacher: int,
        sampling: Sampling,
    ) -> None:
        self._sampler, self._lesson, self._teacher = sampler, lesson, teacher
        self._prompts = lesson.prompts.held_back
        self.sampling = sampling
        self.latest: dict[int, Completion] = {}  # the replies of the last measurement, by the place of their prompt

    async def policy(self, number: int) -> Distance:
        """Of these weights, which answer without the note, or with it where it is practised."""
        asked = [self._lesson.asked(prompt) for prompt in self._prompts]
        replies = await self._sampler.replies(self._asks(asked), number)
        self.latest = {at: done for at, done in enumerate(replies) if done and done.reply_tokens}
        pairs = [(self._prompts[at], done) for at, done in self.latest.items()]
        gaps = await asyncio.gather(*(self._gap(prompt, done) for prompt, done in pairs))
        known = [(sum(gap), len(gap)) for gap in gaps if gap]
        tokens = sum(count for _, count in known)
        kl = max(0.0, sum(total for total, _ in known) / tokens) if tokens else 0.0
        return self._distance(kl, pairs)

    async def prompted(self, more: Sequence[Prompt] = ()) -> Distance:
        """Of the teacher, which has the note in its prompt, or of its replies to ``more``; its KL is that to itself."""
        prompts = more or self._prompts
        return await self._answered(prompts, map(self._lesson.taught, prompts), self._teacher)

    async def on_more(self, prompts: Sequence[Prompt], number: int) -> Distance:
        """Of these weights, on other prompts; the KL is not measured."""
        return await self._answered(prompts, map(self._lesson.asked, prompts), number)

    async def _answered(self, prompts: Sequence[Prompt], asked: Iterable[Prompt], number: int) -> Distance:
        replies = await self._sampler.replies(self._asks(list(asked)), number)
        return self._distance(0.0, [(prompt, done) for prompt, done in zip(prompts, replies, strict=True) if done])

    def _asks(self, prompts: Sequence[Prompt]) -> list[Ask]:
        return [Ask(prompt=prompt, sampling=replace(self.sampling, seed=at + 1)) for at, prompt in enumerate(prompts)]

    async def _gap(self, prompt: Prompt, done: Completion) -> list[float]:
        """How much likelier each token is without the note than with it: its mean is the KL, sampled."""
        policy = await self._sampler.policy()
        try:
            ids = await policy.encode(self._lesson.taught(prompt))
            scores = await policy.score(
                ids, done.reply_tokens, version=self._teacher, temperature=done.sampling.temperature or 1.0
            )
        except ContextOverflow:
            return []
        return [ours - theirs for ours, theirs in zip(done.logprobs, scores.logprobs, strict=True)]

    def _distance(self, kl: float, answered: Sequence[tuple[Prompt, Completion]]) -> Distance:
        replies, checker = [done for _, done in answered], self._lesson.checker
        met = sum(does(checker, done) for done in replies) if checker is not None else None
        about = sum(self._lesson.relevant(question(prompt), done.reply.content) for prompt, done in answered)
        words = sum(len(done.reply.content.split()) for done in replies) / max(len(replies), 1)
        tokens = int(statistics.median([len(done.reply_tokens) for done in replies] or [0]))
        return Distance(kl=kl, replies=len(replies), met=met, about=about, words=words, tokens=tokens)


def does(checker: Checker | None, done: Completion) -> bool:
    """Whether a reply does what a note asks, as far as that can be seen; one that was cut off may only seem to.

    One that goes round in circles does nothing that anybody asks, though it be a list. A note may ask for one word.
    """
    if degenerate(done.reply.content, least=1) is not None:
        return False
    return checker is None or checker(done.reply.content, cut=done.finish == "length")


def plain(evidence: Mapping[str, Distance | None]) -> dict[str, Any]:
    """For JSON."""
    return {name: distance.plain() for name, distance in evidence.items() if distance is not None}
