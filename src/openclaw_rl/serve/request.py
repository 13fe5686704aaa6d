"""The request types that every wire format parses into, and the reply types that it renders."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from types import TracebackType
from typing import Protocol, TypeAlias

from openclaw_rl.errors import (
    BackendDown,
    BackendError,
    ContextOverflow,
    FatalRequest,
    InvalidValue,
    LedgerDown,
    LedgerError,
    NotInLedger,
    RequestError,
    TooMany,
)
from openclaw_rl.formats.parts import Part, Text
from openclaw_rl.ports import Piece
from openclaw_rl.serve.recorder import Metrics
from openclaw_rl.types import Feedback, Json, Kind, Prompt, PromptNote, Sampling, SessionReward, Turn

# The limits for one request and one user, and the queue for a user's requests.


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """The limits for one request and one key. Seconds must be above 0."""

    body_bytes: int
    """maximum bytes in a body"""
    header_bytes: int
    """maximum bytes in all headers together"""
    messages: int
    """maximum messages or items in one request"""
    values: int
    """maximum values in one body: fields, list entries"""
    depth: int
    """maximum nesting depth of JSON"""
    streams_per_key: int
    """maximum requests from one key's user that are answered at once"""
    queue_per_key: int
    """maximum requests from one key's user that wait for their place; more are answered 429"""
    hold_seconds: float
    """maximum seconds to hold a request while the backend restarts"""
    keepalive_seconds: float
    """seconds between the comments in a silent stream"""
    read_seconds: float
    """maximum seconds for a client to send its request"""
    send_seconds: float
    """maximum seconds for a client to accept the data sent to it"""


class UserQueue:
    """One user's requests: some are answered, some wait in the queue, further requests are refused."""

    def __init__(self, limits: RequestLimits, metrics: Metrics) -> None:
        self._running = 0
        self._queue: deque[asyncio.Future[None]] = deque()
        self._limits = limits
        self._metrics = metrics

    @property
    def busy(self) -> bool:
        """True while a request by this user is answered or waits."""
        return self._running > 0 or bool(self._queue)

    def check(self) -> None:
        """Raise TooMany if neither a place nor room in the queue is free."""
        full = self._running >= self._limits.streams_per_key
        if full and len(self._queue) >= self._limits.queue_per_key:
            raise TooMany(
                f"{self._running} requests of this key are running and {len(self._queue)} are waiting",
                remedy="wait and try again",
            )

    async def __aenter__(self) -> None:
        self.check()
        if self._running < self._limits.streams_per_key:
            self._running += 1
        else:
            await self._wait()
        self._metrics.running.inc()

    async def _wait(self) -> None:
        place = asyncio.get_running_loop().create_future()
        self._queue.append(place)
        self._metrics.waiting.inc()
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._leave()  # the place was assigned at the same moment: pass it on
            elif place in self._queue:
                self._queue.remove(place)
            raise
        finally:
            self._metrics.waiting.dec()

    def _leave(self) -> None:
        while self._queue:
            place = self._queue.popleft()
            if not place.done():
                place.set_result(None)  # the place passes to the next in the queue
                return
        self._running -= 1

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._metrics.running.dec()
        self._leave()


# A caller's view of a failure: a status and a message, never a traceback.


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiError:
    """A failure as reported to a caller; each wire format gives it a shape."""

    status: int
    message: str
    field: str | None = None
    code: str | None = None
    retry_after: float | None = None
    overflow: tuple[int, int] | None = None
    """tokens needed and tokens that fit, if the context overflowed"""
    again: bool = True
    """False: a client must not retry the same request automatically"""


def api_error_of(error: Exception) -> ApiError:
    """Convert an exception to the caller's error; an unexpected exception reveals nothing about itself."""
    match error:
        case ContextOverflow():
            numbers = (error.asked, error.limit)
            code = "context_length_exceeded"
            return ApiError(status=400, message=str(error), field=error.field, code=code, overflow=numbers)
        case TooMany():
            return ApiError(status=429, message=str(error), code="rate_limit_exceeded", retry_after=error.retry_after)
        case RequestError():
            return ApiError(status=error.status, message=str(error), field=error.field, code=_code(error))
        case InvalidValue():
            return ApiError(status=400, message=str(error), field=error.field)
        case NotInLedger():
            return ApiError(status=404, message=str(error), code=_MISSING)
        case LedgerDown():
            what = f"the server's ledger cannot be used now: {error.why}; {error.remedy}"
            return ApiError(status=503, message=what, code="ledger_down", retry_after=_LEDGER_AGAIN)
        case LedgerError():
            return ApiError(
                status=503, message="the server's ledger cannot be used; its log says why", code="ledger_error"
            )
        case BackendDown():
            return ApiError(status=503, message=str(error), code="backend_down", retry_after=error.retry_after)
        case FatalRequest():
            return ApiError(status=500, message=str(error), code="engine_died", again=False)
        case BackendError():
            return ApiError(
                status=502, message="the model's backend failed; the server's log says why", code="backend_error"
            )
    return ApiError(status=500, message="the server failed; its log says why", code="internal_error")


_LEDGER_AGAIN = 5.0
_MISSING = "not_found"
_CODES = {401: "invalid_api_key", 404: _MISSING, 413: "request_too_large", 415: "unsupported_media_type"}


def _code(error: RequestError) -> str | None:
    return "model_not_found" if error.status == 404 and error.field == "model" else _CODES.get(error.status)


_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def openai_error(api_error: ApiError) -> Json:
    """Return the error shape for chat completions, responses and this API's additional endpoints."""
    kind = _OPENAI_TYPES.get(api_error.status, "invalid_request_error" if api_error.status < 500 else "server_error")
    param = re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", api_error.field) if api_error.field else None
    return {"error": {"message": api_error.message, "type": kind, "param": param, "code": api_error.code}}


_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def anthropic_error(api_error: ApiError) -> Json:
    """Return the error shape for messages."""
    kind = _ANTHROPIC_TYPES.get(api_error.status, "invalid_request_error" if api_error.status < 500 else "api_error")
    message = api_error.message
    if api_error.overflow:
        needed, limit = api_error.overflow
        message = f"prompt is too long: {needed} tokens > {limit} maximum; {message}"
    return {"type": "error", "error": {"type": kind, "message": message}}


def ollama_error(api_error: ApiError) -> Json:
    """Return the error shape for Ollama's API."""
    return {"error": api_error.message}


def error_shape(path: str) -> Callable[[ApiError], Json]:
    """Return the error shape for ``path``."""
    if path.startswith("/api/"):
        return ollama_error
    return anthropic_error if path.startswith("/v1/messages") else openai_error


def reason(status: int) -> str:
    return HTTPStatus(status).phrase


class TurnLedger(Protocol):
    """The ledger methods that serving needs. Each may be called from any thread."""

    def add_turn(self, turn: Turn) -> None: ...

    def add_feedback(self, feedback: Feedback) -> None: ...

    def add_ending(self, session: str, user: str) -> None: ...

    def add_reward(self, reward: SessionReward) -> bool: ...

    def turn(self, turn_id: str) -> Turn: ...

    def has_session(self, session: str, user: str) -> bool: ...

    def add_optout(self, session: str, user: str) -> None: ...

    def opted_out(self, session: str, user: str) -> bool: ...

    def latest_turns(self, user: str, *, session: str | None, limit: int) -> Sequence[Turn]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One request in any format. ``echo`` holds the fields that the format repeats in its response.

    ``schema_at`` names the field that requests a JSON schema; ``strict`` means that the reply must follow it. ``noted``
    is the note inserted into the prompt for the model. ``answer`` is the whole answer to a request that needs no model,
    None for any other.
    """

    prompt: Prompt
    sampling: Sampling
    model: str
    stream: bool = False
    n: int = 1
    logprobs: bool = False
    include_usage: bool = False
    count_prompt: bool = False
    session: str | None = None
    guessed_session: str | None = None
    after: str | None = None
    schema_at: str | None = None
    strict: bool = False
    noted: PromptNote | None = None
    answer: Json | None = None
    echo: Mapping[str, Json] = field(default_factory=dict)

    @property
    def sent(self) -> Prompt:
        """The prompt as sent to the model."""
        return self.prompt if self.noted is None else self.prompt.hinted(self.noted.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The caller, and the turn's metadata from the headers."""

    user: str
    session: str | None = None
    group: str | None = None
    client: str = ""
    declared: Kind | None = None
    done: bool = False
    trainable: bool = True
    stored: bool = True
    notes: bool = True


@dataclass(frozen=True, slots=True)
class ReplyStarted:
    """The first token was sampled. ``prompt_tokens`` is None unless it was requested.

    ``unenforced`` names the field whose format the backend can attempt but not guarantee.
    """

    turn: str
    version: int
    prompt_tokens: int | None
    unenforced: str | None = None


@dataclass(frozen=True, slots=True)
class ReplyDelta:
    """Further parts of the reply, and their tokens if log-probs were requested."""

    parts: Sequence[Part]
    pieces: Sequence[Piece] = ()


@dataclass(frozen=True, slots=True)
class ReplyFinished:
    """The turn, already recorded. ``stop`` is the stop string that ended it, if any.

    ``first`` is the time until its first token and ``seconds`` the time until its last.
    """

    turn: Turn
    pieces: Sequence[Piece] = ()
    stop: str | None = None
    first: float = 0.0
    seconds: float = 0.0


class InlineFeedbackHandler(Protocol):
    """Handles inline feedback commands in place of the policy."""

    def without(self, request: GenerationRequest) -> GenerationRequest: ...

    async def note(self, request: GenerationRequest, caller: Caller) -> ReplyFinished | None: ...


Event: TypeAlias = ReplyStarted | ReplyDelta | ReplyFinished


def reply_events(finished: ReplyFinished) -> Iterator[Event]:
    """Yield a complete text as the events of a reply."""
    completion = finished.turn.completion
    yield ReplyStarted(finished.turn.id, completion.version, len(completion.prompt_tokens))
    yield ReplyDelta((Text(completion.reply.content),))
    yield finished


class PutsNotes(Protocol):
    """Selects the note to insert into a user's prompt."""

    async def note_for(self, user: str, prompt: Prompt) -> PromptNote | None: ...


class Renderer(Protocol):
    """Renders one streamed response's events as bytes. ``choice`` is the reply's number.

    ``media`` is the stream's content type; ``keep_alive`` is sent while there is nothing else to send.
    """

    @property
    def media(self) -> str: ...

    @property
    def keep_alive(self) -> bytes: ...

    def event(self, choice: int, event: Event) -> bytes: ...

    def close(self) -> bytes: ...

    def error(self, error: ApiError) -> bytes: ...


class Wire(Protocol):
    """A wire format: parses a body, renders a reply, a stream or an error."""

    name: str

    def parse(self, body: Mapping[str, Json], limits: RequestLimits) -> GenerationRequest: ...

    def plain(self, request: GenerationRequest, answers: Sequence[ReplyFinished]) -> Json: ...

    def stream(self, request: GenerationRequest, *, turn: str, created: float) -> Renderer: ...

    def error(self, error: ApiError) -> Json: ...
