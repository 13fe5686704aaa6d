"""How far the policy without the note is from the policy with it, on prompts that are never rehearsed; when to stop."""

from __future__ import annotations

import asyncio
import itertools
import statistics
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from openclaw_rl.errors import BackendError, ContextOverflow
from openclaw_rl.ports import Policy, SupportsCandidates, whole_reply
from openclaw_rl.stats import sign_test
from openclaw_rl.text import degenerate
from openclaw_rl.train.rehearsal.prompts import Checker, Lesson, question
from openclaw_rl.types import FIRST_DRAFT, Completion, Prompt, Sampling, Version

# Replies of weights that are in no ledger, sampled behind users' requests and given up when one comes.

POLL = 0.25
"""seconds between two looks for users' requests while replies are sampled"""
CONCURRENCY = 64
"""replies at once: one pass of the weights serves them all"""

GetPolicy = Callable[[], Awaitable[Policy]]
Quiet = Callable[[], Awaitable[bool]]
"""whether nobody has sent a request of late"""

_numbers = itertools.count(FIRST_DRAFT)


class Interrupted(Exception):
    """A user's request came: what was under way is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One prompt to be answered, and how."""

    prompt: Prompt
    sampling: Sampling


class ReplySampler:
    """Samples replies of any weights. Those it holds are candidates to the policy: they yield to users' requests."""

    def __init__(self, policy: GetPolicy, quiet: Quiet) -> None:
        self._policy, self._quiet = policy, quiet

    async def quiet(self) -> bool:
        """Whether nobody has sent a request of late."""
        return await self._quiet()

    async def policy(self) -> Policy:
        return await self._policy()

    async def hold(self, adapter: str | None, *, base: str) -> int:
        """Load weights beside the live ones (None: the base model); the number under which they answer."""
        policy, number = await self._policy(), next(_numbers)
        if not isinstance(policy, SupportsCandidates):
            raise BackendError(
                f"policy {policy.name!r} cannot hold weights beside the live version, which rehearsal needs",
                remedy="give it admit() and dismiss() (openclaw_rl.ports.SupportsCandidates), "
                "or set train.rehearse.enabled = false",
            )
        await policy.admit(Version(number=number, parent=0, base=base, adapter=adapter))
        return number

    async def release(self, number: int | None) -> None:
        """Let weights go. Safe to call for None."""
        if number is None:
            return
        policy = await self._policy()
        if isinstance(policy, SupportsCandidates):
            await policy.dismiss(number)

    async def replies(self, asks: Sequence[Ask], number: int) -> list[Completion | None]:
        """A reply to each, None where the prompt does not fit; raises Interrupted when a user's request comes."""
        policy, room = await self._policy(), asyncio.Semaphore(CONCURRENCY)

        async def one(ask: Ask) -> Completion | None:
            async with room:
                try:
                    return await whole_reply(policy.generate(ask.prompt, ask.sampling, version=number))
                except ContextOverflow:
                    return None

        tasks = [asyncio.create_task(one(ask)) for ask in asks]
        try:
            pending = set(tasks)
            while pending:
                _, pending = await asyncio.wait(pending, timeout=POLL, return_when=asyncio.FIRST_EXCEPTION)
                if any(task.done() and task.exception() for task in tasks):
                    break
                if pending and not await self._quiet():
                    raise Interrupted
            return [await task for task in tasks]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


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


# Whether practising a note in the prompt is at the cost of what others ask for in theirs.


class OthersMeter:
    """Asks held-back prompts with each of the other notes in them, before and after; ``lost`` says what is worse."""

    def __init__(self, sampler: ReplySampler, lessons: Sequence[Lesson], *, sampling: Sampling) -> None:
        self._sampler, self._sampling = sampler, sampling
        self._lessons = [one for one in lessons if one.in_prompt and one.checker is not None]
        self._at_first: list[Distance] = []
        self.lost: str | None = None

    async def before(self, number: int) -> None:
        """Of the weights that are served now."""
        self._at_first = [await self._kept(one, number) for one in self._lessons]

    async def after(self, number: int) -> None:
        """Of those that were trained."""
        for one, first in zip(self._lessons, self._at_first, strict=True):
            why = lost(first, await self._kept(one, number))
            if why is not None:
                self.lost = f"other notes would be lost for it: of {one.rule!r} {why}"
                return

    async def _kept(self, lesson: Lesson, number: int) -> Distance:
        meter = DistanceMeter(self._sampler, lesson, teacher=number, sampling=self._sampling)
        return await meter.on_more(lesson.prompts.held_back, number)
