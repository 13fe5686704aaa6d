"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openclaw_rl.formats.parts import CallArgs, CallStart, Part, Text, Thought
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
from openclaw_rl.serve.sse import EventStream, dumps, event, quoted
from openclaw_rl.serve.wire.chat_request import parse
from openclaw_rl.types import Completion, Json, Message, Sampling

FINISHES = {"stop": "stop", "length": "length", "tool_calls": "tool_calls", "aborted": "length"}


class ChatWire:
    """Chat completions, as OpenAI's SDKs and most agents use them."""

    name = "chat"

    def __init__(self, defaults: Sampling) -> None:
        self._defaults = defaults

    def parse(self, body: Mapping[str, Json], limits: RequestLimits) -> GenerationRequest:
        return parse(body, limits, self._defaults)

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

    def error(self, error: ApiError) -> Json:
        return openai_error(error)


def fingerprint(version: int) -> str:
    return f"openclaw-rl-v{version}"


def usage(completions: Sequence[Completion]) -> Json:
    """Return the token usage; the prompt is counted once, as it was sent once."""
    prompt = len(completions[0].prompt_tokens)
    reply = sum(len(completion.reply_tokens) for completion in completions)
    return {"prompt_tokens": prompt, "completion_tokens": reply, "total_tokens": prompt + reply}


def _choice_of(index: int, answer: ReplyFinished, logprobs: bool) -> Json:
    completion = answer.turn.completion
    return {
        "index": index,
        "message": message_of(completion.reply),
        "logprobs": {"content": logprobs_of(answer.pieces), "refusal": None} if logprobs else None,
        "finish_reason": FINISHES[completion.finish],
    }


def message_of(reply: Message) -> Json:
    """Return a reply as a chat message."""
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
    """Return every sampled token, as sampled, with the raw log-probs that clients expect."""
    return [
        {
            **_token(piece.text, piece.logprob),
            "top_logprobs": [_token(candidate.text, candidate.logprob) for candidate in piece.top],
        }
        for piece in pieces
    ]


def _token(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": max(logprob, -9999.0), "bytes": list(text.encode("utf-8", "replace"))}


class ChatStream(EventStream):
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
                return self._deltas(choice, parts, pieces)
            case ReplyFinished():
                return self._finish(choice, event)

    def _chunk(self, choice: int, delta: str, finish: str | None = None, pieces: Sequence[Piece] = ()) -> bytes:
        logprobs = dumps({"content": logprobs_of(pieces), "refusal": None}) if pieces else "null"
        end = f'"{finish}"' if finish else "null"
        body = f'"index":{choice},"delta":{delta},"logprobs":{logprobs},"finish_reason":{end}'
        return event(f'{self._heads[choice]},"choices":[{{{body}}}]{self._usage}}}')

    def _deltas(self, choice: int, parts: Sequence[Part], pieces: Sequence[Piece]) -> bytes:
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
        """Prepare two constants; later plain text, the most frequent delta, is only inserted between them."""
        if choice not in self._begun:
            self._begun.add(choice)
            before, after = self._chunk(choice, '{"content":\0}').decode().split("\0")
            self._frames[choice] = (before, after)

    def _finish(self, choice: int, finished: ReplyFinished) -> bytes:
        self._ends[choice] = finished
        opening = b"" if choice in self._begun else self._deltas(choice, (), ())
        finish = FINISHES[finished.turn.completion.finish]
        return opening + self._chunk(choice, "{}", finish, self._waiting.pop(choice, ()))

    def close(self) -> bytes:
        terminator = b"data: [DONE]\n\n"
        if not self._request.include_usage and self._request.n == 1:
            return terminator
        ends = [self._ends[index] for index in sorted(self._ends)]
        last: dict[str, Json] = {"choices": []}
        if self._request.include_usage:
            last["usage"] = usage([end.turn.completion for end in ends])
        if len(ends) > 1:
            last["turns"] = [end.turn.id for end in ends]
        return event(f"{self._heads[0]},{dumps(last)[1:]}") + terminator

    def error(self, error: ApiError) -> bytes:
        return event(dumps(openai_error(error))) + b"data: [DONE]\n\n"


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
