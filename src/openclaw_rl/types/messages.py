"""The policy's input and output: messages, prompts, sampling parameters, completions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias, get_args

from openclaw_rl.errors import InvalidValue

# Checks on construction. Each raises InvalidValue, which names the field.

Tokens: TypeAlias = tuple[int, ...]
Logprobs: TypeAlias = tuple[float, ...]

LONGEST_NAME: Final = 1_000
"""longest name in bytes: an index row in PostgreSQL has 2,704, and contains a session's name and its user's"""


def need(ok: bool, field_name: str, what: str) -> None:
    if not ok:
        raise InvalidValue(field_name, what)


def need_one_of(value: str, choices: Any, field_name: str) -> None:
    names = get_args(choices)
    need(value in names, field_name, f"{value!r} is none of {', '.join(names)}")


def need_text(text: str, field_name: str) -> None:
    """Raise InvalidValue for a lone surrogate, which has no UTF-8 bytes and which no store accepts."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidValue(field_name, "the text holds half a character (a lone surrogate)") from None


def need_name(name: str, field_name: str) -> None:
    need_text(name, field_name)
    length = len(name.encode())
    need(length <= LONGEST_NAME, field_name, f"a name of {length} bytes; at most {LONGEST_NAME} can be looked up")


def need_tokens(ids: Tokens, field_name: str) -> None:
    need(isinstance(ids, tuple), field_name, "must be a tuple of token ids")
    if ids:
        need(set(map(type, ids)) == {int}, field_name, "token ids must be plain integers")
        need(min(ids) >= 0 and max(ids) < 2**32, field_name, "token ids must lie in 0 .. 2**32 - 1")


def need_logprobs(values: Logprobs, length: int, field_name: str) -> None:
    need(isinstance(values, tuple), field_name, "must be a tuple of log-probs")
    need(len(values) == length, field_name, f"{len(values)} log-probs for {length} reply tokens")
    need(all(-math.inf < value <= 0.0 for value in values), field_name, "a log-prob must be finite and at most 0")


def need_finite(value: float | None, field_name: str) -> None:
    need(value is None or math.isfinite(value), field_name, f"{value!r} is not a finite number")


Json: TypeAlias = Any

Role = Literal["system", "user", "assistant", "tool"]
Finish = Literal["stop", "length", "tool_calls", "aborted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool call in a reply; ``arguments`` is the JSON text exactly as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message in a conversation. ``images`` are data URLs, in order, placed before the text."""

    role: Role
    content: str = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    images: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        need_one_of(self.role, Role, "role")
        need(isinstance(self.content, str), "content", "must be text")
        need(not self.tool_calls or self.role == "assistant", "tool_calls", f"a {self.role} message cannot call tools")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the model may call.

    ``parameters`` is its JSON schema; with ``strict``, every call must conform to it.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Json] = field(default_factory=dict)
    strict: bool = False

    def __post_init__(self) -> None:
        need(bool(self.name), "name", "a tool needs a name")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A request to the policy: messages, the tools that it may call, and how it may call them.

    ``tool_choice`` is auto, none, required or a tool's name (``"name:NAME"``).
    ``template`` contains extra keyword arguments for the model's chat template. ``opening`` is a forced beginning of
    the reply: it ends the prompt's tokens, so none of its tokens is sampled or trained.
    """

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: str = "auto"
    template: Mapping[str, Json] = field(default_factory=dict)
    opening: str = ""

    def __post_init__(self) -> None:
        need(len(self.messages) > 0, "messages", "a prompt needs at least one message")

    def hinted(self, hint: str) -> Prompt:
        """Return the prompt with ``hint`` after its last user message, for the teacher and for standing notes.

        The place is the same if tool results follow: the messages before them stay as they were when the calls were
        made. In a prompt without a user message, the hint becomes one at the end.
        """
        messages = list(self.messages)
        for at in range(len(messages) - 1, -1, -1):
            if messages[at].role == "user":
                old = messages[at]
                messages[at] = replace(old, content=f"{old.content}\n\n{hint}" if old.content.strip() else hint)
                break
        else:
            messages.append(Message(role="user", content=hint))
        return replace(self, messages=tuple(messages))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """A reply's sampling parameters. ``max_tokens`` None: as many as fit the context.

    With ``dry_multiplier`` above 0, a token that continues a repeat of two tokens or more loses this much logit, and
    more for a longer repeat (the DRY penalty); a reply that may call tools or must follow a schema is exempt.
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
        need(0.0 <= self.temperature <= 100.0, "temperature", f"{self.temperature!r} is not in 0 .. 100")
        need(0.0 < self.top_p <= 1.0, "top_p", f"{self.top_p!r} is not in (0, 1]")
        need(self.top_k >= 0, "top_k", f"{self.top_k!r} is below 0")
        need(0.0 <= self.min_p <= 1.0, "min_p", f"{self.min_p!r} is not in 0 .. 1")
        need(self.max_tokens is None or self.max_tokens >= 1, "max_tokens", f"{self.max_tokens!r} is below 1")
        need(self.repetition_penalty > 0, "repetition_penalty", f"{self.repetition_penalty!r} is not above 0")
        need(self.dry_multiplier >= 0, "dry_multiplier", f"{self.dry_multiplier!r} is below 0")
        need(0 <= self.top_logprobs <= 64, "top_logprobs", f"{self.top_logprobs!r} is not in 0 .. 64")

    @property
    def greedy(self) -> bool:
        """True if sampling is deterministic, so that there is no exploration to learn from."""
        return self.temperature == 0.0 or self.top_k == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A reply with the exact tokens that were sampled, including the stop token if one was sampled.

    ``logprobs`` are log-softmax values over the whole vocabulary of the logits divided by the sampling temperature (by
    1 where that is 0), before top-p, top-k, penalties and formats: the behaviour policy of `losses.methods`.
    ``allowed`` is the log of the probability mass that a format allowed at each token: a token was sampled with
    log-prob ``logprobs - allowed``, and with 0 where it was the only allowed one. None: the reply was unconstrained, or
    the engine does not report it.
    ``scored`` is True if the log-probs were computed afterwards (an import), not recorded while sampling.
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
    allowed: Logprobs | None = None

    def __post_init__(self) -> None:
        need(self.reply.role == "assistant", "reply", f"the reply's role is {self.reply.role!r}, not 'assistant'")
        need_tokens(self.prompt_tokens, "prompt_tokens")
        need_tokens(self.reply_tokens, "reply_tokens")
        need(len(self.prompt_tokens) > 0, "prompt_tokens", "a prompt has at least one token")
        need_logprobs(self.logprobs, len(self.reply_tokens), "logprobs")
        if self.allowed is not None:
            need_logprobs(self.allowed, len(self.reply_tokens), "allowed")
        need_one_of(self.finish, Finish, "finish")
        need(self.version >= 0, "version", f"{self.version!r} is below 0")


def texts(messages: Sequence[Message], role: Role) -> tuple[str, ...]:
    """Return the contents of all messages with this role, in order."""
    return tuple(message.content for message in messages if message.role == role)


def canonical(value: Json) -> str:
    """Return JSON with sorted keys and no spaces: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
