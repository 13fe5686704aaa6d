"""The engine's process: one thread receives requests, one runs the engine, one loads versions.

It ends when its parent does, however that ends: the pipe between them breaks.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue

from openclaw_rl.backends.hf.adapters import version_model
from openclaw_rl.backends.hf.memory import available, release
from openclaw_rl.backends.hf.models import LoadedModel, load
from openclaw_rl.backends.hf.template import ChatTemplate, ends_of
from openclaw_rl.backends.local.engine.engine import Engine
from openclaw_rl.backends.local.engine.events import JobEvent, JobFailed
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
    StopRequest,
    TokenizeRequest,
)
from openclaw_rl.backends.local.engine.model_runner import ModelRunner, model_runner_of, row_bytes, version_bytes
from openclaw_rl.backends.local.engine.sequences import Generation, Scoring
from openclaw_rl.errors import BackendError, ContextOverflow, ModelRefused, OpenClawError, RequestError
from openclaw_rl.machine import GIB
from openclaw_rl.types import Tokens

MIN_TOKENS = 1024
"""a cache smaller than this is of no use"""
CPU_CACHE = 2 * GIB
"""bytes of main memory that a cache takes unless four full contexts need more"""
SETTLED = 0.15
"""seconds after which freed memory can be given back"""

Action = Callable[[Engine], list[JobEvent]]


@dataclass(frozen=True, slots=True)
class _VersionRequest:
    """The engine itself requests a version, for the jobs that wait for it."""

    version: int
    id: None = None


def main(conn: Connection, args: EngineArgs) -> None:
    """Load the model, then answer requests until a `StopRequest` or until the parent is gone."""
    # Ctrl-C reaches the whole group of processes; the parent decides what it means
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        EngineWorker(conn, args).serve()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(0)
    except OpenClawError as error:
        conn.send(EngineFailure.of(None, error))


class EngineWorker:
    """What the process holds."""

    def __init__(self, conn: Connection, args: EngineArgs) -> None:
        from transformers.utils import logging

        logging.disable_progress_bar()
        self._conn = conn
        self._sending = threading.Lock()
        self._inbox: SimpleQueue[Action] = SimpleQueue()
        self._loads: SimpleQueue[LoadRequest | AdmitRequest | _VersionRequest | None] = SimpleQueue()
        self._unused: deque[ModelRunner] = deque()
        self._adapters: dict[int, str | None] = {0: None}
        self._loaded = _load(args, lambda text: self._send(LoadProgress(text)))
        self._name = args.name or self._loaded.name
        self._base = model_runner_of(self._loaded.model)
        rows = cache_rows(self._loaded, self._base, args)
        self._chat = ChatTemplate(self._loaded.tokenizer, ends_of(self._loaded.model, self._loaded.tokenizer))
        self._detokenizer = self._chat.again()
        self._engine = Engine(
            self._base,
            self._loaded.model,
            cache_tokens=rows,
            max_batch=args.max_batch,
            request_version=self._request_version,
            free_runners=self._free_later if self._loaded.device.type == "cpu" else None,
        )
        self._context = min(args.context or self._loaded.context, self._loaded.context, self._engine.kv_cache.rows)

    def serve(self) -> None:
        """Answer requests until the pipe breaks."""
        gc.collect()
        gc.freeze()  # what lives as long as the process is not traversed again when a version leaves
        for target in (self._run_engine, self._run_loads):
            threading.Thread(target=self._guarded, args=(target,), daemon=True).start()
        self._send(self._facts())
        while True:
            request: EngineRequest = self._conn.recv()
            if isinstance(request, StopRequest):
                os._exit(0)
            try:
                self._handle(request)
            except Exception as error:  # what one request fails with is its own: the engine goes on
                if (id := getattr(request, "id", None)) is None:
                    raise
                self._send(EngineFailure.of(id, error))

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
                self._adapters.update(adapters)
            case LoadRequest() | AdmitRequest():
                self._loads.put(request)
            case DismissRequest(version):
                self._inbox.put(lambda engine: engine.dismiss(version))
            case CancelRequest(id):
                self._inbox.put(lambda engine: engine.cancel(id))
            case GenerateRequest():
                self._submit(self._generation(request))
            case ScoreRequest():
                self._submit(self._scoring(request))

    def _submit(self, job: Generation | Scoring) -> None:
        def action(engine: Engine) -> list[JobEvent]:
            engine.submit(job)
            return []

        self._inbox.put(action)

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
        """One id outside the embedding would fail the whole batch, and on a GPU the process."""
        if ids and not 0 <= min(ids) <= max(ids) < self._loaded.model.config.vocab_size:
            raise RequestError("a token id lies outside the model's vocabulary")

    def _check_length(self, prompt: int, reply: int) -> None:
        if prompt + reply > self._context:
            raise ContextOverflow(limit=self._context, asked=prompt + reply)

    def _request_version(self, version: int) -> None:
        """The engine needs a version that it does not hold."""
        self._loads.put(_VersionRequest(version))

    def _free_later(self, runners: list[ModelRunner]) -> None:
        """Versions that nobody uses any more are freed by the thread that made them: see `release`."""
        while runners:
            self._unused.append(runners.pop())
        self._loads.put(None)

    def _run_engine(self) -> None:
        engine = self._engine
        while True:
            events: list[JobEvent] = []
            if engine.idle:
                events += self._inbox.get()(engine)
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
            self._send(EngineOutput(good, self._engine.stats()))

    def _run_loads(self) -> None:
        while True:
            request = self._loads.get()
            self._unused.clear()
            if request is None:
                release(wait=SETTLED if self._loads.empty() else 0.0)
                continue
            try:
                self._load_version(request)
            except Exception as error:  # whatever is wrong with these weights, those that run go on
                self._refuse(request.version, request.id, error)

    def _load_version(self, request: LoadRequest | AdmitRequest | _VersionRequest) -> None:
        """Build a version beside the running ones; the engine takes it between two steps."""
        version, caller = request.version, request.id
        if version not in self._adapters:
            raise BackendError(f"no version {version}; known: {sorted(self._adapters)}")
        adapter = self._adapters[version]
        runner = self._engine.runners.get(version)
        if runner is None and adapter is None:
            runner = self._engine.runners[0]
        if runner is None:
            assert adapter is not None
            if caller is None and not Path(adapter).is_dir():
                raise RequestError(f"the weights of version {version} are no longer kept", field="model", status=404)
            self._check_room()
            runner = model_runner_of(version_model(self._loaded.model, adapter), like=self._base)
        ready = runner

        def action(engine: Engine) -> list[JobEvent]:
            if isinstance(request, AdmitRequest):
                engine.admit(version, ready)
            else:
                engine.install(version, ready, live=isinstance(request, LoadRequest))
            if caller is not None:
                self._send(CallResult(caller, version))
            return []

        self._inbox.put(action)

    def _check_room(self) -> None:
        """Refuse to load a version that might not fit beside the running ones."""
        model, place = self._loaded.model, self._loaded.device
        needed, left = version_bytes(model, self._base), available(place)
        if needed > left:
            raise BackendError(
                f"a further version needs up to {needed / GIB:.1f} GiB, {left / GIB:.1f} GiB are available",
                remedy="lower cache_tokens, or choose a smaller model",
            )

    def _refuse(self, version: int, caller: int | None, error: Exception) -> None:
        failure = EngineFailure.of(caller, error)
        if caller is not None:
            self._send(failure)
        else:
            self._inbox.put(lambda engine: engine.refuse(version, failure.error()))

    def _guarded(self, target: Callable[[], None]) -> None:
        """A thread's failure is the process's: the parent sees why, and starts another."""
        try:
            target()
        except BaseException as error:  # nothing may keep a half-dead engine alive, so every cause ends the process
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
    """How many tokens the cache holds: as set, or as many as a full batch can use within a share of free memory.

    What the next version needs is left free; in main memory, which others use too, a moderate cache is enough.
    """
    context = min(args.context or loaded.context, loaded.context)
    each, left = row_bytes(loaded.model), available(loaded.device)
    if args.cache_tokens is not None:
        rows = args.cache_tokens
        share = left
    else:
        on_cpu = loaded.device.type == "cpu"
        share = int(max(left - version_bytes(loaded.model, runner), 0) * (0.25 if on_cpu else 0.5))
        most = max(CPU_CACHE // each, 4 * context) if on_cpu else args.max_batch * context
        rows = min(args.max_batch * context, most, share // each)
    if rows * each > share or rows < min(MIN_TOKENS, context):
        raise ModelRefused(
            f"{loaded.name}: the cache has {share / GIB:.2f} GiB, and {rows:,} tokens at {each:,} bytes each "
            f"need {rows * each / GIB:.2f} GiB ({min(MIN_TOKENS, context):,} tokens at least)",
            remedy="lower cache_tokens or context, choose a smaller model, or close other programs",
        )
    return rows
