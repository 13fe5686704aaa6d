"""Real weights on this machine, in a process of their own.

The event loop of the API only passes messages. When the engine process dies it is started again with the version that
was live, or the nearest one before it that can be loaded. Requests that had shown something fail with `BackendDown`,
the others are asked again, once and one at a time: what the engine dies of twice fails with `FatalRequest`. After
several starts in vain the policy is down: it refuses at once, and is tried again now and then and by the next `load`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial, wraps
from typing import Any, TypeAlias, cast

from openclaw_rl.backends.local.engine.admission import AdmissionQueue
from openclaw_rl.backends.local.engine.asking import EngineLost, GenerateCall, completion, fatal, settle, within
from openclaw_rl.backends.local.engine.events import Finished, ScoreFinished, TokenDelta
from openclaw_rl.backends.local.engine.messages import (
    AdmitRequest,
    CallResult,
    CancelRequest,
    DecodeRequest,
    DismissRequest,
    EncodeRequest,
    EngineArgs,
    EngineFailure,
    EngineMessage,
    EngineOutput,
    EngineReady,
    EngineRequest,
    GenerateRequest,
    LoadProgress,
    LoadRequest,
    RegisterVersions,
    ScoreRequest,
    TokenizeRequest,
)
from openclaw_rl.backends.local.engine.process import EngineProcess
from openclaw_rl.backends.local.engine.scoped import ScopedPolicy
from openclaw_rl.backends.local.engine.version_table import VersionTable
from openclaw_rl.errors import BackendDown, BackendError, BackendGone, OpenClawError, RequestError
from openclaw_rl.ports import Ability, Delta, Policy, Scores, Stream
from openclaw_rl.types import Completion, Prompt, Sampling, Tokens, Version

logger = logging.getLogger(__name__)

RESTARTS = 5
"""how many starts may fail one after another before the policy is down"""
BACKOFF = 1.0
"""seconds before the second of these starts; twice as many before each one after it"""
LATER = 60.0
"""seconds from one start to the next of a policy that is down"""

_Item = TokenDelta | Finished | OpenClawError
_Bits: TypeAlias = AsyncGenerator[Delta | Completion, None]


class LocalPolicy:
    """A `Policy` on this machine's CPU or GPU. ``name``, ``base``, ``context`` and ``tool_format`` are set by `start`.

    ``Sampling.json_schema`` is not enforced: a prompt that wants JSON must ask for it.
    """

    abilities: frozenset[Ability] = frozenset({"opening"})

    def __init__(self, args: EngineArgs, *, progress: Callable[[str], None] | None = None) -> None:
        self._args = args
        self.name = args.name or args.model
        self.base = ""
        self.context = args.context or 0
        self.tool_format = args.tool_format or "none"
        self.facts: EngineReady | None = None
        self._progress = progress or (lambda text: logger.info("engine: %s", text))
        self._versions = VersionTable()
        self._live = 0
        self._ids = itertools.count(1)
        self._link: EngineProcess | None = None
        self._state = "stopped"
        self._error: str | None = None
        self._last_error: str | None = None
        self._restarts = 0
        self._stats: Mapping[str, int] = {}
        self._up = asyncio.Event()
        self._now = asyncio.Event()
        self._turnstile = AdmissionQueue()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._streams: dict[int, asyncio.Queue[_Item]] = {}
        self._starting: asyncio.Future[EngineReady] | None = None
        self._mending: asyncio.Task[None] | None = None

    @property
    def live(self) -> int:
        """The number of the version that new requests take."""
        return self._live

    @property
    def health(self) -> dict[str, Any]:
        """How the engine is: its state, its process, its crashes, what it is doing."""
        pid = self._link.pid if self._link is not None else None
        return {
            "state": self._state,
            "pid": pid,
            "restarts": self._restarts,
            "error": self._error,
            "last_error": self._last_error,
            "live": self._live,
            "unloadable": dict(self._versions.unloadable),
            **self._stats,
        }

    @property
    def outage(self) -> str | None:
        """Why it cannot answer, and will not soon; None while it answers or is being started again."""
        return f"the local engine is down: {self._error or 'not started'}" if self._state == "down" else None

    async def start(self) -> None:
        """Start the engine process and load the model; raises ModelRefused with the numbers and the remedy."""
        if self._state != "stopped":
            return
        self._state = "starting"
        try:
            await self._open()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End the engine process. Safe to call twice."""
        self._state = "stopped"
        self._up.clear()
        mending, self._mending = self._mending, None
        if mending is not None:
            mending.cancel()
            with suppress(asyncio.CancelledError):
                await mending
        await self._close()
        self._fail(BackendDown("the local policy was stopped"))

    def generate(self, prompt: Prompt, sampling: Sampling, *, version: int | None = None, scope: str = "") -> Stream:
        """Stream a reply of ``version`` (None: the live one). Closing the stream early stops generation."""
        if sampling.dry_multiplier and (prompt.tools or sampling.json_schema is not None):
            # calls and JSON say the same names again for good reason
            sampling = replace(sampling, dry_multiplier=0.0)
        return self._generate(prompt, sampling, version, scope)

    def scoped(self, scope: str) -> Policy:
        """The same policy for one scope: what it has read for another is not reused, so nobody can tell what it was."""
        return cast(Policy, ScopedPolicy(self, scope)) if scope else self

    async def encode(self, prompt: Prompt) -> Tokens:
        """The prompt's ids through the chat template, ready for a reply."""
        return cast(Tokens, await self._ask(lambda id: EncodeRequest(id, prompt)))

    async def tokenize(self, text: str) -> Tokens:
        """The ids of a reply's bare text followed by the end-of-turn token."""
        return cast(Tokens, await self._ask(lambda id: TokenizeRequest(id, text)))

    async def decode(self, tokens: Tokens) -> str:
        """The text of ids, special tokens kept."""
        return cast(str, await self._ask(lambda id: DecodeRequest(id, tokens)))

    async def score(
        self, prompt: Tokens, reply: Tokens, *, version: int | None = None, temperature: float = 1.0, top_k: int = 0
    ) -> Scores:
        """Log-probs of a given reply after given prompt ids; ``version`` 0 is the base model."""
        if not reply:
            return Scores(logprobs=())
        number = self._number(version)
        return cast(Scores, await self._ask(lambda id: ScoreRequest(id, prompt, reply, number, temperature, top_k)))

    async def load(self, version: Version) -> None:
        """Load ``version`` beside the running one and make it live. Requests in flight keep theirs.

        A policy that is down is started again with it.
        """
        self.know(version)
        if self._state == "down":
            await self._start_again(version.number)
        else:
            await self._ask(lambda id: LoadRequest(id, version.number))
            self._live = version.number
        self._versions.loaded(version.number)

    async def admit(self, version: Version) -> None:
        """Load ``version`` beside the live one and keep it until `dismiss`; its requests give way to users'."""
        self.know(version)
        await self._ask(lambda id: AdmitRequest(id, version.number))

    async def dismiss(self, number: int) -> None:
        """Let an admitted version go, unless it is the live one."""
        if self._link is not None:
            self._link.send(DismissRequest(number))

    def know(self, version: Version) -> None:
        """Make ``version`` known by its number without making it live; it is loaded when first asked for."""
        self._versions.know(version)
        if self._link is not None:
            self._link.send(RegisterVersions({version.number: version.adapter}))

    async def _generate(self, prompt: Prompt, sampling: Sampling, version: int | None, scope: str) -> _Bits:
        number = self._number(version)
        asking = GenerateCall(prompt, sampling, number, number == self._live, scope)
        for again in (False, True):
            shown = False
            stream = self._attempt(asking, alone=again)
            try:
                async for item in stream:
                    shown = True
                    yield item
                return
            except EngineLost as lost:
                if shown:
                    raise
                if again:
                    raise fatal(lost) from lost
            finally:
                await stream.aclose()

    async def _attempt(self, asking: GenerateCall, *, alone: bool) -> _Bits:
        async with self._turnstile.passing(alone=alone) as shown:
            await self._ready()
            gone = asking.live and asking.version in self._versions.unloadable
            number = self._live if gone else asking.version
            assert self._link is not None
            id, link = next(self._ids), self._link
            queue: asyncio.Queue[_Item] = asyncio.Queue()
            self._streams[id] = queue
            link.send(GenerateRequest(id, asking.prompt, asking.sampling, number, asking.scope))
            over = False
            try:
                while not over:
                    item = await queue.get()
                    over = not isinstance(item, TokenDelta)
                    if isinstance(item, OpenClawError):
                        raise item
                    shown()
                    yield item.delta if isinstance(item, TokenDelta) else completion(item, asking.sampling)
            finally:
                self._streams.pop(id, None)
                if not over:
                    link.send(CancelRequest(id))

    def _number(self, version: int | None) -> int:
        number = self._live if version is None else version
        if number not in self._versions.adapters:
            known = self._versions.names()
            raise RequestError(f"no version {number} of {self.name}; known: {known}", field="model", status=404)
        return number

    async def _ask(self, request: Callable[[int], EngineRequest]) -> Any:
        """Send a request and wait for its answer; asked again, once and alone, when the process ends under it."""
        for again in (False, True):
            async with self._turnstile.passing(alone=again):
                await self._ready()
                try:
                    return await self._send(request)
                except EngineLost as lost:
                    if again:
                        raise fatal(lost) from lost
        raise AssertionError("the loop above returns or raises")

    async def _send(self, request: Callable[[int], EngineRequest]) -> Any:
        assert self._link is not None
        id, link = next(self._ids), self._link
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[id] = future
        link.send(request(id))
        try:
            return await future
        finally:
            self._waiting.pop(id, None)
            if future.cancelled():
                link.send(CancelRequest(id))

    async def _ready(self) -> None:
        """Wait while the engine is being started again; raises BackendDown when that takes too long or is given up."""
        if self._up.is_set():
            return
        if self._state in ("starting", "restarting"):
            await within(self._up.wait(), f"the local engine is {self._state}")
        if self._state == "down":
            raise BackendGone(str(self.outage), retry_after=LATER, remedy="see the server's log")
        if not self._up.is_set() or self._state != "ready":
            raise BackendDown(f"the local engine is {self._state}: {self._error or 'not started'}", retry_after=30.0)

    async def _start_again(self, number: int) -> None:
        """Start a policy that is down with another version, now."""
        self._live = number
        self._now.set()
        await within(self._up.wait(), "the local engine is down")
        if self._state != "ready":
            raise BackendGone(str(self.outage), retry_after=LATER)
        if self._live != number:
            raise BackendError(f"version {number} cannot be loaded: {self._versions.unloadable.get(number)}")

    async def _open(self) -> None:
        """A new process, its model loaded, the live version in place."""
        self._starting = asyncio.get_running_loop().create_future()
        self._link = EngineProcess(self._args, heard=self._heard, ended=self._ended)
        facts = await self._starting
        self.facts = facts
        self.name = facts.name
        self.base, self.context, self.tool_format = facts.base, facts.context, facts.tool_format
        self._link.send(RegisterVersions(dict(self._versions.adapters)))
        await self._load_live()
        self._state = "ready"
        self._up.set()

    async def _load_live(self) -> None:
        """The version that was live; where it cannot be loaded the nearest one before it that can, the base at last."""
        number = self._live
        while number:
            try:
                await self._send(partial(LoadRequest, version=number))
                self._versions.loaded(number)
                break
            except BackendDown as error:
                if self._versions.died(number, error.what):
                    self._live = self._versions.before(number)
                raise
            except (BackendError, RequestError) as error:
                self._versions.unloadable[number] = error.what
                logger.error("engine.unloadable version=%d error=%s", number, error.what)
                number = self._versions.before(number)
        self._live = number

    async def _close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await asyncio.to_thread(link.close)

    def _heard(self, link: EngineProcess, reply: EngineMessage) -> None:
        if link is not self._link:
            return
        match reply:
            case EngineReady():
                settle(self._starting, reply)
            case LoadProgress(text):
                self._progress(text)
            case CallResult(id, value):
                settle(self._waiting.get(id), value)
            case EngineFailure(None):
                self._error = reply.error().what
                settle(self._starting, reply.error())
            case EngineFailure(id):
                self._hand(cast(int, id), reply.error())
            case EngineOutput(events, stats):
                self._stats = stats
                for event in events:
                    self._hand(event.job, event)

    def _hand(self, id: int, item: TokenDelta | Finished | ScoreFinished | OpenClawError) -> None:
        """Give an event to whoever waits for it; nobody does after a cancellation."""
        if isinstance(item, ScoreFinished):
            settle(self._waiting.get(id), item.scores)
        elif id in self._streams:
            self._streams[id].put_nowait(item)
        elif isinstance(item, OpenClawError):
            settle(self._waiting.get(id), item)

    def _ended(self, link: EngineProcess, code: int | None) -> None:
        if link is not self._link or self._state == "stopped":
            return
        self._error = self._error or f"the engine process ended with exit code {code}"
        self._last_error = self._error
        logger.error("engine.died code=%s error=%s", code, self._error)
        settle(self._starting, BackendDown(self._error))
        self._up.clear()
        self._fail(EngineLost(f"the local engine stopped: {self._error}"))
        if self._state == "ready":
            self._state = "restarting"
            self._mending = asyncio.get_running_loop().create_task(self._mend())

    def _fail(self, error: OpenClawError) -> None:
        for future in list(self._waiting.values()):
            settle(future, error)
        for queue in self._streams.values():
            queue.put_nowait(error)

    async def _mend(self) -> None:
        """Start the engine again, waiting longer after each failure; when it was in vain too often it is down."""
        for attempt in itertools.count():
            await self._close()
            await self._pause(attempt)
            self._restarts += 1
            self._error = None
            try:
                await self._open()
                return
            except BackendError as error:
                self._error = error.what
                logger.error("engine.restart attempt=%d error=%s", attempt + 1, error.what)
            if attempt + 1 >= RESTARTS:
                self._state = "down"
                self._up.set()  # those who wait are told
                self._up.clear()

    async def _pause(self, attempt: int) -> None:
        """Wait for the next start; one that is long in coming can be asked for at once."""
        seconds = 0.0 if attempt == 0 else BACKOFF * 2 ** (attempt - 1) if attempt < RESTARTS else LATER
        with suppress(TimeoutError):
            await asyncio.wait_for(self._now.wait(), seconds)
        self._now.clear()


@wraps(EngineArgs, assigned=(), updated=())
def local_policy(**settings: Any) -> LocalPolicy:
    """The policy of ``policy.backend = "local"``: called with the settings that `EngineArgs` names."""
    return LocalPolicy(EngineArgs(**settings))
