"""The API in OpenAPI 3.1: request bodies from the models that parse them, responses from `answer_models`."""

from __future__ import annotations

import functools
from typing import Any, Literal, get_args

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, models_json_schema
from pydantic_core import core_schema

from openclaw_rl.serve.answer_models import (
    ChatCompletion,
    ControlTaken,
    ErrorAnswer,
    FeedbackTaken,
    HealthReport,
    MessageObject,
    MessagesError,
    ModelEntry,
    ModelList,
    NoteList,
    NoteObject,
    OllamaChatReply,
    OllamaError,
    OllamaGenerateReply,
    OllamaModelDetails,
    OllamaModels,
    OllamaVersion,
    ResponseObject,
    SessionDeleted,
    SessionEnded,
    SessionPaid,
    TokenCount,
    TokenObject,
    TurnTokens,
)
from openclaw_rl.serve.control import RunControlRequest
from openclaw_rl.serve.feedback import FeedbackRequest, RewardRequest
from openclaw_rl.serve.notes import NoteChangeRequest, NoteDeclineRequest, NoteRequest, NotesSwitchRequest
from openclaw_rl.serve.sse import dumps
from openclaw_rl.serve.wire.chat_request import ChatRequest
from openclaw_rl.serve.wire.messages_request import MessagesRequest
from openclaw_rl.serve.wire.ollama_request import OllamaChatRequest, OllamaGenerateRequest, OllamaShowRequest
from openclaw_rl.serve.wire.responses_request import ResponsesRequest
from openclaw_rl.types import Json, NoteState

Schema = dict[str, Json]

TEXT: Schema = {"type": "string"}


MODELS: tuple[type[BaseModel], ...] = (
    *(ChatRequest, ResponsesRequest, MessagesRequest, FeedbackRequest, RewardRequest),
    *(NoteRequest, NoteChangeRequest, NoteDeclineRequest, NotesSwitchRequest, NoteObject, NoteList),
    *(ChatCompletion, ResponseObject, MessageObject, TokenCount, FeedbackTaken, SessionPaid, SessionEnded),
    SessionDeleted,
    *(OllamaChatRequest, OllamaGenerateRequest, OllamaShowRequest, OllamaChatReply, OllamaGenerateReply),
    *(OllamaModels, OllamaModelDetails, OllamaVersion, OllamaError),
    *(ModelList, ModelEntry, HealthReport, ErrorAnswer, MessagesError),
    *(RunControlRequest, ControlTaken, TurnTokens, TokenObject),
)


PUBLISHED = {
    "ResponseObject": "Response",
    "MessageObject": "Message",
    "ModelList": "Models",
    "ModelEntry": "Model",
    "HealthReport": "Health",
    "ErrorAnswer": "Error",
    "NoteObject": "Note",
    "NoteList": "Notes",
}
"""the published name for a class whose own name means something else in this package"""


class PlainSchemas(GenerateJsonSchema):
    """Schemas without titles and defaults; null, which is equal to absent, is one more type for a field."""

    def normalize_name(self, name: str) -> str:
        return PUBLISHED.get(name, name)

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return _untitled(super().model_schema(schema))

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        inner = self.generate_inner(schema["schema"])
        if "enum" in inner:
            return {"enum": [*inner["enum"], None]}
        if isinstance(inner.get("type"), str):
            return {**inner, "type": [inner["type"], "null"]}
        return super().nullable_schema(schema)


def _untitled(schema: JsonSchemaValue) -> JsonSchemaValue:
    return {key: value for key, value in schema.items() if key not in ("title", "additionalProperties")}


def schemas() -> Schema:
    """Return every model and its parts by name."""
    inputs: list[tuple[type[BaseModel], Literal["validation"]]] = [(model, "validation") for model in MODELS]
    _, document = models_json_schema(
        inputs,
        schema_generator=PlainSchemas,
        ref_template="#/components/schemas/{model}",
    )
    definitions: Schema = document["$defs"]
    return definitions


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_ERRORS = {
    "400": "the request cannot be read; the message names the field",
    "401": "no key, or an unknown one",
    "403": "a page of another origin, a reward without an environment's key, or control without an admin's",
    "404": "no such model, version, turn or session",
    "405": "this method is not allowed here",
    "408": "the request arrived too slowly",
    "413": "the body is too large, or holds too many values",
    "415": "the body is compressed",
    "429": "too many requests of this key; see Retry-After",
    "431": "the headers are too large",
    "502": "the model's backend failed",
    "503": "the model's backend is restarting; see Retry-After",
}
_HEADERS = (
    ("X-Session-Id", "the session this turn belongs to", TEXT),
    ("X-Turn-Type", "main or side", {"enum": ["main", "side"]}),
    ("X-Session-Done", "true: this session is over", {"enum": ["true", "false"]}),
    (
        "x-openclaw-rl-train",
        "off: never train on this turn; off-session: on no turn of this session from now on",
        {"enum": ["on", "off", "off-session"]},
    ),
    ("x-openclaw-rl-group", "joins the rollouts of one task", TEXT),
    ("x-openclaw-rl-notes", "off: no standing note is inserted into this prompt", {"enum": ["on", "off"]}),
)


_EVENT: Schema = {"type": "object", "required": ["data"], "properties": {"data": TEXT, "event": TEXT}}


def _content(schema: str) -> Schema:
    return {"application/json": {"schema": ref(schema)}}


def _answers(schema: str, error: str, *, stream: bool = False) -> Schema:
    good = _content(schema)
    if stream and error == "OllamaError":
        good["application/x-ndjson"] = {"schema": TEXT}
    elif stream:
        good["text/event-stream"] = {"schema": _EVENT}
    errors = {status: {"description": what, "content": _content(error)} for status, what in _ERRORS.items()}
    return {"200": {"description": "the answer", "content": good}, **errors}


def _post(summary: str, takes: str, gives: str, *, error: str = "Error", stream: bool = False) -> Schema:
    headers = [
        {"name": name, "in": "header", "required": False, "description": what, "schema": schema}
        for name, what, schema in _HEADERS
    ]
    operation: Schema = {
        "summary": summary,
        "requestBody": {"required": True, "content": _content(takes)},
        "responses": _answers(gives, error, stream=stream),
    }
    return {"post": {**operation, "parameters": headers} if stream else operation}


def _get(summary: str, gives: str, *, path: str | None = None, error: str = "Error") -> Schema:
    operation: Schema = {"summary": summary, "responses": _answers(gives, error)}
    return {"get": {**operation, "parameters": [_in_path(path)]} if path else operation}


def _change(summary: str, takes: str, gives: str) -> Schema:
    body = {"required": True, "content": _content(takes)}
    return {"summary": summary, "requestBody": body, "responses": _answers(gives, "Error")}


def _with_number(operation: Schema) -> Schema:
    number: Schema = {"name": "number", "in": "path", "required": True, "schema": {"type": "integer", "minimum": 0}}
    return {**operation, "parameters": [number]}


def _in_path(name: str) -> Schema:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _ollama_paths() -> Schema:
    error = "OllamaError"
    generate = _post("Reply to one prompt", "OllamaGenerateRequest", "OllamaGenerateReply", error=error, stream=True)
    return {
        "/api/chat": _post("Chat", "OllamaChatRequest", "OllamaChatReply", error=error, stream=True),
        "/api/generate": generate,
        "/api/show": _post("One model", "OllamaShowRequest", "OllamaModelDetails", error=error),
        "/api/tags": _get("Known models", "OllamaModels", error=error),
        "/api/ps": _get("Loaded models", "OllamaModels", error=error),
        "/api/version": _get("The release of Ollama whose API this follows", "OllamaVersion", error=error),
    }


def _paths() -> Schema:
    ended: Schema = {
        "summary": "End a session",
        "parameters": [_in_path("id")],
        "responses": _answers("SessionEnded", "Error"),
    }
    paid: Schema = {
        **_change("Reward a session; for environments", "RewardRequest", "SessionPaid"),
        "parameters": [_in_path("id")],
    }
    whose: Schema = {"name": "user", "in": "query", "required": False, "schema": TEXT}
    deleted: Schema = {
        "summary": "Delete a session with all its data; an admin may name another user",
        "parameters": [_in_path("id"), whose],
        "responses": _answers("SessionDeleted", "Error"),
    }
    state: Schema = {"name": "state", "in": "query", "required": False, "schema": {"enum": [*get_args(NoteState)]}}
    listed = _get("The caller's standing notes, of one state if asked; all where there are no keys", "Notes")
    listed["get"]["parameters"] = [state]
    optional = {"requestBody": {"required": False, "content": _content("NoteDeclineRequest")}}
    page = {"200": {"description": "counters", "content": {"text/plain": {"schema": TEXT}}}}
    guarded = {key: value for key, value in _answers("Health", "Error").items() if key != "200"}
    ready = _get("Ready to answer", "Health")
    ready["get"]["responses"]["503"] = {"description": "not ready", "content": _content("Health")}
    return {
        "/v1/chat/completions": _post("Chat completion", "ChatRequest", "ChatCompletion", stream=True),
        "/v1/responses": _post("Response", "ResponsesRequest", "Response", stream=True),
        "/v1/messages": _post("Message", "MessagesRequest", "Message", error="MessagesError", stream=True),
        "/v1/messages/count_tokens": _post("Token count", "MessagesRequest", "TokenCount", error="MessagesError"),
        **_ollama_paths(),
        "/v1/feedback": _post("Rate a reply", "FeedbackRequest", "FeedbackTaken"),
        "/v1/sessions/{id}": {"delete": deleted},
        "/v1/sessions/{id}/reward": {"post": paid},
        "/v1/sessions/{id}/end": {"post": ended},
        "/v1/notes": {
            **listed,
            **_post("Make a note", "NoteRequest", "Note"),
            "patch": _change("Put the caller's notes into prompts or not", "NotesSwitchRequest", "Notes"),
        },
        "/v1/notes/{number}": {
            "get": _with_number({"summary": "One note and its history", "responses": _answers("Note", "Error")}),
            "patch": _with_number(_change("Edit a note, or switch it", "NoteChangeRequest", "Note")),
            "delete": _with_number({"summary": "Remove a note", "responses": _answers("Note", "Error")}),
        },
        "/v1/notes/{number}/accept": {
            "post": _with_number({"summary": "Put a proposed note in force", "responses": _answers("Note", "Error")}),
        },
        "/v1/notes/{number}/decline": {
            "post": _with_number({**_change("Decline a proposed note", "NoteDeclineRequest", "Note"), **optional}),
        },
        "/v1/control": _post("Control the run; for admins", "RunControlRequest", "ControlTaken"),
        "/v1/turns/{id}/tokens": _get("The tokens of a reply with their log-probs", "TurnTokens", path="id"),
        "/v1/models": _get("Known models", "Models"),
        "/v1/models/{id}": _get("One model", "Model", path="id"),
        "/healthz": _get("Alive", "Health"),
        "/readyz": ready,
        "/metrics": {"get": {"summary": "Prometheus metrics", "responses": {**page, **guarded}}},
    }


@functools.cache
def page_for(model: str) -> bytes:
    """Return the description as sent; built once, at the first request."""
    return dumps(description(model)).encode()


def description(model_name: str) -> Schema:
    """Return the whole document."""
    bearer = {"type": "http", "scheme": "bearer"}
    ids = f"{model_name}, {model_name}-side, {model_name}@VERSION"
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "OpenClaw-RL",
            "version": "1",
            "description": f"Serves {model_name} and keeps every turn. Model ids: {ids}.",
        },
        "paths": _paths(),
        "components": {
            "schemas": schemas(),
            "securitySchemes": {"bearer": bearer, "key": {"type": "apiKey", "in": "header", "name": "x-api-key"}},
        },
        "security": [{}, {"bearer": []}, {"key": []}],
    }
