"""The whole API from its own description, and one conversation through every format."""

from __future__ import annotations

import json
from collections.abc import Iterator
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
from serving import World, serving

from openclaw_rl.serve.asked import Limits
from openclaw_rl.serve.chat import ChatWire
from openclaw_rl.serve.fields import At
from openclaw_rl.serve.messages import MessagesWire
from openclaw_rl.serve.openapi import description
from openclaw_rl.serve.responses import ResponsesWire
from openclaw_rl.types import Message, Prompt, Tool, ToolCall

EXAMPLES = 20
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
DESCRIBED = schemathesis.openapi.from_dict(description("toy"))
OPERATIONS = [result.ok() for result in DESCRIBED.get_all_operations()]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with serving() as world:
        yield world


MODES = schemathesis.GenerationMode
CASES = [(operation, MODES.POSITIVE) for operation in OPERATIONS]
CASES += [(operation, MODES.NEGATIVE) for operation in OPERATIONS if operation.body]


@pytest.mark.parametrize(("operation", "mode"), CASES, ids=[f"{mode.value} {each.label}" for each, mode in CASES])
def test_no_request_that_fits_the_description_or_breaks_it_makes_the_server_fail(
    world: World, operation: Any, mode: schemathesis.GenerationMode
) -> None:
    most = EXAMPLES if operation.body else 5

    @settings(max_examples=most, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(case=operation.as_strategy(generation_mode=mode))
    def fuzz(case: Any) -> None:
        answer = case.call_and_validate(base_url=world.url, checks=CHECKS, timeout=20)
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


@settings(max_examples=100, deadline=None)
@given(prompts())
def test_one_conversation_written_in_any_format_is_the_same_prompt(prompt: Prompt) -> None:
    assert ChatWire().parse(At(as_chat(prompt), ""), Limits()).prompt == prompt
    assert ResponsesWire().parse(At(as_responses(prompt), ""), Limits()).prompt == prompt
    assert MessagesWire().parse(At(as_messages(prompt), ""), Limits()).prompt == prompt
