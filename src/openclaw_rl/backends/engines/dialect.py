"""What an engine is to be asked and what it answers, whatever words it uses for that."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from openclaw_rl.backends.engines.http import EngineAnswer
from openclaw_rl.types import Message, Prompt, Sampling, Tokens

TopLogprobs: TypeAlias = tuple[tuple[int, float], ...]
"""tokens that could have been sampled at one position, with their log-probs, the likeliest first"""
Guidance: TypeAlias = tuple[Literal["json", "structural_tag"], Mapping[str, Any]]
"""what the engine's guided decoding holds a reply to: a JSON schema, or a structural tag"""
Ending: TypeAlias = Literal["stop", "length"]

WIDE = 20
"""how many log-probs at a position are asked for where those of another temperature are made of them"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateCall:
    """One reply to be sampled. ``adapter`` is the name under which the engine holds it, None for the base model."""

    adapter: str | None
    prompt: Tokens
    sampling: Sampling
    limit: int
    ends: tuple[int, ...]
    scope: str
    guidance: Guidance | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCall:
    """A reply to messages with images, which only the engine itself can make tokens of."""

    adapter: str | None
    prompt: Prompt
    sampling: Sampling
    limit: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenChunk:
    """Tokens `[N]` of a reply as they came: log-probs as API clients see them and those of the sampling temperature."""

    tokens: Tokens = ()
    logprobs: tuple[float, ...] = ()
    tempered: tuple[float, ...] = ()
    tops: tuple[TopLogprobs, ...] = ()
    prompt: Tokens | None = None
    """the prompt's tokens, where the engine made them"""
    ending: Ending | None = None
    """how the engine says the reply ended; None while it goes on, and where the engine gave it up"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What an engine says of itself."""

    model: str
    """its name for the base model"""
    context: int | None
    """the most tokens of a prompt and its reply"""
    version: str
    adapters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """How an engine is to be started."""

    python: str
    folder: Path
    port: int
    dtype: str
    context: int | None
    max_batch: int
    lora_rank: int
    lora_targets: tuple[str, ...]
    gpus: tuple[int, ...]
    memory: float | None
    """share of each GPU's memory"""
    cache_gib: int | None
    """memory for the KV cache on a CPU"""
    flags: tuple[str, ...]


class Dialect(Protocol):
    """The routes and bodies of one engine. A wrong answer raises ValueError, which ends the request."""

    name: str
    package: str
    """the Python package that it comes in"""
    generate_path: str
    chat_path: str
    score_path: str
    health_path: str

    def command(self, plan: LaunchPlan) -> list[str]:
        """The command line that starts it."""
        ...

    def generate_body(self, call: GenerateCall, facts: EngineFacts) -> dict[str, Any]: ...

    def chat_body(self, call: ChatCall, facts: EngineFacts) -> dict[str, Any]: ...

    def chunk(self, event: Mapping[str, Any], *, taken: int, temperature: float) -> TokenChunk:
        """What one event brings, where ``taken`` tokens came before it."""
        ...

    def score_body(self, prompt: Tokens, reply: Tokens, adapter: str | None, top: int, facts: EngineFacts) -> Any: ...

    def scores(self, answer: Any, *, reply: Tokens) -> tuple[tuple[float, ...], tuple[TopLogprobs, ...]]:
        """Log-probs of the reply at temperature 1 and the likeliest tokens at each position."""
        ...

    def load_request(self, name: str, path: str) -> tuple[str, dict[str, Any]]:
        """The route and the body that load an adapter."""
        ...

    def unload_request(self, name: str) -> tuple[str, dict[str, Any]]: ...

    def loaded(self, answer: EngineAnswer) -> str | None:
        """Why an adapter was not loaded or unloaded; None where it was."""
        ...

    def forgot(self, answer: EngineAnswer) -> bool:
        """Whether a request was refused because the engine does not know its adapter."""
        ...

    def facts(self, answers: Mapping[str, Any]) -> EngineFacts:
        """From what `fact_paths` answered."""
        ...

    fact_paths: Sequence[str]


def tempered(value: float, top: TopLogprobs, temperature: float) -> float:
    """The log-prob at another temperature of a token whose log-prob at 1 is ``value``.

    The normaliser is summed over the likeliest tokens; for the rest it takes what they can add: each is at most as
    likely as the last that is known, which bounds them from above below temperature 1 and from below above it.
    """
    if temperature in (0.0, 1.0):
        return value
    power = 1.0 / temperature
    known = [logprob for _, logprob in top]
    total = sum(math.exp(logprob * power) for logprob in known)
    left = max(0.0, 1.0 - sum(math.exp(logprob) for logprob in known))
    if left and known:
        total += left * math.exp(min(known) * (power - 1.0)) * (0.5 if power > 1.0 else 1.0)
    return min(0.0, value * power - math.log(total)) if total > 0 else value


def top_count(sampling: Sampling) -> int:
    """How many log-probs at each position a request needs."""
    return max(sampling.top_logprobs, 0 if sampling.temperature in (0.0, 1.0) else WIDE)


def in_order(found: Mapping[int, float]) -> TopLogprobs:
    """The likeliest first."""
    return tuple(sorted(found.items(), key=lambda item: -item[1]))


def chat_fields(prompt: Prompt) -> dict[str, Any]:
    """Messages and tools as an OpenAI-compatible chat takes them; what the reply calls is read by us, from its text."""
    made: dict[str, Any] = {"messages": [_chat_message(message) for message in prompt.messages]}
    if prompt.tools and prompt.tool_choice != "none":
        functions = [
            {"name": t.name, "description": t.description, "parameters": dict(t.parameters)} for t in prompt.tools
        ]
        made["tools"] = [{"type": "function", "function": function} for function in functions]
        made["tool_choice"] = "none"
    if prompt.template:
        made["chat_template_kwargs"] = dict(prompt.template)
    return made


def _chat_message(message: Message) -> dict[str, Any]:
    images = [{"type": "image_url", "image_url": {"url": url}} for url in message.images]
    made: dict[str, Any] = {"role": message.role, "content": message.content}
    if images:
        made["content"] = [*images, *([{"type": "text", "text": message.content}] if message.content else [])]
    if message.tool_calls:
        made["tool_calls"] = [
            {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        made["tool_call_id"] = message.tool_call_id
    return made
