"""POST /v1/responses, and going on from an earlier response of any format."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from openclaw_rl.errors import RequestError
from openclaw_rl.serve.api_errors import ApiError, openai_error
from openclaw_rl.serve.limits import RequestLimits
from openclaw_rl.serve.request import (
    GenerationRequest,
    Renderer,
    ReplyFinished,
)
from openclaw_rl.serve.wire.responses_out import ResponsesStream, response_of
from openclaw_rl.serve.wire.responses_request import parse
from openclaw_rl.types import Json, Message, Prompt, Sampling, new_id


class ResponsesWire:
    """Responses: input as text or as items, output as items; what Codex speaks."""

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


NO_TURN = "0" * 26
"""in the id of an answer that is about no turn"""
_ANSWER = re.compile(r"([0-9a-z]{26})n[0-9a-z]{26}")


def answer_id(turn: str | None) -> str:
    """An id for an answer of the gateway's own; `turn_of` leads from it to the turn that it is about."""
    return f"{turn or NO_TURN}n{new_id()}"


def turn_of(response_id: str) -> str:
    """The turn behind a response id of any format; of an answer of the gateway's own, the turn that it is about."""
    for prefix in ("resp_", "msg_", "chatcmpl-"):
        response_id = response_id.removeprefix(prefix)
    if answer := _ANSWER.fullmatch(response_id):
        return answer[1]
    if not response_id.isalnum() or len(response_id) > 64:
        raise RequestError("this is no id of a turn or response", field="turn", status=404)
    return response_id
