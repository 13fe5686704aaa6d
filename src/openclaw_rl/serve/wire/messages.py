"""POST /v1/messages and /v1/messages/count_tokens, as Anthropic's SDKs and Claude Code use them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from openclaw_rl.formats.parts import CallArgs, CallBroken, CallEnd, CallStart, Part, Text, Thought
from openclaw_rl.serve.request import (
    ApiError,
    Event,
    GenerationRequest,
    Renderer,
    ReplyDelta,
    ReplyFinished,
    ReplyStarted,
    RequestLimits,
    anthropic_error,
)
from openclaw_rl.serve.sse import EventStream, dumps, event
from openclaw_rl.serve.wire.messages_request import parse
from openclaw_rl.types import Completion, Json, Message, Sampling

SIGNATURE = "openclaw-rl"
"""signature for thinking blocks; clients drop a thought without a signature"""


class MessagesWire:
    """Messages: content in blocks, the system prompt beside the messages or among them."""

    name = "messages"

    def __init__(self, defaults: Sampling) -> None:
        self._defaults = defaults

    def parse(self, body: Mapping[str, Json], limits: RequestLimits) -> GenerationRequest:
        return parse(body, limits, self._defaults)

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

    def error(self, error: ApiError) -> Json:
        return anthropic_error(error)


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


def blocks_of(reply: Message) -> list[Json]:
    """Return a reply as content blocks."""
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


class MessagesStream(EventStream):
    """Named events: the message's start, its blocks one after another, its end.

    A call's arguments are sent once they are complete. Clients of this format run a call from partial arguments, so a
    call that breaks midway must not have been started.
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

    def _end(self, finished: ReplyFinished) -> bytes:
        completion = finished.turn.completion
        delta = {
            "stop_reason": stop_reason(finished),
            "stop_sequence": finished.stop if completion.finish == "stop" else None,
        }
        usage = _usage(len(completion.prompt_tokens), len(completion.reply_tokens))
        return (
            self._close_block() + _named("message_delta", {"delta": delta, "usage": usage}) + _named("message_stop", {})
        )

    def close(self) -> bytes:
        return b""

    def error(self, error: ApiError) -> bytes:
        return event(dumps(anthropic_error(error)), "error")


def _named(name: str, fields: dict[str, Json]) -> bytes:
    return event(dumps({"type": name, **fields}), name)
