"""The endpoints by which Ollama's clients find a server and its models. They never pull, create or delete a model.

GET /   /api/version   /api/tags   /api/ps        POST /api/show
"""

from __future__ import annotations

import hashlib
import time

from starlette.routing import Route

from openclaw_rl import __version__
from openclaw_rl.errors import RequestError
from openclaw_rl.serve.endpoints import AdmittedRequest, ApiEndpoint, GenerateHandler, Handle, read_body
from openclaw_rl.serve.fields import parse
from openclaw_rl.serve.request import InlineFeedbackHandler, ollama_error
from openclaw_rl.serve.state import ServerState
from openclaw_rl.serve.wire.ollama import chat_wire, generate_wire, timestamp
from openclaw_rl.serve.wire.ollama_request import LATEST, OllamaShowRequest, untagged
from openclaw_rl.types import Json

API_VERSION = "0.13.0"
"""the Ollama release whose API this follows: clients require a sufficiently new version"""
_FAMILY = "openclaw-rl"


def ollama_routes(server: ServerState, inline_feedback: InlineFeedbackHandler) -> list[Route]:
    """Return the endpoints of Ollama's API, with its error shape."""
    models = ModelHandlers(server)
    defaults = server.answerer.generation.defaults

    def route(path: str, name: str, handle: Handle, *, method: str = "GET", guarded: bool = True) -> Route:
        return Route(path, ApiEndpoint(server, name, handle, ollama_error, guarded=guarded), methods=[method])

    return [
        *(
            route(path, wire.name, GenerateHandler(server, wire, inline_feedback), method="POST")
            for path, wire in (("/api/chat", chat_wire(defaults)), ("/api/generate", generate_wire(defaults)))
        ),
        route("/api/show", "look", models.show, method="POST"),
        route("/api/tags", "look", models.tags),
        route("/api/ps", "look", models.running),
        route("/api/version", "look", models.version),
        route("/", "look", models.alive, guarded=False),
    ]


class ModelHandlers:
    """The served model, as Ollama lists and describes models."""

    def __init__(self, server: ServerState) -> None:
        self._server = server
        self._since = time.time()

    async def alive(self, admitted: AdmittedRequest) -> None:
        await admitted.exchange.reply(200, b"OpenClaw-RL is running", "text/plain; charset=utf-8")

    async def version(self, admitted: AdmittedRequest) -> None:
        await admitted.exchange.reply_json(200, {"version": API_VERSION, "openclaw_rl": __version__})

    async def tags(self, admitted: AdmittedRequest) -> None:
        await admitted.exchange.reply_json(200, {"models": self._entries()})

    async def running(self, admitted: AdmittedRequest) -> None:
        loaded = {
            "size_vram": 0,
            "expires_at": timestamp(time.time() + _FOREVER),
            "context_length": self._server.policy.context,
        }
        await admitted.exchange.reply_json(200, {"models": [{**entry, **loaded} for entry in self._entries()]})

    def _entries(self) -> list[dict[str, Json]]:
        name = self._server.model_name
        return [self._entry(name), self._entry(f"{name}-side")]

    def _entry(self, model: str) -> dict[str, Json]:
        """Return a model's list entry; an untagged name gets a tag, since clients add it before they look it up."""
        tagged = model if ":" in model else f"{model}{LATEST}"
        weights = f"{self._server.policy.base}@{self._server.policy.live}"
        return {
            "name": tagged,
            "model": tagged,
            "modified_at": timestamp(self._since),
            "size": 0,
            "digest": hashlib.sha256(weights.encode()).hexdigest(),
            "details": _DETAILS,
        }

    async def show(self, admitted: AdmittedRequest) -> None:
        limits = self._server.limits
        request = await read_body(
            self._server, admitted.exchange, lambda body: parse(OllamaShowRequest, body, limits), limit=_LARGEST
        )
        model = request.model or request.name
        if not model:
            raise RequestError("model: is missing", field="model")
        self._server.route(untagged(model))
        await admitted.exchange.reply_json(200, self._description())

    def _description(self) -> Json:
        policy = self._server.policy
        thinks = self._server.answerer.generation.reasoning != "off"
        return {
            "modelfile": f"FROM {self._server.model_name}\n",
            "parameters": "",
            "template": "",
            "license": "",
            "modified_at": timestamp(self._since),
            "details": _DETAILS,
            "capabilities": [
                "completion",
                *(["tools"] if policy.tool_format != "none" else []),
                *(["thinking"] if thinks else []),
            ],
            "model_info": {
                "general.architecture": _FAMILY,
                "general.basename": self._server.model_name,
                f"{_FAMILY}.context_length": policy.context,
                f"{_FAMILY}.version": policy.live,
            },
        }


_LARGEST = 2**16
"""maximum bytes in a body that names a model"""
_FOREVER = 10 * 365 * 86_400.0
"""seconds until a model expires that is never unloaded"""
_DETAILS: dict[str, Json] = {
    "parent_model": "",
    "format": "",
    "family": _FAMILY,
    "families": [_FAMILY],
    "parameter_size": "",
    "quantization_level": "",
}
