"""Answer a request: stream the policy's reply, parse it, record the turn, and only then report it finished."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from contextlib import aclosing, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar, cast

from openclaw_rl.errors import (
    BackendDown,
    BackendError,
    BackendGone,
    ContextOverflow,
    OpenClawError,
    RequestError,
)
from openclaw_rl.formats.parts import Part
from openclaw_rl.formats.reply_parser import ReplyParser
from openclaw_rl.ports import Delta, Piece, Policy, Stream, SupportsScopes
from openclaw_rl.serve.recorder import Metrics, TurnRecorder
from openclaw_rl.serve.redact import GenerationRules, RecordingRules, Redact, redact_turn
from openclaw_rl.serve.request import (
    Caller,
    Event,
    GenerationRequest,
    ReplyDelta,
    ReplyFinished,
    ReplyStarted,
    RequestLimits,
    TurnLedger,
)
from openclaw_rl.serve.structured_output import at_wire_field, clamp_max_tokens, enforce_format
from openclaw_rl.types import Completion, Finish, Tokens, Turn, environment_of

log = logging.getLogger(__name__)
T = TypeVar("T")

RAW_LOGPROBS = "raw_logprobs"
"""flaw mark for an aborted turn: its log-probs are at temperature 1, and it is never trained"""
_UNKNOWN: Tokens = (0,)
_TAIL = 512
_LONG = 2**18


@dataclass(slots=True)
class _PartialReply:
    """A partial reply."""

    parser: ReplyParser
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    tail: str = ""
    version: int = 0
    begun: bool = False
    whole: bool = False


@dataclass(slots=True, kw_only=True)
class Answerer:
    """The resources and rules for answering. ``write`` runs blocking work on the single writer thread."""

    policy: Policy
    ledger: TurnLedger
    limits: RequestLimits
    metrics: Metrics
    writer: Executor
    generation: GenerationRules
    recording: RecordingRules
    clock: Callable[[], float]
    ready: Callable[[], bool]
    isolate_users: bool
    """True if users must share nothing that the policy has read"""
    long: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    aborted: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    """aborted turns are written one at a time, so that they delay a reply with a waiting caller by at most one write"""
    pending: set[asyncio.Future[None]] = field(default_factory=set)
    recorder: TurnRecorder = field(init=False)

    def __post_init__(self) -> None:
        self.recorder = TurnRecorder(self.ledger, self.metrics)

    async def write(self, work: Callable[[], T]) -> T:
        """Run ``work`` on the writer thread; complete it even if the caller disconnects."""
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self.writer, work))

    async def answer(
        self, request: GenerationRequest, caller: Caller, *, turn: str, version: int | None, choice: int = 0
    ) -> AsyncGenerator[Event, None]:
        """Yield one reply's events. If closed early, stop the policy and record the turn as aborted."""
        started = time.perf_counter()
        opened = await self._open_with_note(_for_choice(request, choice), caller, version)
        request, partial, item, stream = opened.request, opened.partial, opened.item, opened.stream
        try:
            async with aclosing(stream):
                first = time.perf_counter() - started
                self.metrics.first.observe(first)
                yield ReplyStarted(turn, partial.version, await self._count(request), opened.unenforced)
                if forced := partial.parser.add_prefix(request.prompt.opening):
                    yield ReplyDelta(forced)
                while isinstance(item, Delta):
                    delta = _add_delta(request, partial, item)
                    if delta is not None:
                        yield delta
                    item = await _next(stream, request)
            remainder = _add_rest(partial, item)
            if remainder:
                yield ReplyDelta(remainder)
            partial.whole = True
            seconds = time.perf_counter() - started
            end = await self._end(request, caller, turn, partial, _read(item, partial.parser))
            yield replace(end, first=first, seconds=seconds)
        except BaseException as error:  # record the sampled tokens after any failure, then re-raise it
            if partial.begun and not partial.whole:
                await self._abort(request, caller, turn, partial, encode=not isinstance(error, BackendDown))
            raise

    async def _open_with_note(self, request: GenerationRequest, caller: Caller, version: int | None) -> _Opened:
        """Open the stream; retry without the note if the prompt exceeds the context with it."""
        try:
            return await self.retry_while_down(lambda: self._open(request, caller, version))
        except ContextOverflow:
            if request.noted is None:
                raise
        plain = replace(request, noted=None)
        return await self.retry_while_down(lambda: self._open(plain, caller, version))

    async def _open(self, request: GenerationRequest, caller: Caller, version: int | None) -> _Opened:
        """Open the policy's stream and read its first item.

        The model's properties (its context, its tool-call format) are known only once it is ready.
        """
        if not self.ready():
            raise BackendDown("the model is still being loaded", retry_after=0.2)
        policy = self._policy_of(caller.user)
        request, unenforced = enforce_format(clamp_max_tokens(request, policy.context), policy)
        partial = _PartialReply(
            ReplyParser(request.prompt, tool_format=policy.tool_format, reasoning=self.generation.reasoning)
        )
        partial.version = policy.live if version is None else version
        stream = _closable(self._stream(policy, request, partial.version))
        try:
            return _Opened(request, partial, await _next(stream, request), stream, unenforced)
        except BaseException:
            await stream.aclose()
            raise

    async def retry_while_down(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return the result from ``attempt``; while the backend is down, wait and retry up to the hold limit."""
        deadline = time.monotonic() + self.limits.hold_seconds
        first = True
        while True:
            try:
                return await attempt()
            except BackendGone:
                raise
            except BackendDown as down:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise
                if first:
                    self.metrics.held.inc()
                    log.warning("backend down, request held for up to %.0f s: %s", remaining, down.what)
                first = False
                await asyncio.sleep(min(max(down.retry_after, 0.001), remaining, 2.0))

    async def _count(self, request: GenerationRequest) -> int | None:
        """Return the prompt's token count, for a format that reports it before the reply."""
        if not request.count_prompt:
            return None
        try:
            return len(await self.policy.encode(request.sent))
        except OpenClawError:
            return None  # the reply's end counts again, from the tokens themselves

    def _policy_of(self, user: str) -> Policy:
        policy = self.policy
        return policy.scoped(user) if self.isolate_users and isinstance(policy, SupportsScopes) else policy

    def _stream(self, policy: Policy, request: GenerationRequest, version: int) -> Stream:
        generate = self.generation.generate
        if generate is not None:
            return generate(policy, request.sent, request.sampling, version=version)
        return policy.generate(request.sent, request.sampling, version=version)

    async def _end(
        self, request: GenerationRequest, caller: Caller, turn_id: str, partial: _PartialReply, completion: Completion
    ) -> ReplyFinished:
        turn = self._turn(request, caller, turn_id, completion)
        self.metrics.prompt_tokens.inc(len(completion.prompt_tokens))
        self.metrics.reply_tokens.inc(len(completion.reply_tokens))
        await self._keep(turn, caller)
        return ReplyFinished(turn, partial.pieces, _stop(request, partial))

    def _turn(self, request: GenerationRequest, caller: Caller, turn_id: str, completion: Completion) -> Turn:
        return Turn(
            id=turn_id,
            prompt=request.prompt,
            completion=completion,
            user=caller.user,
            session=caller.session,
            group=caller.group,
            client=caller.client,
            declared=caller.declared,
            done=caller.done,
            trainable=caller.trainable,
            noted=request.noted,
            at=self.clock(),
        )

    async def _keep(self, turn: Turn, caller: Caller) -> None:
        """Record a turn durably; if that fails, the reply is still delivered (see `TurnRecorder`)."""
        completion = turn.completion
        self.metrics.turns.labels(completion.finish).inc()
        if not (self.recording.intercept and caller.stored):
            return
        try:
            await self._carried_through(self._written(turn))
        except Exception as error:  # a damaged ledger or a custom redactor: log and count the loss, then continue
            log.error("turn lost id=%s: it could not be written: %s", turn.id, type(error).__name__)
            log.debug("turn lost id=%s: %s", turn.id, error)
            return
        log.log(
            logging.INFO if environment_of(turn.user) is None else logging.DEBUG,  # steps would hide all other turns
            "turn id=%s user=%s version=%d finish=%s prompt_tokens=%d reply_tokens=%d",  # no session: it is deletable
            *(turn.id, turn.user, completion.version, completion.finish),
            *(len(completion.prompt_tokens), len(completion.reply_tokens)),
        )

    async def _carried_through(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` to its end even if the caller disconnects or the server stops, like every write."""
        task = asyncio.ensure_future(work)
        self.pending.add(task)
        task.add_done_callback(self.pending.discard)
        await asyncio.shield(task)

    async def settle(self) -> None:
        """Return once all pending writes are done; their failures were reported to their callers."""
        await asyncio.gather(*self.pending, return_exceptions=True)

    async def _written(self, turn: Turn) -> None:
        redact = self.recording.redact
        stored = turn if redact is None else await self._redacted(turn, redact)
        async with self.aborted if turn.completion.finish == "aborted" else nullcontext():
            await self.write(lambda: self.recorder.add(stored))
        await self.recorder.retry(self.write)

    async def _redacted(self, turn: Turn, redact: Redact) -> Turn:
        """Redact on a thread, so that neither the server nor other writes wait; long turns run one at a time."""
        try:
            if sum(len(message.content) for message in turn.prompt.messages) <= _LONG:
                return await asyncio.to_thread(redact_turn, turn, redact)
            async with self.long:
                return await asyncio.to_thread(redact_turn, turn, redact)
        except BaseException:
            self.writer.submit(self.recorder.lose)
            raise

    async def _abort(
        self, request: GenerationRequest, caller: Caller, turn_id: str, partial: _PartialReply, *, encode: bool
    ) -> None:
        """Record the tokens sampled before the caller left or the backend failed.

        ``encode`` is False while the backend restarts and the caller waits for its error.
        """
        prompt_tokens = _UNKNOWN
        if encode:
            with suppress(BackendError):
                prompt_tokens = await self.policy.encode(request.sent)
        partial.parser.end(cut=True)
        finish: Finish = "aborted"
        usable = all(math.isfinite(value) for value in partial.logprobs)
        completion = Completion(
            reply=partial.parser.message(),
            prompt_tokens=prompt_tokens or _UNKNOWN,
            reply_tokens=tuple(partial.tokens) if usable else (),
            logprobs=tuple(min(value, 0.0) for value in partial.logprobs) if usable else (),
            sampling=request.sampling,
            finish=finish,
            version=partial.version,
            flaws=(RAW_LOGPROBS,),
        )
        await self._keep(self._turn(request, caller, turn_id, completion), caller)


@dataclass(frozen=True, slots=True)
class _Opened:
    """An opened reply: the request as sent to the policy, and its stream with the first item."""

    request: GenerationRequest
    partial: _PartialReply
    item: Delta | Completion
    stream: _Closable
    unenforced: str | None


class _Closable(Protocol):
    """A stream that can be closed early."""

    async def __anext__(self) -> Delta | Completion: ...

    async def aclose(self) -> None: ...


class _Closing:
    """Adds a no-op ``aclose`` to a plug-in's stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def __anext__(self) -> Delta | Completion:
        return await anext(self._stream)

    async def aclose(self) -> None:
        return None


def _closable(stream: Stream) -> _Closable:
    return cast(_Closable, stream) if hasattr(stream, "aclose") else _Closing(stream)


async def _next(stream: _Closable, request: GenerationRequest) -> Delta | Completion:
    try:
        return await stream.__anext__()
    except RequestError as error:
        raise at_wire_field(error, request) from error
    except StopAsyncIteration:
        raise BackendError("the policy's stream ended without a completion") from None


def _for_choice(request: GenerationRequest, choice: int) -> GenerationRequest:
    """Give each of several replies its own seed."""
    seed = request.sampling.seed
    if choice == 0 or seed is None:
        return request
    return replace(request, sampling=replace(request.sampling, seed=seed + choice))


def _add_delta(request: GenerationRequest, partial: _PartialReply, delta: Delta) -> ReplyDelta | None:
    """Add a policy delta; return its part for the caller, None while that is held back."""
    partial.begun = True
    for piece in delta.pieces:
        partial.tokens.append(piece.token)
        partial.logprobs.append(piece.logprob)
    if request.sampling.stop:
        partial.tail = (partial.tail + "".join(piece.text for piece in delta.pieces))[-_TAIL:]
    parts = partial.parser.feed(delta.text) if delta.text else ()
    if not request.logprobs:
        return ReplyDelta(parts) if parts else None
    partial.pieces.extend(delta.pieces)
    return ReplyDelta(parts, delta.pieces) if parts or delta.pieces else None


def _add_rest(partial: _PartialReply, completion: Completion) -> list[Part]:
    """Parse the completion's text that no delta contained."""
    remainder = completion.reply.content[partial.parser.fed :]
    cut = completion.finish in ("length", "aborted")
    return [*(partial.parser.feed(remainder) if remainder else ()), *partial.parser.end(cut=cut)]


def _stop(request: GenerationRequest, partial: _PartialReply) -> str | None:
    """Return the stop string that ended the sampled tokens, if any."""
    for stop in request.sampling.stop:
        at = partial.tail.rfind(stop)
        if at >= 0 and len(partial.tail) - at - len(stop) < 32:
            return stop
    return None


def _read(completion: Completion, parser: ReplyParser) -> Completion:
    """Return the completion with its raw text parsed; tokens and log-probs are unchanged."""
    reply = parser.message()
    finish: Finish = "tool_calls" if reply.tool_calls and completion.finish == "stop" else completion.finish
    flaws = tuple(dict.fromkeys((*completion.flaws, *parser.flaws)))
    return replace(completion, reply=reply, finish=finish, flaws=flaws)
