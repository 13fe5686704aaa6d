"""What comes in: broken heads, halves of characters, bodies of any size, and how each refusal is worded."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl import config
from openclaw_rl.errors import RequestError
from openclaw_rl.serve import endpoints
from openclaw_rl.serve.redact import patterns
from openclaw_rl.store import LedgerReader, ServeLedger
from openclaw_rl.testing import RunningServer, ScriptedPolicy, request_limits, serving, sse_events
from openclaw_rl.views import status as views
from openclaw_rl.web import parse_json, whole_json

pytestmark = pytest.mark.slow

ASK = {"messages": [{"role": "user", "content": "hi"}], "input": "hi"}
WIRES = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat")
TOOLS = {
    "/v1/chat/completions": [{"type": "function", "function": {"name": "f"}}],
    "/v1/responses": [{"type": "function", "name": "f"}],
    "/v1/messages": [{"name": "f", "input_schema": {}}],
    "/api/chat": [{"type": "function", "function": {"name": "f"}}],
}


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with serving() as server:
        yield server


# --- heads ---


@pytest.mark.parametrize("path", [*WIRES, "/v1/models", "/v1/nothing", "/v1/messages/nothing", "/metrics"])
@pytest.mark.parametrize("head", [{"host": "[::1"}, {"origin": "http://[::1"}, {"origin": "http://[x]]:80"}])
def test_an_address_with_half_a_bracket_is_the_callers_fault(
    server: RunningServer, path: str, head: dict[str, str]
) -> None:
    for answer in (server.post(path, ASK, **head), server.get(path, **head)):
        assert answer.status_code in (400, 404, 405), (path, head, answer.text)
        assert "error" in answer.json()
    assert server.post("/v1/chat/completions", ASK, **head).status_code == 400


def test_a_body_that_is_packed_is_refused_by_name(server: RunningServer) -> None:
    refused = server.post("/v1/messages", b"\x1f\x8b", content_encoding="gzip")
    assert (refused.status_code, refused.json()["type"]) == (415, "error")


# --- halves of characters ---

HALF = "\\ud83d"


def spoken(path: str) -> bytes:
    """A request with half a character wherever a text can be."""
    call = json.dumps(f'{{"a": "{HALF}"}}')
    messages = {
        "/v1/chat/completions": f"""[{{"role": "user", "content": "cut {HALF}", "name": "n{HALF}"}},
            {{"role": "assistant", "content": "", "tool_calls": [
                {{"id": "c{HALF}", "function": {{"name": "f", "arguments": {call}}}}}]}},
            {{"role": "tool", "tool_call_id": "c{HALF}", "content": [{{"type": "text", "text": "{HALF}"}}]}}]""",
        "/v1/responses": f"""[{{"role": "user", "content": "cut {HALF}"}},
            {{"type": "function_call", "call_id": "c{HALF}", "name": "f", "arguments": {call}}},
            {{"type": "function_call_output", "call_id": "c{HALF}", "output": "{HALF}"}}]""",
        "/v1/messages": f"""[{{"role": "user", "content": "cut {HALF}"}},
            {{"role": "assistant", "content": [
                {{"type": "tool_use", "id": "c{HALF}", "name": "f", "input": {{"a{HALF}": "{HALF}"}}}}]}},
            {{"role": "user", "content": [
                {{"type": "tool_result", "tool_use_id": "c{HALF}", "content": "{HALF}"}}]}}]""",
        "/api/chat": f"""[{{"role": "user", "content": "cut {HALF}"}},
            {{"role": "assistant", "content": "", "thinking": "{HALF}", "tool_calls": [
                {{"function": {{"name": "f", "arguments": {{"a{HALF}": "{HALF}"}}}}}}]}},
            {{"role": "tool", "tool_name": "f{HALF}", "content": "{HALF}"}}]""",
    }[path]
    more = f'"chat_template_kwargs": {{"model_identity": "{HALF}"}}, "metadata": {{"m": "{HALF}"}}, "user": "u{HALF}"'
    tools = json.dumps(TOOLS[path]).replace('"f"', f'"f{HALF}", "description": "{HALF}"')
    return f'{{"input": {messages}, "messages": {messages}, "tools": {tools}, "stop": ["{HALF}"], {more}}}'.encode()


@pytest.mark.parametrize("path", WIRES)
@pytest.mark.parametrize("stream", [False, True])
def test_half_a_character_anywhere_loses_no_turn(ledger_path: Path, path: str, stream: bool) -> None:
    body = spoken(path)[:-1] + (b', "stream": true}' if stream else b', "stream": false}')
    with ServeLedger(ledger_path, sync="full") as ledger, serving(ledger=ledger, redact=patterns) as server:
        answer = server.post(path, body)
        assert answer.status_code == 200, answer.text
        if stream:
            names = [] if path == "/api/chat" else [name for name, _ in sse_events(answer.text)]
            assert "error" not in names
            assert '{"error"' not in answer.text
        assert "openclaw_rl_turns_lost_total 0.0" in server.get("/metrics").text
    with LedgerReader(ledger_path) as reader:
        assert reader.counts()["turns"] == 1
        (name,) = reader.sessions()
        (turn,) = (reader.turn(turn) for turn in reader.session(*name))
        assert turn.prompt.messages[0].content == "cut \ufffd"
        json.dumps(views.turn(reader, turn.id), ensure_ascii=False).encode("utf-8")
        arguments = next(call.arguments for said in turn.prompt.messages for call in said.tool_calls)
        assert json.loads(arguments).popitem()[1] == "\ufffd"


def test_half_a_character_in_feedback_and_a_session_is_kept_whole(server: RunningServer) -> None:
    turn = server.chat().json()["id"]
    assert server.post("/v1/feedback", f'{{"turn": "{turn}", "comment": "no {HALF}"}}'.encode()).status_code == 200
    assert server.ledger.feedback[0].hint == "no \ufffd"
    assert server.post("/v1/sessions/%ED%A0%BD/end", {}).status_code == 404


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (r'"\ud83d\ude00"', r'"\ud83d\ude00"'),
        (r'"\ud83d"', r'"\ufffd"'),
        (r'"\ude00 \uD83D\u0041"', r'"\ufffd \ufffd\u0041"'),
        (r'"\\ud83d"', r'"\\ud83d"'),
        (r'"\\\ud83d"', r'"\\\ufffd"'),
        ("plain \ud83d", "plain \ufffd"),
    ],
)
def test_an_escape_that_is_half_a_character_is_mended_and_a_whole_one_is_not(written: str, read: str) -> None:
    assert whole_json(written) == read


# --- size ---


def crowded(most: int = 1000, **body: Any) -> Callable[[], dict[str, Any]]:
    return lambda: parse_json(json.dumps(body).encode(), depth=64, values=most)


def test_a_body_of_too_many_values_is_refused_before_it_is_read() -> None:
    for body in (
        {"messages": [{"role": "user"}] * 600},
        {"x": [1] * 2000},
        {"x": "a", **{f"k{n}": n for n in range(900)}},
    ):
        with pytest.raises(RequestError, match="more than 1000 values") as caught:
            crowded(**body)()
        assert caught.value.status == 413


def test_signs_inside_a_text_are_no_values() -> None:
    text = '{"a": [1, 2, 3], \\ "quoted", :::[[[{{{,,,} \\\\" ' * 300
    assert crowded(messages=[{"role": "user", "content": text}])()["messages"][0]["content"] == text


def test_many_parts_and_messages_are_refused_in_words(server: RunningServer) -> None:
    parts = [{"type": "text", "text": "a"}] * 70_000
    for path in WIRES:
        many = server.post(
            path, {"messages": [{"role": "user", "content": parts}], "input": [{"role": "user", "content": parts}]}
        )
        assert (many.status_code, f"more than {request_limits().values} values" in many.text) == (413, True)
    assert server.policy.requests == []


def test_a_large_body_is_parsed_on_a_thread_of_its_own(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    def parse(raw: bytes, **limits: int) -> dict[str, Any]:
        threads.append(threading.current_thread().name)
        return parse_json(raw, **limits)

    monkeypatch.setattr(endpoints, "parse_json", parse)
    assert server.chat("x" * 300_000).status_code in (200, 400)
    assert server.chat("x").status_code == 200
    assert (threads[0].startswith("bodies"), threads[1].startswith("bodies")) == (True, False)


def lines(server: RunningServer, head: str) -> bytes:
    """What the server says to a head whose body never comes."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as line:
        line.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n{head}\r\n\r\n".encode())
        return line.recv(1000)


def test_a_large_body_is_sent_away_by_its_head_when_the_line_is_full() -> None:
    policy = ScriptedPolicy("Hello")
    policy.stall_after = 2
    with serving(policy, limits=request_limits(streams_per_key=1, queue_per_key=0)) as server, server.client() as first:
        with first.stream("POST", "/v1/chat/completions", json={**ASK, "stream": True}) as running:
            got = running.iter_lines()
            assert next(got).startswith("data: ")
            assert lines(server, "Content-Length: 1000000").startswith(b"HTTP/1.1 429")
            assert lines(server, "Transfer-Encoding: chunked").startswith(b"HTTP/1.1 429")


def test_a_body_that_says_how_large_it_is_is_refused_before_it_comes(server: RunningServer) -> None:
    assert lines(server, "Content-Length: 9000000").startswith(b"HTTP/1.1 413")
    assert config.Config().serve.limits.body_mb == 8.0


def test_a_large_body_waits_unread_until_there_is_a_place() -> None:
    policy = ScriptedPolicy("Hello")
    policy.pause_after = 2
    body = json.dumps({**ASK, "messages": [{"role": "user", "content": "x" * 300_000}]}).encode()
    with serving(policy, limits=request_limits(streams_per_key=1, read_seconds=30)) as server, server.client() as first:
        with first.stream("POST", "/v1/chat/completions", json={**ASK, "stream": True}) as running:
            got = running.iter_lines()
            assert next(got).startswith("data: ")
            answers: list[int] = []
            later = threading.Thread(
                target=lambda: answers.append(server.post("/v1/chat/completions", body).status_code)
            )
            later.start()
            while "openclaw_rl_requests_waiting 1.0" not in server.get("/metrics").text:
                pass  # until it stands in line
            policy.pause_after = None
            policy.go_on()
            list(got)
        later.join(timeout=20)
    assert (answers, len(policy.requests)) == ([400], 2), "it was read, and is longer than the model's context"


# --- words ---


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "/v1/feedback", {"turn": "nothere", "thumb": "up"}, 404, "not_found"),
        ("POST", "/v1/sessions/nobody/end", {}, 404, "not_found"),
        ("GET", "/v1/models/toy@nine", None, 404, "model_not_found"),
        ("POST", "/v1/models", {}, 405, None),
        ("GET", "/v1/chat/completions", None, 405, None),
        ("PUT", "/v1/responses", {}, 405, None),
        ("OPTIONS", "/v1/feedback", None, 405, None),
        ("GET", "/v1/nothing", None, 404, None),
    ],
)
def test_what_is_missing_is_named_for_what_it_is(
    server: RunningServer, method: str, path: str, body: Any, status: int, code: str | None
) -> None:
    with server.client() as client:
        answer = client.request(method, path, json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_a_stroke_too_many_still_lists_the_models(server: RunningServer) -> None:
    assert server.get("/v1/models/").json() == server.get("/v1/models").json()


def test_the_list_of_models_answers_each_api_in_its_own_shape(server: RunningServer) -> None:
    ours = server.get("/v1/models/toy@nine")
    theirs = server.get("/v1/models/toy@nine", anthropic_version="2023-06-01")
    assert set(ours.json()) == {"error"}
    assert theirs.json() == {
        "type": "error",
        "error": {"type": "not_found_error", "message": ours.json()["error"]["message"]},
    }


@pytest.mark.parametrize("name", ["auth", "bearer", "authToken", "x-api-key", "Authorization", "apiKey", "pwd", "keys"])
def test_an_option_whose_name_says_that_it_is_secret_is_never_shown(name: str) -> None:
    sets = [f'policy.options.headers={{ "{name}" = "hunter2", "size" = 3 }}', f"judge.options.{name}=hunter2"]
    resolved = config.load(environ={}, sets=[*sets, "env.options.url=http://bob:hunter2@host/"])
    shown = repr(config.render(resolved)) + json.dumps(config.as_json(resolved)) + repr(resolved.config)
    assert "hunter2" not in shown
    assert re.search(r'"size"?\\?"? ?[=:] 3|size', shown)


def test_an_option_that_only_sounds_like_one_is_shown() -> None:
    resolved = config.load(environ={}, sets=["policy.options.max_tokens=12345", "policy.options.author=bob"])
    assert {"12345", '"bob"'} <= {row.value for rows in config.render(resolved).values() for row in rows}
