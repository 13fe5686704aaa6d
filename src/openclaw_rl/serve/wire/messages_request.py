"""Request models for POST /v1/messages and /v1/messages/count_tokens: content in blocks, a separate system prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    RequestModel,
    Table,
    TextOr,
    Variant,
    Whole,
    refusal,
)
from openclaw_rl.serve.request import GenerationRequest, RequestLimits
from openclaw_rl.serve.sse import dumps
from openclaw_rl.serve.wire.base import (
    ApiRequest,
    MaybeObject,
    ReplyFormat,
    Stop,
    build_sampling,
    named_choice,
    need_messages,
    schema_of,
    stop_strings,
    top_k,
)
from openclaw_rl.types import Json, Message, Prompt, Sampling, Tool, ToolCall


class TextBlock(RequestModel):
    type: Literal["text"]
    text: str


class Base64Source(RequestModel):
    type: Literal["base64"]
    media_type: Name
    data: Name


class UrlSource(RequestModel):
    type: str
    url: DataUrl


class ImageBlock(RequestModel):
    type: Literal["image"]
    source: Annotated[Base64Source | UrlSource, Variant("", pick=lambda _, kind: kind if kind == "base64" else OTHER)]


def _only_text(kind: str) -> str:
    if kind != "text":
        raise refusal("only plain text documents are accepted")
    return kind


class DocumentSource(RequestModel):
    type: Annotated[str, AfterValidator(_only_text)]
    data: str


class DocumentBlock(RequestModel):
    type: Literal["document"]
    source: DocumentSource


class SearchResultBlock(RequestModel):
    type: Literal["search_result"]
    content: Content | None = None


class ToolReferenceBlock(RequestModel):
    type: Literal["tool_reference"]
    tool_name: str


class ToolResultBlock(RequestModel):
    """A tool's result."""

    type: Literal["tool_result"]
    content: Content | None = None
    is_error: Flag | None = None
    tool_use_id: Name


_HERE = "text, image, document, search_result, tool_result"
Block = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock | ToolReferenceBlock
Content = Annotated[str | Many[Annotated[Block, Variant(_HERE, noun="block here")]], TextOr()]
UserContent = Annotated[str | Many[Annotated[Block | ToolResultBlock, Variant(_HERE, noun="block here")]], TextOr()]


class ThinkingBlock(RequestModel):
    type: Literal["thinking"]
    thinking: str


class RedactedThinkingBlock(RequestModel):
    type: Literal["redacted_thinking"]


class ToolUseBlock(RequestModel):
    """A call in an earlier reply."""

    type: Literal["tool_use"]
    input: Table | None = None
    id: Name
    name: Name


AssistantBlock = TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock
AssistantContent = Annotated[
    str
    | Many[
        Annotated[AssistantBlock, Variant("text, thinking, redacted_thinking, tool_use", noun="block of an assistant")]
    ],
    TextOr(),
]


class UserMessage(RequestModel):
    """A user's message, or a system message among them."""

    role: Literal["user", "system"]
    content: UserContent | None = None


class AssistantMessage(RequestModel):
    """An earlier reply."""

    role: Literal["assistant"]
    content: AssistantContent | None = None


AnyMessage = Annotated[UserMessage | AssistantMessage, Variant("user, assistant, system", key="role")]


class ToolDefinition(RequestModel):
    """A function defined by the caller."""

    type: Literal["custom"] | str | None = None
    name: Name
    description: str | None = None
    input_schema: Table | None = None
    strict: Flag | None = None


class ServerTool(RequestModel):
    """A tool that only its own server can run: ignored."""

    type: str


def _tool_kind(tool: dict[str, Json], kind: str) -> str:
    return "custom" if kind == "custom" or tool.get("input_schema") is not None else OTHER


AnyTool = Annotated[ToolDefinition | ServerTool, Variant("", default="custom", pick=_tool_kind)]


class FreeToolChoice(RequestModel):
    type: Literal["auto", "any", "none"] | None = None


class NamedToolChoice(RequestModel):
    """The one tool that must be called."""

    type: Literal["tool"]
    name: Name


class ThinkingConfig(RequestModel):
    """The thinking mode; adaptive thinking leaves the decision to the chat template."""

    type: Literal["enabled", "disabled", "adaptive"] | None = None


class OutputConfig(RequestModel):
    format: ReplyFormat | None = None


class MessagesRequest(ApiRequest):
    """A message request, as sent by Anthropic's SDKs and Claude Code."""

    model_config = ConfigDict(json_schema_extra={"required": ["messages"]})

    system: Content | None = None
    messages: Annotated[Many[AnyMessage], Counted()] | None = Field(default=None, json_schema_extra={"minItems": 1})
    tools: Annotated[Many[AnyTool], Counted()] | None = None
    tool_choice: (
        Annotated[FreeToolChoice | NamedToolChoice, Variant("auto, any, tool, none", default="auto")] | None
    ) = None
    thinking: ThinkingConfig | None = None
    top_k: Annotated[int, Whole(-1, 2**31)] | None = None
    max_tokens: Annotated[int, Whole(1)] | None = None
    stop_sequences: Stop | None = None
    output_config: OutputConfig | None = None
    context_management: MaybeObject = None


def parse(body: Mapping[str, Json], limits: RequestLimits, defaults: Sampling) -> GenerationRequest:
    """Parse a body; raise RequestError with the path of the invalid field."""
    request = fields.parse(MessagesRequest, body, limits)
    messages = _system(request.system)
    for message in request.messages or ():
        messages.extend(_messages(message))
    tools = tuple(_tool(tool) for tool in request.tools or () if isinstance(tool, ToolDefinition))
    prompt = Prompt(
        messages=need_messages(messages, "messages"),
        tools=tools,
        tool_choice=_choice(request.tool_choice, tools),
        template={**_thinking(request.thinking), **request.template},
    )
    return GenerationRequest(
        prompt=prompt,
        sampling=build_sampling(
            defaults,
            {"stop": "stop_sequences"},
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=top_k(request.top_k),
            max_tokens=request.max_tokens,
            stop=stop_strings(request.stop_sequences),
            json_schema=schema_of(request.output_config.format) if request.output_config else None,
        ),
        model=request.model or "",
        stream=bool(request.stream),
        count_prompt=bool(request.stream),
        session=request.session,
        guessed_session=request.guessed_session,
        schema_at="output_config.format",
    )


def _system(content: str | list[Block] | None) -> list[Message]:
    text, images = _joined(content)
    return [Message(role="system", content=text, images=images)] if text else []


def _messages(message: UserMessage | AssistantMessage) -> list[Message]:
    """Convert one API message to internal messages; each tool result becomes a separate message."""
    if message.content is None or isinstance(message.content, str):
        return [Message(role=message.role, content=message.content or "")]
    if isinstance(message, AssistantMessage):
        return [_assistant(message.content)]
    content = message.content
    results = [_result(block) for block in content if isinstance(block, ToolResultBlock)]
    blocks = [block for block in content if not isinstance(block, ToolResultBlock)]
    if not blocks and results:
        return results
    text, images = _joined(blocks)
    return [*results, Message(role=message.role, content=text, images=images)]


def _assistant(blocks: Sequence[AssistantBlock]) -> Message:
    calls = [
        ToolCall(id=block.id, name=block.name, arguments=dumps(block.input or {}))
        for block in blocks
        if isinstance(block, ToolUseBlock)
    ]
    return Message(
        role="assistant",
        content="\n".join(block.text for block in blocks if isinstance(block, TextBlock)),
        reasoning="\n".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock)) or None,
        tool_calls=tuple(calls),
    )


def _result(block: ToolResultBlock) -> Message:
    """Convert a tool result; an error is marked in its text, since a chat template has no other place for it."""
    text, images = _joined(block.content)
    if block.is_error and not text.lower().startswith(("error", "<")):
        text = f"Error: {text}"
    return Message(role="tool", content=text, images=images, tool_call_id=block.tool_use_id)


def _joined(content: str | Sequence[Block] | None) -> tuple[str, tuple[str, ...]]:
    """Return text and images; absent content is empty."""
    if content is None or isinstance(content, str):
        return content or "", ()
    texts: list[str] = []
    images: list[str] = []
    for block in content:
        match block:
            case TextBlock():
                texts.append(block.text)
            case ImageBlock():
                images.append(_image(block.source))
            case DocumentBlock():
                texts.append(_quoted("document", block.source.data))
            case SearchResultBlock():
                texts.append(_quoted("search_result", _joined(block.content)[0]))
            case ToolReferenceBlock():
                texts.append(block.tool_name)
    return "\n".join(texts), tuple(images)


def _image(source: Base64Source | UrlSource) -> str:
    return source.url if isinstance(source, UrlSource) else f"data:{source.media_type};base64,{source.data}"


def _quoted(kind: str, text: str) -> str:
    """Put third-party text between tags that it cannot close, so that it cannot pass for the user's text."""
    inside = text.replace(f"</{kind}", f"<\\/{kind}")
    return f"<{kind}>\n{inside}\n</{kind}>"


def _tool(tool: ToolDefinition) -> Tool:
    return Tool(
        name=tool.name,
        description=tool.description or "",
        parameters=tool.input_schema or {},
        strict=bool(tool.strict),
    )


def _choice(choice: FreeToolChoice | NamedToolChoice | None, tools: Sequence[Tool]) -> str:
    if isinstance(choice, NamedToolChoice):
        return named_choice(choice.name, tools, "tool_choice.name")
    kind = choice.type if choice else None
    return "required" if kind == "any" else kind or "auto"


def _thinking(config: ThinkingConfig | None) -> dict[str, Json]:
    """Return the chat template's variables for thinking."""
    if config is None or config.type not in ("enabled", "disabled"):
        return {}
    return {"enable_thinking": config.type == "enabled"}
