"""The nouns. Frozen, slotted, keyword-only; a wrong value cannot be built.

    Message, Tool -> Prompt --Sampling--> Completion -> Turn -> Outcome -> Verdict -> Sample -> Step, Version

Lengths: `[P]` prompt tokens, `[R]` reply tokens. Arrays that share a letter share a length.
Absent is ``None``; zero is a number: a missing log-prob is never ``0.0``.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Self, TypeAlias, get_args

from openclaw_rl.errors import InvalidValue

Json: TypeAlias = Any
Tokens: TypeAlias = tuple[int, ...]
Logprobs: TypeAlias = tuple[float, ...]

Role = Literal["system", "user", "assistant", "tool"]
Kind = Literal["main", "side"]
Finish = Literal["stop", "length", "tool_calls", "aborted"]
HintKind = Literal["rule", "fact", "complaint"]
Source = Literal["explicit", "environment", "deterministic", "judge"]
VersionState = Literal["candidate", "live", "refused", "rolled back", "deleted"]

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: sorts as it counts
_last_id = 0


ENVIRONMENT = "env:"
"""how the name of a user begins that is an environment; the rest is the environment's own name"""


def environment_of(user: str) -> str | None:
    """The environment that a user is, None for a person."""
    return user.removeprefix(ENVIRONMENT) if user.startswith(ENVIRONMENT) else None


def new_id() -> str:
    """A time-ordered id of 26 letters: 48 bits of milliseconds, 80 bits of chance, never going back in one process."""
    global _last_id
    value = max(time.time_ns() // 1_000_000 << 80 | int.from_bytes(os.urandom(10), "big"), _last_id + 1)
    _last_id = value
    return "".join(_ALPHABET[value >> shift & 31] for shift in range(125, -1, -5))


def _need(ok: bool, field_name: str, what: str) -> None:
    if not ok:
        raise InvalidValue(field_name, what)


def _one_of(value: str, choices: Any, field_name: str) -> None:
    known = get_args(choices)
    _need(value in known, field_name, f"{value!r} is none of {', '.join(known)}")


def _tokens(ids: Tokens, field_name: str) -> None:
    _need(isinstance(ids, tuple), field_name, "must be a tuple of token ids")
    if ids:
        _need(set(map(type, ids)) == {int}, field_name, "token ids must be plain integers")
        _need(min(ids) >= 0 and max(ids) < 2**32, field_name, "token ids must lie in 0 .. 2**32 - 1")


def _logprobs(values: Logprobs, length: int, field_name: str) -> None:
    _need(isinstance(values, tuple), field_name, "must be a tuple of log-probs")
    _need(len(values) == length, field_name, f"{len(values)} log-probs for {length} reply tokens")
    _need(all(-math.inf < value <= 0.0 for value in values), field_name, "a log-prob must be finite and at most 0")


def _finite(value: float | None, field_name: str) -> None:
    _need(value is None or math.isfinite(value), field_name, f"{value!r} is not a finite number")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call a reply makes; ``arguments`` is the JSON text as it was written."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation. ``images`` are data URLs, in order, said before the text."""

    role: Role
    content: str = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    images: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _one_of(self.role, Role, "role")
        _need(isinstance(self.content, str), "content", "must be text")
        _need(not self.tool_calls or self.role == "assistant", "tool_calls", f"a {self.role} message cannot call tools")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function the model may call; ``parameters`` is its JSON schema."""

    name: str
    description: str = ""
    parameters: Mapping[str, Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _need(bool(self.name), "name", "a tool needs a name")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What the policy is asked: messages, the tools it may call, and how it may call them.

    ``tool_choice`` is auto, none, required or the name of one tool (``"name:NAME"``).
    ``template`` holds extra keyword arguments for the model's chat template. ``opening`` is what the reply is made to
    begin with: it ends the prompt's tokens, so nothing of it is sampled or trained.
    """

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: str = "auto"
    template: Mapping[str, Json] = field(default_factory=dict)
    opening: str = ""

    def __post_init__(self) -> None:
        _need(len(self.messages) > 0, "messages", "a prompt needs at least one message")

    def hinted(self, hint: str) -> Prompt:
        """The teacher's view: the same prompt with ``hint`` appended to its last user message.

        A prompt without a user message gets the hint as one at its end.
        """
        messages = list(self.messages)
        for at in range(len(messages) - 1, -1, -1):
            if messages[at].role == "user":
                old = messages[at]
                messages[at] = Message(
                    role="user", content=f"{old.content}\n\n{hint}", name=old.name, images=old.images
                )
                break
        else:
            messages.append(Message(role="user", content=hint))
        return replace(self, messages=tuple(messages))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the reply is drawn. ``max_tokens`` None: as many as fit the context.

    ``dry_multiplier`` above 0: what would go on with a repeat of two tokens or more in a reply loses this much, and
    more the longer the repeat; a reply that may call tools or must follow a schema is left alone.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    dry_multiplier: float = 0.0
    top_logprobs: int = 0
    json_schema: Mapping[str, Json] | None = None

    def __post_init__(self) -> None:
        _need(0.0 <= self.temperature <= 100.0, "temperature", f"{self.temperature!r} is not in 0 .. 100")
        _need(0.0 < self.top_p <= 1.0, "top_p", f"{self.top_p!r} is not in (0, 1]")
        _need(self.top_k >= 0, "top_k", f"{self.top_k!r} is below 0")
        _need(0.0 <= self.min_p <= 1.0, "min_p", f"{self.min_p!r} is not in 0 .. 1")
        _need(self.max_tokens is None or self.max_tokens >= 1, "max_tokens", f"{self.max_tokens!r} is below 1")
        _need(self.repetition_penalty > 0, "repetition_penalty", f"{self.repetition_penalty!r} is not above 0")
        _need(self.dry_multiplier >= 0, "dry_multiplier", f"{self.dry_multiplier!r} is below 0")
        _need(0 <= self.top_logprobs <= 64, "top_logprobs", f"{self.top_logprobs!r} is not in 0 .. 64")

    @property
    def greedy(self) -> bool:
        """No chance in it, so no exploration to learn from."""
        return self.temperature == 0.0 or self.top_k == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A reply with the very tokens that were sampled, the stop token included if one was drawn.

    ``logprobs`` are log-softmax values over the whole vocabulary of the logits divided by the sampling temperature
    (by 1 where that is 0), before top-p, top-k and penalties: the behaviour policy of METHODS.
    ``scored`` says that they were computed afterwards (an import), not recorded while sampling.
    ``flaws`` are marks for the judge, such as ``malformed_tool_call``.
    """

    reply: Message
    prompt_tokens: Tokens
    reply_tokens: Tokens
    logprobs: Logprobs
    sampling: Sampling
    finish: Finish
    version: int
    scored: bool = False
    flaws: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _need(self.reply.role == "assistant", "reply", f"the reply's role is {self.reply.role!r}, not 'assistant'")
        _tokens(self.prompt_tokens, "prompt_tokens")
        _tokens(self.reply_tokens, "reply_tokens")
        _need(len(self.prompt_tokens) > 0, "prompt_tokens", "a prompt has at least one token")
        _logprobs(self.logprobs, len(self.reply_tokens), "logprobs")
        _one_of(self.finish, Finish, "finish")
        _need(self.version >= 0, "version", f"{self.version!r} is below 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One answered request. ``session``, ``declared`` and ``done`` are what the client said, None or False if nothing.

    ``group`` joins the rollouts of one task. ``trainable`` is False where the caller opted out.
    """

    prompt: Prompt
    completion: Completion
    user: str
    id: str = field(default_factory=new_id)
    session: str | None = None
    group: str | None = None
    client: str = ""
    declared: Kind | None = None
    done: bool = False
    trainable: bool = True
    at: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        _need(bool(self.id), "id", "a turn needs an id")
        if self.declared is not None:
            _one_of(self.declared, Kind, "declared")
        _finite(self.at, "at")


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """What somebody said of a turn outright: a score in -1 .. 1, a hint, an edit, or a world's reward."""

    turn: str
    score: float | None = None
    hint: str | None = None
    edit: str | None = None
    source: Literal["explicit", "environment"] = "explicit"
    at: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        _finite(self.score, "score")
        if self.source == "explicit" and self.score is not None:
            _need(-1.0 <= self.score <= 1.0, "score", f"{self.score!r} is not in -1 .. 1")
        _need(any(part is not None for part in (self.score, self.hint, self.edit)), "score", "feedback says nothing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came after a turn. ``kind_reason`` says why it is main or side, ``confidence`` how sure that is.

    ``next_state`` is everything said after the reply and before the next one; ``ended`` says why nothing more
    will come (``done``, ``idle``, ``superseded`` ...), None while the thread went on.
    ``evidence`` are deterministic marks found while matching (``regenerated``, ``repeated_call`` ...).
    """

    turn: str
    session: str
    kind: Kind
    kind_reason: str
    index: int
    confidence: float = 1.0
    parent: str | None = None
    next_state: tuple[Message, ...] = ()
    ended: str | None = None
    evidence: tuple[str, ...] = ()
    at: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        _one_of(self.kind, Kind, "kind")
        _need(self.index >= 0, "index", f"{self.index!r} is below 0")
        _need(0.0 <= self.confidence <= 1.0, "confidence", f"{self.confidence!r} is not in 0 .. 1")
        _need(self.parent != self.turn, "parent", "a turn cannot follow itself")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """What would have made a reply better: a rule is distilled, a fact is kept, a complaint only scores.

    A ``vague`` rule says which way, not how far ("shorter").
    """

    text: str
    kind: HintKind = "rule"
    vague: bool = False

    def __post_init__(self) -> None:
        _one_of(self.kind, HintKind, "kind")
        _need(bool(self.text.strip()), "text", "a hint says something")


def rules(hints: Iterable[Hint]) -> tuple[str, ...]:
    """The texts of those that are rules."""
    return tuple(hint.text for hint in hints if hint.kind == "rule")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The judgement of one turn. ``score`` None is "no opinion"; 0 is "ambiguous, judged so"."""

    turn: str
    score: float | None
    source: Source
    votes: tuple[int | None, ...] = ()
    hints: tuple[Hint, ...] = ()
    judge: str = ""
    prompt_version: str | None = None
    seconds: float = 0.0
    note: str = ""
    at: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        _finite(self.score, "score")
        _one_of(self.source, Source, "source")
        _need(all(vote in (-1, 0, 1, None) for vote in self.votes), "votes", "a vote is +1, -1, 0 or None")

    @property
    def rules(self) -> tuple[str, ...]:
        """What the user asked for as far as it may be distilled, shortest first."""
        return rules(self.hints)

    @property
    def precise(self) -> bool:
        """Whether one of its rules says how far, not only which way."""
        return any(hint.kind == "rule" and not hint.vague for hint in self.hints)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One turn made ready for a training step. Built, never stored.

    ``mask[r]`` False keeps reply token r out of every loss. ``advantage`` is that of the policy-gradient term, None
    where it has no signal. ``teachers`` are the hinted prompts, one per hint, shortest hint first; the reply under them
    is the same.
    ``recalled`` is the earlier turn of the same user that the hints are of, None where they are of this one.
    ``urgency`` (0 .. 1) is how much there is left to learn from this user's rules.
    """

    turn: str
    user: str
    prompt: Prompt
    prompt_tokens: Tokens
    reply_tokens: Tokens
    logprobs: Logprobs
    mask: tuple[bool, ...]
    advantage: float | None
    teachers: tuple[Prompt, ...]
    temperature: float
    version: int
    group: str | None = None
    recalled: str | None = None
    urgency: float = 1.0

    def __post_init__(self) -> None:
        _tokens(self.prompt_tokens, "prompt_tokens")
        _tokens(self.reply_tokens, "reply_tokens")
        _need(len(self.prompt_tokens) > 0, "prompt_tokens", "a prompt has at least one token")
        _need(len(self.reply_tokens) > 0, "reply_tokens", "a reply has at least one token")
        _logprobs(self.logprobs, len(self.reply_tokens), "logprobs")
        _need(
            len(self.mask) == len(self.reply_tokens),
            "mask",
            f"{len(self.mask)} for {len(self.reply_tokens)} reply tokens",
        )
        _finite(self.advantage, "advantage")
        _need(self.advantage is not None or bool(self.teachers), "advantage", "a sample without any signal")
        _need(self.temperature >= 0.0, "temperature", f"{self.temperature!r} is below 0")


class Baseline(NamedTuple):
    """The moving average of a user's scores, which begins at 0, and how much of it is scores: 0 before the first."""

    mean: float = 0.0
    share: float = 0.0

    @classmethod
    def read(cls, written: float | Sequence[float]) -> Self:
        """From JSON; what was written without its share is taken as all scores."""
        return cls(written, 1.0) if isinstance(written, int | float) else cls(*written)

    def after(self, score: float, *, decay: float) -> Self:
        """With one score more."""
        return type(self)(decay * self.mean + (1 - decay) * score, decay * self.share + 1 - decay)

    @property
    def content(self) -> float:
        """How content the user has been of late, -1 .. 1; somebody of whom nothing is known is not yet."""
        return self.mean / self.share if self.share > 0 else -1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One optimiser step, or the decision to take none (``skipped`` says why); ``baselines`` are those after it.

    ``parts`` says, by turn, with what it took part: its advantage, how many hints taught, its lag, and
    the turn that these hints were recalled from.
    """

    number: int
    turns: tuple[str, ...]
    metrics: Mapping[str, float]
    seconds: float
    skipped: str | None = None
    baselines: Mapping[str, Baseline] = field(default_factory=dict)
    parts: Mapping[str, Mapping[str, float | str]] = field(default_factory=dict)
    at: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        _need(self.number >= 1, "number", f"{self.number!r} is below 1")
        _need(len(set(self.turns)) == len(self.turns), "turns", "a turn trains once")


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A policy by number. 0 is the base model; every other has a parent. An adapter is never changed in place."""

    number: int
    parent: int | None
    base: str
    adapter: str | None = None
    step: int | None = None
    state: VersionState = "candidate"
    note: str = ""
    at: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        _need(self.number >= 0, "number", f"{self.number!r} is below 0")
        _one_of(self.state, VersionState, "state")
        if self.number == 0:
            _need(self.parent is None and self.adapter is None, "parent", "version 0 is the base model")
        else:
            _need(self.parent is not None, "parent", f"version {self.number} needs a parent")
            _need(0 <= (self.parent or 0) < self.number, "parent", f"{self.parent!r} is not below {self.number}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """A turn that will not train, and why. ``stage`` is the loop that decided it."""

    turn: str
    stage: Literal["collect", "judge", "train"]
    reason: str
    detail: str = ""
    at: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A turn whose row in the ledger is there and cannot be decoded, and why."""

    turn: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """A session that its owner declared over."""

    session: str
    user: str
    at: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What an imported record says of a turn itself, so that nothing has to be found out.

    ``extra`` keeps the record's own form, so that an export gives it back unchanged.
    """

    turn: str
    session: str
    index: int
    kind: Kind
    next_state: tuple[Message, ...] = ()
    trainable: bool = True
    extra: Mapping[str, Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _one_of(self.kind, Kind, "kind")
        _need(self.index >= 0, "index", f"{self.index!r} is below 0")


def canonical(value: Json) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def texts(messages: Sequence[Message], role: Role) -> tuple[str, ...]:
    """What one role said, in order."""
    return tuple(message.content for message in messages if message.role == role)
