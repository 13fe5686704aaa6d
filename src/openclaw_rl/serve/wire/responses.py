"""POST /v1/responses: reads items into a prompt. `responses_out` writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from openclaw_rl.errors import RequestError
from openclaw_rl.serve.api_errors import ApiError, openai_error
from openclaw_rl.serve.fields import At, whole_json
from openclaw_rl.serve.headers import body_session, guessed_session
from openclaw_rl.serve.limits import RequestLimits
from openclaw_rl.serve.request import (
    GenerationRequest,
    Renderer,
    ReplyFinished,
    build_sampling,
    build_tool,
    chosen,
    image,
    need_messages,
    variables,
)
from openclaw_rl.serve.sse import dumps
from openclaw_rl.serve.wire.chat import response_schema, strict
from openclaw_rl.serve.wire.responses_out import ResponsesStream, response_of
from openclaw_rl.types import Json, Message, Prompt, Role, Sampling, Tool, ToolCall

ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_CUSTOM = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


class ResponsesWire:
    """Responses: input as text or as items, output as items; what Codex speaks."""

    name = "responses"

    def __init__(self, defaults: Sampling | None = None) -> None:
        self._defaults = defaults or Sampling()

    def parse(self, body: At, limits: RequestLimits) -> GenerationRequest:
        found = body.key("input")
        messages = _instructions(body.key("instructions")) + _input(found, limits)
        tools = tuple(tool for at in body.key("tools").items(limit=limits.messages) if (tool := _tool(at)))
        choice = _choice(body.key("tool_choice"), tools)
        template = variables(body.key("chat_template_kwargs"))
        return GenerationRequest(
            prompt=Prompt(messages=need_messages(messages, found), tools=tools, tool_choice=choice, template=template),
            sampling=_sampling(body, self._defaults),
            model=body.key("model").text() or "",
            stream=body.key("stream").flag(),
            logprobs="message.output_text.logprobs" in _include(body.key("include")),
            session=body_session(body),
            guessed_session=guessed_session(body),
            after=body.key("previous_response_id").text(),
            schema_at="text.format",
            strict=not body.key("text").absent and strict(body.key("text").key("format")),
            echo=_echo(body),
        )

    def plain(self, request: GenerationRequest, answers: Sequence[ReplyFinished]) -> Json:
        return response_of(request, answers[0])

    def stream(self, request: GenerationRequest, *, turn: str, created: float) -> Renderer:
        return ResponsesStream(request, turn, created)

    def fault(self, fault: ApiError) -> Json:
        return openai_error(fault)


def _include(at: At) -> list[str]:
    return [entry.need_text() for entry in at.items()]


def _echo(body: At) -> dict[str, Json]:
    """What the response repeats of the request."""
    store = body.key("store")
    if not store.absent:
        store.flag()
    return {
        "instructions": body.key("instructions").text() if isinstance(body.key("instructions").value, str) else None,
        "metadata": body.key("metadata").table(),
        "tools": body.key("tools").value or [],
        "tool_choice": body.key("tool_choice").value or "auto",
        "parallel_tool_calls": body.key("parallel_tool_calls").value is not False,
        "temperature": body.key("temperature").value,
        "top_p": body.key("top_p").value,
        "max_output_tokens": body.key("max_output_tokens").value,
        "previous_response_id": body.key("previous_response_id").value,
        "reasoning": body.key("reasoning").table() or None,
        "text": body.key("text").table() or {"format": {"type": "text"}},
        "store": store.value is not False,
        "prompt_cache_key": body.key("prompt_cache_key").value,
        "user": body.key("user").value,
    }


def _instructions(at: At) -> list[Message]:
    text = at.text()
    return [Message(role="system", content=text)] if text else []


def _input(at: At, limits: RequestLimits) -> list[Message]:
    if isinstance(at.value, str):
        return [Message(role="user", content=at.value)]
    items = InputItems()
    for item in at.items(limit=limits.messages):
        items.add(item)
    return items.messages()


@dataclass
class InputItems:
    """Joins items to messages: a thought, what was said and the calls after it are one message."""

    _done: list[Message] = field(default_factory=list)
    _thoughts: list[str] = field(default_factory=list)
    _said: str | None = None
    _calls: list[ToolCall] = field(default_factory=list)

    def add(self, at: At) -> None:
        match at.key("type").text() or "message":
            case "message":
                self._message(at)
            case "reasoning":
                if self._said is not None or self._calls:
                    self._flush()
                self._thoughts.extend(_thoughts(at))
            case "function_call":
                self._call(at, whole_json(at.key("arguments").need_text()))
            case "custom_tool_call":
                self._call(at, dumps({"input": at.key("input").need_text()}))
            case "function_call_output" | "custom_tool_call_output":
                self._flush()
                text, images = _content(at.key("output"))
                told = at.key("call_id").name()
                self._done.append(Message(role="tool", content=text, images=images, tool_call_id=told))
            case "item_reference":
                raise at.key("type").fault("items are not kept by reference; send the item itself")
            case kind if kind.endswith(("_call", "_call_output", "compaction", "additional_tools")):
                pass  # what a server's own tool did: there is no such tool here
            case kind:
                known = "message, reasoning, function_call, function_call_output, custom_tool_call"
                raise at.key("type").fault(f"no item is called {kind!r:.60}; known: {known}")

    def _message(self, at: At) -> None:
        role = at.key("role").one_of(*ROLES)
        if role is None:
            raise at.key("role").fault("is missing")
        content, images = _content(at.key("content"))
        if role != "assistant":
            self._flush()
            self._done.append(Message(role=ROLES[role], content=content, images=images))
            return
        if self._said is not None or self._calls:
            self._flush()
        self._said = content

    def _call(self, at: At, arguments: str) -> None:
        self._calls.append(ToolCall(id=at.key("call_id").name(), name=at.key("name").name(), arguments=arguments))

    def _flush(self) -> None:
        if self._said is None and not self._calls and not self._thoughts:
            return
        reasoning = "\n".join(self._thoughts) or None
        if self._said is not None or self._calls or reasoning:
            message = Message(
                role="assistant", content=self._said or "", reasoning=reasoning, tool_calls=tuple(self._calls)
            )
            self._done.append(message)
        self._said, self._calls, self._thoughts = None, [], []

    def messages(self) -> list[Message]:
        self._flush()
        return self._done


def _thoughts(at: At) -> list[str]:
    texts = [part.key("text").need_text() for part in at.key("content").items()]
    return texts or [part.key("text").need_text() for part in at.key("summary").items()]


def _content(at: At) -> tuple[str, tuple[str, ...]]:
    if at.absent or isinstance(at.value, str):
        return at.value or "", ()
    texts: list[str] = []
    images: list[str] = []
    for part in at.items():
        match part.key("type").need_text():
            case "input_text" | "output_text" | "text":
                texts.append(part.key("text").need_text())
            case "refusal":
                texts.append(part.key("refusal").need_text())
            case "input_image":
                images.append(image(part.key("image_url")))
            case kind:
                known = "input_text, output_text, input_image, refusal"
                raise part.key("type").fault(f"no part is called {kind!r:.60}; known: {known}")
    return "\n".join(texts), tuple(images)


def _tool(at: At) -> Tool | None:
    """A function, or a tool that takes plain text; tools that only their own server can run are left out."""
    kind = at.key("type").text() or "function"
    if kind == "function":
        return build_tool(at.key("name"), at.key("description"), at.key("parameters"))
    if kind == "custom":
        return Tool(name=at.key("name").name(), description=at.key("description").text() or "", parameters=_CUSTOM)
    return None


def _choice(at: At, tools: Sequence[Tool]) -> str:
    if not isinstance(at.value, dict):
        return at.one_of("auto", "none", "required") or "auto"
    kind = at.key("type").text()
    if kind in ("function", "custom"):
        return chosen("named", at.key("name"), tools)
    if kind == "allowed_tools":
        return at.key("mode").one_of("auto", "required") or "auto"
    return "auto"


def _sampling(body: At, defaults: Sampling) -> Sampling:
    text = body.key("text")
    return build_sampling(
        defaults,
        {"max_tokens": "max_output_tokens"},
        temperature=body.key("temperature").number(0, 100),
        top_p=body.key("top_p").number(0, 1),
        max_tokens=body.key("max_output_tokens").whole(1),
        top_logprobs=body.key("top_logprobs").whole(0, 20),
        json_schema=None if text.absent else _schema(text.key("format")),
    )


def _schema(at: At) -> Json:
    return response_schema(At({**at.table(), "json_schema": None}, at.path)) if not at.absent else None


def continued(prompt: Prompt, before: Prompt, reply: Message) -> Prompt:
    """The prompt that goes on after an earlier response; new instructions take the place of the old ones."""
    earlier = list(before.messages)
    fresh = list(prompt.messages)
    opening: list[Message] = []
    if fresh[0].role == "system":
        opening = [fresh.pop(0)]
        while earlier and earlier[0].role == "system":
            earlier.pop(0)
    messages = (*opening, *earlier, reply, *fresh)
    return Prompt(messages=messages, tools=prompt.tools, tool_choice=prompt.tool_choice, template=prompt.template)


def turn_of(response_id: str) -> str:
    """The turn behind a response id of any format."""
    for prefix in ("resp_", "msg_", "chatcmpl-"):
        response_id = response_id.removeprefix(prefix)
    if not response_id.isalnum() or len(response_id) > 64:
        raise RequestError("this is no id of a turn or response", field="turn", status=404)
    return response_id
