"""Measure versions with a policy that holds them: replies to probes, log-probs of turns, general ability."""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from openclaw_rl.errors import ContextOverflow
from openclaw_rl.formats.parts import CallStart
from openclaw_rl.formats.tools import tool_call_reader
from openclaw_rl.gate.checks import Probe, ProbeReply, flaw, hint_alignment, k3, plain
from openclaw_rl.ports import Policy, whole_reply
from openclaw_rl.tasks.everyday import is_relevant
from openclaw_rl.types import Completion, Logprobs, Prompt, Sampling, Tokens, Turn, Version

# General ability by scoring alone: small questions, each with the start of an answer and two endings.
#
# Nothing is generated. A question is right if the right ending is likelier, per token, than the wrong one; so a version
# that has learned brevity or lists is not marked down for its style, and one that has unlearned facts is.


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiz:
    """A question with a right and a wrong answer."""

    question: str
    right: str
    wrong: str

    @property
    def answers(self) -> tuple[str, str]:
        """Return both answers, the right one first."""
        return self.right, self.wrong


def margin(scores: Mapping[str, float], quiz: Quiz) -> float:
    """Return the margin of the right answer over the wrong one, in nats per token; negative if it is less likely."""
    return scores[quiz.right] - scores[quiz.wrong]


_TABLE = """
What is the capital of France? | The capital of France is | Paris | Madrid
What is the capital of Japan? | The capital of Japan is | Tokyo | Moscow
What is the largest planet? | The largest planet in our solar system is | Jupiter | Mars
How many days has a week? | A week has | seven days | ninety days
How many legs has a spider? | A spider has | eight legs | three legs
What is two plus two? | Two plus two is | four | nine
What color is the sky? | On a clear day the sky is | blue | brown
What color is grass? | Fresh grass is | green | purple
What is the opposite of hot? | The opposite of hot is | cold | tall
What is the opposite of up? | The opposite of up is | down | green
What do bees make? | Bees make | honey | bread
What is frozen water? | Frozen water is called | ice | sand
Which season follows winter? | After winter comes | spring | music
Which day follows Monday? | The day after Monday is | Tuesday | March
Who wrote Romeo and Juliet? | Romeo and Juliet was written by William | Shakespeare | Wordsworth
Which organ pumps blood? | Blood is pumped by the | heart | nose
With what do we see? | We see with our | eyes | ears
Where do fish live? | Fish live in | water | trees
What do cows give us? | Cows give us | milk | coffee
What is the chemical formula of water? | The chemical formula of water is H | 2O | 9X
"""


def quizzes() -> Iterator[Quiz]:
    """Yield the shipped questions, in a fixed order."""
    for line in _TABLE.strip().splitlines():
        question, begin, right, wrong = (part.strip() for part in line.split("|"))
        gap = "" if begin.endswith(" H") else " "
        yield Quiz(question=question, right=f"{begin}{gap}{right}", wrong=f"{begin}{gap}{wrong}")


def shared(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the answers' common prefix length, leaving each at least one token."""
    alike = 0
    for a, b in zip(first[:-1], second[:-1], strict=False):
        if a != b:
            break
        alike += 1
    return alike


CONCURRENCY = 64
"""requests of an examination at once: one forward pass serves them all, and users' requests have priority"""
READ = 24
"""reply tokens scored per replay"""

T = TypeVar("T")
ReadCalls = Callable[[str, bool], tuple[bool, bool]]
"""takes a raw reply and True if it was cut off: does it call a tool, is the call broken?"""


class Examiner:
    """Measurements of versions by a policy that holds them; results are cached by weights."""

    def __init__(
        self, policy: Policy, *, sampling: Sampling, tokens: int, calls: ReadCalls, quiz: Sequence[Quiz] = ()
    ) -> None:
        self._policy = policy
        self._sampling = replace(sampling, max_tokens=tokens)
        self._calls = calls
        self._quiz = tuple(quiz) or tuple(quizzes())
        self._room = asyncio.Semaphore(CONCURRENCY)
        self._margins: dict[str, list[float]] = {}
        self._replies: dict[tuple[str, str], ProbeReply] = {}
        self._read: dict[tuple[str, str], Logprobs] = {}
        self._hint_gaps: dict[str, Logprobs | None] = {}
        self._ends: list[tuple[Tokens, Tokens, Tokens]] = []

    def forget(self, keep: Sequence[Version]) -> None:
        """Drop results for all weights but these and the base model's."""
        kept_weights = {_weights(version) for version in keep} | {"base"}
        self._margins = {weights: result for weights, result in self._margins.items() if weights in kept_weights}
        self._replies = {at: result for at, result in self._replies.items() if at[0] in kept_weights}
        self._read = {at: result for at, result in self._read.items() if at[0] in kept_weights}

    async def margins(self, version: Version) -> list[float]:
        """Return each small question's margin for its right answer: general ability."""
        if _weights(version) not in self._margins:
            margins = await self._together([self._margin(version, *ends) for ends in await self._tokenized()])
            self._margins[_weights(version)] = margins
        return self._margins[_weights(version)]

    async def _tokenized(self) -> list[tuple[Tokens, Tokens, Tokens]]:
        """Return each question's tokens: up to the point where the answers diverge, the right end, the wrong end."""
        if not self._ends:
            for quiz in self._quiz:
                ids = await self._policy.encode(plain(quiz.question))
                right, wrong = [(await self._policy.tokenize(text))[:-1] for text in (quiz.right, quiz.wrong)]
                alike = shared(right, wrong)
                self._ends.append((ids + right[:alike], right[alike:], wrong[alike:]))
        return self._ends

    async def _margin(self, version: Version, begin: Tokens, right: Tokens, wrong: Tokens) -> float:
        scores = [await self._policy.score(begin, end, version=version.number) for end in (right, wrong)]
        return statistics.fmean(scores[0].logprobs) - statistics.fmean(scores[1].logprobs)

    async def replies(self, version: Version, probes: Sequence[Probe], *, compared: bool = True) -> list[ProbeReply]:
        """Return the version's replies to probes, each with its own fixed seed; prompts that do not fit are left out.

        Without ``compared`` the KL to the base model is not measured.
        """
        missing = [probe for probe in probes if (_weights(version), probe.key) not in self._replies]
        sampled = await self._together([self._reply(version, probe, compared=compared) for probe in missing])
        for probe, reply in zip(missing, sampled, strict=True):
            if reply is not None:
                self._replies[_weights(version), probe.key] = reply
        return [cached for probe in probes if (cached := self._replies.get((_weights(version), probe.key))) is not None]

    async def _reply(self, version: Version, probe: Probe, *, compared: bool) -> ProbeReply | None:
        try:
            sampling = replace(self._sampling, max_tokens=probe.tokens) if probe.tokens else self._sampling
            completion = await answer(self._policy, probe.prompt, sampling, version=version.number)
        except ContextOverflow:
            return None
        text = completion.reply.content
        calls, broken = self._calls(text, completion.finish == "length") if probe.prompt.tools else (False, False)
        base = await self._base_logprobs(version, completion) if compared else ()
        return ProbeReply(
            probe=probe.key,
            prompt=probe.question,
            reply=text,
            tokens=len(completion.logprobs),
            relevant=is_relevant(probe.task, text) if probe.task else None,
            flaw=flaw(text, prompt=probe.question, broken_call=broken, calls=calls),
            kl=k3(completion.logprobs, base) if base else None,
            entropy=-statistics.fmean(completion.logprobs) if completion.logprobs else None,
        )

    async def _base_logprobs(self, version: Version, done: Completion) -> Logprobs:
        if not done.reply_tokens or version.adapter is None:  # the base model's own
            return done.logprobs
        temperature = done.sampling.temperature or 1.0
        scores = await self._policy.score(done.prompt_tokens, done.reply_tokens, version=0, temperature=temperature)
        return scores.logprobs

    async def pinned_gains(self, candidate: Version, live: Version, turns: Sequence[Turn]) -> list[float]:
        """Return the candidate's log-prob gain per token on each pinned reply.

        The reference is the live version or the version that replied, whichever is likelier, so that small losses add
        up.
        """
        pairs = await self._together([self._both(candidate, live, turn) for turn in turns])
        first = await self._together([self._as_given(turn) for turn in turns])
        return [
            statistics.fmean(new) - max(statistics.fmean(old), statistics.fmean(recorded))
            for (new, old), recorded in zip(pairs, first, strict=True)
        ]

    async def _as_given(self, turn: Turn) -> Logprobs:
        """Return a reply's recorded log-probs; the base model's if they were sampled under other conditions."""
        if _comparable(turn):
            return turn.completion.logprobs[:READ]
        return await self._logprobs(Version(number=0, parent=None, base=self._policy.base), turn)

    async def leans(self, version: Version, corrections: Sequence[tuple[Turn, str]]) -> dict[str, float]:
        """Return, by turn, the version's alignment with each correction; prompts that do not fit are left out.

        A correction's direction is the base model's change in log-prob on the reply when the hint is in its prompt.
        """
        hinted = await self._together([self._hint_gap(turn, rule) for turn, rule in corrections])
        read = await self._together([self._logprobs(version, turn) for turn, _ in corrections])
        return {
            turn.id: hint_alignment(gaps, logprobs)
            for (turn, _), gaps, logprobs in zip(corrections, hinted, read, strict=True)
            if gaps is not None
        }

    async def _hint_gap(self, turn: Turn, rule: str) -> Logprobs | None:
        """Return the hint's gap on each token of the reply; None if the hinted prompt does not fit."""
        if turn.id not in self._hint_gaps:
            try:
                prompt = await self._policy.encode(turn.prompt.hinted(rule))
                hinted = await self._policy.score(prompt, turn.completion.reply_tokens[:READ], version=0)
            except ContextOverflow:
                self._hint_gaps[turn.id] = None
                return None
            base = Version(number=0, parent=None, base=self._policy.base)
            unhinted = await self._logprobs(base, turn)
            self._hint_gaps[turn.id] = tuple(a - b for a, b in zip(hinted.logprobs, unhinted, strict=True))
        return self._hint_gaps[turn.id]

    async def _both(self, candidate: Version, live: Version, turn: Turn) -> tuple[Logprobs, Logprobs]:
        return await self._logprobs(candidate, turn), await self._logprobs(live, turn)

    async def _logprobs(self, version: Version, turn: Turn) -> Logprobs:
        at = (_weights(version), turn.id)
        if at not in self._read:
            completion = turn.completion
            if completion.version == version.number and _comparable(turn):
                return completion.logprobs[:READ]  # its own reply
            prompt = completion.prompt_tokens if turn.noted is None else await self._policy.encode(turn.prompt)
            scores = await self._policy.score(prompt, completion.reply_tokens[:READ], version=version.number)
            self._read[at] = scores.logprobs
        return self._read[at]

    async def _together(self, work: Sequence[Awaitable[T]]) -> list[T]:
        async def one(each: Awaitable[T]) -> T:
            async with self._room:
                return await each

        return list(await asyncio.gather(*(one(each) for each in work)))


def _comparable(turn: Turn) -> bool:
    """Return True if the recorded log-probs match an examination's conditions: no notes, temperature 0 or 1."""
    return turn.noted is None and turn.completion.sampling.temperature in (0.0, 1.0)


def reads_calls(policy: Policy) -> ReadCalls:
    """Return the function that finds a tool call, and a broken one, in a raw reply of this model's format."""

    def calls(text: str, cut: bool) -> tuple[bool, bool]:
        reader = tool_call_reader(policy.tool_format)
        parts = [*reader.feed(text), *reader.end(cut=cut)]
        return any(isinstance(part, CallStart) for part in parts), bool(reader.flaws)

    return calls


async def answer(policy: Policy, prompt: Prompt, sampling: Sampling, *, version: int | None = None) -> Completion:
    """Return the whole reply. Without a seed a prompt gets a fixed one, so that the reply is reproducible."""
    seeded = sampling if sampling.seed is not None else replace(sampling, seed=_seed(prompt))
    return await whole_reply(policy.generate(prompt, seeded, version=version))


def _seed(prompt: Prompt) -> int:
    return random.Random(str([message.content for message in prompt.messages])).getrandbits(31)


def _weights(version: Version) -> str:
    """Return the key of a version's weights: versions with the same adapter are equal, whatever their numbers."""
    return version.adapter or "base"
