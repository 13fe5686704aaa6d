"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openclaw_rl.formats.parts import CallArgs, CallStart, Part, Text, Thought
from openclaw_rl.ports import Piece
from openclaw_rl.serve.api_errors import ApiError, openai_error
from openclaw_rl.serve.fields import At, whole_json
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
from openclaw_rl.serve.sse import dumps, event, quoted
from openclaw_rl.types import Completion, Json, Message, Prompt, Role, Sampling, Tool, ToolCall

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
FINISHES = {"stop": "stop", "length": "length", "tool_calls": "tool_calls", "aborted": "length"}


class ChatWire:
    """Chat completions, as OpenAI's SDKs and most agents speak them."""

    name = "chat"

    def __init__(self, defaults: Sampling | None = None) -> None:
        self._defaults = defaults or Sampling()

    def parse(self, body: At, limits: RequestLimits) -> GenerationRequest:
        found = body.key("messages")
        messages = need_messages([_message(at) for at in found.items(limit=limits.messages)], found)
        tools = tuple(_tool(at) for at in body.key("tools").items(limit=limits.messages))
        choice = _choice(body.key("tool_choice"), tools)
        template = variables(body.key("chat_template_kwargs"))
        return GenerationRequest(
            prompt=Prompt(messages=messages, tools=tools, tool_choice=choice, template=template),
            sampling=_sampling(body, self._defaults),
            model=body.key("model").text() or "",
            stream=body.key("stream").flag(),
            n=body.key("n").whole(1, 8) or 1,
            logprobs=body.key("logprobs").flag(),
            include_usage=body.key("stream_options").value is not None
            and body.key("stream_options").key("include_usage").flag(),
            session=body_session(body),
            guessed_session=guessed_session(body),
            schema_at="response_format",
            strict=strict(body.key("response_format")),
        )

    def plain(self, request: GenerationRequest, answers: Sequence[ReplyFinished]) -> Json:
        first = answers[0].turn
        response = {
            "id": first.id,
            "object": "chat.completion",
            "created": int(first.at),
            "model": request.model,
            "system_fingerprint": fingerprint(first.completion.version),
            "choices": [_choice_of(index, answer, request.logprobs) for index, answer in enumerate(answers)],
            "usage": usage([answer.turn.completion for answer in answers]),
        }
        if len(answers) > 1:
            response["turns"] = [answer.turn.id for answer in answers]
        return response

    def stream(self, request: GenerationRequest, *, turn: str, created: float) -> Renderer:
        return ChatStream(request, turn, int(created))

    def fault(self, fault: ApiError) -> Json:
        return openai_error(fault)


def fingerprint(version: int) -> str:
    return f"openclaw-rl-v{version}"


def usage(completions: Sequence[Completion]) -> Json:
    """The prompt is counted once, as it was sent once."""
    prompt = len(completions[0].prompt_tokens)
    reply = sum(len(completion.reply_tokens) for completion in completions)
    return {"prompt_tokens": prompt, "completion_tokens": reply, "total_tokens": prompt + reply}


def _message(at: At) -> Message:
    role = at.key("role").one_of(*ROLES)
    if role is None:
        raise at.key("role").fault("is missing")
    content, images = _content(at.key("content"))
    return Message(
        role=ROLES[role],
        content=content,
        images=images,
        reasoning=(at.key("reasoning_content").text() or at.key("reasoning").text()) if role == "assistant" else None,
        tool_calls=tuple(map(_call, at.key("tool_calls").items())) if role == "assistant" else (),
        tool_call_id=at.key("tool_call_id").text(),
        name=at.key("name").text(),
    )


def _content(at: At) -> tuple[str, tuple[str, ...]]:
    """Text, or parts of text and images; absent content is empty."""
    if at.absent or isinstance(at.value, str):
        return at.value or "", ()
    texts: list[str] = []
    images: list[str] = []
    for part in at.items():
        kind = part.key("type").need_text()
        if kind in ("text", "input_text", "output_text"):
            texts.append(part.key("text").need_text())
        elif kind == "refusal":
            texts.append(part.key("refusal").need_text())
        elif kind == "image_url":
            url = part.key("image_url")
            images.append(image(url if isinstance(url.value, str) else url.key("url")))
        else:
            raise part.key("type").fault(f"no part is called {kind!r:.60}; known: text, image_url, refusal")
    return "\n".join(texts), tuple(images)


def _call(at: At) -> ToolCall:
    function = at.key("function")
    arguments = function.key("arguments")
    written = whole_json(arguments.value) if isinstance(arguments.value, str) else dumps(arguments.table())
    return ToolCall(id=at.key("id").text() or "", name=function.key("name").name(), arguments=written)


def _tool(at: At) -> Tool:
    kind = at.key("type").text() or "function"
    if kind != "function":
        raise at.key("type").fault(f"no tool type is called {kind!r:.60}; known: function")
    function = at.key("function")
    return build_tool(function.key("name"), function.key("description"), function.key("parameters"))


def _choice(at: At, tools: Sequence[Tool]) -> str:
    if isinstance(at.value, dict):
        return chosen("named", at.key("function").key("name"), tools)
    return at.one_of("auto", "none", "required") or "auto"


def _sampling(body: At, defaults: Sampling) -> Sampling:
    short, long = body.key("max_tokens"), body.key("max_completion_tokens")
    limit = long if not long.absent else short
    return build_sampling(
        defaults,
        {"max_tokens": limit.path},
        temperature=body.key("temperature").number(0, 100),
        top_p=body.key("top_p").number(0, 1),
        top_k=top_k(body.key("top_k")),
        min_p=body.key("min_p").number(0, 1),
        max_tokens=limit.whole(1),
        stop=stops(body.key("stop")),
        seed=body.key("seed").whole(-(2**62), 2**62),
        presence_penalty=body.key("presence_penalty").number(-2, 2),
        frequency_penalty=body.key("frequency_penalty").number(-2, 2),
        repetition_penalty=body.key("repetition_penalty").number(0.01, 100),
        dry_multiplier=body.key("dry_multiplier").number(0, 100),
        top_logprobs=body.key("top_logprobs").whole(0, 20),
        json_schema=response_schema(body.key("response_format")),
    )


def top_k(at: At) -> int | None:
    """Some clients write "no limit" as -1."""
    value = at.whole(-1, 2**31)
    return 0 if value == -1 else value


def stops(at: At) -> tuple[str, ...]:
    if isinstance(at.value, str):
        return (at.value,) if at.value else ()
    return tuple(entry.name() for entry in at.items(limit=16))


def response_schema(at: At) -> Json:
    """The JSON schema that a reply must follow, None for any text."""
    if at.absent:
        return None
    kind = at.key("type").one_of("text", "json_object", "json_schema")
    if kind == "json_object":
        return {"type": "object"}
    if kind != "json_schema":
        return None
    schema = at.key("json_schema")
    return (schema.key("schema") if not schema.absent else at.key("schema")).table()


def strict(at: At) -> bool:
    """Whether a reply must follow the schema, or only should."""
    if at.absent or at.key("type").value != "json_schema":
        return False
    schema = at.key("json_schema")
    return (at if schema.absent else schema).key("strict").flag()


def _choice_of(index: int, answer: ReplyFinished, logprobs: bool) -> Json:
    completion = answer.turn.completion
    return {
        "index": index,
        "message": message_of(completion.reply),
        "logprobs": {"content": logprobs_of(answer.pieces), "refusal": None} if logprobs else None,
        "finish_reason": FINISHES[completion.finish],
    }


def message_of(reply: Message) -> Json:
    """A reply as a chat message."""
    message: dict[str, Json] = {"role": "assistant", "content": reply.content or None, "refusal": None}
    if not reply.tool_calls:
        message["content"] = reply.content
    if reply.reasoning is not None:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in reply.tool_calls
        ]
    return message


def logprobs_of(pieces: Sequence[Piece]) -> list[Json]:
    """Every sampled token, as sampled, with the raw log-probs that clients expect."""
    return [
        {
            **_token(piece.text, piece.logprob),
            "top_logprobs": [_token(other.text, other.logprob) for other in piece.top],
        }
        for piece in pieces
    ]


def _token(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": max(logprob, -9999.0), "bytes": list(text.encode("utf-8", "replace"))}


class ChatStream:
    """Chunks, the usage if it was requested, and ``[DONE]``."""

    def __init__(self, request: GenerationRequest, turn: str, created: int) -> None:
        self._request = request
        self._fields = {"id": turn, "object": "chat.completion.chunk", "created": created, "model": request.model}
        self._heads: dict[int, str] = {}
        self._begun: set[int] = set()
        self._frames: dict[int, tuple[str, str]] = {}
        self._waiting: dict[int, list[Piece]] = {}
        self._ends: dict[int, ReplyFinished] = {}
        self._usage = ',"usage":null' if request.include_usage else ""

    def event(self, choice: int, event: Event) -> bytes:
        match event:
            case ReplyStarted(_, version):
                self._heads[choice] = dumps({**self._fields, "system_fingerprint": fingerprint(version)})[:-1]
                return b""
            case ReplyDelta(parts, pieces):
                return self._said(choice, parts, pieces)
            case ReplyFinished():
                return self._ended(choice, event)

    def _chunk(self, choice: int, delta: str, finish: str | None = None, pieces: Sequence[Piece] = ()) -> bytes:
        logprobs = dumps({"content": logprobs_of(pieces), "refusal": None}) if pieces else "null"
        end = f'"{finish}"' if finish else "null"
        body = f'"index":{choice},"delta":{delta},"logprobs":{logprobs},"finish_reason":{end}'
        return event(f'{self._heads[choice]},"choices":[{{{body}}}]{self._usage}}}')

    def _said(self, choice: int, parts: Sequence[Part], pieces: Sequence[Piece]) -> bytes:
        frame = self._frames.get(choice)
        if frame and len(parts) == 1 and not pieces and isinstance(parts[0], Text) and choice not in self._waiting:
            return f"{frame[0]}{quoted(parts[0].text)}{frame[1]}".encode()
        waiting = [*self._waiting.pop(choice, ()), *pieces]
        chunks = [] if choice in self._begun else [self._chunk(choice, '{"role":"assistant","content":""}')]
        self._begin(choice)
        for part in parts:
            delta = _delta(part)
            if delta:
                chunks.append(self._chunk(choice, delta, pieces=waiting))
                waiting = []
        if waiting:
            self._waiting[choice] = waiting
        return b"".join(chunks)

    def _begin(self, choice: int) -> None:
        """From now on a bare text, which most tokens are, only needs to be put between two constants."""
        if choice not in self._begun:
            self._begun.add(choice)
            before, after = self._chunk(choice, '{"content":\0}').decode().split("\0")
            self._frames[choice] = (before, after)

    def _ended(self, choice: int, ended: ReplyFinished) -> bytes:
        self._ends[choice] = ended
        opening = b"" if choice in self._begun else self._said(choice, (), ())
        finish = FINISHES[ended.turn.completion.finish]
        return opening + self._chunk(choice, "{}", finish, self._waiting.pop(choice, ()))

    def close(self) -> bytes:
        done = b"data: [DONE]\n\n"
        if not self._request.include_usage and self._request.n == 1:
            return done
        ends = [self._ends[index] for index in sorted(self._ends)]
        last: dict[str, Json] = {"choices": []}
        if self._request.include_usage:
            last["usage"] = usage([end.turn.completion for end in ends])
        if len(ends) > 1:
            last["turns"] = [end.turn.id for end in ends]
        return event(f"{self._heads[0]},{dumps(last)[1:]}") + done

    def fault(self, fault: ApiError) -> bytes:
        return event(dumps(openai_error(fault))) + b"data: [DONE]\n\n"


def _delta(part: Part) -> str:
    match part:
        case Text(text):
            return f'{{"content":{quoted(text)}}}'
        case Thought(text):
            return f'{{"reasoning_content":{quoted(text)}}}'
        case CallStart(index, call, name):
            function = {"name": name, "arguments": ""}
            return dumps({"tool_calls": [{"index": index, "id": call, "type": "function", "function": function}]})
        case CallArgs(index, text):
            return dumps({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
    return ""
