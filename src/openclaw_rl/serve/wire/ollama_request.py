"""Request models for POST /api/chat, /api/generate and /api/show, as Ollama's clients send them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from openclaw_rl.errors import RequestError
from openclaw_rl.serve import fields
from openclaw_rl.serve.fields import (
    Counted,
    Flag,
    Many,
    Name,
    Number,
    RequestModel,
    Table,
    TextOr,
    Variant,
    Whole,
    refusal,
)
from openclaw_rl.serve.request import GenerationRequest, RequestLimits
from openclaw_rl.serve.wire.base import (
    ABOVE_ZERO,
    SharedRequest,
    Stop,
    Temperature,
    TopP,
    build_sampling,
    stop_strings,
    top_k,
)
from openclaw_rl.serve.wire.chat_request import AnyChatTool, ChatToolCall, call_of, tool_of
from openclaw_rl.types import Json, Message, Prompt, Sampling

LATEST = ":latest"
"""the tag that clients add to an untagged name"""
_UNLIMITED = 2**31
_IMAGES = {"/9j/": "jpeg", "iVBORw0KGgo": "png", "R0lGOD": "gif", "UklGR": "webp"}
"""the beginnings of images in base64"""


def _image(text: str) -> str:
    """Return an image as a data: URL."""
    if text.startswith("data:"):
        return text
    kind = next((kind for head, kind in _IMAGES.items() if text.startswith(head)), None)
    if kind is None:
        raise refusal("must be a JPEG, PNG, GIF or WebP image, base64 encoded")
    return f"data:image/{kind};base64,{text}"


OllamaImages = Many[Annotated[Name, AfterValidator(_image)]]


class OllamaOptions(RequestModel):
    """Sampling parameters. Options about memory and hardware (num_ctx, num_gpu, ...) are ignored."""

    temperature: Temperature | None = None
    top_p: TopP | None = Field(default=None, json_schema_extra=ABOVE_ZERO)
    top_k: Annotated[int, Whole(-1, 2**31)] | None = None
    min_p: Annotated[float, Number(0, 1)] | None = None
    num_predict: Annotated[int, Whole(-2)] | None = Field(default=None, description="0 and below: no limit")
    stop: Stop | None = None
    seed: Annotated[int, Whole(-(2**62), 2**62)] | None = Field(default=None, description="-1: none")
    repeat_penalty: Annotated[float, Number(0.01, 100)] | None = None
    presence_penalty: Annotated[float, Number(-2, 2)] | None = None
    frequency_penalty: Annotated[float, Number(-2, 2)] | None = None


class OllamaMessage(RequestModel):
    """A system, user or tool message."""

    role: Literal["system", "user", "tool"]
    content: str | None = None
    images: OllamaImages | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaAssistantMessage(RequestModel):
    """An earlier reply."""

    role: Literal["assistant"]
    content: str | None = None
    thinking: str | None = None
    images: OllamaImages | None = None
    tool_calls: Many[ChatToolCall] | None = None


AnyOllamaMessage = Annotated[
    OllamaMessage | OllamaAssistantMessage, Variant("system, user, assistant, tool", key="role")
]


class OllamaRequest(SharedRequest):
    """The common fields of /api/chat and /api/generate. ``stream`` is on unless it is false."""

    options: OllamaOptions | None = None
    format: Annotated[Literal["json", ""] | Table, TextOr()] | None = Field(
        default=None, description="json, or the JSON schema of the reply"
    )
    think: Annotated[Literal["low", "medium", "high", "max"] | Flag, TextOr()] | None = None
    keep_alive: Annotated[Any, WithJsonSchema({"type": ["string", "number", "null"]})] = Field(
        default=None, description="ignored: the model stays loaded"
    )
    logprobs: Flag | None = None
    top_logprobs: Annotated[int, Whole(0, 20)] | None = None


class OllamaChatRequest(OllamaRequest):
    """A chat request, as sent by Ollama's clients."""

    messages: Annotated[Many[AnyOllamaMessage], Counted()] | None = None
    tools: Annotated[Many[AnyChatTool], Counted()] | None = None


class OllamaGenerateRequest(OllamaRequest):
    """A single-prompt request, as sent by Ollama's clients."""

    prompt: str | None = None
    system: str | None = None
    images: OllamaImages | None = None
    suffix: str | None = Field(default=None, description="refused: a reply cannot be inserted before a text")
    own_template: str | None = Field(
        default=None, alias="template", description="refused: the chat template is the model's own"
    )
    raw: Flag | None = Field(default=None, description="true is refused: each prompt goes through the chat template")
    context: Many[int] | None = Field(default=None, description="refused unless empty: use /api/chat")


class OllamaShowRequest(RequestModel):
    """A model's name, under either of its two fields."""

    model: str | None = None
    name: str | None = None


def parse_chat(body: Mapping[str, Json], limits: RequestLimits, defaults: Sampling) -> GenerationRequest:
    """Parse a body for /api/chat; raise RequestError with the path of the invalid field."""
    request = fields.parse(OllamaChatRequest, body, limits)
    messages = [_message(message) for message in request.messages or ()]
    empty = None if messages else _loaded(request, {"message": {"role": "assistant", "content": ""}})
    prompt = Prompt(
        messages=tuple(messages) or _NOTHING,
        tools=tuple(tool_of(tool.function) for tool in request.tools or ()),
        template=_template(request),
    )
    return _request(request, prompt, defaults, empty)


def parse_generate(body: Mapping[str, Json], limits: RequestLimits, defaults: Sampling) -> GenerationRequest:
    """Parse a body for /api/generate; raise RequestError with the path of the invalid field."""
    request = fields.parse(OllamaGenerateRequest, body, limits)
    if not request.prompt:
        return _request(request, Prompt(messages=_NOTHING), defaults, _loaded(request, {"response": ""}))
    _refuse_own_templates(request)
    system = [Message(role="system", content=request.system)] if request.system else []
    message = Message(role="user", content=request.prompt, images=tuple(request.images or ()))
    return _request(request, Prompt(messages=(*system, message), template=_template(request)), defaults, None)


_NOTHING = (Message(role="user", content=""),)
"""the prompt of an empty request, which no model receives"""


def _refuse_own_templates(given: OllamaGenerateRequest) -> None:
    refused = {
        "suffix": (given.suffix, "text before a suffix is not filled in here", "ask for a whole reply"),
        "template": (given.own_template, "the model's own chat template is used", "leave it out"),
        "raw": (given.raw, "each prompt goes through the model's chat template", "leave it out"),
        "context": (given.context, "a conversation is not sent as tokens", "send its messages to /api/chat"),
    }
    for field, (value, what, remedy) in refused.items():
        if value:
            raise RequestError(f"{field}: {what}", field=field, remedy=remedy)


def _loaded(given: OllamaRequest, empty: Mapping[str, Json]) -> Json:
    """Return the answer to a client that only loads or unloads the model."""
    reason = "unload" if given.keep_alive in (0, "0") else "load"
    at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return {"model": given.model or "", "created_at": at, **empty, "done_reason": reason, "done": True}


def _request(given: OllamaRequest, prompt: Prompt, defaults: Sampling, answer: Json | None) -> GenerationRequest:
    return GenerationRequest(
        prompt=prompt,
        sampling=_sampling(given, defaults),
        model=untagged(given.model or ""),
        stream=given.stream is not False,
        logprobs=bool(given.logprobs),
        session=given.session,
        guessed_session=given.guessed_session,
        schema_at="format",
        answer=answer,
        echo={"model": given.model},
    )


def untagged(model: str) -> str:
    """Return a model's name without the default tag."""
    return model.removesuffix(LATEST)


def _message(message: OllamaMessage | OllamaAssistantMessage) -> Message:
    content, images = message.content or "", tuple(message.images or ())
    if isinstance(message, OllamaMessage):
        return Message(
            role=message.role,
            content=content,
            images=images,
            tool_call_id=message.tool_call_id,
            name=message.tool_name,
        )
    return Message(
        role="assistant",
        content=content,
        images=images,
        reasoning=message.thinking or None,
        tool_calls=tuple(map(call_of, message.tool_calls or ())),
    )


def _template(given: OllamaRequest) -> dict[str, Json]:
    """Return the variables for the chat template; explicitly named variables have precedence."""
    if given.think is None:
        return given.template
    thinking: dict[str, Json] = {"enable_thinking": bool(given.think)}
    if isinstance(given.think, str):
        thinking["reasoning_effort"] = given.think
    return {**thinking, **given.template}


_NAMES: Sequence[str] = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "stop",
    "seed",
    "presence_penalty",
    "frequency_penalty",
)
_FIELDS = {
    **{name: f"options.{name}" for name in _NAMES},
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
}


def _sampling(given: OllamaRequest, defaults: Sampling) -> Sampling:
    options = given.options or OllamaOptions()
    most = options.num_predict
    return build_sampling(
        defaults,
        _FIELDS,
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=top_k(options.top_k),
        min_p=options.min_p,
        max_tokens=_UNLIMITED if most is not None and most < 1 else most,
        stop=stop_strings(options.stop),
        seed=None if options.seed == -1 else options.seed,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        repetition_penalty=options.repeat_penalty,
        top_logprobs=given.top_logprobs,
        json_schema=_schema(given.format),
    )


def _schema(form: str | Table | None) -> Table | None:
    return form if isinstance(form, dict) else {"type": "object"} if form else None
