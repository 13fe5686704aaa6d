"""The policy: who answers, scores and tokenises; what more a backend may be able to do."""

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
    """The next bit of a reply as it streams: raw text as the model wrote it, and the tokens it came from.

    Text is held back while it may be the beginning of a stop string or half a character, so ``pieces`` may run ahead.
    """

    text: str
    pieces: tuple[Piece, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Log-probs of given reply tokens `[R]` under one version, and the k best tokens at each position `[R][k]`."""

    logprobs: Logprobs
    top_tokens: tuple[Tokens, ...] = ()
    top_logprobs: tuple[Logprobs, ...] = ()


Stream: TypeAlias = AsyncIterator[Delta | Completion]
"""Any number of `Delta`, then exactly one `Completion`, whose reply is the raw text as one assistant message."""


async def whole_reply(stream: Stream) -> Completion:
    """The completion that a stream ends with."""
    done: Completion | None = None
    async for item in stream:
        if isinstance(item, Completion):
            done = item
    assert done is not None, "a stream ends with its completion"
    return done


@runtime_checkable
class Policy(Protocol):
    """Weights that answer. All methods may be called at once from one event loop."""

    name: str
    """the model id that clients see"""
    base: str
    """the identity of the base weights, written into each version"""
    context: int
    """the most tokens that a prompt and its reply may have together"""
    tool_format: str
    """how this model writes tool calls: hermes, llama, pythonic, harmony or none"""

    @property
    def live(self) -> int:
        """The number of the version that new requests take."""
        ...

    async def start(self) -> None:
        """Make ready to answer; raises ModelRefused with the numbers and the remedy."""
        ...

    async def stop(self) -> None:
        """End what runs, give memory back. Safe to call twice."""
        ...

    def generate(self, prompt: Prompt, sampling: Sampling, *, version: int | None = None) -> Stream:
        """Stream a reply of ``version`` (None: the live one, 0: the base model). Closing it early stops generation.

        Raises ContextOverflow for a request that can never fit, BackendDown while it cannot answer for now.
        """
        ...

    async def encode(self, prompt: Prompt) -> Tokens:
        """The prompt's ids through the chat template, ready for a reply."""
        ...

    async def tokenize(self, text: str) -> Tokens:
        """The ids of a reply's bare text followed by the end-of-turn token (for imports only)."""
        ...

    async def decode(self, tokens: Tokens) -> str:
        """The text of ids, special tokens kept."""
        ...

    async def score(
        self, prompt: Tokens, reply: Tokens, *, version: int | None = None, temperature: float = 1.0, top_k: int = 0
    ) -> Scores:
        """Log-probs of a given reply after given prompt ids; ``version`` 0 is the base model."""
        ...

    async def load(self, version: Version) -> None:
        """Load ``version`` beside the running one and make it live. Requests in flight keep theirs."""
        ...


@runtime_checkable
class SupportsVersions(Protocol):
    """A policy that answers for any version by its number, not only for the live one."""

    def know(self, version: Version) -> None:
        """Make ``version`` known without loading it: it is loaded with the first request for it."""
        ...


@runtime_checkable
class SupportsCandidates(Protocol):
    """A policy that can hold a candidate beside the live version, so that the gate can examine it."""

    async def admit(self, version: Version) -> None:
        """Load ``version`` and keep it, without making it live; its requests give way to users'.

        Raises ModelRefused when its weights are damaged, another BackendError when it cannot be had for now.
        """
        ...

    async def dismiss(self, number: int) -> None:
        """Let an admitted version go. Safe to call for one that is not there."""
        ...


@runtime_checkable
class SupportsSleep(Protocol):
    """A policy whose engine can give its GPU memory away for a while."""

    def asleep(self) -> AbstractAsyncContextManager[None]:
        """Its memory is free inside. Requests under way end first, those that come meanwhile wait; none fails."""
        ...


@runtime_checkable
class SupportsScopes(Protocol):
    """A policy with a prefix cache that can be kept apart by scope."""

    def scoped(self, scope: str) -> Policy:
        """The same policy for one scope: no prefix of another scope is reused, so its speed reveals nothing."""
        ...


@runtime_checkable
class ReportsHealth(Protocol):
    """A policy whose engine has metrics."""

    @property
    def health(self) -> Mapping[str, Any]:
        """The state of the engine; its numbers are shown at /metrics."""
        ...


@runtime_checkable
class ReportsOutage(Protocol):
    """A policy that can be down for good."""

    @property
    def outage(self) -> str | None:
        """Why it cannot answer, and will not soon; None while it answers or restarts."""
        ...


@runtime_checkable
class ReportsRunner(Protocol):
    """A policy or a trainer that runs different models in different ways."""

    @property
    def runner(self) -> str | None:
        """How it runs this one, in words; None where that is not known yet."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFinding:
    """One thing that was found out about an engine, and what to do where it is not fine."""

    fine: bool
    what: str
    remedy: str = ""


@runtime_checkable
class SupportsExamination(Protocol):
    """A policy whose engine can be examined without starting anything."""

    async def examine(self) -> Sequence[EngineFinding]:
        """What is to be said of the engine that it would use."""
        ...


Ability: TypeAlias = Literal["opening", "tool_choice", "json_schema", "strict_tools"]


@runtime_checkable
class SupportsConstraints(Protocol):
    """A policy that can constrain a reply; one that does not declare it gets no such request.

    opening: the prompt's tokens end with `Prompt.opening` and the reply goes on from there. tool_choice: it enforces
    "required" and a named tool. json_schema: it enforces `Sampling.json_schema`. strict_tools: a call that the model
    begins of itself keeps to the tools' schemas where one of them is ``strict``.
    """

    abilities: frozenset[Ability]


class Generate(Protocol):
    """Stands between the API and the policy: ``(policy, prompt, sampling, *, version) -> Stream``."""

    def __call__(self, policy: Policy, prompt: Prompt, sampling: Sampling, *, version: int | None) -> Stream: ...
