"""Real weights on this machine, in a process of their own.

The event loop of the API only passes messages. When the engine process dies it is started again with the version that
was live; requests that had shown nothing yet are asked again, the others fail with `BackendDown`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

from openclaw_rl.backends.local.events import Finished, Said, Scored
from openclaw_rl.backends.local.link import Link
from openclaw_rl.backends.local.wire import (
    Answer,
    Cancel,
    Decode,
    Dismiss,
    Encode,
    Fault,
    Host,
    Know,
    Load,
    News,
    Progress,
    Ready,
    Reply,
    Request,
    Score,
    Settings,
    Tokenize,
    Write,
)
from openclaw_rl.errors import BackendDown, BackendError, ModelRefused, OpenClawError, RequestError
from openclaw_rl.ports import Ability, Delta, Scores, Stream
from openclaw_rl.types import Completion, Message, Prompt, Sampling, Tokens, Version

logger = logging.getLogger(__name__)

HOLD = 120.0
"""seconds a request waits for an engine that is being started again"""
TRIES = 3
"""how often a request that has shown nothing is asked again after a crash"""
RESTARTS = 5
"""how many starts may fail one after another before the policy stays down"""

T = TypeVar("T")
_Item = Said | Finished | OpenClawError
_Bits: TypeAlias = AsyncGenerator[Delta | Completion, None]


class _Lost(BackendDown):
    """The process ended under a request."""


class LocalPolicy:
    """A `Policy` on this machine's CPU or GPU. ``name``, ``base``, ``context`` and ``tool_format`` are set by `start`.

    ``context`` None is the model's own, cut to what the cache holds; ``cache_tokens`` None is chosen from free memory.
    ``Sampling.json_schema`` is not enforced: a prompt that wants JSON must ask for it.
    """

    abilities: frozenset[Ability] = frozenset({"opening"})

    def __init__(
        self,
        *,
        model: str = "embedded",
        cache_dir: str | Path,
        device: str = "auto",
        dtype: str = "auto",
        context: int | None = None,
        max_batch: int = 16,
        cache_tokens: int | None = None,
        chat_template: str | None = None,
        tool_format: str | None = None,
        name: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self._settings = Settings(
            model=model,
            cache_dir=str(cache_dir),
            device=device,
            dtype=dtype,
            context=context,
            max_batch=max_batch,
            cache_tokens=cache_tokens,
            chat_template=chat_template,
            tool_format=tool_format,
        )
        self._given_name = name
        self.name = name or model
        self.base = ""
        self.context = context or 0
        self.tool_format = tool_format or "none"
        self.facts: Ready | None = None
        self._progress = progress or (lambda text: logger.info("engine: %s", text))
        self._adapters: dict[int, str | None] = {0: None}
        self._live = 0
        self._ids = itertools.count(1)
        self._link: Link | None = None
        self._state = "stopped"
        self._error: str | None = None
        self._last_error: str | None = None
        self._restarts = 0
        self._stats: Mapping[str, int] = {}
        self._up = asyncio.Event()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._streams: dict[int, asyncio.Queue[_Item]] = {}
        self._starting: asyncio.Future[Ready] | None = None
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
            **self._stats,
        }

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

    def generate(self, prompt: Prompt, sampling: Sampling, *, version: int | None = None) -> Stream:
        """Stream a reply of ``version`` (None: the live one). Closing the stream early stops generation."""
        if sampling.dry_multiplier and (prompt.tools or sampling.json_schema is not None):
            # calls and JSON say the same names again for good reason
            sampling = replace(sampling, dry_multiplier=0.0)
        return self._generate(prompt, sampling, version)

    async def encode(self, prompt: Prompt) -> Tokens:
        """The prompt's ids through the chat template, ready for a reply."""
        return cast(Tokens, await self._ask(lambda id: Encode(id, prompt)))

    async def tokenize(self, text: str) -> Tokens:
        """The ids of a reply's bare text followed by the end-of-turn token."""
        return cast(Tokens, await self._ask(lambda id: Tokenize(id, text)))

    async def decode(self, tokens: Tokens) -> str:
        """The text of ids, special tokens kept."""
        return cast(str, await self._ask(lambda id: Decode(id, tokens)))

    async def score(
        self, prompt: Tokens, reply: Tokens, *, version: int | None = None, temperature: float = 1.0, top_k: int = 0
    ) -> Scores:
        """Log-probs of a given reply after given prompt ids; ``version`` 0 is the bare base."""
        if not reply:
            return Scores(logprobs=())
        number = self._number(version)
        return cast(Scores, await self._ask(lambda id: Score(id, prompt, reply, number, temperature, top_k)))

    async def load(self, version: Version) -> None:
        """Load ``version`` beside the running one and make it live. Requests in flight keep theirs."""
        self.know(version)
        await self._ask(lambda id: Load(id, version.number))
        self._live = version.number

    async def admit(self, version: Version) -> None:
        """Load ``version`` beside the live one and keep it until `dismiss`; its requests give way to users'."""
        self.know(version)
        await self._ask(lambda id: Host(id, version.number))

    async def dismiss(self, number: int) -> None:
        """Let an admitted version go, unless it is the live one."""
        if self._link is not None:
            self._link.send(Dismiss(number))

    def know(self, version: Version) -> None:
        """Make ``version`` known by its number without making it live; it is loaded when first asked for."""
        number, adapter = version.number, version.adapter
        if self._adapters.get(number, adapter) != adapter:
            raise BackendError(
                f"version {number} is {self._adapters[number]}, not {adapter}",
                remedy="an adapter is never changed in place: give it a new number",
            )
        self._adapters[number] = adapter
        if self._link is not None:
            self._link.send(Know({number: adapter}))

    async def _generate(self, prompt: Prompt, sampling: Sampling, version: int | None) -> _Bits:
        number = self._number(version)
        for attempt in range(TRIES):
            shown = False
            stream = self._attempt(prompt, sampling, number)
            try:
                async for item in stream:
                    shown = True
                    yield item
                return
            except _Lost:
                if shown or attempt == TRIES - 1:
                    raise
            finally:
                await stream.aclose()

    async def _attempt(self, prompt: Prompt, sampling: Sampling, number: int) -> _Bits:
        await self._ready()
        assert self._link is not None
        id, link = next(self._ids), self._link
        queue: asyncio.Queue[_Item] = asyncio.Queue()
        self._streams[id] = queue
        link.send(Write(id, prompt, sampling, number))
        over = False
        try:
            while not over:
                item = await queue.get()
                over = not isinstance(item, Said)
                if isinstance(item, OpenClawError):
                    raise item
                yield item.delta if isinstance(item, Said) else _completion(item, sampling)
        finally:
            self._streams.pop(id, None)
            if not over:
                link.send(Cancel(id))

    def _number(self, version: int | None) -> int:
        number = self._live if version is None else version
        if number not in self._adapters:
            raise RequestError(
                f"no version {number} of {self.name}; known: {_span(sorted(self._adapters))}", field="model", status=404
            )
        return number

    async def _ask(self, request: Callable[[int], Request]) -> Any:
        """Send a request and wait for its answer; asked again when the process ends under it."""
        for attempt in range(TRIES):
            await self._ready()
            try:
                return await self._send(request)
            except _Lost:
                if attempt == TRIES - 1:
                    raise
        raise AssertionError("the loop above returns or raises")

    async def _send(self, request: Callable[[int], Request]) -> Any:
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
                link.send(Cancel(id))

    async def _ready(self) -> None:
        """Wait while the engine is being started again; raises BackendDown when that takes too long or is given up."""
        if self._up.is_set():
            return
        if self._state in ("stopped", "down"):
            raise BackendDown(f"the local engine is {self._state}: {self._error or 'not started'}", retry_after=30.0)
        await _within(self._up.wait(), f"the local engine is {self._state}")
        if not self._up.is_set() or self._state != "ready":
            raise BackendDown(f"the local engine is {self._state}: {self._error or 'not started'}")

    async def _open(self) -> None:
        """A new process, its model loaded, the live version in place."""
        self._starting = asyncio.get_running_loop().create_future()
        self._link = Link(self._settings, heard=self._heard, ended=self._ended)
        facts = await self._starting
        self.facts = facts
        self.name = self._given_name or facts.name
        self.base, self.context, self.tool_format = facts.base, facts.context, facts.tool_format
        self._link.send(Know(dict(self._adapters)))
        if self._live:
            await self._send(lambda id: Load(id, self._live))
        self._state = "ready"
        self._up.set()

    async def _close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await asyncio.to_thread(link.close)

    def _heard(self, link: Link, reply: Reply) -> None:
        if link is not self._link:
            return
        match reply:
            case Ready():
                _settle(self._starting, reply)
            case Progress(text):
                self._progress(text)
            case Answer(id, value):
                _settle(self._waiting.get(id), value)
            case Fault(None):
                self._error = reply.error().what
                _settle(self._starting, reply.error())
            case Fault(id):
                self._hand(cast(int, id), reply.error())
            case News(events, stats):
                self._stats = stats
                for event in events:
                    self._hand(event.job, event)

    def _hand(self, id: int, item: Said | Finished | Scored | OpenClawError) -> None:
        """Give an event to whoever waits for it; nobody does after a cancellation."""
        if isinstance(item, Scored):
            _settle(self._waiting.get(id), item.scores)
        elif id in self._streams:
            self._streams[id].put_nowait(item)
        elif isinstance(item, OpenClawError):
            _settle(self._waiting.get(id), item)

    def _ended(self, link: Link, code: int | None) -> None:
        if link is not self._link or self._state == "stopped":
            return
        self._error = self._error or f"the engine process ended with exit code {code}"
        self._last_error = self._error
        logger.error("engine.died code=%s error=%s", code, self._error)
        _settle(self._starting, BackendDown(self._error))
        self._up.clear()
        self._fail(_Lost(f"the local engine stopped: {self._error}"))
        if self._state == "ready":
            self._state = "restarting"
            self._mending = asyncio.get_running_loop().create_task(self._mend())

    def _fail(self, error: OpenClawError) -> None:
        for future in list(self._waiting.values()):
            _settle(future, error)
        for queue in self._streams.values():
            queue.put_nowait(error)

    async def _mend(self) -> None:
        """Start the engine again, waiting longer after each failure."""
        for attempt in range(RESTARTS):
            await self._close()
            await asyncio.sleep(0 if attempt == 0 else 2.0 ** (attempt - 1))
            self._restarts += 1
            self._error = None
            try:
                await self._open()
            except (BackendDown, ModelRefused, BackendError) as error:
                self._error = error.what
                logger.error("engine.restart attempt=%d error=%s", attempt + 1, error.what)
            else:
                return
        self._state = "down"
        self._up.set()  # those who wait are told
        self._up.clear()


def _completion(done: Finished, sampling: Sampling) -> Completion:
    return Completion(
        reply=Message(role="assistant", content=done.text),
        prompt_tokens=done.prompt,
        reply_tokens=done.tokens,
        logprobs=done.logprobs,
        sampling=sampling,
        finish=done.finish,
        version=done.version,
    )


def _settle(future: asyncio.Future[Any] | None, value: object) -> None:
    """Give a value or an error to a future that still waits."""
    if future is None or future.done():
        return
    if isinstance(value, OpenClawError):
        future.set_exception(value)
    else:
        future.set_result(value)


async def _within(waited: Awaitable[T], what: str) -> T:
    try:
        return await asyncio.wait_for(waited, HOLD)
    except TimeoutError as error:
        raise BackendDown(f"{what} for more than {HOLD:.0f} s") from error


def _span(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[-5:]))
    return shown if len(numbers) <= 5 else f"{numbers[0]} .. {numbers[-6]}, {shown}"
