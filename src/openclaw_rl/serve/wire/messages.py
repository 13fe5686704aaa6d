"""POST /v1/messages and /v1/messages/count_tokens, as Anthropic's SDKs and Claude Code speak them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from openclaw_rl.formats.parts import CallArgs, CallBroken, CallEnd, CallStart, Part, Text, Thought
from openclaw_rl.serve.api_errors import ApiError, anthropic_error
from openclaw_rl.serve.fields import At
from openclaw_rl.serve.headers import body_session, guessed_session
from openclaw_rl.serve.limits import RequestLimits
from openclaw_rl.serve.request import (
    Event,
    GenerationRequest,
    Renderer,
    ReplyDelta,
    ReplyFinished,
    ReplyStarted,
    build_sampling,
    build_tool,
    chosen,
    image,
    need_messages,
    variables,
)
from openclaw_rl.serve.sse import dumps, event
from openclaw_rl.serve.wire.chat import response_schema, stops, top_k
from openclaw_rl.types import Completion, Json, Message, Prompt, Role, Sampling, Tool, ToolCall

ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}

SIGNATURE = "openclaw-rl"
"""clients drop a thought without one"""


class MessagesWire:
    """Messages: content in blocks, system beside the messages or inside them."""

    name = "messages"

    def __init__(self, defaults: Sampling | None = None) -> None:
        self._defaults = defaults or Sampling()

    def parse(self, body: At, limits: RequestLimits) -> GenerationRequest:
        found = body.key("messages")
        messages = _system(body.key("system"))
        for at in found.items(limit=limits.messages):
            messages.extend(_messages(at))
        tools = tuple(tool for at in body.key("tools").items(limit=limits.messages) if (tool := _tool(at)))
        prompt = Prompt(
            messages=need_messages(messages, found),
            tools=tools,
            tool_choice=_choice(body.key("tool_choice"), tools),
            template={**_thinking(body.key("thinking")), **variables(body.key("chat_template_kwargs"))},
        )
        return GenerationRequest(
            prompt=prompt,
            sampling=_sampling(body, self._defaults),
            model=body.key("model").text() or "",
            stream=body.key("stream").flag(),
            count_prompt=body.key("stream").flag(),
            session=body_session(body),
            guessed_session=guessed_session(body),
            schema_at="output_config.format",
        )

    def plain(self, request: GenerationRequest, answers: Sequence[ReplyFinished]) -> Json:
        answer = answers[0]
        completion = answer.turn.completion
        return {
            **_heading(answer.turn.id, request.model, completion.version),
            "content": blocks_of(completion.reply),
            "stop_reason": stop_reason(answer),
            "stop_sequence": answer.stop if completion.finish == "stop" else None,
            "usage": _usage(len(completion.prompt_tokens), len(completion.reply_tokens)),
        }

    def stream(self, request: GenerationRequest, *, turn: str, created: float) -> Renderer:
        return MessagesStream(request, turn)

    def fault(self, fault: ApiError) -> Json:
        return anthropic_error(fault)


def _heading(turn: str, model: str, version: int) -> dict[str, Json]:
    return {
        "id": f"msg_{turn}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "openclaw_rl_version": version,
    }


def _usage(prompt: int, reply: int) -> Json:
    return {
        "input_tokens": prompt,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": reply,
    }


def stop_reason(answer: ReplyFinished) -> str:
    completion: Completion = answer.turn.completion
    if completion.finish == "stop":
        return "stop_sequence" if answer.stop else "end_turn"
    return {"length": "max_tokens", "tool_calls": "tool_use", "aborted": "max_tokens"}[completion.finish]


def _system(at: At) -> list[Message]:
    content, images = _texts(at)
    return [Message(role="system", content=content, images=images)] if content else []


def _messages(at: At) -> list[Message]:
    """One message of theirs may be several of ours: each tool result is its own."""
    role = at.key("role").one_of(*ROLES)
    if role is None:
        raise at.key("role").fault("is missing")
    content = at.key("content")
    if content.absent or isinstance(content.value, str):
        return [Message(role=ROLES[role], content=content.value or "")]
    if role == "assistant":
        return [_assistant(content)]
    blocks = content.items()
    results = [_result(block) for block in blocks if block.key("type").value == "tool_result"]
    rest = [block for block in blocks if block.key("type").value != "tool_result"]
    if not rest and results:
        return results
    said, images = _joined(rest)
    return [*results, Message(role=ROLES[role], content=said, images=images)]


def _assistant(content: At) -> Message:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for block in content.items():
        match block.key("type").need_text():
            case "text":
                texts.append(block.key("text").need_text())
            case "thinking":
                thoughts.append(block.key("thinking").need_text())
            case "redacted_thinking":
                pass
            case "tool_use":
                written = dumps(block.key("input").table())
                calls.append(ToolCall(id=block.key("id").name(), name=block.key("name").name(), arguments=written))
            case kind:
                known = "text, thinking, redacted_thinking, tool_use"
                raise block.key("type").fault(f"no block of an assistant is called {kind!r:.60}; known: {known}")
    return Message(
        role="assistant",
        content="\n".join(texts),
        reasoning="\n".join(thoughts) or None,
        tool_calls=tuple(calls),
    )


def _result(block: At) -> Message:
    """An error says so in its text: a chat template has no other place for it."""
    text, images = _texts(block.key("content"))
    if block.key("is_error").flag() and not text.lower().startswith(("error", "<")):
        text = f"Error: {text}"
    return Message(role="tool", content=text, images=images, tool_call_id=block.key("tool_use_id").name())


def _texts(at: At) -> tuple[str, tuple[str, ...]]:
    if at.absent or isinstance(at.value, str):
        return at.value or "", ()
    return _joined(at.items())


def _joined(blocks: Sequence[At]) -> tuple[str, tuple[str, ...]]:
    texts: list[str] = []
    images: list[str] = []
    for block in blocks:
        match block.key("type").need_text():
            case "text":
                texts.append(block.key("text").need_text())
            case "image":
                images.append(_image(block))
            case "document":
                texts.append(_handed_over("document", _document(block)))
            case "search_result":
                texts.append(_handed_over("search_result", _texts(block.key("content"))[0]))
            case "tool_reference":
                texts.append(block.key("tool_name").need_text())
            case kind:
                known = "text, image, document, search_result, tool_result"
                raise block.key("type").fault(f"no block here is called {kind!r:.60}; known: {known}")
    return "\n".join(texts), tuple(images)


def _image(block: At) -> str:
    source = block.key("source")
    if source.key("type").need_text() == "base64":
        return f"data:{source.key('media_type').name()};base64,{source.key('data').name()}"
    return image(source.key("url"))


def _document(block: At) -> str:
    source = block.key("source")
    if source.key("type").need_text() != "text":
        raise source.key("type").fault("only plain text documents are taken")
    return source.key("data").need_text()


def _handed_over(kind: str, text: str) -> str:
    """Other people's text between tags of its own, which nothing in it can close: it must not pass for the user's."""
    inside = text.replace(f"</{kind}", f"<\\/{kind}")
    return f"<{kind}>\n{inside}\n</{kind}>"


def _tool(at: At) -> Tool | None:
    """A function of the caller; tools that only their own server can run are left out."""
    kind = at.key("type").text()
    if kind not in (None, "custom") and at.key("input_schema").absent:
        return None
    return build_tool(at.key("name"), at.key("description"), at.key("input_schema"))


def _choice(at: At, tools: Sequence[Tool]) -> str:
    if at.absent:
        return "auto"
    kind = at.key("type").one_of("auto", "any", "tool", "none") or "auto"
    return chosen({"any": "required", "tool": "named"}.get(kind, kind), at.key("name"), tools)


def _thinking(at: At) -> dict[str, Json]:
    """Passed to the chat template; adaptive thinking leaves it to the template."""
    if at.absent:
        return {}
    kind = at.key("type").one_of("enabled", "disabled", "adaptive")
    return {"enable_thinking": kind == "enabled"} if kind in ("enabled", "disabled") else {}


def _sampling(body: At, defaults: Sampling) -> Sampling:
    output = body.key("output_config")
    return build_sampling(
        defaults,
        {"stop": "stop_sequences"},
        temperature=body.key("temperature").number(0, 100),
        top_p=body.key("top_p").number(0, 1),
        top_k=top_k(body.key("top_k")),
        max_tokens=body.key("max_tokens").whole(1),
        stop=stops(body.key("stop_sequences")),
        json_schema=None if output.absent else response_schema(output.key("format")),
    )


def blocks_of(reply: Message) -> list[Json]:
    """A reply as content blocks."""
    blocks: list[Json] = []
    if reply.reasoning is not None:
        blocks.append({"type": "thinking", "thinking": reply.reasoning, "signature": SIGNATURE})
    if reply.content:
        blocks.append({"type": "text", "text": reply.content, "citations": None})
    blocks.extend(
        {"type": "tool_use", "id": call.id, "name": call.name, "input": _input(call.arguments)}
        for call in reply.tool_calls
    )
    return blocks


def _input(arguments: str) -> Json:
    return json.loads(arguments or "{}")


class MessagesStream:
    """Named events: a message that starts, its blocks one after another, its end.

    A call's arguments are sent once they are whole. Clients of this format run a call from half of its
    arguments, so one that breaks on the way must not have been begun.
    """

    def __init__(self, request: GenerationRequest, turn: str) -> None:
        self._request = request
        self._turn = turn
        self._count = 0
        self._open: str | None = None
        self._calls: dict[int, tuple[CallStart, list[str]]] = {}

    def event(self, choice: int, event: Event) -> bytes:
        match event:
            case ReplyStarted(_, version, prompt_tokens):
                return self._start(version, prompt_tokens or 0)
            case ReplyDelta(parts):
                return b"".join(self._part(part) for part in parts)
            case ReplyFinished():
                return self._end(event)

    def _start(self, version: int, prompt_tokens: int) -> bytes:
        message = {
            **_heading(self._turn, self._request.model, version),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(prompt_tokens, 0),
        }
        return _named("message_start", {"message": message}) + _named("ping", {})

    def _part(self, part: Part) -> bytes:
        match part:
            case Text(text):
                return self._more("text", {"text": "", "citations": None}, {"type": "text_delta", "text": text})
            case Thought(text):
                delta = {"type": "thinking_delta", "thinking": text}
                return self._more("thinking", {"thinking": "", "signature": ""}, delta)
            case CallStart(index):
                self._calls[index] = (part, [])
            case CallArgs(index, text):
                self._calls[index][1].append(text)
            case CallBroken(index):
                del self._calls[index]
            case CallEnd(index):
                return self._call(*self._calls.pop(index))
        return b""

    def _more(self, kind: str, empty: dict[str, Json], delta: Json) -> bytes:
        opening = b"" if self._open == kind else self._close_block() + self._open_block(kind, empty)
        return opening + _named("content_block_delta", {"index": self._count, "delta": delta})

    def _open_block(self, kind: str, empty: dict[str, Json]) -> bytes:
        self._open = kind
        return _named("content_block_start", {"index": self._count, "content_block": {"type": kind, **empty}})

    def _close_block(self) -> bytes:
        if self._open is None:
            return b""
        last = b""
        if self._open == "thinking":
            signature = {"type": "signature_delta", "signature": SIGNATURE}
            last = _named("content_block_delta", {"index": self._count, "delta": signature})
        self._open = None
        self._count += 1
        return last + _named("content_block_stop", {"index": self._count - 1})

    def _call(self, start: CallStart, written: list[str]) -> bytes:
        opening = self._close_block() + self._open_block("tool_use", {"id": start.id, "name": start.name, "input": {}})
        deltas = [
            _named(
                "content_block_delta",
                {"index": self._count, "delta": {"type": "input_json_delta", "partial_json": bit}},
            )
            for bit in written
        ]
        return opening + b"".join(deltas) + self._close_block()

    def _end(self, ended: ReplyFinished) -> bytes:
        completion = ended.turn.completion
        delta = {
            "stop_reason": stop_reason(ended),
            "stop_sequence": ended.stop if completion.finish == "stop" else None,
        }
        usage = _usage(len(completion.prompt_tokens), len(completion.reply_tokens))
        return (
            self._close_block() + _named("message_delta", {"delta": delta, "usage": usage}) + _named("message_stop", {})
        )

    def close(self) -> bytes:
        return b""

    def fault(self, fault: ApiError) -> bytes:
        return event(dumps(anthropic_error(fault)), "error")


def _named(name: str, fields: dict[str, Json]) -> bytes:
    return event(dumps({"type": name, **fields}), name)
