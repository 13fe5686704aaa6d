"""The endpoints: each handles an exchange from first byte to last and reports every failure in its own format."""

from __future__ import annotations

import asyncio
import logging
import math
import traceback
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from starlette.types import Receive, Scope, Send

from openclaw_rl.errors import BackendDown, BackendGone, LedgerDown, RequestError
from openclaw_rl.serve.auth import NOTES_HEADER, Headers, headers_of
from openclaw_rl.serve.request import (
    ApiError,
    Caller,
    GenerationRequest,
    InlineFeedbackHandler,
    Renderer,
    ReplyFinished,
    ReplyStarted,
    Wire,
    anthropic_error,
    api_error_of,
    reply_events,
)
from openclaw_rl.serve.sse import CallerGone, HttpExchange
from openclaw_rl.serve.state import ModelRoute, ServerState
from openclaw_rl.serve.structured_output import UNENFORCED
from openclaw_rl.serve.wire.responses import NO_TURN, turn_of
from openclaw_rl.types import Json, new_id
from openclaw_rl.web import parse_json

log = logging.getLogger(__name__)

T = TypeVar("T")
Place: TypeAlias = AbstractAsyncContextManager[None]

_LARGE = 2**18
_GONE = 499
_VERSION = "x-openclaw-rl-version"


@dataclass(frozen=True, slots=True)
class AdmittedRequest:
    """A request whose caller may use the API."""

    exchange: HttpExchange
    headers: Headers
    user: str


Handle = Callable[[AdmittedRequest], Awaitable[None]]


class ApiEndpoint:
    """An ASGI app around one handler: admits the caller, counts requests, and reports errors."""

    def __init__(
        self, server: ServerState, name: str, handle: Handle, shape: Callable[[ApiError], Json], *, guarded: bool = True
    ) -> None:
        self._server = server
        self._name = name
        self._handle = handle
        self._shape = shape
        self._guarded = guarded

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = HttpExchange(scope, receive, send, self._server.limits)
        exchange.headers["x-request-id"] = new_id()
        try:
            headers = headers_of(scope["headers"], self._server.limits.header_bytes)
            user = self._server.admit(headers) if self._guarded else ""
            _check_head(headers, self._server.limits.body_bytes)
            await self._handle(AdmittedRequest(exchange, headers, user))
        except CallerGone:
            exchange.status = _GONE
            log.info("caller gone request=%s wire=%s", exchange.headers["x-request-id"], self._name)
        except Exception as error:  # the last resort: the caller always gets an answer and no traceback
            await self._fail(exchange, error)
        finally:
            self._server.metrics.requests.labels(self._name, str(exchange.status)).inc()

    async def _fail(self, exchange: HttpExchange, error: Exception) -> None:
        api_error = report_error(error, exchange, self._name)
        if exchange.started:
            return  # the head was sent, and the stream has reported the error
        if api_error.retry_after is not None:
            exchange.headers["retry-after"] = str(max(1, math.ceil(api_error.retry_after)))
        if not api_error.again:
            exchange.headers["x-should-retry"] = "false"  # OpenAI's and Anthropic's SDKs obey it
        if api_error.status == 401:
            exchange.headers["www-authenticate"] = "Bearer"
        if api_error.status in (408, 413):
            exchange.headers["connection"] = "close"
        await exchange.reply_json(api_error.status, self._shape_for(exchange)(api_error))

    def _shape_for(self, exchange: HttpExchange) -> Callable[[ApiError], Json]:
        """Return the error shape; on a path that both APIs have, the shape for the caller's API."""
        anthropic = any(name == b"anthropic-version" for name, _ in exchange.scope["headers"])
        return anthropic_error if anthropic and self._name == "look" else self._shape


def report_error(error: Exception, exchange: HttpExchange, name: str) -> ApiError:
    """Return the caller's error. Its message, which may quote a conversation, is logged at debug level only."""
    api_error = api_error_of(error)
    request = exchange.headers["x-request-id"]
    if api_error.status >= 500 and not isinstance(error, BackendDown | LedgerDown):
        where = "".join(traceback.format_tb(error.__traceback__))
        log.error("request failed request=%s wire=%s error=%s\n%s", request, name, type(error).__name__, where)
    else:
        log.info("request refused request=%s wire=%s status=%d", request, name, api_error.status)
    log.debug("request failed request=%s: %s", request, error)
    return api_error


def _check_head(headers: Headers, limit: int) -> None:
    """Refuse by its head alone a request whose body would be refused."""
    size = headers.get("content-length", "0")
    if size.isdecimal() and int(size[:20]) > limit:
        raise RequestError(f"the body is larger than {limit} bytes", status=413)
    coding = headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise RequestError(
            f"content-encoding {coding[:40]!r} is not supported", status=415, remedy="send the body as it is"
        )


def _is_large(headers: Headers) -> bool:
    """Return True if a body must get a place before it is read; a body without a stated length counts as large."""
    size = headers.get("content-length", "0")
    return "transfer-encoding" in headers or not size.isdecimal() or int(size[:20]) > _LARGE


async def read_body(
    server: ServerState, exchange: HttpExchange, parse: Callable[[dict[str, Json]], T], *, limit: int | None = None
) -> T:
    """Read and parse the body. Large bodies are parsed one at a time on a thread, so that no other request waits."""
    limits = server.limits
    raw = await exchange.body(limit or limits.body_bytes)

    def work() -> T:
        return parse(parse_json(raw, depth=limits.depth, values=limits.values))

    if len(raw) <= _LARGE:
        return work()
    return await asyncio.get_running_loop().run_in_executor(server.parser, work)


class GenerateHandler:
    """Answers in one wire format, streamed or complete."""

    def __init__(self, server: ServerState, wire: Wire, inline_feedback: InlineFeedbackHandler) -> None:
        self._server = server
        self._wire = wire
        self._inline_feedback = inline_feedback

    async def __call__(self, admitted: AdmittedRequest) -> None:
        """Read a large body once it has a place, a small one at once, so that callers queue in their order."""
        queue = self._server.queue(admitted.user)
        queue.check()
        if not _is_large(admitted.headers):
            await self._answer(admitted, queue)
            return
        async with queue:
            await self._answer(admitted, nullcontext())

    async def _answer(self, admitted: AdmittedRequest, place: Place) -> None:
        exchange, server = admitted.exchange, self._server
        request = await read_body(server, exchange, lambda body: self._wire.parse(body, server.limits))
        route = server.route(request.model)
        if not request.model:
            request = replace(request, model=server.model_name)
        if request.answer is not None:
            await exchange.reply_json(200, request.answer)
            return
        caller = await server.caller(admitted.headers, request, admitted.user, route)
        request = self._inline_feedback.without(await server.continue_from(request, admitted.user))
        if noted := await self._inline_feedback.note(request, caller):
            await self._send_note(exchange, request, noted)
            return
        request = await server.with_notes(request, caller)
        if request.stream:
            turns = _turns(exchange, request)
            render = self._renderer(exchange, request, turn=turns[0], created=server.answerer.clock())
            work = self._stream(exchange, request, caller, route, place, turns, render)
            await exchange.run_while_connected(work, keep_alive=render.keep_alive)
        else:
            answers = await exchange.run_while_connected(self._whole(exchange, request, caller, route, place))
            await exchange.reply_json(200, self._wire.plain(request, answers))

    def _renderer(self, exchange: HttpExchange, request: GenerationRequest, *, turn: str, created: float) -> Renderer:
        render = self._wire.stream(request, turn=turn, created=created)
        exchange.media = render.media
        return render

    async def _send_note(self, exchange: HttpExchange, request: GenerationRequest, noted: ReplyFinished) -> None:
        """Send the gateway's own answer, repeated for every requested reply."""
        turn = noted.turn
        if (about := turn_of(turn.id)) != NO_TURN:
            exchange.headers["x-openclaw-rl-turn"] = about
        exchange.headers[_VERSION] = str(turn.completion.version)
        if not request.stream:
            await exchange.reply_json(200, self._wire.plain(request, [noted] * request.n))
            return
        render = self._renderer(exchange, request, turn=turn.id, created=turn.at)
        for choice in range(request.n):
            for event in reply_events(noted):
                await exchange.write(render.event(choice, event))
        await exchange.close(render.close())

    async def _whole(
        self, exchange: HttpExchange, request: GenerationRequest, caller: Caller, route: ModelRoute, place: Place
    ) -> list[ReplyFinished]:
        """Return the replies. If the backend goes down meanwhile, generate them once more: none was sent yet."""
        async with place:
            try:
                return await self._ends(exchange, request, caller, route)
            except BackendDown as down:
                if isinstance(down, BackendGone) or _VERSION not in exchange.headers:
                    raise  # generation never began, and the hold limit is used up
                return await self._ends(exchange, request, caller, route)

    async def _ends(
        self, exchange: HttpExchange, request: GenerationRequest, caller: Caller, route: ModelRoute
    ) -> list[ReplyFinished]:
        turns = _turns(exchange, request)
        ends: dict[int, ReplyFinished] = {}
        async with aclosing(self._server.events(request, caller, turns, route.version)) as events:
            async for choice, event in events:
                if isinstance(event, ReplyStarted):
                    _head(exchange, event)
                elif isinstance(event, ReplyFinished):
                    ends[choice] = event
        return [ends[choice] for choice in range(len(turns))]

    async def _stream(
        self,
        exchange: HttpExchange,
        request: GenerationRequest,
        caller: Caller,
        route: ModelRoute,
        place: Place,
        turns: list[str],
        render: Renderer,
    ) -> None:
        """Write events as they arrive. Once the head is sent, report a failure inside the stream."""
        try:
            async with place, aclosing(self._server.events(request, caller, turns, route.version)) as events:
                async for choice, event in events:
                    if isinstance(event, ReplyStarted):
                        _head(exchange, event)
                    await exchange.write(render.event(choice, event))
            await exchange.close(render.close())
        except Exception as error:
            if exchange.started and not isinstance(error, CallerGone):
                await exchange.close(render.error(report_error(error, exchange, self._wire.name)))
                return
            raise


def _turns(exchange: HttpExchange, request: GenerationRequest) -> list[str]:
    """Return a turn id for each reply; the response head contains the first."""
    turns = [new_id() for _ in range(request.n)]
    exchange.headers["x-openclaw-rl-turn"] = turns[0]
    if request.noted is not None:
        exchange.headers[NOTES_HEADER] = ",".join(map(str, request.noted.notes))
    return turns


def _head(exchange: HttpExchange, began: ReplyStarted) -> None:
    """Set the headers known at the first token; they are sent unless a keep-alive already sent the head."""
    exchange.headers[_VERSION] = str(began.version)
    if began.unenforced:
        exchange.headers[UNENFORCED] = began.unenforced


class CountTokensHandler:
    """Counts a prompt's tokens without answering it."""

    def __init__(self, server: ServerState, wire: Wire, inline_feedback: InlineFeedbackHandler) -> None:
        self._server = server
        self._wire = wire
        self._inline_feedback = inline_feedback

    async def __call__(self, admitted: AdmittedRequest) -> None:
        server = self._server
        async with server.queue(admitted.user):
            request = await read_body(server, admitted.exchange, lambda body: self._wire.parse(body, server.limits))
            server.route(request.model)
            request = self._inline_feedback.without(request)
            tokens = await server.answerer.retry_while_down(lambda: server.policy.encode(request.prompt))
        await admitted.exchange.reply_json(200, {"input_tokens": len(tokens)})
