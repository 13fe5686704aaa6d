"""The HTTP client of the public API: what goes over the wire, what comes back, and what each refusal becomes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from openclaw_rl.clients.api import ApiClient, to_wire
from openclaw_rl.errors import BackendDown, BackendError, NotAllowed, RequestError, TooMany
from openclaw_rl.ports import TurnReply
from openclaw_rl.types import Message, Prompt, Tool, ToolCall

pytestmark = pytest.mark.anyio

Answer = Callable[[httpx2.Request], httpx2.Response]


def api(answer: Answer) -> ApiClient:
    return ApiClient("http://server/v1/", key="k", model="m", transport=httpx2.MockTransport(answer))


def completion(request: httpx2.Request) -> httpx2.Response:
    function = {"name": "ls", "arguments": "{}"}
    message = {
        "role": "assistant",
        "content": None,
        "reasoning_content": "hm",
        "tool_calls": [{"id": "c", "type": "function", "function": function}],
    }
    return httpx2.Response(
        200, json={"id": "turn9", "choices": [{"message": message}]}, headers={"x-openclaw-rl-version": "4"}
    )


async def test_what_is_known_goes_over_the_wire() -> None:
    seen: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return completion(request)

    prompt = Prompt(messages=(Message(role="user", content="look", images=("data:x",)),), tools=(Tool(name="ls"),))
    reply = await api(answer).ask(prompt, session="s 1", group="g", done=True)
    assert reply == TurnReply(
        turn="turn9",
        message=Message(role="assistant", reasoning="hm", tool_calls=(ToolCall(id="c", name="ls", arguments="{}"),)),
        version=4,
    )
    names = ("x-session-id", "x-turn-type", "x-session-done", "x-openclaw-rl-group")
    assert [seen[0].headers[name] for name in names] == ["s 1", "main", "true", "g"]
    body = json.loads(seen[0].content)
    assert (seen[0].url.path, body["model"], seen[0].headers["authorization"]) == (
        "/v1/chat/completions",
        "m",
        "Bearer k",
    )
    assert body["messages"][0]["content"][0] == {"type": "image_url", "image_url": {"url": "data:x"}}
    assert body["tools"][0]["function"]["name"] == "ls"


async def test_a_session_that_goes_on_says_so_by_silence() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        assert "x-session-done" not in request.headers
        assert "x-openclaw-rl-group" not in request.headers
        return completion(request)

    await api(answer).ask(Prompt(messages=(Message(role="user", content="hi"),)), session="s")


async def test_rewards_and_endings_have_their_endpoints() -> None:
    seen: list[tuple[str, Any]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append((request.url.raw_path.decode(), json.loads(request.content)))
        return httpx2.Response(200, json={})

    await api(answer).feedback("t1", score=0.0)
    await api(answer).feedback("t1", hint="look first")
    await api(answer).end("a/b c")
    assert seen == [
        ("/v1/feedback", {"turn": "t1", "source": "environment", "score": 0.0}),
        ("/v1/feedback", {"turn": "t1", "source": "environment", "hint": "look first"}),
        ("/v1/sessions/a%2Fb%20c/end", {}),
    ]


@pytest.mark.parametrize(
    ("status", "kind", "retry_after"),
    [
        (503, BackendDown, 2.0),
        (500, BackendDown, 2.0),
        (429, TooMany, 2.0),
        (401, NotAllowed, None),
        (400, RequestError, None),
    ],
)
async def test_a_refusal_says_what_where_and_when_to_come_back(
    status: int, kind: Any, retry_after: float | None
) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, json={"error": {"message": "no room"}}, headers={"retry-after": "2"})

    with pytest.raises(kind, match=rf"no room \(POST /v1/feedback: status {status}\)") as caught:
        await api(answer).feedback("t", score=1.0)
    assert getattr(caught.value, "retry_after", None) == retry_after


async def test_a_server_out_of_reach_and_a_foreign_server_are_told_apart() -> None:
    def gone(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused", request=request)

    prompt = Prompt(messages=(Message(role="user", content="hi"),))
    with pytest.raises(BackendDown, match="no server answers at http://server/v1; start one with 'openclaw-rl up'"):
        await api(gone).ask(prompt, session="s")
    with pytest.raises(BackendError, match="is no chat completion"):
        await api(lambda _: httpx2.Response(200, json={"choices": []})).ask(prompt, session="s")
    engine = {"id": "x", "choices": [{"message": {"role": "assistant", "content": "hi"}}]}
    with pytest.raises(BackendError, match="not the engine behind it"):
        await api(lambda _: httpx2.Response(200, json=engine)).ask(prompt, session="s")
    reply = await api(lambda _: httpx2.Response(200, json=engine)).complete(prompt)
    assert (reply.text, reply.version) == ("hi", None), "any compatible server answers what needs no version"


async def test_a_stream_names_its_turn_first_and_reports_where_it_breaks_off() -> None:
    def chunk(**fields: Any) -> bytes:
        return f"data: {json.dumps(fields)}\n\n".encode()

    def words(*texts: str) -> bytes:
        return b"".join(chunk(choices=[{"delta": {"content": text}}]) for text in texts)

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        end = chunk(error={"message": "the engine died"}) if b"break" in request.content else b"data: [DONE]\n\n"
        headers = {"x-openclaw-rl-version": "4", "x-openclaw-rl-turn": "t1"}
        return httpx2.Response(200, content=b": comment\n\n" + words("Hel", "lo") + end, headers=headers)

    seen: list[httpx2.Request] = []
    async with api(answer).stream(Prompt(messages=(Message(role="user", content="hi"),)), session="s") as reply:
        assert (reply.turn, reply.version) == ("t1", 4)
        assert [text async for text in reply.deltas] == ["Hel", "lo"]
    assert (json.loads(seen[0].content)["stream"], seen[0].headers["x-session-id"]) == (True, "s")
    said: list[str] = []

    async def breaks() -> None:
        async with api(answer).stream(Prompt(messages=(Message(role="user", content="break"),))) as reply:
            async for text in reply.deltas:
                said.extend((text,))

    with pytest.raises(BackendDown, match="the reply broke off: the engine died"):
        await breaks()
    assert said == ["Hel", "lo"]


async def test_measuring_is_marked_as_nothing_to_learn_from() -> None:
    seen: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return completion(request)

    prompt = Prompt(messages=(Message(role="user", content="hi"),))
    await api(answer).complete(prompt, train=False, options={"seed": 3, "model": "m@2"})
    assert seen[0].headers["x-openclaw-rl-train"] == "off"
    assert "x-session-id" not in seen[0].headers
    body = json.loads(seen[0].content)
    assert (body["seed"], body["model"]) == (3, "m@2")


def test_a_history_with_calls_is_written_whole() -> None:
    messages = (
        Message(role="assistant", tool_calls=(ToolCall(id="c", name="ls", arguments='{"a":1}'),)),
        Message(role="tool", content="f", tool_call_id="c"),
    )
    wire = to_wire(Prompt(messages=messages, tools=(Tool(name="ls"),), tool_choice="name:ls", template={"x": 1}))
    assert wire["messages"][0]["tool_calls"][0]["function"] == {"name": "ls", "arguments": '{"a":1}'}
    assert wire["messages"][1] == {"role": "tool", "content": "f", "tool_call_id": "c"}
    assert wire["tool_choice"] == {"type": "function", "function": {"name": "ls"}}
    assert wire["chat_template_kwargs"] == {"x": 1}


async def test_a_version_that_the_head_could_not_name_is_told_by_the_first_words() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        chunk = {"system_fingerprint": "openclaw-rl-v7", "choices": [{"delta": {"content": "Tea"}}]}
        return httpx2.Response(200, text=f": still thinking\n\ndata: {json.dumps(chunk)}\n\ndata: [DONE]\n\n")

    prompt = Prompt(messages=(Message(role="user", content="What is tea?"),))
    async with api(answer) as client, client.stream(prompt) as reply:
        assert reply.version is None
        assert [text async for text in reply.deltas] == ["Tea"]
        assert reply.version == 7
