"""The state that one server's endpoints share: callers, sessions, model routes, and the answerer."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from openclaw_rl.errors import LedgerError, NotInLedger, RequestError
from openclaw_rl.ports import Policy
from openclaw_rl.serve.answer import Answerer
from openclaw_rl.serve.auth import ApiKeys, Headers, read_headers
from openclaw_rl.serve.recorder import Metrics
from openclaw_rl.serve.redact import REDACTED, AccessRules, redact_session
from openclaw_rl.serve.request import Caller, Event, GenerationRequest, PutsNotes, RequestLimits, UserQueue
from openclaw_rl.serve.wire.responses import NO_TURN, continued_prompt, turn_of
from openclaw_rl.types import Turn, environment_of
from openclaw_rl.web import refuse_foreign_page

log = logging.getLogger(__name__)

_REMEMBERED = 20_000
_OUT, _IN = "out", "in"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRoute:
    """The version and kind that a model id selects."""

    version: int | None = None
    side: bool = False


class SessionCache:
    """A bounded mapping by user and session that evicts the least recently used entry."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: OrderedDict[tuple[str, str], str] = OrderedDict()

    def get(self, key: tuple[str, str]) -> str | None:
        if key in self._kept:
            self._kept.move_to_end(key)
        return self._kept.get(key)

    def put(self, key: tuple[str, str], value: str) -> None:
        self._kept[key] = value
        self._kept.move_to_end(key)
        if len(self._kept) > self._size:
            self._kept.popitem(last=False)


class ServerState:
    """One server's state: small, bounded, and rebuilt by a restart."""

    def __init__(self, answerer: Answerer, access: AccessRules, notes: PutsNotes | None = None) -> None:
        self.answerer = answerer
        self._notes = notes
        self.keys = ApiKeys(access.keys, access.own_keys)
        self.model_name = answerer.generation.model_name
        self._cors_origins = frozenset(access.cors_origins)
        self._admins = frozenset(access.admins)
        self._optout_users = frozenset(answerer.recording.optout_users)
        self._queues: dict[str, UserQueue] = {}
        self.parser = ThreadPoolExecutor(max_workers=1, thread_name_prefix="bodies")
        self._sessions = SessionCache(_REMEMBERED)  # by user and name: session names are per user

    @property
    def policy(self) -> Policy:
        return self.answerer.policy

    @property
    def limits(self) -> RequestLimits:
        return self.answerer.limits

    @property
    def metrics(self) -> Metrics:
        return self.answerer.metrics

    def admit(self, headers: Headers) -> str:
        """Return the user behind a request; raise NotAllowed if there is none."""
        if self.keys.open:
            refuse_foreign_page(headers, self._cors_origins)
        return self.keys.user(headers)

    def is_admin(self, user: str) -> bool:
        """Return True if a user may control the run and read all users' turns.

        Without keys all callers are one person, with that right; the environments that this process runs lack it.
        """
        return environment_of(user) is None if self.keys.open else user in self._admins

    def queue(self, user: str) -> UserQueue:
        return self._queues.setdefault(user, UserQueue(self.limits, self.metrics))

    @property
    def busy(self) -> bool:
        """True while a request by any user is answered or waits."""
        return any(queue.busy for queue in self._queues.values())

    def route(self, model: str) -> ModelRoute:
        """Return the version and kind that a model id selects; raise a 404 error for an unknown id."""
        name = self.model_name
        if model in ("", name):
            return ModelRoute()
        if model == f"{name}-side":
            return ModelRoute(side=True)
        numbered = re.fullmatch(re.escape(name) + r"@(\d{1,9})", model)
        if numbered:
            return ModelRoute(version=int(numbered[1]))
        if self.answerer.generation.any_model and not model.startswith(f"{name}@"):
            return ModelRoute()
        names = f"{name}, {name}-side, {name}@VERSION"
        raise RequestError(f"no model is called {model[:100]!r}; known: {names}", field="model", status=404)

    async def caller(self, headers: Headers, request: GenerationRequest, user: str, route: ModelRoute) -> Caller:
        """Return the turn's metadata: everything that is not in its prompt."""
        turn_headers = read_headers(headers)
        name = turn_headers.session or request.session or request.guessed_session
        session = self.stored_name(name) if name is not None else None
        if not turn_headers.train_session:
            if session is None:
                what = "x-openclaw-rl-train: off-session needs a session"
                raise RequestError(what, field="x-openclaw-rl-train", remedy="name it in x-session-id, or set off")
            await self._opt_out(session, user)
        out = session is not None and await self._opted_out(session, user)
        trainable = turn_headers.train and user not in self._optout_users and not out
        return Caller(
            user=user,
            session=session,
            group=self.stored_name(turn_headers.group) if turn_headers.group else None,
            client=turn_headers.client,
            declared="side" if route.side else turn_headers.declared,
            done=turn_headers.done,
            trainable=trainable,
            stored=trainable or self.answerer.recording.store_optouts,
            notes=turn_headers.notes and route.version is None,
        )

    async def _opt_out(self, session: str, user: str) -> None:
        """Exclude this session's turns from training from now on, also after a restart."""
        if self._sessions.get((user, session)) == _OUT:
            return
        self._sessions.put((user, session), _OUT)
        try:
            await self.answerer.write(lambda: self.answerer.ledger.add_optout(session, user))
        except LedgerError as error:  # the opt-out is in force while this process runs; the reply is still served
            log.error("opt-out not recorded user=%s: %s", user, type(error).__name__)

    async def _opted_out(self, session: str, user: str) -> bool:
        status = self._sessions.get((user, session))
        if status is None or (status == _IN and self.answerer.recording.shared):
            stored = await self.answerer.write(lambda: self.answerer.ledger.opted_out(session, user))
            out = stored or self._sessions.get((user, session)) == _OUT  # it may have opted out meanwhile
            status = _OUT if out else _IN
            self._sessions.put((user, session), status)
        return status == _OUT

    def stored_name(self, session: str) -> str:
        redact = self.answerer.recording.redact
        return redact_session(session, redact) if redact else session

    async def known_session(self, session: str, user: str) -> str:
        """Return the stored name for a session that this user has opened; raise a 404 error if there is none."""
        name = self.stored_name(session)
        cached = self._sessions.get((user, name)) is not None
        if not cached and not await self.answerer.write(lambda: self.answerer.ledger.has_session(name, user)):
            raise RequestError("no such session", field="id", status=404)
        return name

    async def turn(self, response_id: str, user: str, *, others: bool = False) -> Turn:
        """Return the turn behind a response id if it is this user's; ``others`` permits any user's turn."""
        turn_id = turn_of(response_id)
        missing = RequestError(f"there is no turn {turn_id} of yours", field="turn", status=404)
        try:
            turn = await self.answerer.write(lambda: self._kept_turn(turn_id))
        except NotInLedger as error:
            raise missing from error
        if turn.user != user and not others:
            raise missing
        return turn

    def _kept_turn(self, turn: str) -> Turn:
        return self.answerer.recorder.find(turn) or self.answerer.ledger.turn(turn)

    async def continue_from(self, request: GenerationRequest, user: str) -> GenerationRequest:
        """Return the request with an earlier response's conversation before it, if it names one."""
        if request.after is None or turn_of(request.after) == NO_TURN:
            return request
        turn = await self.turn(request.after, user)
        if REDACTED in turn.completion.flaws:
            what = "this response was stored redacted, so it cannot be continued"
            raise RequestError(what, field="previous_response_id", remedy="send the whole conversation as input")
        return replace(request, prompt=continued_prompt(request.prompt, turn.prompt, turn.completion.reply))

    async def with_notes(self, request: GenerationRequest, caller: Caller) -> GenerationRequest:
        """Return the request with the user's standing notes, unless it declines them or prescribes a reply format.

        Requests for a version by its number, and side calls, get no notes.
        """
        free = request.sampling.json_schema is None and request.prompt.tool_choice in ("auto", "none")
        if self._notes is None or not (caller.notes and free) or caller.declared == "side":
            return request
        return replace(request, noted=await self._notes.note_for(caller.user, request.prompt))

    async def events(
        self, request: GenerationRequest, caller: Caller, turns: Sequence[str], version: int | None
    ) -> AsyncGenerator[tuple[int, Event], None]:
        """Yield the events of all requested replies, each with the number of its reply."""
        streams = [
            self.answerer.answer(request, caller, turn=turn, version=version, choice=choice)
            for choice, turn in enumerate(turns)
        ]
        if len(streams) == 1:
            async with aclosing(streams[0]) as only:
                async for event in only:
                    yield 0, event
            return
        async with aclosing(merged(streams)) as combined:
            async for choice, event in combined:
                yield choice, event


async def merged(streams: Sequence[AsyncGenerator[Event, None]]) -> AsyncGenerator[tuple[int, Event], None]:
    """Merge several streams in the order of arrival. If one fails, the others are stopped."""
    queue: asyncio.Queue[tuple[int, Event | None]] = asyncio.Queue(maxsize=64)

    async def forward(choice: int, stream: AsyncGenerator[Event, None]) -> None:
        async with aclosing(stream):
            async for event in stream:
                await queue.put((choice, event))
        await queue.put((choice, None))

    tasks = [asyncio.ensure_future(forward(choice, stream)) for choice, stream in enumerate(streams)]
    try:
        remaining = len(tasks)
        while remaining:
            choice, event = await _next_of(queue, tasks)
            if event is None:
                remaining -= 1
            else:
                yield choice, event
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _next_of(
    queue: asyncio.Queue[tuple[int, Event | None]], tasks: Sequence[asyncio.Future[None]]
) -> tuple[int, Event | None]:
    """Return the next event; raise the error of a failed stream."""
    if queue.empty():
        getting = asyncio.ensure_future(queue.get())
        try:
            while not getting.done():
                for task in tasks:
                    if task.done():
                        task.result()
                running: list[asyncio.Future[Any]] = [task for task in tasks if not task.done()]
                await asyncio.wait([getting, *running], return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not getting.done():
                getting.cancel()
        return getting.result()
    return queue.get_nowait()
