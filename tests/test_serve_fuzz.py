"""The whole API from its own description, and one conversation through every format."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from openclaw_rl.serve.openapi import description
from openclaw_rl.serve.redact import patterns
from openclaw_rl.serve.wire.chat import ChatWire
from openclaw_rl.serve.wire.messages import MessagesWire
from openclaw_rl.serve.wire.ollama import chat_wire
from openclaw_rl.serve.wire.responses import ResponsesWire
from openclaw_rl.store import ServeLedger
from openclaw_rl.testing import RunningServer, request_limits, serving
from openclaw_rl.types import Message, Prompt, Sampling, Tool, ToolCall

EXAMPLES = 20
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
pytestmark = pytest.mark.slow
DESCRIBED = schemathesis.openapi.from_dict(description("toy"))
OPERATIONS = [result.ok() for result in DESCRIBED.get_all_operations()]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with serving() as server:
        yield server


MODES = schemathesis.GenerationMode
CASES = [(operation, MODES.POSITIVE) for operation in OPERATIONS]
CASES += [(operation, MODES.NEGATIVE) for operation in OPERATIONS if operation.body]


@pytest.mark.parametrize(("operation", "mode"), CASES, ids=[f"{mode.value} {each.label}" for each, mode in CASES])
def test_no_request_that_fits_the_description_or_breaks_it_makes_the_server_fail(
    server: RunningServer, operation: Any, mode: schemathesis.GenerationMode
) -> None:
    most = EXAMPLES if operation.body else 5

    @settings(max_examples=most, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(case=operation.as_strategy(generation_mode=mode))
    def fuzz(case: Any) -> None:
        answer = case.call_and_validate(base_url=server.url, checks=CHECKS, timeout=20)
        assert answer.status_code < 500

    fuzz()


words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
names = st.from_regex(r"[a-z]{1,8}", fullmatch=True)
arguments = st.dictionaries(names, st.integers() | words | st.booleans() | st.none(), max_size=3)


@st.composite
def exchanges(draw: st.DrawFn) -> list[Message]:
    """What a user says, and perhaps a call with its results and an answer."""
    said = [Message(role="user", content=draw(words))]
    if draw(st.booleans()):
        calls = [
            ToolCall(
                id=f"c{at}",
                name=draw(names),
                arguments=json.dumps(draw(arguments), separators=(",", ":"), ensure_ascii=False),
            )
            for at in range(draw(st.integers(1, 2)))
        ]
        thought = draw(st.none() | words)
        said.append(
            Message(role="assistant", content=draw(words | st.just("")), reasoning=thought, tool_calls=tuple(calls))
        )
        said += [Message(role="tool", content=draw(words), tool_call_id=call.id) for call in calls]
    said.append(Message(role="assistant", content=draw(words)))
    return said


@st.composite
def prompts(draw: st.DrawFn) -> Prompt:
    system = [Message(role="system", content=draw(words))] if draw(st.booleans()) else []
    talk = [message for part in draw(st.lists(exchanges(), min_size=1, max_size=3)) for message in part]
    tools = tuple(
        Tool(name=name, description="d", parameters={"type": "object"})
        for name in draw(st.lists(names, max_size=2, unique=True))
    )
    return Prompt(messages=(*system, *talk, Message(role="user", content=draw(words))), tools=tools)


def as_chat(prompt: Prompt) -> dict[str, Any]:
    def message(said: Message) -> dict[str, Any]:
        told: dict[str, Any] = {"role": said.role, "content": said.content}
        if said.tool_calls:
            told["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in said.tool_calls
            ]
        return {**told, "reasoning_content": said.reasoning, "tool_call_id": said.tool_call_id}

    functions = [{"name": t.name, "description": t.description, "parameters": t.parameters} for t in prompt.tools]
    tools = [{"type": "function", "function": function} for function in functions]
    return {"messages": [message(said) for said in prompt.messages], "tools": tools}


def as_responses(prompt: Prompt) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    for said in prompt.messages:
        if said.role == "tool":
            items.append({"type": "function_call_output", "call_id": said.tool_call_id, "output": said.content})
            continue
        if said.reasoning:
            items.append(
                {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": said.reasoning}]}
            )
        if said.content or not said.tool_calls:
            kind = "output_text" if said.role == "assistant" else "input_text"
            items.append({"type": "message", "role": said.role, "content": [{"type": kind, "text": said.content}]})
        items += [
            {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}
            for call in said.tool_calls
        ]
    tools = [
        {"type": "function", "name": t.name, "description": t.description, "parameters": t.parameters}
        for t in prompt.tools
    ]
    return {"input": items, "tools": tools}


def as_messages(prompt: Prompt) -> dict[str, Any]:
    def message(said: Message) -> dict[str, Any]:
        if said.role == "tool":
            return {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": said.tool_call_id, "content": said.content}],
            }
        blocks: list[dict[str, Any]] = []
        if said.reasoning:
            blocks.append({"type": "thinking", "thinking": said.reasoning, "signature": ""})
        if said.content:
            blocks.append({"type": "text", "text": said.content})
        blocks += [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}
            for call in said.tool_calls
        ]
        return {"role": said.role, "content": blocks}

    tools = [{"name": t.name, "description": t.description, "input_schema": t.parameters} for t in prompt.tools]
    return {"messages": [message(said) for said in prompt.messages], "tools": tools}


def as_ollama(prompt: Prompt) -> dict[str, Any]:
    told = as_chat(prompt)
    for said in told["messages"]:
        said["thinking"] = said.pop("reasoning_content")
        for call in said.get("tool_calls", ()):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return told


@settings(max_examples=100, deadline=None)
@given(prompts())
def test_one_conversation_written_in_any_format_is_the_same_prompt(prompt: Prompt) -> None:
    assert ChatWire(Sampling()).parse(as_chat(prompt), request_limits()).prompt == prompt
    assert ResponsesWire(Sampling()).parse(as_responses(prompt), request_limits()).prompt == prompt
    assert MessagesWire(Sampling()).parse(as_messages(prompt), request_limits()).prompt == prompt
    assert chat_wire(Sampling()).parse(as_ollama(prompt), request_limits()).prompt == prompt


# --- what only the ledger, the redaction or a template would choke on ---

wild = st.text(st.characters(), max_size=12) | st.sampled_from(
    ["\ud83d", "\x00", "\u2028", "<|im_end|>", "-eyJ" * 50, "sk-" + "a1" * 20, "{" * 300, "[" * 5_000, "9" * 5_000]
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | wild,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(wild, inner, max_size=4),
    max_leaves=12,
)
tool_arguments = wild | json_values | json_values.map(json.dumps) | st.just('{"a": "\\ud83d"}')


def asks_with_arguments(path: str, given: Any) -> dict[str, Any]:
    table = given if isinstance(given, dict) else {"a": given}
    call = {"id": "c", "function": {"name": "f", "arguments": given}}
    use = {"type": "tool_use", "id": "c", "name": "f", "input": table}
    return {
        "/v1/chat/completions": {"messages": [{"role": "assistant", "tool_calls": [call]}]},
        "/v1/responses": {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": given}]},
        "/v1/messages": {"messages": [{"role": "assistant", "content": [use]}]},
        "/api/chat": {"messages": [{"role": "assistant", "tool_calls": [call]}]},
    }[path]


def asks_with_variables(path: str, given: Any) -> dict[str, Any]:
    ask = {"messages": [{"role": "user", "content": "hi"}], "input": "hi"}
    return {**ask, "chat_template_kwargs": given, "metadata": given, "response_format": given, "format": given}


def asks_with_document(path: str, given: Any) -> dict[str, Any]:
    """Where there is no document block, the same as the result of a tool."""
    source = {"type": "text", "media_type": "text/plain", "data": given}
    document = {"type": "document", "source": source, "title": given, "context": given}
    return {
        "/v1/chat/completions": {"messages": [{"role": "tool", "tool_call_id": "c", "content": given}]},
        "/v1/responses": {"input": [{"type": "function_call_output", "call_id": "c", "output": given}]},
        "/v1/messages": {"messages": [{"role": "user", "content": [document]}]},
        "/api/chat": {"messages": [{"role": "tool", "tool_name": "f", "content": given}]},
    }[path]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, ServeLedger]]:
    path: Path = tmp_path_factory.mktemp("fuzz") / "ledger.db"
    with ServeLedger(path, sync="normal") as ledger, serving(ledger=ledger, redact=patterns) as server:
        yield server, ledger


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"])
@pytest.mark.parametrize(
    ("asks", "values"),
    [
        (asks_with_arguments, tool_arguments),
        (asks_with_variables, json_values),
        (asks_with_document, wild | json_values),
    ],
    ids=["tool arguments", "template variables", "documents"],
)
def test_whatever_is_inside_it_a_request_is_answered_and_kept_or_refused(
    kept: tuple[RunningServer, ServeLedger],
    path: str,
    asks: Callable[[str, Any], dict[str, Any]],
    values: st.SearchStrategy[Any],
) -> None:
    server, ledger = kept

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(given=values, stream=st.booleans())
    def fuzz(given: Any, stream: bool) -> None:
        before = ledger.counts()["turns"]
        answer = server.post(path, {**asks(path, given), "stream": stream})
        assert answer.status_code in (200, 400, 413), answer.text
        assert ledger.counts()["turns"] - before == (answer.status_code == 200)
        if answer.status_code == 200:
            turn = ledger.turn(answer.headers["x-openclaw-rl-turn"])
            json.dumps([message.content for message in turn.prompt.messages], ensure_ascii=False).encode("utf-8")
        else:
            assert (answer.json().get("type") == "error") == path.startswith("/v1/messages")
            assert isinstance(answer.json()["error"], str) == path.startswith("/api/")

    fuzz()


def test_whatever_is_said_of_a_turn_is_taken_whole_or_refused(kept: tuple[RunningServer, ServeLedger]) -> None:
    server, ledger = kept
    turn = server.chat().json()["id"]
    fields = st.sampled_from(["score", "thumb", "comment", "hint", "edit", "edited_reply", "source", "turn", "id"])

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(said=st.dictionaries(fields, json_values | st.sampled_from(["up", "environment", "explicit", 1, -0.5])))
    def fuzz(said: dict[str, Any]) -> None:
        before = len(ledger.feedback(turn))
        answer = server.post("/v1/feedback", {"turn": turn, **said})
        assert answer.status_code in (200, 400, 403, 404), answer.text
        assert len(ledger.feedback(turn)) - before == (answer.status_code == 200)
        assert all(abs(each.score or 0.0) <= 1.0 for each in ledger.feedback(turn))

    fuzz()
