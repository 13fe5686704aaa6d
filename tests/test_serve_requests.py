"""The models of a request: one declaration for what is read, how a fault is worded, and what /openapi.json says."""

from __future__ import annotations

from typing import Any

import pytest

from openclaw_rl.errors import RequestError
from openclaw_rl.serve.feedback import FeedbackRequest
from openclaw_rl.serve.fields import parse
from openclaw_rl.serve.openapi import description
from openclaw_rl.serve.wire.chat import ChatWire
from openclaw_rl.serve.wire.messages import MessagesWire
from openclaw_rl.serve.wire.responses import ResponsesWire
from openclaw_rl.testing import request_limits
from openclaw_rl.types import Sampling

WIRES = {"chat": ChatWire(Sampling()), "responses": ResponsesWire(Sampling()), "messages": MessagesWire(Sampling())}
LIMITS = request_limits(messages=3)
USER = {"role": "user", "content": "hi"}


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": [USER], **fields}


def only(content: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content}]}


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("chat", {}, "messages: must hold at least one message"),
    ("chat", {"messages": [USER] * 4}, "messages: has 4 entries, and at most 3 are allowed"),
    ("chat", {"messages": {}}, "messages: must be a list, not an object"),
    ("chat", {"messages": ["x"]}, "messages.0: must be an object, not text"),
    ("chat", {"messages": [{}]}, "messages.0.role: is missing"),
    (
        "chat",
        {"messages": [{"role": "robot"}]},
        "messages.0.role: must be one of system, developer, user, assistant, tool, function",
    ),
    ("chat", only(7), "messages.0.content: must be a list, not a number"),
    ("chat", only([{}]), "messages.0.content.0.type: is missing"),
    (
        "chat",
        only([{"type": "smell"}]),
        "messages.0.content.0.type: no part is called 'smell'; known: text, image_url, refusal",
    ),
    ("chat", only([{"type": "text", "text": None}]), "messages.0.content.0.text: is missing"),
    ("chat", only([{"type": "text", "text": 7}]), "messages.0.content.0.text: must be text, not a number"),
    ("chat", chat(tools=[{"type": "mcp"}]), "tools.0.type: no tool type is called 'mcp'; known: function"),
    ("chat", chat(tools=[{"function": {"name": ""}}]), "tools.0.function.name: must not be empty"),
    ("chat", chat(tool_choice="maybe"), "tool_choice: must be one of auto, none, required"),
    (
        "chat",
        chat(tool_choice={"function": {"name": "f"}}),
        "tool_choice.function.name: no tool is called 'f'; known: none",
    ),
    ("chat", chat(temperature=101), "temperature: must be in 0 .. 100"),
    ("chat", chat(temperature=True), "temperature: must be a number, not true or false"),
    ("chat", chat(n=1.5), "n: must be a whole number, not a number"),
    ("chat", chat(n=9), "n: must be in 1 .. 8"),
    ("chat", chat(stream="yes"), "stream: must be true or false, not text"),
    ("chat", chat(stop=["a"] * 17), "stop: has 17 entries, and at most 16 are allowed"),
    (
        "chat",
        chat(response_format={"type": "xml"}),
        "response_format.type: must be one of text, json_object, json_schema",
    ),
    (
        "responses",
        {"input": [{"type": "smell"}]},
        "input.0.type: no item is called 'smell'; known: message, reasoning, "
        "function_call, function_call_output, custom_tool_call",
    ),
    (
        "responses",
        {"input": [{"type": "item_reference"}]},
        "input.0.type: items are not kept by reference; send the item itself",
    ),
    ("responses", {"input": [{"type": "function_call", "arguments": "{}"}]}, "input.0.call_id: is missing"),
    ("responses", {"input": "hi", "metadata": "x"}, "metadata: must be an object, not text"),
    (
        "messages",
        only([{"type": "tool_use"}]),
        "messages.0.content.0.type: no block here is called 'tool_use'; known: text, "
        "image, document, search_result, tool_result",
    ),
    ("messages", only([{"type": "tool_use", "id": "t"}], "assistant"), "messages.0.content.0.name: is missing"),
    (
        "messages",
        only([{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text"}]}]),
        "messages.0.content.0.content.0.text: is missing",
    ),
    (
        "messages",
        only([{"type": "document", "source": {"type": "pdf"}}]),
        "messages.0.content.0.source.type: only plain text documents are accepted",
    ),
    (
        "messages",
        {**only("hi"), "tool_choice": {"type": "some"}},
        "tool_choice.type: must be one of auto, any, tool, none",
    ),
]


@pytest.mark.parametrize(("wire", "body", "message"), WRONG, ids=[message for *_, message in WRONG])
def test_what_does_not_fit_is_named_by_its_path_in_words(wire: str, body: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        WIRES[wire].parse(body, LIMITS)
    assert (str(caught.value), caught.value.field) == (message, message.partition(":")[0])


def test_one_bad_entry_is_enough_so_a_long_list_costs_no_long_report() -> None:
    many = request_limits(messages=10_000)
    with pytest.raises(RequestError, match=r"^messages\.0: must be an object"):
        WIRES["chat"].parse({"messages": [7] * 10_000}, many)


@pytest.mark.parametrize(
    "fields",
    [
        {"unheard_of": {"a": [1]}},
        {"max_tokens": -1, "max_completion_tokens": 5},
        {"user": 7, "metadata": "x", "prompt_cache_key": []},
        {"messages": [{**USER, "tool_calls": "of a user"}]},
        {"messages": [{"role": "assistant", "reasoning_content": "hm", "reasoning": {"effort": "low"}}]},
        {"response_format": {"type": "text", "json_schema": 5}},
        dict.fromkeys(("tools", "tool_choice", "temperature", "stop", "stream", "n", "chat_template_kwargs")),
    ],
)
def test_what_is_not_declared_or_does_not_count_is_ignored(fields: dict[str, Any]) -> None:
    assert WIRES["chat"].parse(chat(**fields), LIMITS).prompt.messages


def test_the_first_name_of_a_turn_counts_and_other_ids_may_be_the_clients_own() -> None:
    assert parse(FeedbackRequest, {"turn": "t1", "id": 7, "response_id": []}, LIMITS).named == "t1"
    assert parse(FeedbackRequest, {"turn": None, "id": "t2"}, LIMITS).named == "t2"
    with pytest.raises(RequestError, match="turn: is missing"):
        assert parse(FeedbackRequest, {"thumb": "up"}, LIMITS).named


def test_the_description_names_what_clients_have_generated_code_from() -> None:
    schemas = description("toy")["components"]["schemas"]
    published = {"ChatRequest", "ResponsesRequest", "MessagesRequest", "FeedbackRequest", "ChatCompletion", "Response"}
    published |= {"Message", "TokenCount", "FeedbackTaken", "SessionEnded", "Models", "Model", "Health", "Error"}
    assert published | {"MessagesError"} <= set(schemas)
    assert [schemas[name]["required"] for name in ("ChatRequest", "ResponsesRequest")] == [["messages"], ["input"]]
    assert schemas["ChatRequest"]["properties"]["n"] == {"type": ["integer", "null"], "minimum": 1, "maximum": 8}
    assert schemas["ChatTextPart"]["properties"]["type"]["enum"] == ["text", "input_text", "output_text"]
