"""The one-pass judge: three texts in, the probabilities of bad, neutral and good out, without generating text.

A model reads examples of the conversation's channel, the request, the reply and the next message; the prompt ends
inside the quotation mark of ``{"verdict": "``. The three words' probabilities there determine the score, by thresholds
set at the base rate of real conversations. The examples are at the start, so a prefix cache holds them.
"""

from __future__ import annotations

import hashlib
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, NamedTuple, Protocol

from openclaw_rl.judge.base_rate import WORDS, BaseRates, Decision, Odds
from openclaw_rl.judge.channel import CHANNELS, Channel, channel_of
from openclaw_rl.judge.coding import combined, signs_of
from openclaw_rl.judge.evidence import reply_of, user_hints
from openclaw_rl.judge.explain import Explanation
from openclaw_rl.judge.hints import HintLimits, filter_hints
from openclaw_rl.judge.prompt import block, escape
from openclaw_rl.judge.text import stretches_of
from openclaw_rl.ports import Case, RatesWords
from openclaw_rl.types import Message, Verdict

OPENING = '{"verdict": "'
"""start of the answer: it ends inside the quotation mark, since a blank before the word breaks the probabilities"""
QUESTION = "What does the next message show about the reply?"
BUDGET = 400
"""tokens each for the request, the reply and the message; more had no benefit on the lines tried"""
PASTED = 150
"""tokens per pasted stretch in a message: a log names its error at its beginning or its end"""
SPARE = 64
"""tokens of a prompt for tags and omission marks"""
LEAST = 48
"""minimum tokens per text, regardless of the context"""


class Calibrated(Protocol):
    """Turns odds into a decision by calibrated thresholds."""

    def decide(self, odds: Odds, channel: Channel) -> Decision: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One example in front of the question."""

    request: str
    reply: str
    next: str
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """The instruction, each channel's examples, and their short hash."""

    system: str
    channels: Mapping[Channel, tuple[Example, ...]]
    version: str


@cache
def shipped_examples() -> Examples:
    """Return the examples shipped with the package."""
    folder = resources.files("openclaw_rl.judge").joinpath("prompts")
    system = folder.joinpath("one_pass.md").read_text(encoding="utf-8")
    text = folder.joinpath("one_pass.toml").read_text(encoding="utf-8")
    read: dict[str, Any] = tomllib.loads(text)
    channels = {channel: tuple(Example(**example) for example in read[channel]) for channel in CHANNELS}
    version = hashlib.sha256(f"{system}\0{text}\0{QUESTION}".encode()).hexdigest()[:10]
    return Examples(system=system.strip(), channels=channels, version=version)


class OnePass:
    """Asks ``rater`` about a case. Texts are cut to a budget in the rater's own tokens, head and tail kept."""

    def __init__(self, rater: RatesWords, examples: Examples | None = None) -> None:
        self.rater = rater
        self.examples = examples or shipped_examples()
        self._before: dict[Channel, int] = {}

    async def odds(self, case: Case, channel: Channel) -> Odds:
        """Return a case's odds; raises JudgeUnavailable while the model cannot answer."""
        return Odds.read(await self.rater.rate(await self.messages(case, channel), OPENING, WORDS))

    async def messages(self, case: Case, channel: Channel) -> tuple[Message, ...]:
        """Return the whole prompt: the instruction, the examples as turns of a conversation, the exchange."""
        before = self._examples(channel)
        budget = await self._budget(before, channel)
        users = [message.content for message in case.turn.prompt.messages if message.role == "user"]
        after = "\n\n".join(message.content for message in case.outcome.next_state if message.role == "user")
        exchange = _exchange(
            await self._cut(users[-1] if users else "", budget),
            await self._cut(reply_of(case) or _calls(case), budget),
            await self._message(after, budget),
        )
        return (*before, Message(role="user", content=exchange))

    def _examples(self, channel: Channel) -> tuple[Message, ...]:
        """Return the other channels' examples, then those of ``channel``: the nearest to the question weigh most."""
        order = [*(candidate for candidate in CHANNELS if candidate != channel), channel]
        messages = [Message(role="system", content=self.examples.system)]
        for shot in (example for name in order for example in self.examples.channels[name]):
            exchange = _exchange(escape(shot.request), escape(shot.reply), _tagged(shot.next))
            answer = f'{OPENING}{shot.verdict}"}}'
            messages += [Message(role="user", content=exchange), Message(role="assistant", content=answer)]
        return tuple(messages)

    async def _budget(self, before: Sequence[Message], channel: Channel) -> int:
        """Return the tokens per text: `BUDGET`, or a third of the space that the examples leave in a small context."""
        context = self.rater.context
        if context is None:
            return BUDGET
        if channel not in self._before:
            self._before[channel] = await self.rater.count("\n".join(message.content for message in before))
        return max(LEAST, min(BUDGET, (context - self._before[channel] - SPARE - 8 * len(before)) // 3))

    async def _message(self, text: str, budget: int) -> str:
        """Return the next message with its pasted stretches in their own tags, which no text can write."""
        parts = stretches_of(text)
        own = [part for part in parts if not part.pasted]
        share = budget // max(1, len(own)) if len(own) < len(parts) else budget
        pasted = max(LEAST, min(PASTED, budget // max(1, len(parts) - len(own)))) if len(own) < len(parts) else 0
        bodies: list[str] = []
        for part in parts[:12]:
            body = await self._cut(part.text, pasted if part.pasted else max(LEAST, share))
            bodies.append(block("pasted", None, None, body) if part.pasted else body)
        return "\n".join(bodies) or escape("")

    async def _cut(self, text: str, budget: int) -> str:
        """Return the escaped text or its head and tail; tokens have one byte or more, so short texts pass uncounted."""
        body = escape(text)
        if len(body.encode("utf-8", "surrogatepass")) <= budget:
            return body
        tokens = await self.rater.count(body)
        while tokens > budget and len(text) > 8:
            keep = max(8, min(len(text) - 1, int(len(text) * budget / tokens * 0.95)))
            omitted, text = len(text) - keep, _ends(text, keep)
            body = escape(text.replace("\0", f"\n(... {omitted} characters left out ...)\n", 1))
            tokens = await self.rater.count(body)
            text = text.replace("\0", "", 1)
        return body


def _ends(text: str, keep: int) -> str:
    return f"{text[: keep - keep // 2]}\0{text[len(text) - keep // 2 :]}"


def _calls(case: Case) -> str:
    return "\n".join(f"(calls {call.name} with {call.arguments})" for call in case.turn.completion.reply.tool_calls)


def _tagged(text: str) -> str:
    """Return an example's next message in the form of a case's."""
    parts = [(escape(part.text), part.pasted) for part in stretches_of(text)]
    bodies = (block("pasted", None, None, body) if pasted else body for body, pasted in parts)
    return "\n".join(bodies)


def _exchange(request: str, reply: str, message: str) -> str:
    """Return three escaped texts in their delimiters, and the question."""
    texts = (("request", request), ("reply", reply), ("next_message", message))
    return "\n".join([*(block(tag, None, None, body) for tag, body in texts), QUESTION])


class Rated(NamedTuple):
    """A rated case: ``own`` are the model's odds, ``odds`` those after all ``signs``."""

    channel: Channel
    own: Odds
    odds: Odds
    signs: tuple[str, ...]


class OnePassJudge:
    """Scores users' messages by `OnePass` and the thresholds of ``calibration``; silent if no threshold is met.

    In a coding conversation, signs beside the words move the odds (`judge.coding`). Hints are the user's own words.
    """

    name = "one-pass"

    def __init__(self, asks: OnePass, calibration: Calibrated | None = None, *, limits: HintLimits) -> None:
        self.asks, self._limits = asks, limits
        self._calibration = calibration or BaseRates.silent()

    @property
    def at_work(self) -> str:
        """Return the model's name."""
        return f"{self.asks.rater.model} in one pass"

    async def judge(self, case: Case) -> Verdict:
        """Return a case's verdict; raises JudgeUnavailable while the model cannot answer."""
        begun = time.perf_counter()
        if not any(message.role == "user" and message.content.strip() for message in case.outcome.next_state):
            return self._verdict(case, None, "the user wrote nothing", begun)
        rated = await self.read(case)
        decision = self._calibration.decide(rated.odds, rated.channel)
        note = "; ".join([f"{rated.odds} ({rated.channel})", *rated.signs, decision.why])
        return self._verdict(case, decision.score, note, begun)

    async def read(self, case: Case) -> Rated:
        """Return a case's channel, the model's odds, and the odds after all signs."""
        channel = channel_of(case)
        own = await self.asks.odds(case, channel)
        signs = signs_of(case) if channel == "coding" else ()
        return Rated(channel, own, combined(own, signs), tuple(sign.name for sign in signs))

    async def explain(self, case: Case) -> Explanation:
        """Return the exact prompt, the odds and the verdict."""
        verdict = await self.judge(case)
        messages = await self.asks.messages(case, channel_of(case))
        prompt = "\n\n".join(f"[{message.role}]\n{message.content}" for message in messages)
        return Explanation(
            judge=self.name,
            prompt=f"{prompt}\n\n[assistant]\n{OPENING}",
            prompt_version=self.asks.examples.version,
            ballots=(verdict.note,),
            verdict=verdict,
            note=verdict.note,
        )

    def _verdict(self, case: Case, score: float | None, note: str, begun: float) -> Verdict:
        hints = filter_hints(user_hints(case), reply=reply_of(case), limits=self._limits)
        return Verdict(
            turn=case.turn.id,
            score=score,
            source="judge",
            hints=hints.kept,
            judge=f"{self.name}:{self.asks.rater.model}",
            prompt_version=self.asks.examples.version,
            seconds=time.perf_counter() - begun,
            note=note,
        )
