"""The messages format, as Claude Code and the SDK speak it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from openclaw_rl.testing import RunningServer, ScriptedPolicy, serving, sse_events
from openclaw_rl.types import Message, Tool, ToolCall

if TYPE_CHECKING:
    from anthropic import Anthropic

CALL = '<think>where?</think>I look.\n<tool_call>{"name": "look", "arguments": {"at": "sky", "n": 2}}</tool_call>'
TOOLS = [
    {"name": "look", "description": "d", "input_schema": {"type": "object"}},
    {"type": "web_search_20260209", "name": "web"},
]
ASK = {"model": "toy", "max_tokens": 1000, "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with serving() as server:
        yield server


def sdk(server: RunningServer) -> Anthropic:
    """The real SDK, which takes longer to import than all else here: who uses it is slow."""
    from anthropic import Anthropic

    return Anthropic(base_url=server.url, api_key="none", max_retries=0, http_client=server.client())


@pytest.mark.slow
def test_the_sdk_gets_a_message_whose_id_leads_to_the_turn(server: RunningServer) -> None:
    message = sdk(server).messages.create(model="toy", max_tokens=100, messages=[{"role": "user", "content": "hi"}])
    assert [(block.type, getattr(block, "text", None)) for block in message.content] == [("text", "Hello there.")]
    assert (message.stop_reason, message.usage.input_tokens, message.usage.output_tokens) == ("end_turn", 6, 13)
    assert server.ledger.turn(message.id.removeprefix("msg_")).completion.reply.content == "Hello there."


@pytest.mark.slow
def test_the_sdk_puts_a_stream_with_thought_text_and_call_together() -> None:
    with (
        serving(ScriptedPolicy(CALL)) as server,
        sdk(server).messages.stream(
            model="toy",
            max_tokens=200,
            messages=[{"role": "user", "content": "?"}],
            tools=TOOLS,  # type: ignore[arg-type]
        ) as stream,
    ):
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert text == "I look."
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
    assert message.content[0].thinking == "where?"  # type: ignore[union-attr]
    assert message.content[2].input == {"at": "sky", "n": 2}  # type: ignore[union-attr]
    assert message.stop_reason == "tool_use"
    assert message.usage.input_tokens == len("user?")


def test_the_events_of_a_stream_open_and_close_every_block_in_order() -> None:
    with serving(ScriptedPolicy(CALL)) as server:
        found = sse_events(server.post("/v1/messages", {**ASK, "tools": TOOLS, "stream": True}).text)
    names = [name for name, _ in found]
    assert names[:2] == ["message_start", "ping"]
    assert names[-2:] == ["message_delta", "message_stop"]
    assert [data["type"] for _, data in found] == names
    starts = [(d["index"], d["content_block"]["type"]) for n, d in found if n == "content_block_start"]
    assert starts == [(0, "thinking"), (1, "text"), (2, "tool_use")]
    assert [d["index"] for n, d in found if n == "content_block_stop"] == [0, 1, 2]
    assert found[0][1]["message"]["usage"]["input_tokens"] == 6
    partial = "".join(d["delta"].get("partial_json", "") for n, d in found if n == "content_block_delta")
    assert json.loads(partial) == {"at": "sky", "n": 2}
    assert found[-2][1]["usage"]["output_tokens"] == len(CALL) + 1


def test_what_claude_code_sends_is_understood(server: RunningServer) -> None:
    body = {
        **ASK,
        "system": [{"type": "text", "text": "You are it.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "go", "cache_control": {"type": "ephemeral"}}]},
            {"role": "system", "content": "remember"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "t1", "name": "look", "input": {"a": 1}},
                    {"type": "tool_use", "id": "t2", "name": "look", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": "blue"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "t2",
                        "content": [{"type": "text", "text": "no"}],
                        "is_error": True,
                    },
                    {"type": "text", "text": "and?"},
                ],
            },
        ],
        "tools": TOOLS,
        "tool_choice": {"type": "any"},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
        "metadata": {"user_id": "user_1_account__session_0a1b2c3d-0000-4000-8000-000000000000"},
    }
    response = server.post(
        "/v1/messages?beta=true", body, anthropic_version="2023-06-01", user_agent="claude-cli/2.1.325 (external, cli)"
    )
    assert response.status_code == 200, response.text
    prompt = server.policy.requests[0][0]
    assert prompt.messages == (
        Message(role="system", content="You are it."),
        Message(role="user", content="go"),
        Message(role="system", content="remember"),
        Message(
            role="assistant",
            content="I look.",
            reasoning="hm",
            tool_calls=(
                ToolCall(id="t1", name="look", arguments='{"a":1}'),
                ToolCall(id="t2", name="look", arguments="{}"),
            ),
        ),
        Message(role="tool", content="blue", tool_call_id="t1"),
        Message(role="tool", content="Error: no", tool_call_id="t2"),
        Message(role="user", content="and?"),
    )
    assert (prompt.tools, prompt.tool_choice, prompt.template) == (
        (Tool(name="look", description="d", parameters={"type": "object"}),),
        "required",
        {},
    )
    assert server.ledger.last.session == "0a1b2c3d-0000-4000-8000-000000000000"
    assert server.ledger.last.client == "claude-cli/2.1.325"


def test_the_session_header_of_claude_code_names_the_session(server: RunningServer) -> None:
    server.post("/v1/messages", ASK, x_claude_code_session_id="abc")
    assert server.ledger.last.session == "abc"


@pytest.mark.parametrize(
    ("more", "reason", "sequence"),
    [
        ({"max_tokens": 5}, "max_tokens", None),
        ({"stop_sequences": ["the", "zz"]}, "stop_sequence", "the"),
        ({}, "end_turn", None),
    ],
)
def test_the_stop_reason_says_why_it_ended(
    server: RunningServer, more: dict[str, object], reason: str, sequence: str | None
) -> None:
    plain = server.post("/v1/messages", {**ASK, **more}).json()
    assert (plain["stop_reason"], plain["stop_sequence"]) == (reason, sequence)
    streamed = dict(sse_events(server.post("/v1/messages", {**ASK, **more, "stream": True}).text))
    assert streamed["message_delta"]["delta"] == {"stop_reason": reason, "stop_sequence": sequence}


@pytest.mark.slow
def test_tokens_are_counted_without_answering(server: RunningServer) -> None:
    count = sdk(server).messages.count_tokens(model="toy", messages=[{"role": "user", "content": "hello"}])
    assert count.input_tokens == len("userhello")
    assert server.policy.requests == []


def test_a_call_that_breaks_is_never_begun_because_clients_would_run_half_of_it() -> None:
    broken = '<tool_call>{"name": "look", "arguments": {"at": 1, x}}</tool_call>'
    with serving(ScriptedPolicy(broken)) as server:
        found = sse_events(server.post("/v1/messages", {**ASK, "tools": TOOLS, "stream": True}).text)
    assert [d["content_block"]["type"] for n, d in found if n == "content_block_start"] == ["text"]
    assert "".join(d["delta"]["text"] for n, d in found if n == "content_block_delta") == broken


def test_faults_have_this_formats_own_shape(server: RunningServer) -> None:
    response = server.post("/v1/messages", {**ASK, "messages": [{"role": "robot", "content": "x"}]})
    assert response.status_code == 400
    assert response.json()["type"] == "error"
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert "messages.0.role" in response.json()["error"]["message"]
    server.policy.context = 20
    long = server.post("/v1/messages", {**ASK, "messages": [{"role": "user", "content": "x" * 40}]})
    assert long.status_code == 400
    assert "prompt is too long: 44 tokens > 20 maximum" in long.json()["error"]["message"]
    assert "maximum context length is 20 tokens" in long.json()["error"]["message"]
