"""The API server: three wire formats over one policy, every answered turn kept.

POST /v1/chat/completions   /v1/responses   /v1/messages   /v1/messages/count_tokens
POST /v1/feedback           /v1/sessions/{id}/end
GET  /v1/models   /healthz   /readyz   /metrics   /openapi.json
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from openclaw_rl.formats.reply_parser import Reasoning
from openclaw_rl.ports import Generate, Policy, ReportsHealth
from openclaw_rl.serve.answer import Answerer
from openclaw_rl.serve.api_errors import ApiError, anthropic_error, openai_error
from openclaw_rl.serve.auth import ApiKeys
from openclaw_rl.serve.endpoints import AdmittedRequest, ApiEndpoint, CountTokensHandler, GenerateHandler
from openclaw_rl.serve.feedback import FeedbackHandler, SessionEndHandler
from openclaw_rl.serve.limits import RequestLimits
from openclaw_rl.serve.metrics import Metrics
from openclaw_rl.serve.openapi import description
from openclaw_rl.serve.redact import Redact
from openclaw_rl.serve.request import TurnLedger
from openclaw_rl.serve.sse import dumps
from openclaw_rl.serve.state import ServerState
from openclaw_rl.serve.structured_output import UNENFORCED
from openclaw_rl.serve.wire.chat import ChatWire
from openclaw_rl.serve.wire.messages import MessagesWire
from openclaw_rl.serve.wire.responses import ResponsesWire
from openclaw_rl.types import Json, Sampling

Health = Callable[[], Mapping[str, Json]]
EXPOSED = ["x-openclaw-rl-version", "x-openclaw-rl-turn", UNENFORCED, "x-request-id", "retry-after"]


def build_app(
    *,
    policy: Policy,
    ledger: TurnLedger,
    keys: Mapping[str, str] | None = None,
    own_keys: Mapping[str, str] | None = None,
    model_name: str | None = None,
    limits: RequestLimits | None = None,
    intercept: bool = True,
    redact: Redact | None = None,
    generate: Generate | None = None,
    cors_origins: Collection[str] = (),
    store_optouts: bool = True,
    optout_users: Collection[str] = (),
    any_model: bool = True,
    reasoning: Reasoning = "tags",
    defaults: Sampling | None = None,
    clock: Callable[[], float] = time.time,
    health: Health | None = None,
) -> Starlette:
    """The server as an ASGI app; the policy must have been started.

    ``keys`` maps each key to its user; without any, everybody is one user and only loopback names are answered.
    ``own_keys`` does so for the environments that this process runs.
    ``defaults`` is how replies are drawn where a request does not say. ``optout_users`` are never trained on.
    ``health`` may say ``{"ready": False, ...}`` while the model loads, and ``{"reasons": [...]}`` for whatever else
    makes the server unfit; all it says is shown at /readyz.
    """
    writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledger")
    answerer = Answerer(
        policy=policy,
        ledger=ledger,
        limits=limits or RequestLimits(),
        metrics=Metrics(),
        writer=writer,
        intercept=intercept,
        redact=redact,
        generate=generate,
        reasoning=reasoning,
        clock=clock,
        ready=lambda: health is None or bool(health().get("ready", True)),
        apart=len(set((keys or {}).values())) > 1,
    )
    server = ServerState(
        answerer,
        keys=ApiKeys(keys or {}, own_keys),
        model_name=model_name or policy.name,
        any_model=any_model,
        store_optouts=store_optouts,
        optout_users=optout_users,
        cors_origins=cors_origins,
    )
    app = Starlette(
        routes=_routes(server, health, defaults),
        middleware=_cors(cors_origins),
        exception_handlers={HTTPException: _not_here},
        lifespan=_lifespan(answerer, writer, server.parser),
    )
    app.state.server = server
    return app


def _lifespan(answerer: Answerer, writer: ThreadPoolExecutor, parser: ThreadPoolExecutor) -> Callable[[Starlette], Any]:
    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        parser.shutdown(wait=False)
        await answerer.settle()
        answerer.recorder.stop()
        writer.submit(answerer.recorder.end)
        writer.shutdown(wait=True)  # what was handed over is written before the process ends

    return lifespan


def _cors(origins: Collection[str]) -> list[Middleware]:
    if not origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=EXPOSED,
        )
    ]


def _routes(server: ServerState, health: Health | None, defaults: Sampling | None) -> list[Route]:
    look = InfoHandlers(server, health)
    chat, responses, messages = ChatWire(defaults), ResponsesWire(defaults), MessagesWire(defaults)

    def post(path: str, name: str, handle: Any, shape: Callable[[ApiError], Json] = openai_error) -> Route:
        return Route(path, ApiEndpoint(server, name, handle, shape), methods=["POST"])

    def get(path: str, handle: Any, *, guarded: bool = True) -> Route:
        return Route(path, ApiEndpoint(server, "look", handle, openai_error, guarded=guarded), methods=["GET"])

    return [
        post("/v1/chat/completions", "chat", GenerateHandler(server, chat), chat.fault),
        post("/v1/responses", "responses", GenerateHandler(server, responses), responses.fault),
        post("/v1/messages", "messages", GenerateHandler(server, messages), messages.fault),
        post("/v1/messages/count_tokens", "count_tokens", CountTokensHandler(server, messages), messages.fault),
        post("/v1/feedback", "feedback", FeedbackHandler(server)),
        post("/v1/sessions/{id}/end", "session_end", SessionEndHandler(server)),
        get("/v1/models", look.models),
        get("/v1/models/{id:path}", look.model),
        get("/metrics", look.metrics),
        get("/healthz", look.alive, guarded=False),
        get("/readyz", look.ready, guarded=False),
        get("/openapi.json", look.openapi, guarded=False),
    ]


class InfoHandlers:
    """The endpoints that only look."""

    def __init__(self, server: ServerState, health: Health | None) -> None:
        self._server = server
        self._health = health
        self._since = int(time.time())
        self._openapi = dumps(description(server.model_name)).encode()

    async def models(self, visit: AdmittedRequest) -> None:
        name = self._server.model_name
        entries = [self._entry(name), self._entry(f"{name}-side")]
        page = {"object": "list", "data": entries, "has_more": False, "first_id": name, "last_id": entries[-1]["id"]}
        await visit.exchange.reply_json(200, page)

    async def model(self, visit: AdmittedRequest) -> None:
        wanted = visit.exchange.scope["path_params"]["id"]
        if not wanted:
            await self.models(visit)
            return
        self._server.route(wanted)
        await visit.exchange.reply_json(200, self._entry(wanted))

    def _entry(self, model: str) -> dict[str, Json]:
        """One entry that reads as OpenAI's and as Anthropic's."""
        return {
            "id": model,
            "object": "model",
            "type": "model",
            "created": self._since,
            "created_at": datetime.fromtimestamp(self._since, UTC).isoformat(),
            "owned_by": "openclaw-rl",
            "display_name": model,
            "context_length": self._server.policy.context,
            "max_model_len": self._server.policy.context,
            "version": self._server.policy.live,
        }

    async def alive(self, visit: AdmittedRequest) -> None:
        await visit.exchange.reply_json(200, {"status": "ok"})

    async def ready(self, visit: AdmittedRequest) -> None:
        told = dict(self._health()) if self._health else {}
        reasons = [*told.get("reasons", ()), *self._server.answerer.recorder.reasons()]
        ready = bool(told.get("ready", True)) and not reasons
        about = {"model": self._server.model_name, "version": self._server.policy.live}
        await visit.exchange.reply_json(
            200 if ready else 503, {**about, **told, "ready": ready, "reasons": list(dict.fromkeys(reasons))}
        )

    async def metrics(self, visit: AdmittedRequest) -> None:
        self._server.metrics.version.set(self._server.policy.live)
        if isinstance(self._server.policy, ReportsHealth):
            self._server.metrics.measure(self._server.policy.health)
        page = self._server.metrics.page()
        await visit.exchange.reply(200, page, "text/plain; version=0.0.4; charset=utf-8")

    async def openapi(self, visit: AdmittedRequest) -> None:
        await visit.exchange.reply(200, self._openapi)


async def _not_here(request: Request, error: Exception) -> Response:
    """No such path or method, in the shape of the format that the path belongs to."""
    assert isinstance(error, HTTPException)
    what = "there is nothing here" if error.status_code == 404 else "this method is not allowed here"
    fault = ApiError(status=error.status_code, message=f"{what}; see /openapi.json")
    shape = anthropic_error if request.scope["path"].startswith("/v1/messages") else openai_error
    return JSONResponse(shape(fault), status_code=error.status_code, headers=error.headers)
