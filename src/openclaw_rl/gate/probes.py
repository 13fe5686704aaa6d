"""What a candidate is examined on, and the measuring itself. Probes are fixed before the step that made it.

Held-out everyday prompts are the same for every version, so the live version's replies are those of its own
examination; replays and pinned turns are read from the ledger as it stood when the step was taken.
"""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from openclaw_rl.errors import ContextOverflow
from openclaw_rl.gate.ability import Quiz, quizzes, shared
from openclaw_rl.gate.checks import Shown, flaw, k3, leaning
from openclaw_rl.ports import Policy
from openclaw_rl.tasks.everyday import Task, held_out, is_relevant
from openclaw_rl.types import Completion, Logprobs, Message, Prompt, Sampling, Tokens, Turn, Verdict, Version, texts

AT_ONCE = 8
"""requests of an examination under way together: one pass of the weights serves them all, and users go first"""
LONGEST = 2048
"""prompt tokens beyond which a turn is too costly to replay"""
READ = 24
"""reply tokens of a replay that are read"""

T = TypeVar("T")
Called = Callable[[str, bool], tuple[bool, bool]]
"""of a raw reply, and whether it was cut off: does it call a tool, is the call broken?"""


class Story(Protocol):
    """What this room needs of the ledger."""

    def turn(self, turn: str) -> Turn: ...
    def verdict(self, turn: str) -> Verdict | None: ...
    def examples(self) -> list[str]: ...
    def corrections(self, limit: int, *, before: float) -> list[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Something to ask. ``task`` knows what a sensible reply names, ``turn`` is the one it replays.

    ``tokens`` is the room for the reply; None: as much as the examiner gives.
    """

    key: str
    prompt: Prompt
    task: Task | None = None
    turn: str | None = None
    tokens: int | None = None

    @property
    def asked(self) -> str:
        """The user's last words."""
        return (texts(self.prompt.messages, "user") or ("",))[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """``held`` and ``replayed`` are asked; ``corrections`` and ``pinned`` are turns that are read again."""

    held: tuple[Probe, ...]
    replayed: tuple[Probe, ...]
    corrections: tuple[tuple[Turn, str], ...]
    pinned: tuple[Turn, ...]


def choose(story: Story, *, before: float, held: int, replays: int) -> Probes:
    """The probes of an examination: of turns, only those judged ``before`` the step."""
    names = _steady(story.corrections(replays * 4, before=before))
    corrected = [(story.turn(name), _rule(story, name)) for name in names]
    fit = [(turn, rule) for turn, rule in corrected if rule and _readable(turn)][:replays]
    pinned = [turn for turn in map(story.turn, story.examples()) if _readable(turn)]
    tooled = [turn for turn in pinned if turn.prompt.tools]
    asked = [*tooled[:2], *(turn for turn, _ in fit[:1])]
    return Probes(
        held=everyday_probes(held),
        replayed=tuple(Probe(key=turn.id, prompt=turn.prompt, turn=turn.id) for turn in asked),
        corrections=tuple(fit),
        pinned=tuple(pinned[:replays]),
    )


def _steady(names: Sequence[str]) -> list[str]:
    """One in four first, the same whenever it is asked, so that most of what was read of them before still holds."""
    return sorted(names, key=lambda name: ord(name[-1]) % 4 != 0)


def everyday_probes(count: int, *, besides: Sequence[Probe] = (), tokens: int | None = None) -> tuple[Probe, ...]:
    """So many held-out prompts, always the same, none of them ``besides`` which they are asked."""
    known = {probe.key for probe in besides}
    left = [task for task in held_out("facts") if task.prompt not in known]
    chosen = random.Random(0).sample(left, count)
    return tuple(Probe(key=task.prompt, prompt=plain(task.prompt), task=task, tokens=tokens) for task in chosen)


def plain(text: str) -> Prompt:
    """A conversation that begins with these words."""
    return Prompt(messages=(Message(role="user", content=text),))


def _rule(story: Story, turn: str) -> str | None:
    verdict = story.verdict(turn)
    return next(iter(verdict.rules), None) if verdict else None


def _readable(turn: Turn) -> bool:
    return len(turn.completion.prompt_tokens) <= LONGEST and len(turn.completion.reply_tokens) > 0


class Examiner:
    """Measures versions with a policy that holds them. What was measured of weights once is remembered."""

    def __init__(
        self, policy: Policy, *, sampling: Sampling, tokens: int, called: Called, quiz: Sequence[Quiz] = ()
    ) -> None:
        self._policy = policy
        self._sampling = replace(sampling, max_tokens=tokens)
        self._called = called
        self._quiz = tuple(quiz) or tuple(quizzes())
        self._room = asyncio.Semaphore(AT_ONCE)
        self._margins: dict[str, list[float]] = {}
        self._shown: dict[tuple[str, str], Shown] = {}
        self._read: dict[tuple[str, str], Logprobs] = {}
        self._advice: dict[str, Logprobs | None] = {}
        self._ends: list[tuple[Tokens, Tokens, Tokens]] = []

    def forget(self, keep: Sequence[Version]) -> None:
        """Let go what was measured of weights other than these and the base's."""
        known = {_weights(version) for version in keep} | {"base"}
        self._margins = {weights: found for weights, found in self._margins.items() if weights in known}
        self._shown = {at: found for at, found in self._shown.items() if at[0] in known}
        self._read = {at: found for at, found in self._read.items() if at[0] in known}

    async def margins(self, version: Version) -> list[float]:
        """General ability: of each small task, how much likelier the right end of the answer is than the wrong one."""
        if _weights(version) not in self._margins:
            found = await self._together([self._margin(version, *asked) for asked in await self._tokenized()])
            self._margins[_weights(version)] = found
        return self._margins[_weights(version)]

    async def _tokenized(self) -> list[tuple[Tokens, Tokens, Tokens]]:
        """Of each task: the tokens up to where the answers part, the right end, the wrong one."""
        if not self._ends:
            for quiz in self._quiz:
                ids = await self._policy.encode(plain(quiz.question))
                right, wrong = [(await self._policy.tokenize(text))[:-1] for text in (quiz.right, quiz.wrong)]
                alike = shared(right, wrong)
                self._ends.append((ids + right[:alike], right[alike:], wrong[alike:]))
        return self._ends

    async def _margin(self, version: Version, begin: Tokens, right: Tokens, wrong: Tokens) -> float:
        said = [await self._policy.score(begin, end, version=version.number) for end in (right, wrong)]
        return statistics.fmean(said[0].logprobs) - statistics.fmean(said[1].logprobs)

    async def shown(self, version: Version, probes: Sequence[Probe]) -> list[Shown]:
        """The version's replies to probes, each with its own fixed seed; those that do not fit are left out."""
        missing = [probe for probe in probes if (_weights(version), probe.key) not in self._shown]
        for probe, found in zip(missing, await self._together([self._ask(version, p) for p in missing]), strict=True):
            if found is not None:
                self._shown[_weights(version), probe.key] = found
        return [one for probe in probes if (one := self._shown.get((_weights(version), probe.key))) is not None]

    async def _ask(self, version: Version, probe: Probe) -> Shown | None:
        try:
            sampling = replace(self._sampling, max_tokens=probe.tokens) if probe.tokens else self._sampling
            done = await answer(self._policy, probe.prompt, sampling, version=version.number)
        except ContextOverflow:
            return None
        text = done.reply.content
        calls, broken = self._called(text, done.finish == "length") if probe.prompt.tools else (False, False)
        base = await self._base_logprobs(done)
        return Shown(
            probe=probe.key,
            prompt=probe.asked,
            reply=text,
            tokens=len(done.logprobs),
            sense=is_relevant(probe.task, text) if probe.task else None,
            flaw=flaw(text, prompt=probe.asked, broken_call=broken, calls=calls),
            kl=k3(done.logprobs, base) if base else None,
            entropy=-statistics.fmean(done.logprobs) if done.logprobs else None,
        )

    async def _base_logprobs(self, done: Completion) -> Logprobs:
        if not done.reply_tokens:
            return ()
        temperature = done.sampling.temperature or 1.0
        scores = await self._policy.score(done.prompt_tokens, done.reply_tokens, version=0, temperature=temperature)
        return scores.logprobs

    async def kept(self, candidate: Version, live: Version, turns: Sequence[Turn]) -> list[float]:
        """Of each pinned reply: how much likelier the candidate finds it than the live version, per token."""
        pairs = await self._together([self._both(candidate, live, turn) for turn in turns])
        return [statistics.fmean(new) - statistics.fmean(old) for new, old in pairs]

    async def heeded(self, candidate: Version, live: Version, corrections: Sequence[tuple[Turn, str]]) -> list[float]:
        """Of each correction: how much further the candidate leans the way it points than the live version does.

        The way a correction points is what the base says of the very reply when it is told the hint.
        """
        advised = await self._together([self._told(turn, rule) for turn, rule in corrections])
        read = await self._together([self._both(candidate, live, turn) for turn, _ in corrections])
        return [
            leaning(advice, new) - leaning(advice, old)
            for advice, (new, old) in zip(advised, read, strict=True)
            if advice is not None
        ]

    async def _told(self, turn: Turn, rule: str) -> Logprobs | None:
        """The hint's gap on each token of the reply; None where the hinted prompt does not fit."""
        if turn.id not in self._advice:
            try:
                hinted = await self._policy.encode(turn.prompt.hinted(rule))
                told = await self._policy.score(hinted, turn.completion.reply_tokens[:READ], version=0)
            except ContextOverflow:
                self._advice[turn.id] = None
                return None
            plain_base = Version(number=0, parent=None, base=self._policy.base)
            untold = await self._logprobs(plain_base, turn)
            self._advice[turn.id] = tuple(a - b for a, b in zip(told.logprobs, untold, strict=True))
        return self._advice[turn.id]

    async def _both(self, candidate: Version, live: Version, turn: Turn) -> tuple[Logprobs, Logprobs]:
        return await self._logprobs(candidate, turn), await self._logprobs(live, turn)

    async def _logprobs(self, version: Version, turn: Turn) -> Logprobs:
        at = (_weights(version), turn.id)
        if at not in self._read:
            done = turn.completion
            if done.version == version.number and done.sampling.temperature in (0.0, 1.0):
                return done.logprobs[:READ]  # it said so itself
            scores = await self._policy.score(done.prompt_tokens, done.reply_tokens[:READ], version=version.number)
            self._read[at] = scores.logprobs
        return self._read[at]

    async def _together(self, work: Sequence[Awaitable[T]]) -> list[T]:
        async def one(each: Awaitable[T]) -> T:
            async with self._room:
                return await each

        return list(await asyncio.gather(*(one(each) for each in work)))


async def answer(policy: Policy, prompt: Prompt, sampling: Sampling, *, version: int | None = None) -> Completion:
    """The whole reply. Without a seed of its own a prompt gets a fixed one, so that asking again says the same."""
    seeded = sampling if sampling.seed is not None else replace(sampling, seed=_seed(prompt))
    done: Completion | None = None
    async for item in policy.generate(prompt, seeded, version=version):
        if isinstance(item, Completion):
            done = item
    assert done is not None, "a stream ends with its completion"
    return done


def _seed(prompt: Prompt) -> int:
    return random.Random(str([message.content for message in prompt.messages])).getrandbits(31)


def _weights(version: Version) -> str:
    """Versions with the same adapter are the same weights, whatever their numbers."""
    return version.adapter or "base"
