"""POST /api/chat and /api/generate: Ollama's API, streamed as one JSON object per line."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeAlias

from openclaw_rl.formats.parts import CallArgs, CallBroken, CallEnd, CallStart, Part, Text, Thought
from openclaw_rl.ports import Piece
from openclaw_rl.serve.request import (
    ApiError,
    Event,
    GenerationRequest,
    Renderer,
    ReplyDelta,
    ReplyFinished,
    RequestLimits,
    ollama_error,
)
from openclaw_rl.serve.sse import dumps
from openclaw_rl.serve.wire.chat import logprobs_of
from openclaw_rl.serve.wire.ollama_request import parse_chat, parse_generate
from openclaw_rl.types import Json, Sampling

Fields: TypeAlias = "Callable[[str, str, Sequence[Json]], dict[str, Json]]"
"""converts a text, a thought and calls to a response's fields"""
FINISHES = {"stop": "stop", "length": "length", "tool_calls": "stop", "aborted": "length"}


class OllamaWire:
    """A chat, or a single prompt, as Ollama's clients send it."""

    def __init__(
        self,
        name: str,
        defaults: Sampling,
        parse: Callable[[Mapping[str, Json], RequestLimits, Sampling], GenerationRequest],
        fields: Fields,
    ) -> None:
        self.name = name
        self._defaults = defaults
        self._parse = parse
        self._fields = fields

    def parse(self, body: Mapping[str, Json], limits: RequestLimits) -> GenerationRequest:
        return self._parse(body, limits, self._defaults)

    def plain(self, request: GenerationRequest, answers: Sequence[ReplyFinished]) -> Json:
        answer = answers[0]
        reply = answer.turn.completion.reply
        calls = [_call(call.id, call.name, call.arguments) for call in reply.tool_calls]
        response = {**heading(request, answer.turn.at), **self._fields(reply.content, reply.reasoning or "", calls)}
        if request.logprobs:
            response["logprobs"] = logprobs_of(answer.pieces)
        return {**response, **ending(answer)}

    def stream(self, request: GenerationRequest, *, turn: str, created: float) -> Renderer:
        return OllamaStream(request, created, self._fields)

    def error(self, error: ApiError) -> Json:
        return ollama_error(error)


def chat_wire(defaults: Sampling) -> OllamaWire:
    """Return the format for /api/chat."""
    return OllamaWire("ollama_chat", defaults, parse_chat, _chat_fields)


def generate_wire(defaults: Sampling) -> OllamaWire:
    """Return the format for /api/generate."""
    return OllamaWire("ollama_generate", defaults, parse_generate, _generate_fields)


def _chat_fields(text: str, thought: str, calls: Sequence[Json]) -> dict[str, Json]:
    return {"message": {"role": "assistant", "content": text, **_more(thought, calls)}}


def _generate_fields(text: str, thought: str, calls: Sequence[Json]) -> dict[str, Json]:
    return {"response": text, **_more(thought, calls)}


def _more(thought: str, calls: Sequence[Json]) -> dict[str, Json]:
    return {**({"thinking": thought} if thought else {}), **({"tool_calls": list(calls)} if calls else {})}


def _call(call: str, name: str, arguments: str) -> Json:
    return {"id": call, "function": {"name": name, "arguments": json.loads(arguments or "{}")}}


def heading(request: GenerationRequest, at: float) -> dict[str, Json]:
    """Return the model's name, as requested, and the time."""
    return {"model": request.echo.get("model") or request.model, "created_at": timestamp(at)}


def timestamp(at: float) -> str:
    """Return a time in Go's notation."""
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")


def ending(answer: ReplyFinished) -> dict[str, Json]:
    """Return a response's final fields; times in nanoseconds. The turn and the version are additions."""
    completion = answer.turn.completion
    return {
        "done": True,
        "done_reason": FINISHES[completion.finish],
        "total_duration": _nanoseconds(answer.seconds),
        "load_duration": 0,
        "prompt_eval_count": len(completion.prompt_tokens),
        "prompt_eval_duration": _nanoseconds(answer.first),
        "eval_count": len(completion.reply_tokens),
        "eval_duration": _nanoseconds(answer.seconds - answer.first),
        "turn": answer.turn.id,
        "version": completion.version,
    }


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


class OllamaStream:
    """JSON lines: texts and thoughts as they stream, complete calls, and a last line with the counts."""

    media = "application/x-ndjson"

    def __init__(self, request: GenerationRequest, created: float, fields: Fields) -> None:
        self._head = heading(request, created)
        self._fields = fields
        self._calls: dict[int, tuple[CallStart, list[str]]] = {}
        self._pieces: list[Piece] = []

    @property
    def keep_alive(self) -> bytes:
        """A line with an empty text: clients parse each line as JSON."""
        return self._line("", "", (), {"done": False})

    def event(self, choice: int, event: Event) -> bytes:
        match event:
            case ReplyDelta(parts, pieces):
                self._pieces.extend(pieces)
                return b"".join(self._part(part) for part in parts)
            case ReplyFinished():
                return self._line("", "", (), ending(event))
        return b""

    def _part(self, part: Part) -> bytes:
        match part:
            case Text(text):
                return self._line(text, "", (), {"done": False})
            case Thought(text):
                return self._line("", text, (), {"done": False})
            case CallStart(index):
                self._calls[index] = (part, [])
            case CallArgs(index, text):
                self._calls[index][1].append(text)
            case CallBroken(index):
                del self._calls[index]
            case CallEnd(index):
                start, written = self._calls.pop(index)
                call = _call(start.id, start.name, "".join(written))
                return self._line("", "", (call,), {"done": False})
        return b""

    def _line(self, text: str, thought: str, calls: Sequence[Json], more: Mapping[str, Json]) -> bytes:
        pieces, self._pieces = self._pieces, []
        logprobs = {"logprobs": logprobs_of(pieces)} if pieces else {}
        line = {**self._head, **self._fields(text, thought, calls), **logprobs, **more}
        return dumps(line).encode("utf-8", "replace") + b"\n"

    def close(self) -> bytes:
        return b""

    def error(self, error: ApiError) -> bytes:
        return dumps(ollama_error(error)).encode("utf-8", "replace") + b"\n"
