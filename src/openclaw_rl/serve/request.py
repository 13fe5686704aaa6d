"""What every wire format parses a request into, and what they are all rendered from."""

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

# What one request and one user may take, and the queue of a user's requests.


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """What one request and one key may take. Seconds of 0 or below are not allowed."""

    body_bytes: int
    """the largest body"""
    header_bytes: int
    """all headers together"""
    messages: int
    """messages or items in one request"""
    values: int
    """values in one body: fields, entries of lists"""
    depth: int
    """how deep JSON may be nested"""
    streams_per_key: int
    """requests of one key's user that are answered at once"""
    queue_per_key: int
    """requests of one key's user that wait for their place; more are answered 429"""
    hold_seconds: float
    """how long a request is held while the backend restarts"""
    keepalive_seconds: float
    """how often a silent stream gets a comment"""
    read_seconds: float
    """how long a client may take to send its request"""
    send_seconds: float
    """how long a client may take to accept what is sent"""


class UserQueue:
    """The requests of one user: some are answered, some wait in the queue, the rest are refused."""

    def __init__(self, limits: RequestLimits, metrics: Metrics) -> None:
        self._running = 0
        self._queue: deque[asyncio.Future[None]] = deque()
        self._limits = limits
        self._metrics = metrics

    @property
    def busy(self) -> bool:
        """Whether a request of this user is answered or waits."""
        return self._running > 0 or bool(self._queue)

    def check(self) -> None:
        """Raises TooMany if neither a place nor room in the queue is left."""
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
                self._leave()  # the place came at the same moment: hand it on
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


# What a caller gets when something goes wrong: a status and words, never a traceback.


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiError:
    """A failure as a caller sees it; each wire format gives it its own shape."""

    status: int
    message: str
    field: str | None = None
    code: str | None = None
    retry_after: float | None = None
    overflow: tuple[int, int] | None = None
    """tokens needed and tokens that fit, where that was the trouble"""
    again: bool = True
    """False: a client must not retry the same request automatically"""


def api_error_of(error: Exception) -> ApiError:
    """What a caller gets for an exception; one that nobody foresaw shows nothing of itself."""
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
    """The shape of chat completions, responses and our own endpoints."""
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
    """The shape of messages."""
    kind = _ANTHROPIC_TYPES.get(api_error.status, "invalid_request_error" if api_error.status < 500 else "api_error")
    message = api_error.message
    if api_error.overflow:
        needed, limit = api_error.overflow
        message = f"prompt is too long: {needed} tokens > {limit} maximum; {message}"
    return {"type": "error", "error": {"type": kind, "message": message}}


def ollama_error(api_error: ApiError) -> Json:
    """The shape of Ollama's API."""
    return {"error": api_error.message}


def error_shape(path: str) -> Callable[[ApiError], Json]:
    """The shape of an error under ``path``."""
    if path.startswith("/api/"):
        return ollama_error
    return anthropic_error if path.startswith("/v1/messages") else openai_error


def reason(status: int) -> str:
    return HTTPStatus(status).phrase


class TurnLedger(Protocol):
    """What serving needs of the ledger. Every method may be called from any thread."""

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
    """One request, whatever its format. ``echo`` is what the format repeats in its response.

    ``schema_at`` is where it asks for a JSON schema; ``strict`` says that the reply must follow it. ``noted`` is what
    is put into its prompt on the way to the model. ``answer`` is the whole answer to a request that asks the model
    nothing, None for any other.
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
        """The prompt as it goes to the model."""
        return self.prompt if self.noted is None else self.prompt.hinted(self.noted.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who calls, and what the headers say about the turn."""

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
    """The first token is on its way. ``prompt_tokens`` is None unless it was requested.

    ``unenforced`` names the field whose form the backend can only try to keep to.
    """

    turn: str
    version: int
    prompt_tokens: int | None
    unenforced: str | None = None


@dataclass(frozen=True, slots=True)
class ReplyDelta:
    """More of the reply, and the tokens behind it if log-probs were requested."""

    parts: Sequence[Part]
    pieces: Sequence[Piece] = ()


@dataclass(frozen=True, slots=True)
class ReplyFinished:
    """The turn, already kept. ``stop`` is the stop string that ended it, if one did.

    ``first`` is the time until its first token and ``seconds`` the time until its last.
    """

    turn: Turn
    pieces: Sequence[Piece] = ()
    stop: str | None = None
    first: float = 0.0
    seconds: float = 0.0


class Outright(Protocol):
    """Takes what a person says outright of a reply, in place of the policy."""

    def without(self, request: GenerationRequest) -> GenerationRequest: ...

    async def note(self, request: GenerationRequest, caller: Caller) -> ReplyFinished | None: ...


Event: TypeAlias = ReplyStarted | ReplyDelta | ReplyFinished


def reply_events(finished: ReplyFinished) -> Iterator[Event]:
    """A text that is there at once as the events of a reply."""
    completion = finished.turn.completion
    yield ReplyStarted(finished.turn.id, completion.version, len(completion.prompt_tokens))
    yield ReplyDelta((Text(completion.reply.content),))
    yield finished


class PutsNotes(Protocol):
    """Knows what is to be put into a user's prompts."""

    async def note_for(self, user: str, prompt: Prompt) -> PromptNote | None: ...


class Renderer(Protocol):
    """Turns the events of one streamed response into bytes. ``choice`` is the number of the reply.

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
