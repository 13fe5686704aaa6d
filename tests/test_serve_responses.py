"""The Responses format, as Codex and the SDK speak it."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from openclaw_rl.testing import RunningServer, ScriptedPolicy, serving, sse_events
from openclaw_rl.types import Message, ToolCall

CALL = '<think>\nwhere?\n</think>\nI look.\n<tool_call>{"name": "look", "arguments": {"at": "sky"}}</tool_call>'
TOOLS = [{"type": "function", "name": "look", "parameters": {"type": "object"}}, {"type": "web_search"}]


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with serving() as server:
        yield server


def sdk(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, http_client=server.client())


def test_the_sdk_gets_a_response_whose_id_leads_to_the_turn(server: RunningServer) -> None:
    response = sdk(server).responses.create(model="toy", input="hi", instructions="be brief", store=False)
    assert response.output_text == "Hello there."
    assert response.status == "completed"
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (len("systembe briefuserhi"), 13)
    assert server.ledger.turn(response.id.removeprefix("resp_")).prompt.messages == (
        Message(role="system", content="be brief"),
        Message(role="user", content="hi"),
    )


def test_the_events_of_a_stream_come_in_the_order_that_codex_needs() -> None:
    with serving(ScriptedPolicy(CALL)) as server:
        response = server.post("/v1/responses", {"model": "toy", "input": "?", "tools": TOOLS, "stream": True})
        found = sse_events(response.text)
    names = [name for name, _ in found]
    assert [name for at, name in enumerate(names) if at == 0 or name != names[at - 1]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [data["type"] for _, data in found] == names
    assert [data["sequence_number"] for _, data in found] == list(range(len(found)))
    done = [data["item"] for name, data in found if name == "response.output_item.done"]
    assert [item["type"] for item in done] == ["reasoning", "message", "function_call"]
    assert (done[2]["name"], done[2]["arguments"]) == ("look", '{"at": "sky"}')
    last = found[-1][1]["response"]
    assert last["output"] == done
    assert last["usage"]["output_tokens"] == len(CALL) + 1
    assert last["id"] == found[0][1]["response"]["id"] == f"resp_{server.ledger.last.id}"


def test_the_sdk_follows_the_stream_to_its_end(server: RunningServer) -> None:
    with sdk(server).responses.stream(model="toy", input="hi") as stream:
        texts = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(texts) == final.output_text == "Hello there."


def test_plain_and_streamed_give_the_same_output() -> None:
    with serving(ScriptedPolicy(CALL)) as server:
        body = {"model": "toy", "input": "?", "tools": TOOLS}
        plain = server.post("/v1/responses", body).json()
        streamed = sse_events(server.post("/v1/responses", {**body, "stream": True}).text)[-1][1]["response"]

    def shape(response: dict[str, object]) -> list[object]:
        return [
            {key: value for key, value in item.items() if key not in ("id", "call_id")}
            for item in response["output"]  # type: ignore[attr-defined]
        ]

    assert shape(plain) == shape(streamed)
    assert plain["tools"] == TOOLS


def test_items_become_messages_and_neighbours_that_belong_together_become_one(server: RunningServer) -> None:
    items = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "rules"}]},
        {"role": "user", "content": "go"},
        {
            "type": "reasoning",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "hm"}],
            "encrypted_content": None,
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "look", "arguments": '{"a":1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "blue"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "red"}]},
    ]
    server.post("/v1/responses", {"input": items}).raise_for_status()
    assert server.policy.requests[0][0].messages == (
        Message(role="system", content="rules"),
        Message(role="user", content="go"),
        Message(
            role="assistant",
            content="I look.",
            reasoning="hm",
            tool_calls=(
                ToolCall(id="c1", name="look", arguments="{}"),
                ToolCall(id="c2", name="look", arguments='{"a":1}'),
            ),
        ),
        Message(role="tool", content="blue", tool_call_id="c1"),
        Message(role="tool", content="red", tool_call_id="c2"),
    )


def test_a_tool_that_takes_plain_text_is_called_with_plain_text() -> None:
    reply = '<tool_call>{"name": "patch", "arguments": {"input": "*** Begin\\n+x"}}</tool_call>'
    body = {"input": "?", "tools": [{"type": "custom", "name": "patch", "format": {"type": "text"}}]}
    with serving(ScriptedPolicy(reply)) as server:
        item = server.post("/v1/responses", body).json()["output"][0]
        assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "patch", "*** Begin\n+x")
        found = sse_events(server.post("/v1/responses", {**body, "stream": True}).text)
    told = [data for name, data in found if name == "response.custom_tool_call_input.done"]
    assert told[0]["input"] == "*** Begin\n+x"


def test_a_reply_cut_by_its_limit_is_incomplete(server: RunningServer) -> None:
    body = {"input": "hi", "max_output_tokens": 5}
    plain = server.post("/v1/responses", body).json()
    assert (plain["status"], plain["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    found = sse_events(server.post("/v1/responses", {**body, "stream": True}).text)
    assert found[-1][0] == "response.incomplete"


def test_a_response_can_be_gone_on_from_by_its_id(server: RunningServer) -> None:
    first = sdk(server).responses.create(model="toy", input="one", instructions="old")
    sdk(server).responses.create(model="toy", input="two", instructions="new", previous_response_id=first.id)
    assert [(m.role, m.content) for m in server.policy.requests[1][0].messages] == [
        ("system", "new"),
        ("user", "one"),
        ("assistant", "Hello there."),
        ("user", "two"),
    ]
    gone = server.post("/v1/responses", {"input": "x", "previous_response_id": "resp_nothere"})
    assert gone.status_code == 404


def test_a_broken_call_in_a_stream_is_never_done_and_its_text_follows() -> None:
    broken = '<tool_call>{"name": "look", "arguments": {"at": 1, x}}</tool_call>'
    with serving(ScriptedPolicy(broken)) as server:
        found = sse_events(server.post("/v1/responses", {"input": "?", "tools": TOOLS, "stream": True}).text)
    done = [data["item"] for name, data in found if name == "response.output_item.done"]
    assert [item["type"] for item in done] == ["message"]
    assert done[0]["content"][0]["text"] == broken
    assert found[-1][1]["response"]["output"] == done
