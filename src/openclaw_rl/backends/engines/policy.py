"""The policy on an external engine: the `Policy` port over HTTP, with token ids both ways.

The prompt is rendered with the model's own tokenizer, its ids are sent, and ids and log-probs return: no text is
tokenized twice. If the engine dies during a reply, the reply continues from its tokens when the engine is back.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import replace
from functools import wraps
from typing import Any, TypeAlias, cast

from pydantic_core import from_json

from openclaw_rl.backends.engines.dialect import ChatCall, Dialect, GenerateCall
from openclaw_rl.backends.engines.examination import examine_environment, examine_running, unreachable
from openclaw_rl.backends.engines.http import ConnectionLost, EngineAnswer, EngineHttp
from openclaw_rl.backends.engines.launched import LaunchedEngine, forget, remember, remembered
from openclaw_rl.backends.engines.server import EngineServer
from openclaw_rl.backends.engines.settings import EngineSettings, guide_of
from openclaw_rl.backends.engines.sglang import SglangDialect
from openclaw_rl.backends.engines.vllm import VllmDialect
from openclaw_rl.backends.engines.weights import AdapterStore, WeightStore
from openclaw_rl.backends.hf.detokenizer import TokenChunk, TopLogprobs
from openclaw_rl.backends.hf.prompts import ModelFiles, PromptEncoder, Reply, read_model
from openclaw_rl.backends.hf.remote_policy import RemotePolicy
from openclaw_rl.backends.hf.version_table import ScopedPolicy, VersionTable
from openclaw_rl.errors import (
    BackendDown,
    BackendError,
    FatalRequest,
    ModelRefused,
    RequestError,
)
from openclaw_rl.ports import Ability, Delta, EngineFinding, Policy, Stream
from openclaw_rl.types import Completion, Prompt, Sampling, Tokens, Version

# The translation from an engine's refusal to an error for the request.


class Forgotten(Exception):
    """The engine does not have the adapter that a request names."""


def refusal(dialect: Dialect, answer: EngineAnswer) -> Exception:
    """Return the error for an answer with a status other than 200."""
    if dialect.forgot(answer):
        return Forgotten(answer.words)
    words = f"the engine refused the request: {answer.words}"
    if answer.status == 429:
        return BackendDown(words)
    if answer.status >= 500:  # an engine whose core died answers once with this, then ends
        return ConnectionLost(f"the engine failed: {answer.words}")
    return RequestError(words, status=400)


def code_of(error: Any) -> int:
    """Return the status for an error inside a stream."""
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) and 400 <= code < 600 else 500


log = logging.getLogger(__name__)

DEATHS = 3
"""engine deaths during one request before the request counts as the cause"""

_Deltas: TypeAlias = AsyncGenerator[Delta | Completion, None]
_Chunks: TypeAlias = AsyncGenerator[TokenChunk, None]


class EnginePolicy(RemotePolicy):
    """A `Policy` on vLLM or SGLang. ``name``, ``base``, ``context`` and ``tool_format`` are set by `start`."""

    abilities: frozenset[Ability] = frozenset({"opening", "json_schema", "strict_tools"})

    def __init__(
        self, dialect: Dialect, settings: EngineSettings, *, progress: Callable[[str], None] | None = None
    ) -> None:
        self.name = self.base = settings.model
        self.context = settings.context or 0
        self.tool_format = settings.tool_format or "none"
        self._dialect, self._settings = dialect, settings
        self._progress = progress or (lambda text: log.info("engine.progress %s", text))
        self._versions = VersionTable()
        self._model: ModelFiles | None = None
        self._text: PromptEncoder | None = None
        self._server: EngineServer | None = None
        self._store: AdapterStore | WeightStore | None = None

    @property
    def health(self) -> dict[str, Any]:
        """Return the engine's state, and the adapters that it has loaded."""
        status = self._server.health if self._server else {"state": "stopped", "engine": self._dialect.name}
        names = self._store.names if self._store else {}
        return {**status, "live": self.live, "adapters": names, "unloadable": dict(self._versions.unloadable)}

    @property
    def runner(self) -> str | None:
        """Return the engine's name and address; None before `start`."""
        return f"{self.health['engine']} at {self.health['url']}" if self._server else None

    @property
    def outage(self) -> str | None:
        """Return the reason for a lasting outage; None while the engine answers or restarts."""
        return self._server.outage if self._server else None

    # --- life

    async def start(self) -> None:
        """Read the model's files and reach or start the engine; raise ModelRefused or BackendDown with the remedy."""
        if self._server is not None:
            return
        settings = self._settings
        self._model = await asyncio.to_thread(self._read_model)
        find = self._of_this_run if settings.follows else None
        running_url = find() if find is not None else None
        http = EngineHttp(running_url or settings.address, key=settings.key)
        launched = self._launched(self._model) if settings.launched and running_url is None else None
        self._server = EngineServer(
            http, self._dialect, launched=launched, returned=self._returned, progress=self._progress, find=find
        )
        self._store, self._text = self._make_store(http, self._model), PromptEncoder(self._model.chat)
        try:
            if launched is not None and not settings.follow:
                remember(settings.run_dir, engine=self._dialect.name, url=http.url)
            facts = await self._server.start()
        except BaseException:
            await self.stop()
            raise
        self.name, self.base, self.tool_format = self._model.name, self._model.base, self._model.tool_format
        self.context = min(facts.context or self._model.context, settings.context or self._model.context)

    def _of_this_run(self) -> str | None:
        """Return the address of an engine that another process in the run started."""
        return remembered(self._settings.run_dir, engine=self._dialect.name)

    def _make_store(self, http: EngineHttp, model: ModelFiles) -> AdapterStore | WeightStore:
        paths = self._versions.adapters
        if self._settings.lora:
            return AdapterStore(http, self._dialect, self._settings.folder, paths=paths, smoke=self._smoke)
        return WeightStore(
            http, self._dialect, base=model.folder, paths=paths, live=lambda: self.live, smoke=self._smoke
        )

    async def examine(self) -> Sequence[EngineFinding]:
        """Examine the engine without starting it."""
        settings = self._settings
        if settings.launched:
            return [await examine_environment(settings.plan_python, self._dialect)]
        http = EngineHttp(settings.address, key=settings.key)
        try:
            gone = await unreachable(http, self._dialect)
            if gone is not None:
                return [gone]
            model = await asyncio.to_thread(self._read_model)
            server = EngineServer(http, self._dialect, launched=None, returned=_nothing, progress=self._progress)
            return await examine_running(
                http,
                self._dialect,
                await server.start(),
                encode=model.chat.tokenizer.encode,
                rank=settings.lora_rank if settings.lora else None,
                turns=settings.turns,
                folder=settings.run_dir,
            )
        finally:
            http.close()

    def _read_model(self) -> ModelFiles:
        settings = self._settings
        return read_model(
            settings.model,
            cache_dir=settings.cache_dir,
            chat_template=settings.chat_template,
            tool_format=settings.tool_format,
            progress=self._progress,
        )

    def _launched(self, model: ModelFiles) -> LaunchedEngine:
        plan = self._settings.plan(model)
        return LaunchedEngine(self._dialect.name, self._dialect.command(plan), self._settings.log, self._progress)

    async def stop(self) -> None:
        """End an engine started here, or unload this process's adapters from an external one. Safe to call twice."""
        server, self._server = self._server, None
        if server is None or self._store is None or self._text is None:
            return
        await self._store.close(unload=not server.ours and server.state == "ready")
        await server.stop()
        forget(self._settings.run_dir)
        self._text.close()

    async def _returned(self) -> None:
        """Restore the state after the engine's return: load the live version before any request is answered."""
        store = self._loaded_store()
        store.returned(self._up().facts.adapters)
        try:
            await store.keep(self.live)
        except (ModelRefused, RequestError) as error:
            log.error("engine.unloadable version=%d error=%s", self.live, error.what)
            self._versions.unloadable[self.live] = error.what
            self._versions.live = self._versions.before(self.live)

    # --- versions

    def know(self, version: Version) -> None:
        """Register ``version`` by its number; the first request for it loads it."""
        self._versions.know(version)

    async def load(self, version: Version) -> None:
        """Load ``version`` beside the running one and make it live. Requests in flight finish on their version."""
        before = self.live
        async with self._loaded_store().taking_up():
            await self.admit(version)
            self._versions.live = version.number
        self._versions.loaded(version.number)
        if before != version.number:
            self._loaded_store().let_go(before)

    async def admit(self, version: Version) -> None:
        """Load ``version`` beside the live one until `dismiss`; raise ModelRefused if its weights are damaged."""
        self.know(version)
        try:
            async with self._up().request():
                await self._loaded_store().keep(version.number)
        except RequestError as error:
            raise ModelRefused(error.what, remedy="a version's directory must not be moved or deleted") from error
        except ConnectionLost as lost:
            self._up().lost(lost)
            if self._versions.died(version.number, lost.what):
                raise FatalRequest(f"engines end while they load version {version.number}: {lost.what}") from lost
            raise

    async def dismiss(self, number: int) -> None:
        """Release an admitted version, unless it is the live one."""
        if number != self.live and self._store is not None:
            self._store.let_go(number)

    def asleep(self) -> AbstractAsyncContextManager[None]:
        """Free the engine's GPU memory inside the block; requests wait, none fails."""
        return self._up().asleep()

    async def _smoke(self, name: str | None) -> None:
        """Sample one token from newly loaded weights, so that non-finite weights fail before any request."""
        prompt = (next(iter(self._encoder().ends)),)
        call = GenerateCall(
            adapter=name, prompt=prompt, sampling=Sampling(temperature=0.0), limit=1, ends=(), scope="", guidance=None
        )
        try:
            async with aclosing(self._chunks(self._dialect.generate_path, self._body(call), call.sampling)) as chunks:
                logprobs = [value async for chunk in chunks for value in chunk.logprobs]
        except (RequestError, ValueError) as error:
            raise ModelRefused(f"it does not answer: {error}", remedy="train from its parent") from error
        if not logprobs or not all(map(math.isfinite, logprobs)):
            raise ModelRefused("its log-probs are not finite", remedy="train from its parent")

    # --- replies

    def generate(self, prompt: Prompt, sampling: Sampling, *, version: int | None = None, scope: str = "") -> Stream:
        """Stream a reply by ``version`` (None: the live one). Closing the stream early stops generation."""
        if sampling.dry_multiplier:
            sampling = replace(sampling, dry_multiplier=0.0)  # engines have no such penalty, so none is recorded
        return self._generate(prompt, sampling, version, scope)

    def scoped(self, scope: str) -> Policy:
        """Return the same policy for one scope, with its own part of the prefix cache."""
        return cast(Policy, ScopedPolicy(self, scope)) if scope else self

    async def _scored(
        self, prompt: Tokens, reply: Tokens, number: int, top: int
    ) -> tuple[tuple[float, ...], tuple[TopLogprobs, ...]]:
        for attempt in range(DEATHS):
            try:
                async with self._up().request(), self._loaded_store().using(number) as name:
                    body = self._dialect.score_body(prompt, reply, name, top, self._up().facts)
                    answer = await self._up().http.post(self._dialect.score_path, body)
                if name is not None and self._dialect.forgot(answer) and not attempt:
                    self._loaded_store().forgotten(number)
                    continue
                if answer.status != 200:
                    raise refusal(self._dialect, answer)
                return self._dialect.scores(answer.json(), reply=reply)
            except ConnectionLost as lost:
                self._up().lost(lost)
        raise BackendDown(f"the {self._dialect.name} engine ended {DEATHS} times while it scored a reply")

    async def _generate(self, prompt: Prompt, sampling: Sampling, version: int | None, scope: str) -> _Deltas:
        if version is None:
            await self._loaded_store().settled()
        number = self._number(version)
        images = any(message.images for message in prompt.messages)
        ids = () if images else await self.encode(prompt)
        reply = Reply(self._encoder(), ids, sampling, limit=self._limit(len(ids), sampling))
        guide = None if images else guide_of(prompt, sampling, tool_format=self.tool_format)

        def call(name: str | None) -> tuple[str, dict[str, Any]]:
            if images:
                chat = ChatCall(adapter=name, prompt=prompt, sampling=sampling, limit=sampling.max_tokens)
                return self._dialect.chat_path, self._dialect.chat_body(chat, self._up().facts)
            resumed_sampling = (
                sampling if sampling.seed is None else replace(sampling, seed=sampling.seed + len(reply.tokens))
            )
            generate_call = GenerateCall(
                adapter=name,
                prompt=(*ids, *reply.tokens),
                sampling=resumed_sampling,
                limit=reply.left,
                ends=tuple(sorted(self._encoder().ends)),
                scope=scope,
                guidance=None if guide is None else guide.guidance,
            )
            return self._dialect.generate_path, self._body(generate_call)

        def resumable() -> bool:
            return not images and (guide is None or not guide.held(reply.text))

        deltas = self._surviving(number, reply, call, resumable)
        async with aclosing(deltas):
            async for delta in deltas:
                yield delta
        if guide is not None and reply.tokens and guide.held(reply.text):
            # guided log-probs are over the tokens that the guide allowed: scoring the reply gives its own
            scores = await self.score(
                reply.prompt, tuple(reply.tokens), version=number, temperature=sampling.temperature
            )
            reply.logprobs = list(scores.logprobs)
        yield reply.completion(number)

    async def _surviving(
        self,
        number: int,
        reply: Reply,
        call: Callable[[str | None], tuple[str, dict[str, Any]]],
        resumable: Callable[[], bool],
    ) -> AsyncGenerator[Delta, None]:
        """Yield the reply's deltas, resuming it after an engine failure."""
        deaths = forgotten = 0
        while reply.finish is None:
            try:
                async with self._up().request(), self._loaded_store().using(number) as name:
                    path, body = call(name)
                    chunks = self._chunks(path, body, reply.sampling)
                    async with aclosing(chunks):
                        async for chunk in chunks:
                            delta = reply.take(chunk)
                            if delta is not None:
                                yield delta
                            if reply.finish is not None and chunk.ending is None:
                                break
                if reply.finish is None:
                    raise ConnectionLost("the engine ended a reply without a reason")
            except ConnectionLost as lost:
                deaths += 1
                self._up().lost(lost)
                if deaths >= DEATHS:
                    raise FatalRequest(
                        f"{self._dialect.name} ended {deaths} times while it worked on this request ({lost.what})",
                        remedy="change the request, or see the engine's log",
                    ) from lost
                if reply.tokens and not resumable():
                    raise
            except Forgotten as error:
                forgotten += 1
                self._loaded_store().forgotten(number)
                if name is None or forgotten > 1:
                    remedy = f"is it a {self._dialect.name} engine?" if name is None else "see its log"
                    raise BackendError(f"the engine refused the request: {error}", remedy=remedy) from error

    async def _chunks(self, path: str, body: dict[str, Any], sampling: Sampling) -> _Chunks:
        """Yield engine events, merging those that arrive together; raise the refusal's error if the engine refuses."""
        http, taken = self._up().http, 0
        events = http.stream(path, body) if body["stream"] else http.whole(path, body)
        async with aclosing(events):
            async for events_or_answer in events:
                if isinstance(events_or_answer, EngineAnswer):
                    raise refusal(self._dialect, events_or_answer)
                chunks = []
                for event in events_or_answer:
                    chunks.append(self._chunk(event, taken, sampling))
                    taken += len(chunks[-1].tokens)
                yield TokenChunk.joined(chunks)

    def _chunk(self, event: bytes, taken: int, sampling: Sampling) -> TokenChunk:
        data = from_json(event)
        if "error" in data:
            raise refusal(self._dialect, EngineAnswer(code_of(data["error"]), event))
        return self._dialect.chunk(data, taken=taken, temperature=sampling.temperature, top=sampling.top_logprobs)

    def _body(self, call: GenerateCall) -> dict[str, Any]:
        return self._dialect.generate_body(call, self._up().facts)

    def _up(self) -> EngineServer:
        if self._server is None:
            raise BackendDown(f"the {self._dialect.name} policy is not started")
        return self._server

    def _loaded_store(self) -> AdapterStore | WeightStore:
        self._up()
        assert self._store is not None
        return self._store

    def _encoder(self) -> PromptEncoder:
        self._up()
        assert self._text is not None
        return self._text


async def _nothing() -> None:
    """Do nothing: no version was loaded, so none needs to be restored."""


# The policies for ``policy.backend = "vllm"`` and ``"sglang"``, called with the settings in `EngineSettings`.


@wraps(EngineSettings, assigned=(), updated=())
def vllm_policy(**settings: Any) -> EnginePolicy:
    """Return a policy on vLLM."""
    return EnginePolicy(VllmDialect(), EngineSettings(**settings))


@wraps(EngineSettings, assigned=(), updated=())
def sglang_policy(**settings: Any) -> EnginePolicy:
    """Return a policy on SGLang."""
    return EnginePolicy(SglangDialect(), EngineSettings(**settings))
