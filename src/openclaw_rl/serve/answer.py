"""Answers one request: streams the policy's reply, reads it, keeps the turn, and only then says that it ended."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar, cast

from openclaw_rl.errors import BackendDown, BackendError, BackendGone, OpenClawError
from openclaw_rl.formats.parts import Part
from openclaw_rl.formats.reading import Reading, Reasoning
from openclaw_rl.ports import Delta, Dividing, Generate, Piece, Policy, Stream
from openclaw_rl.serve.asked import Asked, Began, Book, Caller, Ended, Event, Limits, Said
from openclaw_rl.serve.keeping import Keeping
from openclaw_rl.serve.metrics import Metrics
from openclaw_rl.serve.openings import fitted, keep_to_form
from openclaw_rl.serve.redact import Redact, redact_turn
from openclaw_rl.types import Completion, Finish, Tokens, Turn

log = logging.getLogger(__name__)
T = TypeVar("T")

RAW_LOGPROBS = "raw_logprobs"
"""the mark of an aborted turn: its log-probs are those of temperature 1, and it is never trained"""
_UNKNOWN: Tokens = (0,)
_TAIL = 512
_LONG = 2**18


@dataclass(slots=True)
class _Heard:
    """What has come of one reply so far."""

    reading: Reading
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    tail: str = ""
    version: int = 0
    begun: bool = False
    whole: bool = False


@dataclass(slots=True, kw_only=True)
class Answerer:
    """Everything that answering takes. ``write`` runs blocking work on the one thread that writes."""

    policy: Policy
    book: Book
    limits: Limits
    metrics: Metrics
    writer: Executor
    intercept: bool = True
    redact: Redact | None = None
    generate: Generate | None = None
    reasoning: Reasoning = "tags"
    clock: Callable[[], float] = time.time
    ready: Callable[[], bool] = lambda: True
    apart: bool = False
    """whether users share nothing that the policy has read"""
    long: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    pending: set[asyncio.Future[None]] = field(default_factory=set)
    keeping: Keeping = field(init=False)

    def __post_init__(self) -> None:
        self.keeping = Keeping(self.book, self.metrics)

    async def write(self, work: Callable[[], T]) -> T:
        """Once begun it is carried through, even if the one who asked for it is gone."""
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self.writer, work))

    async def answer(
        self, asked: Asked, caller: Caller, *, turn: str, version: int | None, choice: int = 0
    ) -> AsyncGenerator[Event, None]:
        """The events of one reply. Closed early, it stops the policy and keeps the turn as aborted."""
        started = time.perf_counter()
        opened = await self.held(lambda: self._open(_for_choice(asked, choice), caller, version))
        asked, heard, item, stream = opened.asked, opened.heard, opened.item, opened.stream
        try:
            async with aclosing(stream):
                self.metrics.first.observe(time.perf_counter() - started)
                yield Began(turn, heard.version, await self._count(asked), opened.unenforced)
                if forced := heard.reading.open(asked.prompt.opening):
                    yield Said(forced)
                while isinstance(item, Delta):
                    said = _hear(asked, heard, item)
                    if said is not None:
                        yield said
                    item = await _next(stream)
            rest = _hear_rest(heard, item)
            if rest:
                yield Said(rest)
            heard.whole = True
            yield await self._end(asked, caller, turn, heard, _read(item, heard.reading))
        except BaseException:  # whatever ended it, what was sampled is kept; the reason goes on its way
            if heard.begun and not heard.whole:
                await self._abort(asked, caller, turn, heard)
            raise

    async def _open(self, asked: Asked, caller: Caller, version: int | None) -> _Opened:
        """The first thing the policy says, and the stream that goes on from there.

        What depends on the model (its context, how it writes calls) is only known once it is ready.
        """
        if not self.ready():
            raise BackendDown("the model is still being loaded", retry_after=0.2)
        policy = self._policy_of(caller.user)
        asked, unenforced = keep_to_form(fitted(asked, policy.context), policy)
        heard = _Heard(Reading(asked.prompt, tool_format=policy.tool_format, reasoning=self.reasoning))
        heard.version = policy.live if version is None else version
        stream = _closable(self._stream(policy, asked, heard.version))
        try:
            return _Opened(asked, heard, await _next(stream), stream, unenforced)
        except BaseException:
            await stream.aclose()
            raise

    async def held(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """What ``attempt`` gives. While the backend is down it is held and tried again, up to the limit."""
        deadline = time.monotonic() + self.limits.hold_seconds
        first = True
        while True:
            try:
                return await attempt()
            except BackendGone:
                raise
            except BackendDown as down:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise
                if first:
                    self.metrics.held.inc()
                    log.warning("backend down, request held for up to %.0f s: %s", left, down.what)
                first = False
                await asyncio.sleep(min(max(down.retry_after, 0.001), left, 2.0))

    async def _count(self, asked: Asked) -> int | None:
        """The prompt's tokens, for a format that names them before the reply."""
        if not asked.count_prompt:
            return None
        try:
            return len(await self.policy.encode(asked.prompt))
        except OpenClawError:
            return None  # the end of the reply counts again, from the tokens themselves

    def _policy_of(self, user: str) -> Policy:
        policy = self.policy
        return policy.scoped(user) if self.apart and isinstance(policy, Dividing) else policy

    def _stream(self, policy: Policy, asked: Asked, version: int) -> Stream:
        if self.generate is not None:
            return self.generate(policy, asked.prompt, asked.sampling, version=version)
        return policy.generate(asked.prompt, asked.sampling, version=version)

    async def _end(self, asked: Asked, caller: Caller, turn_id: str, heard: _Heard, completion: Completion) -> Ended:
        turn = self._turn(asked, caller, turn_id, completion)
        self.metrics.prompt_tokens.inc(len(completion.prompt_tokens))
        self.metrics.reply_tokens.inc(len(completion.reply_tokens))
        await self._keep(turn, caller)
        return Ended(turn, heard.pieces, _stop(asked, heard))

    def _turn(self, asked: Asked, caller: Caller, turn_id: str, completion: Completion) -> Turn:
        return Turn(
            id=turn_id,
            prompt=asked.prompt,
            completion=completion,
            user=caller.user,
            session=caller.session,
            group=caller.group,
            client=caller.client,
            declared=caller.declared,
            done=caller.done,
            trainable=caller.trainable,
            at=self.clock(),
        )

    async def _keep(self, turn: Turn, caller: Caller) -> None:
        """Durable when it returns; if it cannot be kept, the reply comes all the same (see `Keeping`)."""
        done = turn.completion
        self.metrics.turns.labels(done.finish).inc()
        if not (self.intercept and caller.stored):
            return
        try:
            await self._carried_through(self._written(turn))
        except Exception as error:  # a damaged ledger, a redactor of the user's own: told, counted, survived
            log.error("turn lost id=%s: it could not be kept: %s", turn.id, type(error).__name__)
            log.debug("turn lost id=%s: %s", turn.id, error)
            return
        log.info(
            "turn id=%s user=%s session=%s version=%d finish=%s prompt_tokens=%d reply_tokens=%d",
            *(turn.id, turn.user, turn.session, done.version, done.finish),
            *(len(done.prompt_tokens), len(done.reply_tokens)),
        )

    async def _carried_through(self, work: Coroutine[Any, Any, None]) -> None:
        """As every write: to its end, even if the one who asked for it is gone, or the server is ending."""
        task = asyncio.ensure_future(work)
        self.pending.add(task)
        task.add_done_callback(self.pending.discard)
        await asyncio.shield(task)

    async def settle(self) -> None:
        """Return when all that was to be kept is kept; what could not be was told to whoever waited for it."""
        await asyncio.gather(*self.pending, return_exceptions=True)

    async def _written(self, turn: Turn) -> None:
        kept = turn if self.redact is None else await self._redacted(turn, self.redact)
        await self.write(lambda: self.keeping.add(kept))
        await self.keeping.retry(self.write)

    async def _redacted(self, turn: Turn, redact: Redact) -> Turn:
        """On a thread, so that neither the server nor what others write waits; long ones one after the other."""
        try:
            if sum(len(message.content) for message in turn.prompt.messages) <= _LONG:
                return await asyncio.to_thread(redact_turn, turn, redact)
            async with self.long:
                return await asyncio.to_thread(redact_turn, turn, redact)
        except BaseException:
            self.keeping.lose()
            raise

    async def _abort(self, asked: Asked, caller: Caller, turn_id: str, heard: _Heard) -> None:
        """Keeps what was sampled before the caller left or the backend failed."""
        try:
            prompt_tokens = await self.policy.encode(asked.prompt)
        except BackendError:
            prompt_tokens = _UNKNOWN
        heard.reading.end(cut=True)
        finish: Finish = "aborted"
        usable = all(math.isfinite(value) for value in heard.logprobs)
        completion = Completion(
            reply=heard.reading.message(),
            prompt_tokens=prompt_tokens or _UNKNOWN,
            reply_tokens=tuple(heard.tokens) if usable else (),
            logprobs=tuple(min(value, 0.0) for value in heard.logprobs) if usable else (),
            sampling=asked.sampling,
            finish=finish,
            version=heard.version,
            flaws=(RAW_LOGPROBS,),
        )
        await self._keep(self._turn(asked, caller, turn_id, completion), caller)


@dataclass(frozen=True, slots=True)
class _Opened:
    """A reply that has begun: the request as the policy was asked it, and what it says first."""

    asked: Asked
    heard: _Heard
    item: Delta | Completion
    stream: _Closable
    unenforced: str | None


class _Closable(Protocol):
    """A stream that can be closed early."""

    async def __anext__(self) -> Delta | Completion: ...

    async def aclose(self) -> None: ...


class _Closing:
    """Gives a plug-in's stream an end that can be called."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def __anext__(self) -> Delta | Completion:
        return await anext(self._stream)

    async def aclose(self) -> None:
        return None


def _closable(stream: Stream) -> _Closable:
    return cast(_Closable, stream) if hasattr(stream, "aclose") else _Closing(stream)


async def _next(stream: _Closable) -> Delta | Completion:
    try:
        return await stream.__anext__()
    except StopAsyncIteration:
        raise BackendError("the policy's stream ended without a completion") from None


def _for_choice(asked: Asked, choice: int) -> Asked:
    """Each of several replies draws by its own seed."""
    seed = asked.sampling.seed
    if choice == 0 or seed is None:
        return asked
    return replace(asked, sampling=replace(asked.sampling, seed=seed + choice))


def _hear(asked: Asked, heard: _Heard, delta: Delta) -> Said | None:
    """Takes in one delta: what it says, None while that is held back."""
    heard.begun = True
    for piece in delta.pieces:
        heard.tokens.append(piece.token)
        heard.logprobs.append(piece.logprob)
    if asked.sampling.stop:
        heard.tail = (heard.tail + "".join(piece.text for piece in delta.pieces))[-_TAIL:]
    parts = heard.reading.feed(delta.text) if delta.text else ()
    if not asked.logprobs:
        return Said(parts) if parts else None
    heard.pieces.extend(delta.pieces)
    return Said(parts, delta.pieces) if parts or delta.pieces else None


def _hear_rest(heard: _Heard, completion: Completion) -> list[Part]:
    """What the deltas had not said yet."""
    unsaid = completion.reply.content[heard.reading.fed :]
    cut = completion.finish in ("length", "aborted")
    return [*(heard.reading.feed(unsaid) if unsaid else ()), *heard.reading.end(cut=cut)]


def _stop(asked: Asked, heard: _Heard) -> str | None:
    """The stop string that the sampled tokens ended with, if any did."""
    for stop in asked.sampling.stop:
        at = heard.tail.rfind(stop)
        if at >= 0 and len(heard.tail) - at - len(stop) < 32:
            return stop
    return None


def _read(completion: Completion, reading: Reading) -> Completion:
    """The completion with its raw text read: tokens and log-probs as they were."""
    reply = reading.message()
    finish: Finish = "tool_calls" if reply.tool_calls and completion.finish == "stop" else completion.finish
    flaws = tuple(dict.fromkeys((*completion.flaws, *reading.flaws)))
    return replace(completion, reply=reply, finish=finish, flaws=flaws)
