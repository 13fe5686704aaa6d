"""The engine process. Its threads receive requests, run the engine, load versions and compile formats.

It ends with its parent, however the parent ends, because the pipe between them breaks.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue

from openclaw_rl.backends.hf.guidance import can_constrain, held_calls, held_reply
from openclaw_rl.backends.hf.models import LoadedModel, available, load, text_config
from openclaw_rl.backends.hf.template import ChatTemplate, ends_of
from openclaw_rl.backends.local.engine.constraint import ConstraintCompiler
from openclaw_rl.backends.local.engine.engine import Engine, FormatQueue
from openclaw_rl.backends.local.engine.heartbeat import BEAT, Heartbeats
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
    JobEvent,
    JobFailed,
    LoadProgress,
    LoadRequest,
    RegisterVersions,
    ScoreRequest,
    StopRequest,
    TokenizeRequest,
)
from openclaw_rl.backends.local.engine.model_runner import ModelRunner, row_bytes, version_bytes
from openclaw_rl.backends.local.engine.runner_choice import OwnCacheRunner, model_runner_of, runner_words
from openclaw_rl.backends.local.engine.scheduler import Generation, Scoring
from openclaw_rl.backends.local.engine.version_loader import EngineAction, VersionLoader
from openclaw_rl.errors import ContextOverflow, ModelRefused, OpenClawError, RequestError
from openclaw_rl.machine import GIB
from openclaw_rl.types import Tokens

MIN_TOKENS = 1024
"""smallest useful cache, in tokens"""
CPU_CACHE = 2 * GIB
"""bytes of main memory for the cache, unless four full contexts need more"""


def main(conn: Connection, args: EngineArgs, heartbeats: Heartbeats) -> None:
    """Load the model, then answer requests until a `StopRequest` or the parent's end."""
    # Ctrl-C reaches the whole process group; the parent decides how to react
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        EngineWorker(conn, args, heartbeats).serve()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(0)
    except OpenClawError as error:
        conn.send(EngineFailure.of(None, error))


class EngineWorker:
    """The engine process's state."""

    def __init__(self, conn: Connection, args: EngineArgs, heartbeats: Heartbeats) -> None:
        from transformers.utils import logging

        logging.disable_progress_bar()
        self._conn = conn
        self._heartbeats = heartbeats
        self._sending = threading.Lock()
        self._inbox: SimpleQueue[EngineAction] = SimpleQueue()
        self._loaded = _load(args, lambda text: self._send(LoadProgress(text)))
        self._name = args.name or self._loaded.name
        self._base = model_runner_of(self._loaded.model)
        self._send(LoadProgress(f"{self._name} runs by {runner_words(self._base)}"))
        rows = cache_rows(self._loaded, self._base, args)
        token_bytes, fixed = _cache_bytes(self._loaded, self._base)
        self._cache_bytes = rows * token_bytes + args.max_batch * fixed
        self._loader = VersionLoader(self._loaded, self._base, post=self._inbox.put, send=self._send)
        self._chat = ChatTemplate(self._loaded.tokenizer, ends_of(self._loaded.model, self._loaded.tokenizer))
        self._detokenizer = self._chat.again()
        self._constraints = ConstraintCompiler(
            self._loaded.tokenizer, vocabulary=text_config(self._loaded.model).vocab_size, ends=self._chat.ends
        )
        self._engine = Engine(
            self._base,
            self._loaded.model,
            cache_tokens=rows,
            max_batch=args.max_batch,
            request_version=self._loader.load_for_jobs,
            free_runners=self._loader.free if self._loaded.device.type == "cpu" else None,
            heartbeat=heartbeats.computing,
        )
        self._formats = FormatQueue(
            self._constraints,
            submit=self._submit,
            refuse=lambda id, error: self._send(EngineFailure.of(id, error)),
        )
        self._context = min(args.context or self._loaded.context, self._loaded.context, self._engine.kv_cache.rows)

    def serve(self) -> None:
        """Answer requests until the pipe breaks."""
        gc.collect()
        gc.freeze()  # keep permanent objects out of the collection that follows each unloaded version
        for target in (self._run_engine, partial(self._loader.run, self._engine.runners), self._formats.run):
            threading.Thread(target=self._guarded, args=(target,), daemon=True).start()
        self._send(self._facts())
        heartbeat = self._heartbeats.receiving
        while True:
            heartbeat.beat()
            if not self._conn.poll(BEAT):
                continue
            request: EngineRequest = self._conn.recv()
            if isinstance(request, StopRequest):
                os._exit(0)
            heartbeat.work_on(getattr(request, "id", 0))
            try:
                self._handle(request)
            except Exception as error:  # one request's failure is its own: the engine continues
                if (id := getattr(request, "id", None)) is None:
                    raise
                self._send(EngineFailure.of(id, error))
            heartbeat.work_on(0)

    def _facts(self) -> EngineReady:
        loaded = self._loaded
        return EngineReady(
            name=self._name,
            base=loaded.base,
            context=self._context,
            tool_format=loaded.tool_format,
            device=str(loaded.device),
            dtype=str(loaded.dtype).removeprefix("torch."),
            cache_tokens=self._engine.kv_cache.rows,
            memory=loaded.model.get_memory_footprint() + self._cache_bytes,
            runner=runner_words(self._base),
        )

    def _handle(self, request: EngineRequest) -> None:
        match request:
            case EncodeRequest(id, prompt):
                self._send(CallResult(id, self._chat.encode(prompt)))
            case TokenizeRequest(id, text):
                self._send(CallResult(id, self._chat.tokenize(text)))
            case DecodeRequest(id, tokens):
                self._send(CallResult(id, self._chat.decode(tokens)))
            case RegisterVersions(adapters):
                self._loader.register(adapters)
            case LoadRequest() | AdmitRequest():
                self._loader.load(request)
            case DismissRequest(version):
                self._inbox.put(lambda engine: engine.dismiss(version))
            case CancelRequest(id):
                self._formats.cancel(id, lambda: self._inbox.put(lambda engine: engine.cancel(id)))
            case GenerateRequest():
                self._generate(request)
            case ScoreRequest():
                self._submit(self._scoring(request))

    def _submit(self, job: Generation | Scoring) -> None:
        def action(engine: Engine) -> list[JobEvent]:
            engine.submit(job)
            return []

        self._inbox.put(action)

    def _generate(self, request: GenerateRequest) -> None:
        """Submit a request, at once unless its reply is constrained to a format."""
        job = self._generation(request)
        prompt, sampling, form = request.prompt, request.sampling, self._loaded.tool_format
        reply_format = held_reply(prompt, sampling, tool_format=form) or held_calls(prompt, sampling, tool_format=form)
        if reply_format and can_constrain():
            self._formats.put(job, reply_format)
        else:
            self._submit(job)

    def _generation(self, request: GenerateRequest) -> Generation:
        ids = self._chat.encode(request.prompt)
        self._check_ids(ids)
        self._check_length(len(ids), request.sampling.max_tokens or 1)
        return Generation.of(
            request.id,
            request.version,
            ids,
            request.sampling,
            context=self._context,
            ends=self._chat.ends,
            scope=request.scope,
            decode=self._detokenizer.decode,
        )

    def _scoring(self, request: ScoreRequest) -> Scoring:
        if not request.prompt or not request.reply:
            raise RequestError("a score needs a prompt and a reply of at least one token each")
        self._check_ids((*request.prompt, *request.reply))
        self._check_length(len(request.prompt), len(request.reply))
        return Scoring(
            id=request.id,
            version=request.version,
            tokens=[*request.prompt, *request.reply[:-1]],
            prompt=len(request.prompt),
            reply=request.reply,
            temperature=request.temperature or 1.0,
            top_k=request.top_k,
            scope=request.scope,
        )

    def _check_ids(self, ids: Tokens) -> None:
        """Refuse ids outside the embedding: one would fail the whole batch, and on a GPU the process."""
        if ids and not 0 <= min(ids) <= max(ids) < text_config(self._loaded.model).vocab_size:
            raise RequestError("a token id lies outside the model's vocabulary")

    def _check_length(self, prompt: int, reply: int) -> None:
        if prompt + reply > self._context:
            raise ContextOverflow(limit=self._context, asked=prompt + reply)

    def _run_engine(self) -> None:
        engine = self._engine
        while True:
            events: list[JobEvent] = []
            self._heartbeats.computing.beat()
            if engine.idle:
                with suppress(Empty):
                    events += self._inbox.get(timeout=BEAT)(engine)
            events += self._drain()
            if not engine.idle:
                events += engine.step()
            self._send_events(events)

    def _drain(self) -> list[JobEvent]:
        events: list[JobEvent] = []
        while True:
            try:
                events += self._inbox.get_nowait()(self._engine)
            except Empty:
                return events

    def _send_events(self, events: list[JobEvent]) -> None:
        for event in events:
            if isinstance(event, JobFailed):
                self._send(EngineFailure.of(event.job, event.error))
        good = tuple(event for event in events if not isinstance(event, JobFailed))
        if good:
            self._send(EngineOutput(good, {**self._engine.stats(), **self._loader.stats()}))

    def _guarded(self, target: Callable[[], None]) -> None:
        """Run a thread; its failure is sent to the parent, which restarts the process."""
        try:
            target()
        except BaseException as error:  # a half-dead engine must not survive, so every cause ends the process
            lines = traceback.format_exception(error)
            self._send(EngineFailure(None, "down", "".join(lines[-3:]).strip()))
            os._exit(70)

    def _send(self, reply: EngineMessage) -> None:
        try:
            with self._sending:
                self._conn.send(reply)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(0)


def _load(args: EngineArgs, progress: Callable[[str], None]) -> LoadedModel:
    return load(
        args.model,
        cache_dir=Path(args.cache_dir),
        device=args.device,
        dtype=args.dtype,
        progress=progress,
        chat_template=args.chat_template,
        tool_format=args.tool_format,
    )


def cache_rows(loaded: LoadedModel, runner: ModelRunner, args: EngineArgs) -> int:
    """Return the cache's capacity in tokens: as set, or as many as a full batch can use within a share of free memory.

    Memory for the next version stays free. In main memory, shared with other programs, the cache is moderate.
    """
    context = min(args.context or loaded.context, loaded.context)
    token_bytes, fixed = _cache_bytes(loaded, runner)
    free = available(loaded.device) - args.max_batch * fixed
    if args.cache_tokens is not None:
        rows = args.cache_tokens
        share = free
    else:
        on_cpu = loaded.device.type == "cpu"
        share = int(max(free - version_bytes(loaded.model, runner), 0) * (0.25 if on_cpu else 0.5))
        most = max(CPU_CACHE // token_bytes, 4 * context) if on_cpu else args.max_batch * context
        rows = min(args.max_batch * context, most, share // token_bytes)
    if rows * token_bytes > share or rows < min(MIN_TOKENS, context):
        raise ModelRefused(
            f"{loaded.name}: the cache has {share / GIB:.2f} GiB, and {rows:,} tokens at {token_bytes:,} bytes each "
            f"need {rows * token_bytes / GIB:.2f} GiB ({min(MIN_TOKENS, context):,} tokens at least)",
            remedy="lower cache_tokens or context, choose a smaller model, or close other programs",
        )
    return rows


def _cache_bytes(loaded: LoadedModel, runner: ModelRunner) -> tuple[int, int]:
    """Return the cache's bytes per token, and per sequence beyond its tokens."""
    if not isinstance(runner, OwnCacheRunner):
        return row_bytes(loaded.model), 0
    token_bytes, fixed = runner.state_bytes()
    return max(token_bytes, 1), fixed
