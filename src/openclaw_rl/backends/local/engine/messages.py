"""Messages between the policy and its engine process. Plain values, so that they can be pickled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openclaw_rl.errors import BackendDown, BackendError, ContextOverflow, ModelRefused, OpenClawError, RequestError
from openclaw_rl.ports import Delta, Scores
from openclaw_rl.types import Finish, Logprobs, Prompt, Sampling, Tokens

# Events of the engine's jobs. Plain values: they are sent between processes and need no torch.


@dataclass(frozen=True, slots=True)
class TokenDelta:
    """The next bit of a reply."""

    job: int
    delta: Delta


@dataclass(frozen=True, slots=True)
class Finished:
    """A reply that is over: its text, the tokens `[R]` as sampled, their log-probs `[R]`, and what a format left of the
    distribution at each `[R]`."""

    job: int
    text: str
    prompt: Tokens
    tokens: Tokens
    logprobs: Logprobs
    finish: Finish
    version: int
    allowed: Logprobs | None = None


@dataclass(frozen=True, slots=True)
class ScoreFinished:
    """The answer to a score."""

    job: int
    scores: Scores


@dataclass(frozen=True, slots=True)
class JobFailed:
    """A job that could not be done."""

    job: int
    error: OpenClawError


JobEvent = TokenDelta | Finished | ScoreFinished | JobFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineArgs:
    """All that an engine process needs to start: settings of `policy` under their own names.

    ``context`` None is the model's own, cut to what the cache holds; ``cache_tokens`` None is chosen from free memory;
    ``chat_template``, ``tool_format`` and ``name`` None are the model's own. ``process`` is what `ps` shows.
    """

    model: str
    cache_dir: str | Path
    device: str
    dtype: str
    context: int | None
    max_batch: int
    cache_tokens: int | None
    chat_template: str | None
    tool_format: str | None
    name: str | None = None
    process: str = "openclaw-engine"


@dataclass(frozen=True, slots=True)
class EncodeRequest:
    id: int
    prompt: Prompt


@dataclass(frozen=True, slots=True)
class TokenizeRequest:
    id: int
    text: str


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    id: int
    tokens: Tokens


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Generate a reply of one version."""

    id: int
    prompt: Prompt
    sampling: Sampling
    version: int
    scope: str = ""


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    id: int
    prompt: Tokens
    reply: Tokens
    version: int
    temperature: float
    top_k: int
    scope: str = ""


@dataclass(frozen=True, slots=True)
class RegisterVersions:
    """Versions by number and where they lie; None is the base model."""

    adapters: Mapping[int, str | None]


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """Load a known version and make it live."""

    id: int
    version: int


@dataclass(frozen=True, slots=True)
class AdmitRequest:
    """Load a known version beside the live one and keep it until it is dismissed."""

    id: int
    version: int


@dataclass(frozen=True, slots=True)
class DismissRequest:
    """Keep an admitted version no longer."""

    version: int


@dataclass(frozen=True, slots=True)
class CancelRequest:
    id: int


@dataclass(frozen=True, slots=True)
class StopRequest:
    """End the process."""


EngineRequest = (
    EncodeRequest
    | TokenizeRequest
    | DecodeRequest
    | GenerateRequest
    | ScoreRequest
    | RegisterVersions
    | LoadRequest
    | AdmitRequest
    | DismissRequest
    | CancelRequest
    | StopRequest
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReady:
    """The model is loaded; ``memory`` are the bytes of its weights and of the KV cache."""

    name: str
    base: str
    context: int
    tool_format: str
    device: str
    dtype: str
    cache_tokens: int
    memory: int
    runner: str
    """how the model is run, in words"""


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """A line for a person who waits."""

    text: str


@dataclass(frozen=True, slots=True)
class CallResult:
    """The value of an `EncodeRequest`, `TokenizeRequest`, `DecodeRequest` or `LoadRequest`."""

    id: int
    value: Any


@dataclass(frozen=True, slots=True)
class EngineFailure:
    """An error that can be pickled. ``id`` None: the process cannot go on."""

    id: int | None
    kind: str
    what: str
    remedy: str | None = None
    field: str | None = None
    status: int = 400
    limit: int = 0
    asked: int = 0

    @classmethod
    def of(cls, id: int | None, error: BaseException) -> EngineFailure:
        if isinstance(error, ContextOverflow):
            return cls(id, "overflow", error.what, limit=error.limit, asked=error.asked)
        if isinstance(error, RequestError):
            return cls(id, "request", error.what, error.remedy, error.field, error.status)
        kind = "refused" if isinstance(error, ModelRefused) else "backend"
        if isinstance(error, OpenClawError):
            return cls(id, kind, error.what, error.remedy)
        return cls(id, kind, f"{type(error).__name__}: {error}")

    def error(self) -> OpenClawError:
        """The error again."""
        if self.kind == "overflow":
            return ContextOverflow(limit=self.limit, asked=self.asked)
        if self.kind == "request":
            return RequestError(self.what, field=self.field, remedy=self.remedy, status=self.status)
        if self.kind == "refused":
            return ModelRefused(self.what, remedy=self.remedy)
        kind = BackendDown if self.kind == "down" else BackendError
        return kind(self.what, remedy=self.remedy)


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """What the engine did since the last one, and its figures."""

    events: tuple[TokenDelta | Finished | ScoreFinished, ...]
    stats: Mapping[str, int]


EngineMessage = EngineReady | LoadProgress | CallResult | EngineFailure | EngineOutput
