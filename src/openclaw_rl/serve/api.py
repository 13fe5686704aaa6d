"""The API server: four wire formats over one policy; every answered turn is recorded.

POST /v1/chat/completions   /v1/responses   /v1/messages   /v1/messages/count_tokens
POST /api/chat              /api/generate    /api/show
POST /v1/feedback           /v1/sessions/{id}/reward   /v1/sessions/{id}/end
GET, POST, PATCH /v1/notes  GET, PATCH, DELETE /v1/notes/{number}
POST /v1/control            GET /v1/turns/{id}/tokens    DELETE /v1/sessions/{id}
GET  /api/tags   /api/ps   /api/version
GET  /v1/models   /healthz   /readyz   /metrics   /openapi.json
"""

from __future__ import annotations

import asyncio
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

from openclaw_rl.ports import Policy, ReportsHealth
from openclaw_rl.serve.answer import Answerer
from openclaw_rl.serve.auth import NOTES_HEADER
from openclaw_rl.serve.control import DeletesSession, SubmitsControl, control_routes, deletion_routes
from openclaw_rl.serve.endpoints import AdmittedRequest, ApiEndpoint, CountTokensHandler, GenerateHandler
from openclaw_rl.serve.feedback import FeedbackHandler, InlineFeedback, RewardHandler, SessionEndHandler
from openclaw_rl.serve.notes import StandingNotes, note_routes
from openclaw_rl.serve.ollama import ollama_routes
from openclaw_rl.serve.openapi import page_for
from openclaw_rl.serve.recorder import Metrics
from openclaw_rl.serve.redact import AccessRules, GenerationRules, InlineFeedbackRules, RecordingRules
from openclaw_rl.serve.request import ApiError, RequestLimits, TurnLedger, error_shape, openai_error
from openclaw_rl.serve.state import ServerState
from openclaw_rl.serve.structured_output import UNENFORCED
from openclaw_rl.serve.wire.chat import ChatWire
from openclaw_rl.serve.wire.messages import MessagesWire
from openclaw_rl.serve.wire.responses import ResponsesWire
from openclaw_rl.types import Json

Health = Callable[[], Mapping[str, Json]]
EXPOSED = ["x-openclaw-rl-version", "x-openclaw-rl-turn", NOTES_HEADER, UNENFORCED, "x-request-id", "retry-after"]


def build_app(
    *,
    policy: Policy,
    ledger: TurnLedger,
    access: AccessRules,
    limits: RequestLimits,
    generation: GenerationRules,
    recording: RecordingRules,
    inline_feedback: InlineFeedbackRules,
    notes: StandingNotes | None,
    control: SubmitsControl | None,
    delete: DeletesSession | None,
    health: Health,
    clock: Callable[[], float] = time.time,
) -> Starlette:
    """Build the server as an ASGI app; the policy must have been started.

    ``health`` may return ``{"ready": False, ...}`` while the model loads, and ``{"reasons": [...]}`` for other reasons
    why the server is unfit; /readyz shows the whole report.
    """
    writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledger")
    answerer = Answerer(
        policy=policy,
        ledger=ledger,
        limits=limits,
        generation=generation,
        recording=recording,
        metrics=Metrics(),
        writer=writer,
        clock=clock,
        ready=lambda: bool(health().get("ready", True)),
        isolate_users=len(set(access.keys.values())) > 1,
    )
    server = ServerState(answerer, access, notes.prompter if notes else None)
    feedback = InlineFeedback(server, inline_feedback)
    app = Starlette(
        routes=[
            *_routes(server, feedback, health),
            *ollama_routes(server, feedback),
            *note_routes(server, notes),
            *control_routes(server, control),
            *deletion_routes(server, delete),
        ],
        middleware=_cors(access.cors_origins),
        exception_handlers={HTTPException: _not_found},
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
        writer.shutdown(wait=True)  # submitted turns are written before the process ends

    return lifespan


def _cors(origins: Collection[str]) -> list[Middleware]:
    if not origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["GET", "POST", "PATCH", "DELETE"],
            allow_headers=["*"],
            expose_headers=EXPOSED,
        )
    ]


def _routes(server: ServerState, inline_feedback: InlineFeedback, health: Health) -> list[Route]:
    info = InfoHandlers(server, health)
    defaults = server.answerer.generation.defaults
    chat, responses, messages = ChatWire(defaults), ResponsesWire(defaults), MessagesWire(defaults)

    def post(path: str, name: str, handle: Any, shape: Callable[[ApiError], Json] = openai_error) -> Route:
        return Route(path, ApiEndpoint(server, name, handle, shape), methods=["POST"])

    def get(path: str, handle: Any, *, guarded: bool = True) -> Route:
        return Route(path, ApiEndpoint(server, "look", handle, openai_error, guarded=guarded), methods=["GET"])

    return [
        post("/v1/chat/completions", "chat", GenerateHandler(server, chat, inline_feedback), chat.error),
        post("/v1/responses", "responses", GenerateHandler(server, responses, inline_feedback), responses.error),
        post("/v1/messages", "messages", GenerateHandler(server, messages, inline_feedback), messages.error),
        post(
            "/v1/messages/count_tokens",
            "count_tokens",
            CountTokensHandler(server, messages, inline_feedback),
            messages.error,
        ),
        post("/v1/feedback", "feedback", FeedbackHandler(server)),
        post("/v1/sessions/{id:path}/reward", "reward", RewardHandler(server)),
        post("/v1/sessions/{id:path}/end", "session_end", SessionEndHandler(server)),
        get("/v1/models", info.models),
        get("/v1/models/{id:path}", info.model),
        get("/metrics", info.metrics),
        get("/healthz", info.alive, guarded=False),
        get("/readyz", info.ready, guarded=False),
        get("/openapi.json", info.openapi, guarded=False),
    ]


class InfoHandlers:
    """The informational endpoints."""

    def __init__(self, server: ServerState, health: Health) -> None:
        self._server = server
        self._health = health
        self._since = int(time.time())

    async def models(self, admitted: AdmittedRequest) -> None:
        name = self._server.model_name
        entries = [self._entry(name), self._entry(f"{name}-side")]
        page = {"object": "list", "data": entries, "has_more": False, "first_id": name, "last_id": entries[-1]["id"]}
        await admitted.exchange.reply_json(200, page)

    async def model(self, admitted: AdmittedRequest) -> None:
        model_id = admitted.exchange.scope["path_params"]["id"]
        if not model_id:
            await self.models(admitted)
            return
        self._server.route(model_id)
        await admitted.exchange.reply_json(200, self._entry(model_id))

    def _entry(self, model: str) -> dict[str, Json]:
        """Return an entry that is valid in both OpenAI's and Anthropic's format."""
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

    async def alive(self, admitted: AdmittedRequest) -> None:
        await admitted.exchange.reply_json(200, {"status": "ok"})

    async def ready(self, admitted: AdmittedRequest) -> None:
        report = dict(self._health())
        reasons = [*report.get("reasons", ()), *self._server.answerer.recorder.reasons()]
        ready = bool(report.get("ready", True)) and not reasons
        about = {"model": self._server.model_name, "version": self._server.policy.live}
        await admitted.exchange.reply_json(
            200 if ready else 503, {**about, **report, "ready": ready, "reasons": list(dict.fromkeys(reasons))}
        )

    async def metrics(self, admitted: AdmittedRequest) -> None:
        self._server.metrics.version.set(self._server.policy.live)
        if isinstance(self._server.policy, ReportsHealth):
            self._server.metrics.measure(self._server.policy.health)
        page = self._server.metrics.page()
        await admitted.exchange.reply(200, page, "text/plain; version=0.0.4; charset=utf-8")

    async def openapi(self, admitted: AdmittedRequest) -> None:
        page = await asyncio.to_thread(page_for, self._server.model_name)  # the first call takes a tenth of a second
        await admitted.exchange.reply(200, page)


async def _not_found(request: Request, error: Exception) -> Response:
    """Answer an unknown path or method in the path's wire format."""
    assert isinstance(error, HTTPException)
    what = "unknown path" if error.status_code == 404 else "this method is not allowed here"
    api_error = ApiError(status=error.status_code, message=f"{what}; see /openapi.json")
    shape = error_shape(request.scope["path"])
    return JSONResponse(shape(api_error), status_code=error.status_code, headers=error.headers)
