"""Requests to an engine and its answers, independent of the engine's own API."""

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
"""the constraint on a reply for the engine's guided decoding: a JSON schema, or a structural tag"""
EngineRequest: TypeAlias = tuple[str, Mapping[str, Any]]
"""a route and the JSON that is posted to it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateCall:
    """A request for one sampled reply. ``adapter`` is its name in the engine, None for the base model."""

    adapter: str | None
    prompt: Tokens
    sampling: Sampling
    limit: int
    ends: tuple[int, ...]
    scope: str
    guidance: Guidance | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCall:
    """A request for a reply to messages with images, which only the engine can tokenize."""

    adapter: str | None
    prompt: Prompt
    sampling: Sampling
    limit: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """Properties that an engine reports."""

    model: str
    """its name for the base model"""
    context: int | None
    """the maximum number of tokens in a prompt and its reply together"""
    version: str
    adapters: tuple[str, ...] = ()
    lora_rank: int | None = None
    """the maximum adapter rank; None if not reported"""
    sleeps: bool | None = None
    """True if it was started with sleep enabled; None if not reported"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """The parameters for starting an engine."""

    python: str
    folder: Path
    port: int
    dtype: str
    context: int | None
    max_batch: int
    lora_rank: int | None
    """the maximum adapter rank; None if versions are whole models"""
    lora_targets: tuple[str, ...]
    gpus: tuple[int, ...]
    memory: float | None
    """share of each GPU's memory"""
    cache_gib: int | None
    """memory for the KV cache on a CPU, in GiB"""
    sleeps: bool
    """True if the engine must be able to release its GPU memory temporarily"""
    flags: tuple[str, ...]


class Dialect(Protocol):
    """The routes and bodies of one engine. A malformed answer raises ValueError, which ends the request."""

    name: str
    package: str
    """the Python package that contains it"""
    oldest: tuple[int, int]
    """the first release that supports everything needed here"""
    generate_path: str
    chat_path: str
    score_path: str
    health_path: str

    def command(self, plan: LaunchPlan) -> list[str]:
        """Return the command line that starts the engine."""
        ...

    def generate_body(self, call: GenerateCall, facts: EngineFacts) -> dict[str, Any]: ...

    def chat_body(self, call: ChatCall, facts: EngineFacts) -> dict[str, Any]: ...

    def chunk(self, event: Mapping[str, Any], *, taken: int, temperature: float, top: int) -> TokenChunk:
        """Parse one event that follows ``taken`` tokens; with ``top`` 0, omit the likeliest tokens."""
        ...

    def score_body(self, prompt: Tokens, reply: Tokens, adapter: str | None, top: int, facts: EngineFacts) -> Any: ...

    def scores(self, answer: Any, *, reply: Tokens) -> tuple[tuple[float, ...], tuple[TopLogprobs, ...]]:
        """Return the reply's log-probs at temperature 1 and the likeliest tokens at each position."""
        ...

    def load_request(self, name: str, path: str) -> EngineRequest:
        """Return the route and the body that load an adapter."""
        ...

    def unload_request(self, name: str) -> EngineRequest: ...

    def loaded(self, answer: EngineAnswer) -> str | None:
        """Return the reason why an adapter was not loaded or unloaded; None on success."""
        ...

    control_path: str | None
    """a route that exists only if the engine can reload weights and sleep; None if it always can"""
    reload_remedy: str
    """the remedy for an engine that does not reload weights"""

    def reload_requests(self, path: str) -> Sequence[EngineRequest]:
        """Return the requests, in order, that reload weights from a folder and clear results cached with old ones."""
        ...

    def reloaded(self, answer: EngineAnswer) -> str | None:
        """Return the reason why a reload request failed; None on success."""
        ...

    sleep_request: EngineRequest
    """releases the engine's GPU memory"""
    wake_request: EngineRequest
    sleep_remedy: str
    """the remedy for an engine that does not sleep"""

    def forgot(self, answer: EngineAnswer) -> bool:
        """Return True if the engine refused a request because its adapter is unknown."""
        ...

    def facts(self, answers: Mapping[str, Any]) -> EngineFacts:
        """Build the facts from the answers to `fact_paths`."""
        ...

    fact_paths: Sequence[str]


def too_old(dialect: Dialect, version: str) -> str | None:
    """Return the reason why a release cannot be used; None if it can, or if its version is unknown."""
    match = re.match(r"v?(\d{1,9})\.(\d{1,9})", version)
    if match is None or (int(match[1]), int(match[2])) >= dialect.oldest:
        return None
    return f"{dialect.name} {version} is too old: {'.'.join(map(str, dialect.oldest))} or newer is needed"


def top_count(sampling: Sampling) -> int:
    """Return the number of log-probs that a request needs at each position."""
    return max(sampling.top_logprobs, 0 if sampling.temperature in (0.0, 1.0) else WIDE)


def chat_fields(prompt: Prompt, *, tool_choice: str) -> dict[str, Any]:
    """Return messages and tools in the OpenAI-compatible chat form; tool calls are parsed here, from the reply's text.

    ``tool_choice`` is the value that leaves the tools in the template and the reply unchanged.
    """
    fields: dict[str, Any] = {"messages": [_chat_message(message) for message in prompt.messages]}
    if prompt.tools and prompt.tool_choice != "none":
        functions = [
            {"name": t.name, "description": t.description, "parameters": dict(t.parameters)} for t in prompt.tools
        ]
        fields["tools"] = [{"type": "function", "function": function} for function in functions]
        fields["tool_choice"] = tool_choice
    if prompt.template:
        fields["chat_template_kwargs"] = dict(prompt.template)
    return fields


def _chat_message(message: Message) -> dict[str, Any]:
    images = [{"type": "image_url", "image_url": {"url": url}} for url in message.images]
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    if images:
        fields["content"] = [*images, *([{"type": "text", "text": message.content}] if message.content else [])]
    if message.tool_calls:
        fields["tool_calls"] = [
            {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    return fields
