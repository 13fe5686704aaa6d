"""What an engine is to be asked and what it answers, whatever words it uses for that."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from openclaw_rl.backends.engines.http import EngineAnswer
from openclaw_rl.backends.hf.detokenizer import WIDE, TokenChunk, TopLogprobs
from openclaw_rl.types import Message, Prompt, Sampling, Tokens

Guidance: TypeAlias = tuple[Literal["json", "structural_tag"], Mapping[str, Any]]
"""what the engine's guided decoding holds a reply to: a JSON schema, or a structural tag"""
EngineRequest: TypeAlias = tuple[str, Mapping[str, Any]]
"""a route and the JSON that is posted to it"""


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
class EngineFacts:
    """What an engine says of itself."""

    model: str
    """its name for the base model"""
    context: int | None
    """the most tokens of a prompt and its reply"""
    version: str
    adapters: tuple[str, ...] = ()
    lora_rank: int | None = None
    """the highest rank of an adapter, where it says so"""
    sleeps: bool | None = None
    """whether it was started so that it can sleep, where it says so"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """How an engine is to be started."""

    python: str
    folder: Path
    port: int
    dtype: str
    context: int | None
    max_batch: int
    lora_rank: int | None
    """the highest rank of an adapter; None where versions are whole models"""
    lora_targets: tuple[str, ...]
    gpus: tuple[int, ...]
    memory: float | None
    """share of each GPU's memory"""
    cache_gib: int | None
    """memory for the KV cache on a CPU"""
    sleeps: bool
    """whether it is to give its GPU memory away now and then"""
    flags: tuple[str, ...]


class Dialect(Protocol):
    """The routes and bodies of one engine. A wrong answer raises ValueError, which ends the request."""

    name: str
    package: str
    """the Python package that it comes in"""
    oldest: tuple[int, int]
    """the first release that gives and takes all that is needed"""
    generate_path: str
    chat_path: str
    score_path: str
    health_path: str

    def command(self, plan: LaunchPlan) -> list[str]:
        """The command line that starts it."""
        ...

    def generate_body(self, call: GenerateCall, facts: EngineFacts) -> dict[str, Any]: ...

    def chat_body(self, call: ChatCall, facts: EngineFacts) -> dict[str, Any]: ...

    def chunk(self, event: Mapping[str, Any], *, taken: int, temperature: float, top: int) -> TokenChunk:
        """What one event brings, where ``taken`` tokens came before it; ``top`` 0: the likeliest are not wanted."""
        ...

    def score_body(self, prompt: Tokens, reply: Tokens, adapter: str | None, top: int, facts: EngineFacts) -> Any: ...

    def scores(self, answer: Any, *, reply: Tokens) -> tuple[tuple[float, ...], tuple[TopLogprobs, ...]]:
        """Log-probs of the reply at temperature 1 and the likeliest tokens at each position."""
        ...

    def load_request(self, name: str, path: str) -> EngineRequest:
        """The route and the body that load an adapter."""
        ...

    def unload_request(self, name: str) -> EngineRequest: ...

    def loaded(self, answer: EngineAnswer) -> str | None:
        """Why an adapter was not loaded or unloaded; None where it was."""
        ...

    control_path: str | None
    """a route that is there only where it reads other weights and sleeps; None: it always does"""
    reload_remedy: str
    """what lets an engine read other weights, where it does not"""

    def reload_requests(self, path: str) -> Sequence[EngineRequest]:
        """What makes it read the weights in a folder, in order, and forget what it computed with the old ones."""
        ...

    def reloaded(self, answer: EngineAnswer) -> str | None:
        """Why one of them failed; None where it did not."""
        ...

    sleep_request: EngineRequest
    """gives its GPU memory away"""
    wake_request: EngineRequest
    sleep_remedy: str
    """what lets it sleep, where it does not"""

    def forgot(self, answer: EngineAnswer) -> bool:
        """Whether a request was refused because the engine does not know its adapter."""
        ...

    def facts(self, answers: Mapping[str, Any]) -> EngineFacts:
        """From what `fact_paths` answered."""
        ...

    fact_paths: Sequence[str]


def too_old(dialect: Dialect, version: str) -> str | None:
    """Why a release cannot be used; None where it can, or does not say which it is."""
    found = re.match(r"v?(\d{1,9})\.(\d{1,9})", version)
    if found is None or (int(found[1]), int(found[2])) >= dialect.oldest:
        return None
    return f"{dialect.name} {version} is too old: {'.'.join(map(str, dialect.oldest))} or newer is needed"


def top_count(sampling: Sampling) -> int:
    """How many log-probs at each position a request needs."""
    return max(sampling.top_logprobs, 0 if sampling.temperature in (0.0, 1.0) else WIDE)


def chat_fields(prompt: Prompt, *, tool_choice: str) -> dict[str, Any]:
    """Messages and tools as an OpenAI-compatible chat takes them; what the reply calls is read by us, from its text.

    ``tool_choice`` is what leaves the template the tools and the reply as it is.
    """
    made: dict[str, Any] = {"messages": [_chat_message(message) for message in prompt.messages]}
    if prompt.tools and prompt.tool_choice != "none":
        functions = [
            {"name": t.name, "description": t.description, "parameters": dict(t.parameters)} for t in prompt.tools
        ]
        made["tools"] = [{"type": "function", "function": function} for function in functions]
        made["tool_choice"] = tool_choice
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
