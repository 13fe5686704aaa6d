"""Request models for POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from openclaw_rl.serve import fields
from openclaw_rl.serve.fields import (
    Counted,
    DataUrl,
    Flag,
    Many,
    Name,
    Number,
    ObjectOr,
    RequestModel,
    Table,
    TextOr,
    Unless,
    Variant,
    Whole,
)
from openclaw_rl.serve.request import GenerationRequest, RequestLimits
from openclaw_rl.serve.sse import dumps
from openclaw_rl.serve.wire.base import (
    ApiRequest,
    ReplyFormat,
    Stop,
    build_sampling,
    is_strict,
    named_choice,
    need_messages,
    schema_of,
    stop_strings,
    top_k,
)
from openclaw_rl.types import Json, Message, Prompt, Role, Sampling, Tool, ToolCall
from openclaw_rl.web import whole_json

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


class ChatTextPart(RequestModel):
    type: Literal["text", "input_text", "output_text"]
    text: str


class ChatRefusalPart(RequestModel):
    type: Literal["refusal"]
    refusal: str


class ChatImageUrl(RequestModel):
    url: DataUrl


class ChatImagePart(RequestModel):
    type: Literal["image_url"]
    image_url: Annotated[DataUrl | ChatImageUrl, TextOr()]


ChatPart = Annotated[ChatTextPart | ChatRefusalPart | ChatImagePart, Variant("text, image_url, refusal", noun="part")]
ChatContent = Annotated[str | Many[ChatPart], TextOr()]


class CalledFunction(RequestModel):
    name: Name
    arguments: Annotated[str | Table, TextOr()] | None = None


class ChatToolCall(RequestModel):
    """A call in an earlier reply."""

    id: str | None = None
    function: CalledFunction


class ChatMessage(RequestModel):
    """A message by any role but the assistant."""

    role: Literal["system", "developer", "user", "tool", "function"]
    content: ChatContent | None = None
    tool_call_id: str | None = None
    name: str | None = None


class ChatAssistantMessage(RequestModel):
    """An earlier reply."""

    role: Literal["assistant"]
    content: ChatContent | None = None
    reasoning_content: str | None = None
    reasoning: Annotated[str | None, Unless(("reasoning_content",))] = None
    tool_calls: Many[ChatToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None


AnyChatMessage = Annotated[ChatMessage | ChatAssistantMessage, Variant(", ".join(ROLES), key="role")]


class FunctionTool(RequestModel):
    """A function that the model may call."""

    name: Name
    description: str | None = None
    parameters: Table | None = None
    strict: Flag | None = None


class ChatTool(RequestModel):
    type: Literal["function", ""] | None = None
    function: FunctionTool


AnyChatTool = Annotated[ChatTool, Variant("function", noun="tool type", default="function")]


class NamedFunction(RequestModel):
    name: Name


class ChatToolChoice(RequestModel):
    """The one tool that must be called."""

    function: NamedFunction


class StreamOptions(RequestModel):
    include_usage: Flag | None = None


class ChatRequest(ApiRequest):
    """A chat completion request, as sent by OpenAI's SDKs and most agents."""

    model_config = ConfigDict(json_schema_extra={"required": ["messages"]})

    messages: Annotated[Many[AnyChatMessage], Counted()] | None = Field(default=None, json_schema_extra={"minItems": 1})
    tools: Annotated[Many[AnyChatTool], Counted()] | None = None
    tool_choice: Annotated[ChatToolChoice | Literal["auto", "none", "required"], ObjectOr()] | None = None
    response_format: ReplyFormat | None = None
    top_k: Annotated[int, Whole(-1, 2**31)] | None = None
    min_p: Annotated[float, Number(0, 1)] | None = None
    max_completion_tokens: Annotated[int, Whole(1)] | None = None
    max_tokens: Annotated[Annotated[int, Whole(1)] | None, Unless(("max_completion_tokens",))] = None
    stop: Stop | None = None
    seed: Annotated[int, Whole(-(2**62), 2**62)] | None = None
    presence_penalty: Annotated[float, Number(-2, 2)] | None = None
    frequency_penalty: Annotated[float, Number(-2, 2)] | None = None
    repetition_penalty: Annotated[float, Number(0.01, 100)] | None = None
    dry_multiplier: Annotated[float, Number(0, 100)] | None = Field(
        default=None, description="against repeats; 0, or with tools or a schema: off"
    )
    logprobs: Flag | None = None
    top_logprobs: Annotated[int, Whole(0, 20)] | None = None
    n: Annotated[int, Whole(1, 8)] | None = None
    stream_options: StreamOptions | None = None


def parse(body: Mapping[str, Json], limits: RequestLimits, defaults: Sampling) -> GenerationRequest:
    """Parse a body; raise RequestError with the path of the invalid field."""
    request = fields.parse(ChatRequest, body, limits)
    tools = tuple(tool_of(tool.function) for tool in request.tools or ())
    prompt = Prompt(
        messages=need_messages([_message(message) for message in request.messages or ()], "messages"),
        tools=tools,
        tool_choice=_choice(request.tool_choice, tools),
        template=request.template,
    )
    return GenerationRequest(
        prompt=prompt,
        sampling=_sampling(request, defaults),
        model=request.model or "",
        stream=bool(request.stream),
        n=request.n or 1,
        logprobs=bool(request.logprobs),
        include_usage=request.stream_options is not None and bool(request.stream_options.include_usage),
        session=request.session,
        guessed_session=request.guessed_session,
        schema_at="response_format",
        strict=is_strict(request.response_format),
    )


def _message(message: ChatMessage | ChatAssistantMessage) -> Message:
    content, images = _content(message.content)
    if isinstance(message, ChatMessage):
        return Message(
            role=ROLES[message.role],
            content=content,
            images=images,
            tool_call_id=message.tool_call_id,
            name=message.name,
        )
    return Message(
        role="assistant",
        content=content,
        images=images,
        reasoning=message.reasoning_content or message.reasoning,
        tool_calls=tuple(map(call_of, message.tool_calls or ())),
        tool_call_id=message.tool_call_id,
        name=message.name,
    )


def _content(content: str | list[ChatTextPart | ChatRefusalPart | ChatImagePart] | None) -> tuple[str, tuple[str, ...]]:
    """Return text and images, from a text or from parts; absent content is empty."""
    if content is None or isinstance(content, str):
        return content or "", ()
    texts: list[str] = []
    images: list[str] = []
    for part in content:
        match part:
            case ChatTextPart():
                texts.append(part.text)
            case ChatRefusalPart():
                texts.append(part.refusal)
            case ChatImagePart(image_url=ChatImageUrl(url=url)) | ChatImagePart(image_url=str(url)):
                images.append(url)
    return "\n".join(texts), tuple(images)


def call_of(call: ChatToolCall) -> ToolCall:
    arguments = call.function.arguments
    written = whole_json(arguments) if isinstance(arguments, str) else dumps(arguments or {})
    return ToolCall(id=call.id or "", name=call.function.name, arguments=written)


def tool_of(function: FunctionTool) -> Tool:
    return Tool(
        name=function.name,
        description=function.description or "",
        parameters=function.parameters or {},
        strict=bool(function.strict),
    )


def _choice(choice: ChatToolChoice | str | None, tools: Sequence[Tool]) -> str:
    if isinstance(choice, ChatToolChoice):
        return named_choice(choice.function.name, tools, "tool_choice.function.name")
    return choice or "auto"


_SAMPLING = frozenset(Sampling.__slots__) | {"max_completion_tokens", "response_format"}


def _sampling(given: ChatRequest, defaults: Sampling) -> Sampling:
    if _SAMPLING.isdisjoint(given.model_fields_set):
        return defaults
    newer = given.max_completion_tokens is not None
    return build_sampling(
        defaults,
        {"max_tokens": "max_completion_tokens" if newer else "max_tokens"},
        temperature=given.temperature,
        top_p=given.top_p,
        top_k=top_k(given.top_k),
        min_p=given.min_p,
        max_tokens=given.max_completion_tokens if newer else given.max_tokens,
        stop=stop_strings(given.stop),
        seed=given.seed,
        presence_penalty=given.presence_penalty,
        frequency_penalty=given.frequency_penalty,
        repetition_penalty=given.repetition_penalty,
        dry_multiplier=given.dry_multiplier,
        top_logprobs=given.top_logprobs,
        json_schema=schema_of(given.response_format),
    )
