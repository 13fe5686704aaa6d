"""The API described: what each endpoint takes and answers, in OpenAPI 3.1."""

from __future__ import annotations

from openclaw_rl.types import Json

Schema = dict[str, Json]


def maybe(kind: str, **more: Json) -> Schema:
    """A value that may be null, which means the same as absent."""
    return {"type": [kind, "null"], **more}


def listed(items: Schema, **more: Json) -> Schema:
    return maybe("array", items=items, **more)


def record(required: tuple[str, ...] = (), **fields: Schema) -> Schema:
    """An object; keys that are not named are accepted and ignored."""
    return {"type": "object", "required": list(required), "properties": fields}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
FREE: Schema = maybe("object")
FLAG = maybe("boolean")
UNIT = maybe("number", minimum=0, maximum=1)
WIDE = maybe("number", minimum=0, maximum=2)
LIMIT = maybe("integer", minimum=1, maximum=10**9)

_PART = record(("type",), type={"enum": ["text", "image_url", "refusal"]}, text=TEXT, refusal=TEXT)
_CALLED = record(("name",), name={"type": "string", "minLength": 1}, arguments=TEXT)
_CALL = record(("function",), id=maybe("string"), type=maybe("string"), function=_CALLED)
_FUNCTION = record(
    ("name",),
    name={"type": "string", "minLength": 1},
    description=maybe("string"),
    parameters=FREE,
    strict=maybe("boolean"),
)
_CHAT_MESSAGE = record(
    ("role",),
    role={"enum": ["system", "developer", "user", "assistant", "tool"]},
    content={"anyOf": [maybe("string"), {"type": "array", "items": _PART}]},
    reasoning_content=maybe("string"),
    tool_calls=listed(_CALL),
    tool_call_id=maybe("string"),
    name=maybe("string"),
)
_VARIABLES = maybe(
    "object",
    description="variables of the model's chat template; no other name is accepted",
    additionalProperties=False,
    properties={
        "enable_thinking": FLAG,
        "thinking": FLAG,
        "preserve_thinking": FLAG,
        "clear_thinking": FLAG,
        "thinking_budget": maybe("integer", minimum=0, maximum=2**31),
        "reasoning_effort": maybe("string", maxLength=64),
        "documents": listed(
            {"type": "object", "additionalProperties": TEXT, "maxProperties": 16, "propertyNames": {"maxLength": 64}},
            maxItems=1000,
        ),
        "builtin_tools": listed({"type": "string", "maxLength": 64}, maxItems=16),
        "model_identity": maybe("string", maxLength=1000),
        "date_string": maybe("string", maxLength=64),
        "tools_in_user_message": FLAG,
        "add_vision_id": FLAG,
    },
)
_COMMON: Schema = {
    "model": maybe("string"),
    "stream": maybe("boolean"),
    "temperature": WIDE,
    "top_p": maybe("number", exclusiveMinimum=0, maximum=1),
    "metadata": FREE,
    "user": maybe("string", description="taken for the session where nothing else names one"),
    "session_id": maybe("string", description="the session, as X-Session-Id"),
    "prompt_cache_key": maybe("string"),
    "chat_template_kwargs": _VARIABLES,
}
_CHAT = record(
    ("messages",),
    **_COMMON,
    messages={"type": "array", "minItems": 1, "items": _CHAT_MESSAGE},
    max_tokens=LIMIT,
    max_completion_tokens=LIMIT,
    n=maybe("integer", minimum=1, maximum=8),
    stop={"anyOf": [maybe("string"), {"type": "array", "items": {"type": "string", "minLength": 1}, "maxItems": 16}]},
    seed=maybe("integer", minimum=-(2**62), maximum=2**62),
    top_k=maybe("integer", minimum=-1, maximum=2**31),
    min_p=UNIT,
    presence_penalty=maybe("number", minimum=-2, maximum=2),
    frequency_penalty=maybe("number", minimum=-2, maximum=2),
    repetition_penalty=maybe("number", minimum=0.01, maximum=100),
    dry_multiplier=maybe(
        "number", minimum=0, maximum=100, description="against repeats; 0, or with tools or a schema: off"
    ),
    logprobs=maybe("boolean"),
    top_logprobs=maybe("integer", minimum=0, maximum=20),
    stream_options={"anyOf": [record(include_usage=maybe("boolean")), {"type": "null"}]},
    tools=listed(record(("type", "function"), type={"const": "function"}, function=_FUNCTION)),
    tool_choice={
        "anyOf": [{"enum": ["auto", "none", "required", None]}, record(("type", "function"), function=_CALLED)]
    },
    response_format={
        "anyOf": [record(("type",), type={"enum": ["text", "json_object", "json_schema"]}), {"type": "null"}]
    },
)
_RESPONSES_PART = record(("type",), type={"enum": ["input_text", "output_text", "input_image", "refusal"]}, text=TEXT)
_ITEM = record(
    type={"enum": ["message", "reasoning", "function_call", "function_call_output"]},
    role={"enum": ["user", "assistant", "system", "developer"]},
    content={"anyOf": [maybe("string"), {"type": "array", "items": _RESPONSES_PART}]},
    call_id=TEXT,
    name=TEXT,
    arguments=TEXT,
    output={"anyOf": [TEXT, {"type": "array", "items": _RESPONSES_PART}]},
)
_RESPONSES = record(
    ("input",),
    **_COMMON,
    input={"anyOf": [TEXT, {"type": "array", "minItems": 1, "items": _ITEM}]},
    instructions=maybe("string"),
    max_output_tokens=LIMIT,
    store=maybe("boolean"),
    previous_response_id=maybe("string"),
    reasoning=FREE,
    include=listed(TEXT),
    text=FREE,
    tools=listed(record(("type",), type=TEXT, name=TEXT, description=maybe("string"), parameters=FREE)),
    tool_choice={"anyOf": [{"enum": ["auto", "none", "required", None]}, record(("type",), type=TEXT, name=TEXT)]},
    parallel_tool_calls=maybe("boolean"),
)
_BLOCK = record(
    ("type",),
    type={"enum": ["text", "image", "document", "thinking", "tool_use", "tool_result"]},
    text=TEXT,
    thinking=TEXT,
    id=TEXT,
    name=TEXT,
    input=FREE,
    tool_use_id=TEXT,
    content={
        "anyOf": [maybe("string"), {"type": "array", "items": record(("type",), type={"const": "text"}, text=TEXT)}]
    },
    is_error=maybe("boolean"),
)
_BLOCKS = {"anyOf": [maybe("string"), {"type": "array", "items": _BLOCK}]}
_MESSAGES = record(
    ("messages",),
    **{key: value for key, value in _COMMON.items() if key not in ("user", "prompt_cache_key")},
    messages={
        "type": "array",
        "minItems": 1,
        "items": record(("role", "content"), role={"enum": ["user", "assistant", "system"]}, content=_BLOCKS),
    },
    system=_BLOCKS,
    max_tokens=LIMIT,
    stop_sequences=listed({"type": "string", "minLength": 1}, maxItems=16),
    top_k=maybe("integer", minimum=-1, maximum=2**31),
    tools=listed(
        record(
            ("name",),
            name={"type": "string", "minLength": 1},
            type=TEXT,
            description=maybe("string"),
            input_schema=FREE,
        )
    ),
    tool_choice={
        "anyOf": [record(("type",), type={"enum": ["auto", "any", "tool", "none"]}, name=TEXT), {"type": "null"}]
    },
    thinking={"anyOf": [record(("type",), type={"enum": ["enabled", "disabled", "adaptive"]}), {"type": "null"}]},
    output_config=FREE,
    context_management=FREE,
)
_FEEDBACK = record(
    ("turn",),
    turn={"type": "string", "minLength": 1, "description": "the id of a turn, or of a response in any format"},
    thumb={"enum": ["up", "down", None]},
    score=maybe("number", minimum=-1, maximum=1, description="-1 .. 1, from a person or an environment"),
    comment=maybe("string", description="what would have made the reply better"),
    edit=maybe("string", description="the reply as it should have been"),
    source={"enum": ["explicit", "environment", None]},
)
_MODEL = record(("id", "object"), id=TEXT, object={"const": "model"}, version=COUNT, context_length=COUNT)

SCHEMAS: dict[str, Schema] = {
    "ChatRequest": _CHAT,
    "ResponsesRequest": _RESPONSES,
    "MessagesRequest": _MESSAGES,
    "FeedbackRequest": _FEEDBACK,
    "ChatCompletion": record(
        ("id", "object", "created", "model", "choices", "usage"),
        id=TEXT,
        object={"const": "chat.completion"},
        created=COUNT,
        model=TEXT,
        system_fingerprint=TEXT,
        choices={"type": "array", "minItems": 1, "items": record(("index", "message", "finish_reason"), index=COUNT)},
        usage=record(("prompt_tokens", "completion_tokens", "total_tokens"), total_tokens=COUNT),
        turns={"type": "array", "items": TEXT},
    ),
    "Response": record(
        ("id", "object", "status", "output", "model"), object={"const": "response"}, output={"type": "array"}
    ),
    "Message": record(
        ("id", "type", "role", "content", "stop_reason", "usage"), type={"const": "message"}, content={"type": "array"}
    ),
    "TokenCount": record(("input_tokens",), input_tokens=COUNT),
    "FeedbackTaken": record(("object", "turn"), object={"const": "feedback"}, turn=TEXT, score=maybe("number")),
    "SessionEnded": record(("object", "session"), object={"const": "session.ended"}, session=TEXT),
    "Models": record(("object", "data"), object={"const": "list"}, data={"type": "array", "items": ref("Model")}),
    "Model": _MODEL,
    "Health": record(),
    "Error": record(
        ("error",),
        error=record(("message", "type"), message=TEXT, type=TEXT, param=maybe("string"), code=maybe("string")),
    ),
    "MessagesError": record(
        ("type", "error"), type={"const": "error"}, error=record(("type", "message"), type=TEXT, message=TEXT)
    ),
}

_FAULTS = {
    "400": "the request cannot be read; the message names the field",
    "401": "no key, or one that is not known",
    "403": "a page of another origin, or a reward without an environment's key",
    "404": "no such model, version, turn or session",
    "405": "this method is not allowed here",
    "408": "the request came too slowly",
    "413": "the body is too large, or holds too many values",
    "415": "the body is compressed",
    "429": "too many requests of this key; see Retry-After",
    "431": "the headers are too large",
    "502": "the model's backend failed",
    "503": "the model's backend is restarting; see Retry-After",
}
_MARKS = (
    ("X-Session-Id", "the session this turn belongs to", TEXT),
    ("X-Turn-Type", "main or side", {"enum": ["main", "side"]}),
    ("X-Session-Done", "true: nothing more will come of this session", {"enum": ["true", "false"]}),
    (
        "x-openclaw-rl-train",
        "off: never train on this turn; off-session: on no turn of this session from now on",
        {"enum": ["on", "off", "off-session"]},
    ),
    ("x-openclaw-rl-group", "joins the rollouts of one task", TEXT),
)


def _content(schema: str) -> Schema:
    return {"application/json": {"schema": ref(schema)}}


def _answers(schema: str, error: str, *, stream: bool = False) -> Schema:
    good = _content(schema)
    if stream:
        good["text/event-stream"] = {"schema": record(("data",), data=TEXT, event=TEXT)}
    faults = {status: {"description": what, "content": _content(error)} for status, what in _FAULTS.items()}
    return {"200": {"description": "the answer", "content": good}, **faults}


def _post(summary: str, takes: str, gives: str, *, error: str = "Error", stream: bool = False) -> Schema:
    marks = [
        {"name": name, "in": "header", "required": False, "description": what, "schema": schema}
        for name, what, schema in _MARKS
    ]
    operation: Schema = {
        "summary": summary,
        "requestBody": {"required": True, "content": _content(takes)},
        "responses": _answers(gives, error, stream=stream),
    }
    return {"post": {**operation, "parameters": marks} if stream else operation}


def _get(summary: str, gives: str, *, path: str | None = None) -> Schema:
    operation: Schema = {"summary": summary, "responses": _answers(gives, "Error")}
    return {"get": {**operation, "parameters": [_in_path(path)]} if path else operation}


def _in_path(name: str) -> Schema:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _paths() -> Schema:
    ended: Schema = {
        "summary": "Say that a session is over",
        "parameters": [_in_path("id")],
        "responses": _answers("SessionEnded", "Error"),
    }
    page = {"200": {"description": "counters", "content": {"text/plain": {"schema": TEXT}}}}
    guarded = {key: value for key, value in _answers("Health", "Error").items() if key != "200"}
    ready = _get("Ready to answer", "Health")
    ready["get"]["responses"]["503"] = {"description": "not ready", "content": _content("Health")}
    return {
        "/v1/chat/completions": _post("Chat completion", "ChatRequest", "ChatCompletion", stream=True),
        "/v1/responses": _post("Response", "ResponsesRequest", "Response", stream=True),
        "/v1/messages": _post("Message", "MessagesRequest", "Message", error="MessagesError", stream=True),
        "/v1/messages/count_tokens": _post("Token count", "MessagesRequest", "TokenCount", error="MessagesError"),
        "/v1/feedback": _post("Say what a reply was worth", "FeedbackRequest", "FeedbackTaken"),
        "/v1/sessions/{id}/end": {"post": ended},
        "/v1/models": _get("Known models", "Models"),
        "/v1/models/{id}": _get("One model", "Model", path="id"),
        "/healthz": _get("Alive", "Health"),
        "/readyz": ready,
        "/metrics": {"get": {"summary": "Prometheus metrics", "responses": {**page, **guarded}}},
    }


def description(model_name: str) -> Schema:
    """The whole document."""
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
            "schemas": SCHEMAS,
            "securitySchemes": {"bearer": bearer, "key": {"type": "apiKey", "in": "header", "name": "x-api-key"}},
        },
        "security": [{}, {"bearer": []}, {"key": []}],
    }
