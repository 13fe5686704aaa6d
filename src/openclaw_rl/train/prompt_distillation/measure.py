"""Measure the distance between the policy without and with the note on held-out prompts, and decide when to stop."""

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
from openclaw_rl.train.prompt_distillation.prompts import Checker, Lesson, question
from openclaw_rl.types import FIRST_DRAFT, Completion, Prompt, Sampling, Version

# Replies from weights outside the ledger, sampled behind users' requests and abandoned when a request arrives.

POLL = 0.25
"""seconds between two checks for users' requests while replies are sampled"""
CONCURRENCY = 64
"""replies at once: one forward pass serves them all"""

GetPolicy = Callable[[], Awaitable[Policy]]
Quiet = Callable[[], Awaitable[bool]]
"""returns True if no request is running or recent"""

_numbers = itertools.count(FIRST_DRAFT)


class Interrupted(Exception):
    """Raised when a user's request arrives during sampling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One prompt to answer, with its sampling settings."""

    prompt: Prompt
    sampling: Sampling


class ReplySampler:
    """Sampler of replies from any weights; weights that it loads are candidates, which yield to users' requests."""

    def __init__(self, policy: GetPolicy, quiet: Quiet) -> None:
        self._policy, self._quiet = policy, quiet

    async def quiet(self) -> bool:
        """Return True if no request is running or recent."""
        return await self._quiet()

    async def policy(self) -> Policy:
        return await self._policy()

    async def hold(self, adapter: str | None, *, base: str) -> int:
        """Load weights beside the live ones (None: the base model) and return the number under which they answer."""
        policy, number = await self._policy(), next(_numbers)
        if not isinstance(policy, SupportsCandidates):
            raise BackendError(
                f"policy {policy.name!r} cannot hold weights beside the live version, which prompt distillation needs",
                remedy="give it admit() and dismiss() (openclaw_rl.ports.SupportsCandidates), "
                "or set train.prompt_distillation.enabled = false",
            )
        await policy.admit(Version(number=number, parent=0, base=base, adapter=adapter))
        return number

    async def release(self, number: int | None) -> None:
        """Release weights. Safe to call with None."""
        if number is None:
            return
        policy = await self._policy()
        if isinstance(policy, SupportsCandidates):
            await policy.dismiss(number)

    async def replies(self, asks: Sequence[Ask], number: int) -> list[Completion | None]:
        """Return a reply per prompt, None if the prompt does not fit; raise Interrupted if a user's request arrives."""
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
"""share of the first KL below which little is left to learn"""
FALLS = 0.95
"""the KL still falls if it is at most this share of the least so far"""
KL_ALONE = 0.25
"""share of the first KL at which a note without a checker counts as learned"""
OBEYED = 0.5
"""least share of the teacher's replies that must follow the note to teach it"""
LEAST_STEPS = 12
"""least steps of a round on any machine: with fewer the embedded model learns half a note"""
WORDS_CHANGE = 0.6
"""share of on-topic replies with the note, against without, below which the note changes the vocabulary itself"""
ALPHA = 0.05
"""significance level of the sign tests"""
_LEAST_KL = 1e-3
"""nats per token: a smaller distance counts as none"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """One measurement: KL in nats per token, ``replies`` measured, ``met`` that follow the note (None if unknown).

    ``about`` counts the on-topic replies; ``words`` is their mean length, ``tokens`` the median.
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
        """Return the measurement together with replies to further prompts, for which no KL was measured."""
        replies = self.replies + other.replies
        words = (self.words * self.replies + other.words * other.replies) / max(replies, 1)
        met = None if self.met is None or other.met is None else self.met + other.met
        return replace(self, replies=replies, met=met, about=self.about + other.about, words=words)


def enough(measured: Sequence[Distance], prompted: Distance) -> str | None:
    """Return the reason to end the round, None to continue; the first measurement precedes any step.

    If compliance is known it must reach the ``prompted`` rate; otherwise the round lasts while the KL falls.
    """
    if len(measured) < 2:
        return None
    first, *between, last = measured
    as_often = [
        distance.rate is None or prompted.rate is None or distance.rate >= prompted.rate for distance in measured[1:]
    ]
    if last.kl <= max(NEAR * first.kl, _LEAST_KL) and as_often[-1]:
        return f"near enough: KL {first.kl:.3f} to {last.kl:.3f} nats a token"
    if not between:
        return None
    if last.rate is not None and prompted.rate is not None:
        met = f"{between[-1].met} and {last.met} of {last.replies} replies follow it, {prompted.met} with the note"
        return f"as often as with the note: {met}" if all(as_often[-2:]) else None
    if last.kl <= FALLS * min(distance.kl for distance in (first, *between)):
        return None
    least = min(distance.kl for distance in measured)
    return f"KL no longer falls: {first.kl:.3f}, {least:.3f} at its least, {last.kl:.3f} now"


def steps_within(steps: int, cost: float | None, seconds: float | None) -> int:
    """Return how many steps fit into ``seconds``, given their cost; at least `LEAST_STEPS`."""
    if seconds is None or not cost:
        return steps
    return min(steps, max(LEAST_STEPS, int(steps * seconds / cost)))


def is_learned(first: Distance, last: Distance, prompted: Distance, *, tolerance: float) -> bool:
    """Return True if replies without the note follow it within ``tolerance`` of those with it; by KL if unknown."""
    if last.rate is None or prompted.rate is None:
        return last.kl <= max(KL_ALONE * first.kl, _LEAST_KL)
    return last.rate >= prompted.rate - tolerance - 1e-9


def is_doubtful(last: Distance, prompted: Distance) -> bool:
    """Return True if the lost compliance may be chance for this sample size, assuming no gains elsewhere."""
    if last.met is None or prompted.met is None:
        return False
    return sign_test(max(0, prompted.met - last.met), 0) >= ALPHA


def hopeless(prompted: Distance) -> str | None:
    """Return the reason if the teacher itself rarely follows the note; None if it does or no checker exists."""
    if prompted.rate is None or prompted.rate >= OBEYED:
        return None
    counts = f"with the note in its prompt the model follows it in {prompted.met} of {prompted.replies} replies"
    return f"{counts}, and under half of them there is nothing to learn from"


def pointless(first: Distance) -> str | None:
    """Return the reason if training in the prompt cannot help: none or all of the replies follow the note already."""
    if first.met == 0:
        return f"none of {first.replies} replies follows it: there is nothing to learn from"
    return f"all of {first.replies} replies follow it already" if first.met == first.replies else None


def no_better(first: Distance, last: Distance) -> str | None:
    """Return the reason not to serve weights that follow the note in the prompt less often than before, else None."""
    if first.met is None or last.met is None or last.met >= first.met:
        return None
    return f"{last.met} of {last.replies} replies follow it, {first.met} before"


def lost(before: Distance, now: Distance) -> str | None:
    """Return the reason if replies follow another note significantly less often than before, else None."""
    if before.met is None or now.met is None or sign_test(max(0, before.met - now.met), 0) >= ALPHA:
        return None
    return f"{now.met} of {now.replies} replies follow it, {before.met} before"


def keeps_words(first: Distance, prompted: Distance) -> bool:
    """Return True if relevance can be checked on replies with the note; in another language it cannot."""
    return first.about > 0 and prompted.about * first.replies >= WORDS_CHANGE * first.about * prompted.replies


def fell(before: Sequence[bool], now: Sequence[bool]) -> bool:
    """Return True if significantly fewer prompts are answered as a learned note asks: a paired sign test."""
    pairs = list(zip(before, now, strict=True))
    return sign_test(sum(a and not b for a, b in pairs), sum(b and not a for a, b in pairs)) < ALPHA


class DistanceMeter:
    """Distance of weights to the teacher on one note's held-out prompts; ``teacher`` is the teacher's number.

    Each prompt keeps its seed, so that two measurements differ by their weights alone.
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
        self.latest: dict[int, Completion] = {}  # last measurement's replies, by their prompt's index

    async def policy(self, number: int) -> Distance:
        """Measure these weights without the note, or with it if it is trained in the prompt."""
        prompts = [self._lesson.asked(prompt) for prompt in self._prompts]
        replies = await self._sampler.replies(self._asks(prompts), number)
        self.latest = {
            at: completion for at, completion in enumerate(replies) if completion and completion.reply_tokens
        }
        pairs = [(self._prompts[at], completion) for at, completion in self.latest.items()]
        gaps = await asyncio.gather(*(self._gap(prompt, completion) for prompt, completion in pairs))
        sums = [(sum(gap), len(gap)) for gap in gaps if gap]
        tokens = sum(count for _, count in sums)
        kl = max(0.0, sum(total for total, _ in sums) / tokens) if tokens else 0.0
        return self._distance(kl, pairs)

    async def prompted(self, more: Sequence[Prompt] = ()) -> Distance:
        """Measure the teacher, with the note in its prompt, on the held-out prompts or ``more``; its KL is 0."""
        prompts = more or self._prompts
        return await self._answered(prompts, map(self._lesson.taught, prompts), self._teacher)

    async def on_more(self, prompts: Sequence[Prompt], number: int) -> Distance:
        """Measure these weights on other prompts, without the KL."""
        return await self._answered(prompts, map(self._lesson.asked, prompts), number)

    async def _answered(self, prompts: Sequence[Prompt], asked: Iterable[Prompt], number: int) -> Distance:
        replies = await self._sampler.replies(self._asks(list(asked)), number)
        return self._distance(
            0.0, [(prompt, completion) for prompt, completion in zip(prompts, replies, strict=True) if completion]
        )

    def _asks(self, prompts: Sequence[Prompt]) -> list[Ask]:
        return [Ask(prompt=prompt, sampling=replace(self.sampling, seed=at + 1)) for at, prompt in enumerate(prompts)]

    async def _gap(self, prompt: Prompt, done: Completion) -> list[float]:
        """Return each token's log-probability without the note minus that with it: the mean estimates the KL."""
        policy = await self._sampler.policy()
        try:
            ids = await policy.encode(self._lesson.taught(prompt))
            scores = await policy.score(
                ids, done.reply_tokens, version=self._teacher, temperature=done.sampling.temperature or 1.0
            )
        except ContextOverflow:
            return []
        return [
            policy_logprob - teacher_logprob
            for policy_logprob, teacher_logprob in zip(done.logprobs, scores.logprobs, strict=True)
        ]

    def _distance(self, kl: float, answered: Sequence[tuple[Prompt, Completion]]) -> Distance:
        replies, checker = [completion for _, completion in answered], self._lesson.checker
        met = sum(does(checker, completion) for completion in replies) if checker is not None else None
        about = sum(
            self._lesson.relevant(question(prompt), completion.reply.content) for prompt, completion in answered
        )
        words = sum(len(completion.reply.content.split()) for completion in replies) / max(len(replies), 1)
        tokens = int(statistics.median([len(completion.reply_tokens) for completion in replies] or [0]))
        return Distance(kl=kl, replies=len(replies), met=met, about=about, words=words, tokens=tokens)


def does(checker: Checker | None, done: Completion) -> bool:
    """Return True if a reply follows the note, as far as the checker reaches; ``cut`` marks a reply at its token limit.

    Degenerate repetition never counts, even as a list. A note may ask for a single word.
    """
    if degenerate(done.reply.content, least=1) is not None:
        return False
    return checker is None or checker(done.reply.content, cut=done.finish == "length")


def plain(evidence: Mapping[str, Distance | None]) -> dict[str, Any]:
    """Return the measurements as JSON values."""
    return {name: distance.plain() for name, distance in evidence.items() if distance is not None}


# Check that training a note in the prompt does not harm other notes in theirs.


class OthersMeter:
    """Compliance with each other note in the prompt, before and after; ``lost`` names a regression."""

    def __init__(self, sampler: ReplySampler, lessons: Sequence[Lesson], *, sampling: Sampling) -> None:
        self._sampler, self._sampling = sampler, sampling
        self._lessons = [lesson for lesson in lessons if lesson.in_prompt and lesson.checker is not None]
        self._at_first: list[Distance] = []
        self.lost: str | None = None

    async def before(self, number: int) -> None:
        """Measure the served weights."""
        self._at_first = [await self._kept(lesson, number) for lesson in self._lessons]

    async def after(self, number: int) -> None:
        """Measure the trained weights."""
        for lesson, first in zip(self._lessons, self._at_first, strict=True):
            why = lost(first, await self._kept(lesson, number))
            if why is not None:
                self.lost = f"it would harm other notes: {lesson.rule!r}: {why}"
                return

    async def _kept(self, lesson: Lesson, number: int) -> Distance:
        meter = DistanceMeter(self._sampler, lesson, teacher=number, sampling=self._sampling)
        return await meter.on_more(lesson.prompts.held_back, number)
