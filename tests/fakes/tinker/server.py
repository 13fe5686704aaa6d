"""The routes of the protocol: sessions, models, training, sampling, checkpoints; and faults that a test asks for."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fakes.tinker import wire
from fakes.tinker.files import adapter_files, archived
from fakes.tinker.lora import LoraModel, LoraShape, TrainingState
from openclaw_rl.testing.servers import listening

log = logging.getLogger(__name__)

KEY: Final = "tml-a-key-of-nobody"
PROTOBUF: Final = "application/x-protobuf"
_PATIENCE: Final = 5.0
"""seconds that a client waits for a result before it is told to ask again"""


class RequestFailed(Exception):
    """A request that was taken and cannot be done; ``category`` is whose fault it is."""

    def __init__(self, what: str, category: str = "user") -> None:
        super().__init__(what)
        self.category = category


class TinkerServer:
    """What a server holds: models in training, checkpoints, samplers; and how it is to fail."""

    def __init__(self, folder: Path, *, wide_targets: bool = True, protobuf: bool = True) -> None:
        """``wide_targets`` False takes one target for each position, ``protobuf`` False JSON alone, as some do."""
        from tokenizers import Tokenizer
        from transformers import AutoModelForCausalLM

        self.url, self.model = "", str(folder)
        self.base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.base.requires_grad_(False)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.wide_targets, self.protobuf = wide_targets, protobuf
        self.models: dict[str, LoraModel] = {}
        self.checkpoints: dict[str, TrainingState] = {}
        self.calls: list[str] = []
        self.keys: set[str] = set()
        self.cancelled: list[str] = []
        self.sessions: set[str] = set()
        self._samplers: dict[str, str | None] = {}
        self._serving: dict[str | None, LoraModel] = {}
        self._results: dict[str, asyncio.Future[tuple[bytes, str]]] = {}
        self._faults: dict[str, deque[Fault]] = defaultdict(deque)
        self._work = ThreadPoolExecutor(1)
        self._count = 0
        self.pause = 0.0
        """seconds that a sample takes longer"""

    # --- faults

    def fail(self, route: str, *faults: int | str | Callable[[], None]) -> None:
        """How the next requests of a route end: a status, an error of the result ("server: ..."), or by a call."""
        self._faults[route].extend(faults)

    def heal(self) -> None:
        """Fail no more."""
        self._faults.clear()

    def forget_sessions(self) -> None:
        """Lose every session, with the models and samplers in it; checkpoints stay."""
        self.sessions.clear()
        self.models.clear()
        self._samplers.clear()

    # --- requests

    async def answer(self, request: Request) -> Response:
        """Any request: faults first, then what its route does."""
        route = request.url.path.removeprefix("/api/v1/").split("/")[0]
        self.calls.append(route)
        self.keys.add(request.headers.get("x-api-key", ""))
        fault = self._faults[route].popleft() if self._faults[route] else None
        if callable(fault):
            fault()
        if isinstance(fault, int) and fault > 0:
            return JSONResponse({"detail": f"the test wants {fault}"}, status_code=fault)
        if request.headers.get("x-api-key") != KEY:
            return JSONResponse({"detail": "no such key"}, status_code=401)
        try:
            return await self._routed(route, request, fault if isinstance(fault, str) else None)
        except _Lost as lost:
            return JSONResponse({"detail": str(lost)}, status_code=404)

    async def _routed(self, route: str, request: Request, fault: str | None) -> Response:
        if route in _IMMEDIATE:
            sent = json.loads(await request.body() or b"{}")
            path = request.url.path.removeprefix("/api/v1/")
            return JSONResponse(dict(_IMMEDIATE[route](self, {**sent, "path": path, "method": request.method})))
        if route == "retrieve_future":
            return await self._retrieve(await request.json())
        body = await request.body()
        if route == "forward_backward" and not self.protobuf:
            return JSONResponse({"detail": "the body is not JSON"}, status_code=422)
        given = wire.read_training(body) if route == "forward_backward" else json.loads(body)
        work, name = _PROMISED[route](self, given)
        request_id = self._promise(name, _broken(fault) if fault is not None else work)
        return JSONResponse({"request_id": request_id, "sample_sequence_ids": [f"{request_id}:0"]})

    def _promise(self, name: str, work: Callable[[], tuple[bytes, str]]) -> str:
        """Begin work unless it was begun before: a request that is sent twice is done once."""
        if name not in self._results:
            self._results[name] = asyncio.get_running_loop().run_in_executor(self._work, work)
        return name

    async def _retrieve(self, body: Mapping[str, Any]) -> Response:
        name = body["request_id"]
        if name not in self._results:
            return JSONResponse({"detail": "no such request"}, status_code=410)
        done, _ = await asyncio.wait({self._results[name]}, timeout=_PATIENCE)
        if not done:
            return JSONResponse({"type": "try_again", "request_id": name, "queue_state": "active"})
        try:
            content, media = self._results[name].result()
        except RequestFailed as error:
            return JSONResponse({"error": str(error), "category": error.category})
        except Exception as error:  # as the service would: said to the client, not to the log alone
            log.exception("a request failed")
            return JSONResponse({"error": f"{type(error).__name__}: {error}", "category": "server"})
        return Response(content, media_type=media) if self.protobuf or media != PROTOBUF else JSONResponse({})

    async def file(self, request: Request) -> Response:
        """A file of a checkpoint, or all of them in one archive."""
        run, kind, name, wanted = request.url.path.removeprefix("/files/").split("/")
        files = adapter_files(self.base, self.model, self.saved(f"tinker://{run}/{kind}/{name}"))
        return Response(archived(files) if wanted == "archive.tar" else files[wanted])

    def new(self, what: str) -> str:
        """A name that nothing else has."""
        self._count += 1
        return f"{what}-{self._count}"

    def in_session(self, name: str) -> str:
        if name not in self.sessions:
            raise _Lost(f"session {name} is gone")
        return name

    def training(self, model_id: str) -> LoraModel:
        if model_id not in self.models:
            raise _Lost(f"model {model_id} is gone")
        return self.models[model_id]

    def sampler(self, name: str) -> LoraModel:
        """The weights behind a sampler; made when they are asked for first."""
        if name not in self._samplers:
            raise _Lost(f"sampler {name} is gone")
        path = self._samplers[name]
        if path not in self._serving:
            state = self.checkpoints[path] if path is not None else None
            self._serving[path] = LoraModel(self.base, state.shape if state else LoraShape(rank=1))
            if state is not None:
                self._serving[path].load(state, optimizer=False)
        return self._serving[path]

    def saved(self, path: str) -> TrainingState:
        if path not in self.checkpoints:
            raise _Lost(f"no weights at {path}")
        return self.checkpoints[path]

    def open_sampler(self, path: str | None) -> str:
        if path is not None:
            self.saved(path)
        name = self.new("sampler")
        self._samplers[name] = path
        return name


Fault = int | str | Callable[[], None]


class _Lost(Exception):
    """Something that the server does not have."""


def _broken(fault: str) -> Callable[[], tuple[bytes, str]]:
    category, _, what = fault.partition(": ")

    def fails() -> tuple[bytes, str]:
        raise RequestFailed(what, category)

    return fails


def _json(**fields: Any) -> tuple[bytes, str]:
    return json.dumps(fields).encode(), "application/json"


# --- answered at once: what was sent, its path among it, to what is said


_Given = Mapping[str, Any]


def _nothing(_: TinkerServer, given: _Given) -> _Given:
    return {"status": "accepted"} if given["path"].endswith("telemetry") else {}


def _client_config(_: TinkerServer, given: _Given) -> _Given:
    return {"sample_cancel_enabled": True} if given["path"].endswith("dynamic_config") else {}


def _capabilities(server: TinkerServer, _: _Given) -> _Given:
    context = server.base.config.max_position_embeddings
    known = {"model_name": server.model, "max_context_length": context, "trainable": True, "sampleable": True}
    return {"supported_models": [known]}


def _create_session(server: TinkerServer, _: _Given) -> _Given:
    name = server.new("session")
    server.sessions.add(name)
    return {"type": "create_session", "session_id": name}


def _heartbeat(server: TinkerServer, given: _Given) -> _Given:
    server.in_session(given["session_id"])
    return {"type": "session_heartbeat"}


def _sampling_session(server: TinkerServer, given: _Given) -> _Given:
    server.in_session(given["session_id"])
    return {"type": "create_sampling_session", "sampling_session_id": server.open_sampler(given.get("model_path"))}


def _weights_info(server: TinkerServer, given: _Given) -> _Given:
    shape = server.saved(given["tinker_path"]).shape
    layers = {"train_unembed": False, "train_mlp": shape.mlp, "train_attn": shape.attention}
    return {"base_model": server.model, "is_lora": True, "lora_rank": shape.rank, **layers}


def _cancel(server: TinkerServer, given: _Given) -> _Given:
    server.cancelled.append(given["request_id"])
    return {}


def _training_runs(server: TinkerServer, given: _Given) -> _Given:
    """What can be downloaded of a checkpoint: an address for each file, or of one archive; or it is deleted."""
    run, _, kind, name, *rest = given["path"].removeprefix("training_runs/").split("/")
    server.saved(f"tinker://{run}/{kind}/{name}")
    if given["method"] == "DELETE":
        del server.checkpoints[f"tinker://{run}/{kind}/{name}"]
        return {}
    (wanted,) = rest
    place, expires = f"{server.url}/files/{run}/{kind}/{name}", "2099-01-01T00:00:00Z"
    if wanted == "archive":
        return {"url": f"{place}/archive.tar", "expires": expires}
    files = adapter_files(server.base, server.model, server.saved(f"tinker://{run}/{kind}/{name}"))
    return {"urls": {file: f"{place}/{file}" for file in files}, "expires": expires}


_IMMEDIATE: Final[Mapping[str, Callable[[TinkerServer, _Given], _Given]]] = {
    "client": _client_config,
    "telemetry": _nothing,
    "sessions": _nothing,
    "get_server_capabilities": _capabilities,
    "create_session": _create_session,
    "session_heartbeat": _heartbeat,
    "create_sampling_session": _sampling_session,
    "weights_info": _weights_info,
    "cancel_future": _cancel,
    "training_runs": _training_runs,
}


# --- promised, and retrieved later


_Promised = tuple[Callable[[], tuple[bytes, str]], str]


def _create_model(server: TinkerServer, body: Mapping[str, Any]) -> _Promised:
    session = server.in_session(body["session_id"])
    name, lora = f"{session}:train:{body['model_seq_id']}", body["lora_config"]
    shape = LoraShape(
        rank=lora["rank"], seed=lora.get("seed") or 0, attention=lora["train_attn"], mlp=lora["train_mlp"]
    )

    def work() -> tuple[bytes, str]:
        if body["base_model"] != server.model:
            raise RequestFailed(f"no model {body['base_model']}")
        server.models[name] = LoraModel(server.base, shape)
        return _json(model_id=name, type="create_model")

    return work, f"{name}:create"


def _forward_backward(server: TinkerServer, given: Any) -> _Promised:
    model = server.training(given.model_id)
    data = [wire.read_datum(each) for each in given.data]

    def work() -> tuple[bytes, str]:
        if not server.wide_targets and any(each.inputs["target_tokens"].dim() > 1 for each in data):
            raise RequestFailed("target_tokens must have one dimension", "unknown")
        outputs, total = model.run(data, given.loss_fn, dict(given.loss_fn_config), backward=not given.forward_only)
        return wire.write_outputs(outputs, {"loss:sum": total}), PROTOBUF

    return work, f"{given.model_id}:{given.seq_id}"


def _optim_step(server: TinkerServer, body: Mapping[str, Any]) -> _Promised:
    model, adam = server.training(body["model_id"]), body["adam_params"]

    def work() -> tuple[bytes, str]:
        norm = model.step(
            lr=adam["learning_rate"],
            betas=(adam["beta1"], adam["beta2"]),
            eps=adam["eps"],
            decay=adam["weight_decay"],
            clip=adam["grad_clip_norm"],
        )
        return _json(metrics={"unclipped_grad_l2:mean": norm})

    return work, f"{body['model_id']}:{body['seq_id']}"


def _save(kind: str, *, optimizer: bool) -> Callable[[TinkerServer, Mapping[str, Any]], _Promised]:
    def save(server: TinkerServer, body: Mapping[str, Any]) -> _Promised:
        model = server.training(body["model_id"])
        path = f"tinker://{body['model_id']}/{kind}/{body['path']}"

        def work() -> tuple[bytes, str]:
            server.checkpoints[path] = model.save(optimizer=optimizer)
            return _json(path=path)

        return work, f"{body['model_id']}:{body['seq_id']}"

    return save


def _load(server: TinkerServer, body: Mapping[str, Any]) -> _Promised:
    model, path = server.training(body["model_id"]), body["path"]

    def work() -> tuple[bytes, str]:
        model.load(server.checkpoints[path], optimizer=body["optimizer"])
        return _json(path=path)

    return work, f"{body['model_id']}:{body['seq_id']}"


def _sample(server: TinkerServer, body: Mapping[str, Any]) -> _Promised:
    model = server.sampler(body["sampling_session_id"])
    tokens = [token for chunk in body["prompt"]["chunks"] for token in chunk["tokens"]]
    asked = body["sampling_params"]

    def work() -> tuple[bytes, str]:
        time.sleep(server.pause)
        if len(tokens) + (asked.get("max_tokens") or 1) > server.base.config.max_position_embeddings + 1:
            raise RequestFailed("prompt and reply do not fit the model")
        replies = [_reply(server, model, tokens, asked) for _ in range(body["num_samples"])]
        scores, top = _scores(model, tokens, body) if body.get("prompt_logprobs") else (None, None)
        return wire.write_sample(replies, scores, top), PROTOBUF

    return work, f"{body['sampling_session_id']}:{body['seq_id']}"


def _reply(
    server: TinkerServer, model: LoraModel, tokens: Sequence[int], asked: Mapping[str, Any]
) -> tuple[list[int], list[float], str]:
    stops = asked.get("stop") or []
    said: list[int] = []
    logprobs: list[float] = []
    limit = asked.get("max_tokens") or 16
    for token, value in model.sample(
        tokens,
        limit=limit,
        temperature=asked["temperature"],
        top_k=asked["top_k"],
        top_p=asked["top_p"],
        seed=asked.get("seed"),
    ):
        said.append(token)
        logprobs.append(value)
        text = server.tokenizer.decode(said, skip_special_tokens=False)
        if any(stop == token if isinstance(stop, int) else stop in text for stop in stops):
            return said, logprobs, "stop"
    return said, logprobs, "length"


def _scores(
    model: LoraModel, tokens: Sequence[int], body: Mapping[str, Any]
) -> tuple[list[float], torch.Tensor | None]:
    found = model.score(tokens)[:-1]
    values = found.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].tolist()
    k = body.get("topk_prompt_logprobs") or 0
    best = found.double().topk(k) if k else None
    return values, torch.stack([best.indices.double(), best.values], -1) if best is not None else None


_PROMISED: Final[Mapping[str, Callable[[TinkerServer, Any], _Promised]]] = {
    "create_model": _create_model,
    "forward_backward": _forward_backward,
    "optim_step": _optim_step,
    "save_weights": _save("weights", optimizer=True),
    "save_weights_for_sampler": _save("sampler_weights", optimizer=False),
    "save_weights_external": _save("external_weights", optimizer=False),
    "load_weights": _load,
    "asample": _sample,
}


@contextmanager
def tinker_server(folder: Path, **more: Any) -> Iterator[TinkerServer]:
    """A server of the model in ``folder`` on a free port, for the length of a block."""
    server = TinkerServer(folder, **more)
    routes = [
        Route("/api/v1/{rest:path}", server.answer, methods=["GET", "POST", "DELETE"]),
        Route("/files/{rest:path}", server.file),
    ]
    with listening(Starlette(routes=routes), abrupt=True) as server.url:
        yield server
