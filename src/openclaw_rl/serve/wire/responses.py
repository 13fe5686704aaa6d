"""POST /v1/responses, and continuing from an earlier response in any format."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from openclaw_rl.errors import RequestError
from openclaw_rl.formats.parts import CallArgs, CallBroken, CallEnd, CallStart, Part, Text, Thought
from openclaw_rl.ports import Piece
from openclaw_rl.serve.request import (
    ApiError,
    Event,
    GenerationRequest,
    Renderer,
    ReplyDelta,
    ReplyFinished,
    ReplyStarted,
    RequestLimits,
    openai_error,
)
from openclaw_rl.serve.sse import EventStream, dumps, event
from openclaw_rl.serve.wire.responses_request import parse
from openclaw_rl.types import Completion, Json, Message, Prompt, Sampling, ToolCall, new_id

# The output of /v1/responses: the response object, and the events in the order that Codex and the SDKs need.

Item = dict[str, Json]


def response_of(request: GenerationRequest, answer: ReplyFinished) -> Json:
    """Return the finished response."""
    turn = answer.turn
    reply = turn.completion.reply
    custom = custom_tools(request)
    output: list[Item] = []
    if reply.reasoning is not None:
        output.append(thought_item(turn.id, len(output), reply.reasoning))
    if reply.content or not reply.tool_calls:
        pieces = answer.pieces if request.logprobs else ()
        output.append(message_item(turn.id, len(output), reply.content, pieces))
    output.extend(call_item(turn.id, len(output) + place, call, custom) for place, call in enumerate(reply.tool_calls))
    return finished(request, turn.id, turn.at, turn.completion, output)


def finished(
    request: GenerationRequest, turn: str, created: float, completion: Completion, output: Sequence[Item]
) -> Json:
    cut = completion.finish in ("length", "aborted")
    return {
        **heading(request, turn, created, completion.version),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": list(output),
        "usage": _usage(completion),
    }


def heading(request: GenerationRequest, turn: str, created: float, version: int | None) -> Item:
    """Return a response that has just begun."""
    return {
        "id": f"resp_{turn}",
        "object": "response",
        "created_at": int(created),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "model": request.model,
        "output": [],
        "usage": None,
        "truncation": "disabled",
        "system_fingerprint": None if version is None else f"openclaw-rl-v{version}",
        **request.echo,
    }


def _usage(completion: Completion) -> Json:
    prompt, reply = len(completion.prompt_tokens), len(completion.reply_tokens)
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": reply,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + reply,
    }


def custom_tools(request: GenerationRequest) -> frozenset[str]:
    """Return the names of tools that take plain text instead of JSON."""
    tools = request.echo.get("tools", [])
    return frozenset(tool["name"] for tool in tools if tool.get("type") == "custom")


def thought_item(turn: str, place: int, text: str) -> Item:
    content = [{"type": "reasoning_text", "text": text}]
    return {"id": f"rs_{turn}{place}", "type": "reasoning", "summary": [], "content": content, "status": "completed"}


def text_part(text: str, pieces: Sequence[Piece] = ()) -> Item:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs(pieces)}


def logprobs(pieces: Sequence[Piece]) -> list[Json]:
    def token(text: str, value: float) -> Item:
        return {"token": text, "logprob": max(value, -9999.0), "bytes": list(text.encode("utf-8", "replace"))}

    return [
        {**token(piece.text, piece.logprob), "top_logprobs": [token(top.text, top.logprob) for top in piece.top]}
        for piece in pieces
    ]


def message_item(turn: str, place: int, text: str, pieces: Sequence[Piece] = ()) -> Item:
    return {
        "id": f"msg_{turn}{place}",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [text_part(text, pieces)],
    }


def call_item(turn: str, place: int, call: ToolCall, custom: frozenset[str]) -> Item:
    common = {"call_id": call.id, "name": call.name, "status": "completed"}
    if call.name in custom:
        return {"id": f"ctc_{turn}{place}", "type": "custom_tool_call", **common, "input": plain_input(call.arguments)}
    return {"id": f"fc_{turn}{place}", "type": "function_call", **common, "arguments": call.arguments}


def plain_input(arguments: str) -> str:
    """Return the text argument for a custom tool."""
    parsed: Mapping[str, Json] = json.loads(arguments or "{}")
    text = parsed.get("input", "")
    return text if isinstance(text, str) else dumps(text)


class ResponsesStream(EventStream):
    """Numbered events. Each item is added, filled and finished before the next; then the response completes."""

    def __init__(self, request: GenerationRequest, turn: str, created: float) -> None:
        self._request = request
        self._turn = turn
        self._created = created
        self._number = 0
        self._output: list[Item] = []
        self._kind: str | None = None  # the open item: reasoning or message
        self._text: list[str] = []
        self._pieces: list[Piece] = []  # sampled, not yet sent
        self._sent: list[Piece] = []  # sent in the open message
        self._version: int | None = None
        self._given_up = 0
        self._call: tuple[CallStart, list[str]] | None = None
        self._custom = custom_tools(request)

    def event(self, choice: int, event: Event) -> bytes:
        match event:
            case ReplyStarted(_, version):
                self._version = version
                response = heading(self._request, self._turn, self._created, version)
                return self._send("response.created", response=response) + self._send(
                    "response.in_progress", response=response
                )
            case ReplyDelta(parts, pieces):
                self._pieces.extend(pieces)
                return b"".join(self._part(part) for part in parts)
            case ReplyFinished():
                return self._end(event.turn.completion)

    def _send(self, name: str, **fields: Json) -> bytes:
        number = self._number
        self._number += 1
        return event(dumps({"type": name, "sequence_number": number, **fields}), name)

    @property
    def _place(self) -> int:
        return len(self._output) + self._given_up

    def _part(self, part: Part) -> bytes:
        match part:
            case Text(text):
                return self._text_delta(text)
            case Thought(text):
                return self._reasoning_delta(text)
            case CallStart():
                return self._close() + self._begin_call(part)
            case CallArgs(_, text):
                return self._arguments_delta(text)
            case CallEnd():
                return self._end_call()
            case CallBroken():
                self._call = None  # an unfinished item is never run, and keeps its place
                self._given_up += 1
        return b""

    def _text_delta(self, text: str) -> bytes:
        opening = b"" if self._kind == "message" else self._close() + self._open_message()
        self._text.append(text)
        fresh, self._pieces = self._pieces, []
        self._sent.extend(fresh)
        return opening + self._send(
            "response.output_text.delta", **self._position(), delta=text, logprobs=logprobs(fresh)
        )

    def _open_message(self) -> bytes:
        self._kind, self._text = "message", []
        self._sent = []
        item = {**message_item(self._turn, self._place, ""), "status": "in_progress", "content": []}
        added = self._send("response.output_item.added", output_index=self._place, item=item)
        return added + self._send("response.content_part.added", **self._position(), part=text_part(""))

    def _reasoning_delta(self, text: str) -> bytes:
        opening = b""
        if self._kind != "reasoning":
            opening = self._close()
            self._kind, self._text = "reasoning", []
            item = {**thought_item(self._turn, self._place, ""), "content": [], "status": "in_progress"}
            opening += self._send("response.output_item.added", output_index=self._place, item=item)
            part = {"type": "reasoning_text", "text": ""}
            opening += self._send("response.content_part.added", **self._position(), part=part)
        self._text.append(text)
        return opening + self._send("response.reasoning_text.delta", **self._position(), delta=text)

    def _position(self) -> dict[str, Json]:
        prefix = "rs" if self._kind == "reasoning" else "msg"
        return {"item_id": f"{prefix}_{self._turn}{self._place}", "output_index": self._place, "content_index": 0}

    def _close(self) -> bytes:
        """End the open item."""
        if self._kind is None:
            return b""
        text = "".join(self._text)
        if self._kind == "message":
            logs = logprobs(self._sent)
            events = self._send("response.output_text.done", **self._position(), text=text, logprobs=logs)
            item = message_item(self._turn, self._place, text, self._sent)
        else:
            events = self._send("response.reasoning_text.done", **self._position(), text=text)
            item = thought_item(self._turn, self._place, text)
        events += self._send("response.content_part.done", **self._position(), part=item["content"][0])
        self._kind = None
        return events + self._finish_item(item)

    def _finish_item(self, item: Item) -> bytes:
        events = self._send("response.output_item.done", output_index=self._place, item=item)
        self._output.append(item)
        return events

    def _begin_call(self, start: CallStart) -> bytes:
        self._call = (start, [])
        item = {**self._call_item(start, "{}"), "status": "in_progress"}
        item["input" if start.name in self._custom else "arguments"] = ""
        return self._send("response.output_item.added", output_index=self._place, item=item)

    def _call_item(self, start: CallStart, arguments: str) -> Item:
        call = ToolCall(id=start.id, name=start.name, arguments=arguments)
        return call_item(self._turn, self._place, call, self._custom)

    def _arguments_delta(self, text: str) -> bytes:
        if self._call is None:
            return b""
        start, written = self._call
        written.append(text)
        if start.name in self._custom:
            return b""  # the text inside is sent once it is complete
        position = {"item_id": f"fc_{self._turn}{self._place}", "output_index": self._place}
        return self._send("response.function_call_arguments.delta", **position, delta=text)

    def _end_call(self) -> bytes:
        if self._call is None:
            return b""
        start, written = self._call
        self._call = None
        item = self._call_item(start, "".join(written))
        position = {"item_id": item["id"], "output_index": self._place}
        if start.name in self._custom:
            events = self._send("response.custom_tool_call_input.delta", **position, delta=item["input"])
            events += self._send("response.custom_tool_call_input.done", **position, input=item["input"])
        else:
            events = self._send("response.function_call_arguments.done", **position, arguments=item["arguments"])
        return events + self._finish_item(item)

    def _end(self, completion: Completion) -> bytes:
        closing = self._close()
        if not self._output:
            closing += self._open_message() + self._close()
        response = finished(self._request, self._turn, self._created, completion, self._output)
        name = "response.completed" if response["status"] == "completed" else "response.incomplete"
        return closing + self._send(name, response=response)

    def close(self) -> bytes:
        return b""

    def error(self, error: ApiError) -> bytes:
        details = {"code": error.code or "server_error", "message": error.message}
        begun = heading(self._request, self._turn, self._created, self._version)
        response = {**begun, "status": "failed", "error": details}
        first = b"" if self._number else self._send("response.created", response={**response, "status": "in_progress"})
        failed = self._send("response.failed", response=response)
        return first + failed + self._send("error", **details, param=openai_error(error)["error"]["param"])


class ResponsesWire:
    """Responses: input as text or as items, output as items; the API that Codex uses."""

    name = "responses"

    def __init__(self, defaults: Sampling) -> None:
        self._defaults = defaults

    def parse(self, body: Mapping[str, Json], limits: RequestLimits) -> GenerationRequest:
        return parse(body, limits, self._defaults)

    def plain(self, request: GenerationRequest, answers: Sequence[ReplyFinished]) -> Json:
        return response_of(request, answers[0])

    def stream(self, request: GenerationRequest, *, turn: str, created: float) -> Renderer:
        return ResponsesStream(request, turn, created)

    def error(self, error: ApiError) -> Json:
        return openai_error(error)


def continued_prompt(prompt: Prompt, before: Prompt, reply: Message) -> Prompt:
    """Return the prompt that continues after an earlier response; new instructions replace the earlier ones."""
    earlier = list(before.messages)
    fresh = list(prompt.messages)
    opening: list[Message] = []
    if fresh[0].role == "system":
        opening = [fresh.pop(0)]
        while earlier and earlier[0].role == "system":
            earlier.pop(0)
    messages = (*opening, *earlier, reply, *fresh)
    return Prompt(messages=messages, tools=prompt.tools, tool_choice=prompt.tool_choice, template=prompt.template)


NO_TURN = "0" * 26
"""the turn id in an answer that refers to no turn"""
_ANSWER = re.compile(r"([0-9a-z]{26})n[0-9a-z]{26}")


def answer_id(turn: str | None) -> str:
    """Return an id for a gateway answer; `turn_of` maps it to the turn that the answer refers to."""
    return f"{turn or NO_TURN}n{new_id()}"


def turn_of(response_id: str) -> str:
    """Return the turn behind a response id in any format; for a gateway answer, the turn that it refers to."""
    for prefix in ("resp_", "msg_", "chatcmpl-"):
        response_id = response_id.removeprefix(prefix)
    if answer := _ANSWER.fullmatch(response_id):
        return answer[1]
    if not response_id.isalnum() or len(response_id) > 64:
        raise RequestError("this is no id of a turn or response", field="turn", status=404)
    return response_id
