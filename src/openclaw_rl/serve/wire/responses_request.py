"""Request models for POST /v1/responses: items, parsed into a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field

from openclaw_rl.serve import fields
from openclaw_rl.serve.fields import (
    OTHER,
    Counted,
    DataUrl,
    Flag,
    Many,
    Name,
    ObjectOr,
    RequestModel,
    Table,
    TextOr,
    Unless,
    Variant,
    Whole,
    refusal,
)
from openclaw_rl.serve.request import GenerationRequest, RequestLimits
from openclaw_rl.serve.sse import dumps
from openclaw_rl.serve.wire.base import (
    ApiRequest,
    ReplyFormat,
    build_sampling,
    is_strict,
    named_choice,
    need_messages,
    schema_of,
)
from openclaw_rl.types import Json, Message, Prompt, Role, Sampling, Tool, ToolCall
from openclaw_rl.web import whole_json

ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_PLAIN_TEXT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
"""the parameters of a tool that takes plain text"""
_LOGPROBS = "message.output_text.logprobs"
_SERVER_ITEMS = ("_call", "_call_output", "compaction", "additional_tools")


class ResponsesTextPart(RequestModel):
    type: Literal["input_text", "output_text", "text"]
    text: str


class ResponsesRefusalPart(RequestModel):
    type: Literal["refusal"]
    refusal: str


class ResponsesImagePart(RequestModel):
    type: Literal["input_image"]
    image_url: DataUrl


ResponsesPart = ResponsesTextPart | ResponsesRefusalPart | ResponsesImagePart
ResponsesContent = Annotated[
    str | Many[Annotated[ResponsesPart, Variant("input_text, output_text, input_image, refusal", noun="part")]],
    TextOr(),
]


class MessageItem(RequestModel):
    type: Literal["message", ""] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: ResponsesContent | None = None


class ReasoningText(RequestModel):
    text: str


class ReasoningItem(RequestModel):
    """The model's reasoning before its reply: its text, else its summary."""

    type: Literal["reasoning"]
    content: Many[ReasoningText] | None = None
    summary: Annotated[Many[ReasoningText] | None, Unless(("content",))] = None


class FunctionCallItem(RequestModel):
    type: Literal["function_call"]
    arguments: str
    call_id: Name
    name: Name


class CustomCallItem(RequestModel):
    """A call to a tool that takes plain text."""

    type: Literal["custom_tool_call"]
    input: str
    call_id: Name
    name: Name


class CallOutputItem(RequestModel):
    """A tool's result."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    output: ResponsesContent | None = None
    call_id: Name


def _by_reference(_: str) -> str:
    raise refusal("items are not kept by reference; send the item itself")


class ItemReference(RequestModel):
    """Refused: items are not kept by reference."""

    type: Annotated[Literal["item_reference"], AfterValidator(_by_reference)]


class ServerItem(RequestModel):
    """An item about another server's tool: ignored, since that tool does not exist here."""

    type: str


ResponsesItem = (
    MessageItem | ReasoningItem | FunctionCallItem | CustomCallItem | CallOutputItem | ItemReference | ServerItem
)


def _item_kind(_: dict[str, Json], kind: str) -> str:
    return OTHER if kind.endswith(_SERVER_ITEMS) and kind not in _OWN_CALLS else kind


_OWN_CALLS = ("function_call", "custom_tool_call", "function_call_output", "custom_tool_call_output")
AnyItem = Annotated[
    ResponsesItem,
    Variant(
        "message, reasoning, function_call, function_call_output, custom_tool_call",
        noun="item",
        default="message",
        pick=_item_kind,
    ),
]


class ResponsesFunction(RequestModel):
    """A function that the model may call."""

    type: Literal["function", ""] | None = None
    name: Name
    description: str | None = None
    parameters: Table | None = None
    strict: Flag | None = None


class ResponsesCustomTool(RequestModel):
    """A tool that takes plain text."""

    type: Literal["custom"]
    name: Name
    description: str | None = None


class ResponsesServerTool(RequestModel):
    """A tool that only its own server can run: ignored."""

    type: str


AnyResponsesTool = Annotated[
    ResponsesFunction | ResponsesCustomTool | ResponsesServerTool,
    Variant("", default="function", pick=lambda _, kind: kind if kind in ("function", "", "custom") else OTHER),
]


class ResponsesToolChoice(RequestModel):
    """The one tool that must be called."""

    type: Literal["function", "custom"]
    name: Name


class AllowedTools(RequestModel):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"] | None = None


class ServerToolChoice(RequestModel):
    """A tool that does not exist here: the choice is left to the model."""

    type: str | None = None


AnyToolChoice = Annotated[
    ResponsesToolChoice | AllowedTools | ServerToolChoice,
    Variant(
        "",
        default=OTHER,
        pick=lambda _, kind: kind if kind in ("function", "custom", "allowed_tools") else OTHER,
    ),
]


class TextOptions(RequestModel):
    format: ReplyFormat | None = None


class ResponsesRequest(ApiRequest):
    """A response request, as sent by Codex."""

    model_config = ConfigDict(json_schema_extra={"required": ["input"]})

    instructions: str | None = None
    input: Annotated[str | Annotated[Many[AnyItem], Counted()], TextOr()] | None = Field(
        default=None, json_schema_extra={"minItems": 1}
    )
    tools: Annotated[Many[AnyResponsesTool], Counted()] | None = None
    tool_choice: Annotated[AnyToolChoice | Literal["auto", "none", "required"], ObjectOr()] | None = None
    max_output_tokens: Annotated[int, Whole(1)] | None = None
    top_logprobs: Annotated[int, Whole(0, 20)] | None = None
    text: TextOptions | None = None
    include: Many[str] | None = None
    previous_response_id: str | None = None
    store: Flag | None = None
    metadata: Table | None = None
    reasoning: Table | None = None


def parse(body: Mapping[str, Json], limits: RequestLimits, defaults: Sampling) -> GenerationRequest:
    """Parse a body; raise RequestError with the path of the invalid field."""
    request = fields.parse(ResponsesRequest, body, limits)
    system = [Message(role="system", content=request.instructions)] if request.instructions else []
    tools = tuple(tool for declared in request.tools or () if (tool := _tool(declared)))
    prompt = Prompt(
        messages=need_messages(system + _messages(request.input), "input"),
        tools=tools,
        tool_choice=_choice(request.tool_choice, tools),
        template=request.template,
    )
    form = request.text.format if request.text else None
    return GenerationRequest(
        prompt=prompt,
        sampling=build_sampling(
            defaults,
            {"max_tokens": "max_output_tokens"},
            temperature=request.temperature,
            top_p=request.top_p,
            max_tokens=request.max_output_tokens,
            top_logprobs=request.top_logprobs,
            json_schema=schema_of(form),
        ),
        model=request.model or "",
        stream=bool(request.stream),
        logprobs=_LOGPROBS in (request.include or ()),
        session=request.session,
        guessed_session=request.guessed_session,
        after=request.previous_response_id,
        schema_at="text.format",
        strict=is_strict(form),
        echo=_echo(body),
    )


def _echo(body: Mapping[str, Json]) -> dict[str, Json]:
    """Return the request fields that the response repeats, as sent."""
    return {
        "instructions": body.get("instructions"),
        "metadata": body.get("metadata") or {},
        "tools": body.get("tools") or [],
        "tool_choice": body.get("tool_choice") or "auto",
        "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "temperature": body.get("temperature"),
        "top_p": body.get("top_p"),
        "max_output_tokens": body.get("max_output_tokens"),
        "previous_response_id": body.get("previous_response_id"),
        "reasoning": body.get("reasoning") or None,
        "text": body.get("text") or {"format": {"type": "text"}},
        "store": body.get("store") is not False,
        "prompt_cache_key": body.get("prompt_cache_key"),
        "user": body.get("user"),
    }


def _messages(given: str | list[ResponsesItem] | None) -> list[Message]:
    if isinstance(given, str):
        return [Message(role="user", content=given)]
    items = ItemReader()
    for item in given or ():
        items.add(item)
    return items.messages()


@dataclass
class ItemReader:
    """Joins items to messages: one reply's reasoning, text and calls are one message."""

    _messages: list[Message] = field(default_factory=list)
    _reasoning: list[str] = field(default_factory=list)
    _text: str | None = None
    _calls: list[ToolCall] = field(default_factory=list)

    def add(self, item: ResponsesItem) -> None:
        match item:
            case MessageItem():
                self._message(item)
            case ReasoningItem():
                if self._text is not None or self._calls:
                    self._flush()
                self._reasoning.extend(part.text for part in item.content or item.summary or ())
            case FunctionCallItem():
                self._calls.append(ToolCall(id=item.call_id, name=item.name, arguments=whole_json(item.arguments)))
            case CustomCallItem():
                self._calls.append(ToolCall(id=item.call_id, name=item.name, arguments=dumps({"input": item.input})))
            case CallOutputItem():
                self._flush()
                text, images = _content(item.output)
                self._messages.append(Message(role="tool", content=text, images=images, tool_call_id=item.call_id))

    def _message(self, item: MessageItem) -> None:
        content, images = _content(item.content)
        if item.role != "assistant":
            self._flush()
            self._messages.append(Message(role=ROLES[item.role], content=content, images=images))
            return
        if self._text is not None or self._calls:
            self._flush()
        self._text = content

    def _flush(self) -> None:
        reasoning = "\n".join(self._reasoning) or None
        if self._text is not None or self._calls or reasoning:
            self._messages.append(
                Message(role="assistant", content=self._text or "", reasoning=reasoning, tool_calls=tuple(self._calls))
            )
        self._text, self._calls, self._reasoning = None, [], []

    def messages(self) -> list[Message]:
        self._flush()
        return self._messages


def _content(content: str | list[ResponsesPart] | None) -> tuple[str, tuple[str, ...]]:
    if content is None or isinstance(content, str):
        return content or "", ()
    texts: list[str] = []
    images: list[str] = []
    for part in content:
        match part:
            case ResponsesTextPart():
                texts.append(part.text)
            case ResponsesRefusalPart():
                texts.append(part.refusal)
            case ResponsesImagePart():
                images.append(part.image_url)
    return "\n".join(texts), tuple(images)


def _tool(tool: ResponsesFunction | ResponsesCustomTool | ResponsesServerTool) -> Tool | None:
    match tool:
        case ResponsesFunction():
            return Tool(
                name=tool.name,
                description=tool.description or "",
                parameters=tool.parameters or {},
                strict=bool(tool.strict),
            )
        case ResponsesCustomTool():
            return Tool(name=tool.name, description=tool.description or "", parameters=_PLAIN_TEXT)
    return None


def _choice(choice: ResponsesToolChoice | AllowedTools | ServerToolChoice | str | None, tools: Sequence[Tool]) -> str:
    match choice:
        case str():
            return choice
        case ResponsesToolChoice():
            return named_choice(choice.name, tools, "tool_choice.name")
        case AllowedTools():
            return choice.mode or "auto"
    return "auto"
