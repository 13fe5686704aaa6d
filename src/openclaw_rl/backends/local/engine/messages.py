"""Messages between the policy and its engine process: plain values that can be pickled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openclaw_rl.errors import BackendDown, BackendError, ContextOverflow, ModelRefused, OpenClawError, RequestError
from openclaw_rl.ports import Delta, Scores
from openclaw_rl.types import Finish, Logprobs, Prompt, Sampling, Tokens

# Job events: plain values, sent between processes without torch.


@dataclass(frozen=True, slots=True)
class TokenDelta:
    """A reply's next part."""

    job: int
    delta: Delta


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished reply: its text, sampled tokens `[R]`, their log-probs `[R]`, and the share of the distribution that
    its format allowed at each `[R]`."""

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
    """A `ScoreRequest`'s result."""

    job: int
    scores: Scores


@dataclass(frozen=True, slots=True)
class JobFailed:
    """A job that failed."""

    job: int
    error: OpenClawError


JobEvent = TokenDelta | Finished | ScoreFinished | JobFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineArgs:
    """Arguments that start an engine process: settings of `policy` under their own names.

    ``context`` None is the model's own, cut to the cache's capacity; ``cache_tokens`` None is chosen from free memory;
    ``chat_template``, ``tool_format`` and ``name`` None are the model's own. ``process`` is the name in `ps`.
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
    """Generate a reply with one version."""

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
    """Adapter folders by version number; None is the base model."""

    adapters: Mapping[int, str | None]


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """Load a registered version and make it live."""

    id: int
    version: int


@dataclass(frozen=True, slots=True)
class AdmitRequest:
    """Load a registered version beside the live one and keep it loaded until it is dismissed."""

    id: int
    version: int


@dataclass(frozen=True, slots=True)
class DismissRequest:
    """Unload an admitted version once it is unused."""

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
    """Model loaded; ``memory`` is the bytes for its weights and the KV cache."""

    name: str
    base: str
    context: int
    tool_format: str
    device: str
    dtype: str
    cache_tokens: int
    memory: int
    runner: str
    """the model runner's description, for people"""


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """A progress line for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class CallResult:
    """The value of an `EncodeRequest`, `TokenizeRequest`, `DecodeRequest` or `LoadRequest`."""

    id: int
    value: Any


@dataclass(frozen=True, slots=True)
class EngineFailure:
    """An error in a form that can be pickled. ``id`` None: the process cannot continue."""

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
        """Rebuild the exception."""
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
    """Events since the last message, and the engine's figures."""

    events: tuple[TokenDelta | Finished | ScoreFinished, ...]
    stats: Mapping[str, int]


EngineMessage = EngineReady | LoadProgress | CallResult | EngineFailure | EngineOutput
