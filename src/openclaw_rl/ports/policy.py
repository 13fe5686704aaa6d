"""The policy, which answers, scores and tokenises; and a backend's optional abilities."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from openclaw_rl.types import Completion, Logprobs, Prompt, Sampling, Tokens, Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A token that could have been sampled at a position, with its raw log-prob."""

    token: int
    text: str
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One sampled token: its own text and its raw log-prob (temperature 1), as API clients expect them."""

    token: int
    text: str
    logprob: float
    top: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """The next part of a streaming reply: raw text as the model wrote it, and its tokens.

    Text is held back while it may be the beginning of a stop string or a partial character, so ``pieces`` may run
    ahead.
    """

    text: str
    pieces: tuple[Piece, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Log-probs of a reply's tokens `[R]` under one version, and the k best tokens at each position `[R][k]`."""

    logprobs: Logprobs
    top_tokens: tuple[Tokens, ...] = ()
    top_logprobs: tuple[Logprobs, ...] = ()


Stream: TypeAlias = AsyncIterator[Delta | Completion]
"""Any number of `Delta`, then exactly one `Completion`, whose reply is the raw text as one assistant message."""


async def whole_reply(stream: Stream) -> Completion:
    """Read a stream to its end and return its completion."""
    completion: Completion | None = None
    async for item in stream:
        if isinstance(item, Completion):
            completion = item
    assert completion is not None, "a stream ends with its completion"
    return completion


@runtime_checkable
class Policy(Protocol):
    """Weights that answer. All methods may be called concurrently from one event loop."""

    name: str
    """the model id for clients"""
    base: str
    """the base weights' identity, written into each version"""
    context: int
    """the limit of a prompt and its reply together, in tokens"""
    tool_format: str
    """this model's tool-call format: hermes, llama, pythonic, harmony or none"""

    @property
    def live(self) -> int:
        """The number of the version that new requests use."""
        ...

    async def start(self) -> None:
        """Get ready to answer; raise ModelRefused with the numbers and the remedy."""
        ...

    async def stop(self) -> None:
        """End all work and release the memory. Safe to call twice."""
        ...

    def generate(self, prompt: Prompt, sampling: Sampling, *, version: int | None = None) -> Stream:
        """Stream a reply from ``version`` (None: the live one, 0: the base model). Closing it early stops generation.

        Raises ContextOverflow for a request that can never fit, BackendDown while temporarily unavailable.
        """
        ...

    async def encode(self, prompt: Prompt) -> Tokens:
        """Return the prompt's ids through the chat template, ready for a reply."""
        ...

    async def tokenize(self, text: str) -> Tokens:
        """Return the ids of a reply's bare text followed by the end-of-turn token (for imports only)."""
        ...

    async def decode(self, tokens: Tokens) -> str:
        """Return the text of ids, special tokens kept."""
        ...

    async def score(
        self, prompt: Tokens, reply: Tokens, *, version: int | None = None, temperature: float = 1.0, top_k: int = 0
    ) -> Scores:
        """Return log-probs of a reply's ids after a prompt's ids; ``version`` 0 is the base model."""
        ...

    async def load(self, version: Version) -> None:
        """Load ``version`` beside the running one and make it live. Requests in flight keep theirs."""
        ...


@runtime_checkable
class SupportsVersions(Protocol):
    """A policy that answers for any version by its number, not only for the live one."""

    def know(self, version: Version) -> None:
        """Register ``version`` without loading it: the first request for it loads it."""
        ...


@runtime_checkable
class SupportsCandidates(Protocol):
    """A policy that can hold a candidate beside the live version, so that the gate can examine it."""

    async def admit(self, version: Version) -> None:
        """Load ``version`` and keep it without making it live; users' requests run before its own.

        Raises ModelRefused if its weights are damaged, another BackendError if it is temporarily unavailable.
        """
        ...

    async def dismiss(self, number: int) -> None:
        """Unload an admitted version. Safe to call for a version that is not loaded."""
        ...


@runtime_checkable
class SupportsSleep(Protocol):
    """A policy whose engine can release its GPU memory for a while."""

    def asleep(self) -> AbstractAsyncContextManager[None]:
        """Release the engine's memory inside the block.

        Requests under way end first, new ones wait until the block ends; none fails.
        """
        ...


@runtime_checkable
class SupportsScopes(Protocol):
    """A policy with a prefix cache that can be separated by scope."""

    def scoped(self, scope: str) -> Policy:
        """Return the policy for one scope: it reuses no prefix from another scope, so its speed reveals nothing."""
        ...


@runtime_checkable
class ReportsHealth(Protocol):
    """A policy whose engine has metrics."""

    @property
    def health(self) -> Mapping[str, Any]:
        """The engine's state; its numbers are shown at /metrics."""
        ...


@runtime_checkable
class ReportsOutage(Protocol):
    """A policy that can be down for good."""

    @property
    def outage(self) -> str | None:
        """The reason why it cannot answer, and will not soon; None while it answers or restarts."""
        ...


@runtime_checkable
class ReportsRunner(Protocol):
    """A policy or a trainer that runs different models in different ways."""

    @property
    def runner(self) -> str | None:
        """A description of how it runs this model; None while unknown."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFinding:
    """A finding about an engine, with a remedy if it is not fine."""

    fine: bool
    what: str
    remedy: str = ""


@runtime_checkable
class SupportsExamination(Protocol):
    """A policy whose engine can be examined without starting anything."""

    async def examine(self) -> Sequence[EngineFinding]:
        """Return the findings about the engine that it would use."""
        ...


Ability: TypeAlias = Literal["opening", "tool_choice", "json_schema", "strict_tools"]


@runtime_checkable
class SupportsConstraints(Protocol):
    """A policy that can constrain a reply; a policy without this declaration receives no such request.

    opening: the prompt's tokens end with `Prompt.opening` and the reply continues from there. tool_choice: it enforces
    "required" and a named tool. json_schema: it enforces `Sampling.json_schema`. strict_tools: a call that the model
    begins on its own follows the tools' schemas if one of them is ``strict``.
    """

    abilities: frozenset[Ability]


class Generate(Protocol):
    """A layer between the API and the policy: ``(policy, prompt, sampling, *, version) -> Stream``."""

    def __call__(self, policy: Policy, prompt: Prompt, sampling: Sampling, *, version: int | None) -> Stream: ...
