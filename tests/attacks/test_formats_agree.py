"""One conversation in four wire formats: the same prompt and sampling reach the model, the same reply comes back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_serve_fuzz import arguments, as_chat, as_messages, as_ollama, as_responses, names, prompts, words

from openclaw_rl.serve.wire.chat import ChatWire
from openclaw_rl.serve.wire.messages import MessagesWire
from openclaw_rl.serve.wire.ollama import chat_wire
from openclaw_rl.serve.wire.responses import ResponsesWire
from openclaw_rl.testing import RunningServer, ScriptedPolicy, chat_chunks, request_limits, serving, sse_events
from openclaw_rl.types import Prompt, Sampling

pytestmark = pytest.mark.slow

CHAT, RESPONSES, MESSAGES, OLLAMA = "/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"
WRITES = {CHAT: as_chat, RESPONSES: as_responses, MESSAGES: as_messages, OLLAMA: as_ollama}
DEFAULTS = Sampling(temperature=0.7, top_p=0.9, max_tokens=99)
WIRES = {
    CHAT: ChatWire(DEFAULTS),
    RESPONSES: ResponsesWire(DEFAULTS),
    MESSAGES: MessagesWire(DEFAULTS),
    OLLAMA: chat_wire(DEFAULTS),
}

# --- what reaches the model

common = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.floats(0, 2) | st.integers(0, 2),
        "top_p": st.floats(0.01, 1),
        "stream": st.booleans(),
        "model": st.sampled_from(["toy", "toy-side", "toy@3"]),
        "chat_template_kwargs": st.sampled_from([{}, {"enable_thinking": False}, {"enable_thinking": None}]),
        "user": words,
        "metadata": st.fixed_dictionaries({"session_id": st.from_regex(r"[a-z/.:]{1,20}", fullmatch=True)}),
        "session_id": st.from_regex(r"[a-z/.:]{1,20}", fullmatch=True),
    },
)
"""fields that are called the same in all formats"""
LENGTHS = {CHAT: "max_completion_tokens", RESPONSES: "max_output_tokens", MESSAGES: "max_tokens", OLLAMA: "num_predict"}
OPTIONS = ("temperature", "top_p", LENGTHS[OLLAMA])
"""what Ollama's API has in a table of its own"""
CHOICES: Mapping[str, Mapping[str, Any]] = {
    "auto": {CHAT: "auto", RESPONSES: "auto", MESSAGES: {"type": "auto"}},
    "none": {CHAT: "none", RESPONSES: "none", MESSAGES: {"type": "none"}},
    "required": {CHAT: "required", RESPONSES: "required", MESSAGES: {"type": "any"}},
}


def named(path: str, tool: str) -> Any:
    return {
        CHAT: {"type": "function", "function": {"name": tool}},
        RESPONSES: {"type": "function", "name": tool},
        MESSAGES: {"type": "tool", "name": tool},
    }[path]


def formed(path: str, schema: Any) -> dict[str, Any]:
    """A reply that must follow a schema, as each format asks for it."""
    if path == CHAT:
        return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
    if path == OLLAMA:
        return {"format": schema}
    form = {"type": "json_schema", "schema": schema}
    return {"text": {"format": {"name": "x", **form}}} if path == RESPONSES else {"output_config": {"format": form}}


@st.composite
def requests(draw: st.DrawFn) -> dict[str, dict[str, Any]]:
    """One request, by path, as each format writes it; without Ollama's where it has no word for the choice of a tool."""
    prompt: Prompt = draw(prompts())
    shared, length = draw(common), draw(st.none() | st.integers(1, 100_000))
    choice = draw(st.none() | st.sampled_from([*CHOICES, *(tool.name for tool in prompt.tools)]))
    schema = draw(st.none() | st.just({"type": "object", "properties": {"a": {"type": "string"}}}))
    bodies = {}
    forced = bool(prompt.tools) and choice not in (None, "auto")
    for path, writes in WRITES.items():
        if path == OLLAMA and forced:
            continue
        body = {"stream": False, **writes(prompt), **shared}
        if length is not None:
            body[LENGTHS[path]] = length
        if choice is not None and prompt.tools and path != OLLAMA:
            body["tool_choice"] = CHOICES[choice][path] if choice in CHOICES else named(path, choice)
        if schema is not None:
            body |= formed(path, schema)
        bodies[path] = in_options(body) if path == OLLAMA else body
    return bodies


def in_options(body: Mapping[str, Any]) -> dict[str, Any]:
    options = {name: body[name] for name in OPTIONS if name in body}
    return {**{name: value for name, value in body.items() if name not in OPTIONS}, "options": options}


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(bodies=requests())
def test_one_request_in_any_format_is_the_same_prompt_sampling_and_session(bodies: dict[str, Any]) -> None:
    first, *others = [WIRES[path].parse(body, request_limits()) for path, body in bodies.items()]
    for other in others:
        assert other.prompt == first.prompt
        assert other.sampling == first.sampling
        assert (other.model, other.stream, other.session) == (first.model, first.stream, first.session)
        assert other.guessed_session == first.guessed_session


# --- what comes back


def plain(path: str, body: Any) -> dict[str, Any]:
    """Of a whole answer what all formats tell: the text, the reasoning, the calls, the tokens, why it ended."""
    if path == CHAT:
        [choice] = body["choices"]
        said = choice["message"]
        calls = [(call["function"]["name"], call["function"]["arguments"]) for call in said.get("tool_calls", ())]
        text, thought, usage = said["content"] or "", said.get("reasoning_content") or "", body["usage"]
        counts, ended = (usage["prompt_tokens"], usage["completion_tokens"]), choice["finish_reason"] == "length"
    elif path == RESPONSES:
        items = body["output"]
        text = "".join(part["text"] for item in items if item["type"] == "message" for part in item["content"])
        thought = "".join(part["text"] for item in items if item["type"] == "reasoning" for part in item["content"])
        calls = [(item["name"], item["arguments"]) for item in items if item["type"] == "function_call"]
        counts = (body["usage"]["input_tokens"], body["usage"]["output_tokens"])
        ended = body["status"] == "incomplete"
    elif path == OLLAMA:
        said = body["message"]
        calls = [(call["function"]["name"], call["function"]["arguments"]) for call in said.get("tool_calls", ())]
        text, thought = said["content"], said.get("thinking", "")
        counts, ended = (body["prompt_eval_count"], body["eval_count"]), body["done_reason"] == "length"
    else:
        blocks = body["content"]
        text = "".join(block["text"] for block in blocks if block["type"] == "text")
        thought = "".join(block["thinking"] for block in blocks if block["type"] == "thinking")
        calls = [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]
        counts = (body["usage"]["input_tokens"], body["usage"]["output_tokens"])
        ended = body["stop_reason"] == "max_tokens"
    read = [(name, json.loads(given) if isinstance(given, str) else given) for name, given in calls]
    return {"text": text, "thought": thought, "calls": read, "tokens": counts, "cut": ended}


def streamed(path: str, text: str) -> dict[str, Any]:
    """The same of a stream, put together from its pieces alone."""
    if path == CHAT:
        return _streamed_chat(chat_chunks(text))
    if path == OLLAMA:
        return _streamed_ollama([json.loads(line) for line in text.splitlines()])
    events = sse_events(text)
    if path == RESPONSES:
        return plain(path, events[-1][1]["response"])
    blocks: list[dict[str, Any]] = []
    usage: dict[str, Any] = {}
    stop = None
    for name, data in events:
        if name == "message_start":
            usage |= data["message"]["usage"]
        elif name == "content_block_start":
            blocks.append({**data["content_block"], "json": ""})
        elif name == "content_block_delta":
            _add(blocks[data["index"]], data["delta"])
        elif name == "message_delta":
            usage |= data["usage"]
            stop = data["delta"]["stop_reason"]
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block["json"] or "{}")
    return plain(path, {"content": blocks, "usage": usage, "stop_reason": stop})


def _add(block: dict[str, Any], delta: Mapping[str, Any]) -> None:
    for kind, field in (("text", "text"), ("thinking", "thinking"), ("partial_json", "json")):
        if kind in delta:
            block[field] = block.get(field, "") + delta[kind]


def _streamed_chat(chunks: Any) -> dict[str, Any]:
    said: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    usage, finish = None, None
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            finish = choice["finish_reason"] or finish
            for field in ("content", "reasoning_content"):
                said[field] += choice["delta"].get(field) or ""
            for piece in choice["delta"].get("tool_calls", ()):
                if "id" in piece:
                    said["tool_calls"].append({"function": {"name": piece["function"]["name"], "arguments": ""}})
                said["tool_calls"][piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
    return plain(CHAT, {"choices": [{"message": said, "finish_reason": finish}], "usage": usage})


def _streamed_ollama(lines: Any) -> dict[str, Any]:
    said: dict[str, Any] = {"content": "", "thinking": "", "tool_calls": []}
    for line in lines:
        for field, value in line["message"].items():
            if field in said:
                said[field] += value
    return plain(OLLAMA, {**lines[-1], "message": said})


@st.composite
def replies(draw: st.DrawFn) -> str:
    """What a model writes: text, perhaps after a thought, perhaps with calls that are or are not well formed."""
    thought = f"<think>\n{draw(words)}\n</think>\n\n" if draw(st.booleans()) else ""
    calls = [
        f'<tool_call>\n{{"name": {json.dumps(draw(names))}, "arguments": {json.dumps(draw(arguments))}}}\n</tool_call>'
        for _ in range(draw(st.integers(0, 2)))
    ]
    broken = draw(st.sampled_from(["", "", "<tool_call>\n{broken", "</think>", "<tool_call>"]))
    return thought + draw(words | st.just("")) + "\n".join(calls) + broken or "x"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with serving(ScriptedPolicy("")) as server:
        yield server


def test_one_reply_is_the_same_in_every_format_whole_and_streamed(server: RunningServer) -> None:
    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(prompt=prompts(), reply=replies(), most=st.none() | st.integers(1, 40))
    def fuzz(prompt: Prompt, reply: str, most: int | None) -> None:
        server.policy.reply = reply
        told = {}
        for path, writes in WRITES.items():
            body = {**writes(prompt), **({} if most is None else {LENGTHS[path]: most})}
            if path == MESSAGES:
                body.setdefault("max_tokens", 4096)
            if path == OLLAMA:
                body = in_options(body)
            whole = server.post(path, {**body, "stream": False})
            assert whole.status_code == 200, whole.text
            told[f"{path} whole"] = plain(path, whole.json())
            options = {"stream_options": {"include_usage": True}} if path == CHAT else {}
            pieces = server.post(path, {**body, **options, "stream": True})
            told[f"{path} streamed"] = streamed(path, pieces.text)
        first = told[f"{CHAT} whole"]
        assert {name: each for name, each in told.items() if each != first} == {}, first

    fuzz()
