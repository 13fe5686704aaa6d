"""What becomes of a turn when things go wrong, and what is said of it afterwards."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from openclaw_rl.collect.loop import CollectLoop
from openclaw_rl.errors import LedgerError
from openclaw_rl.serve import ServeLoop, patterns
from openclaw_rl.store import CollectLedger, ServeLedger
from openclaw_rl.testing import MemoryVersions, RunningServer, ScriptedPolicy, request_limits, serving, sse_events
from openclaw_rl.types import Version
from openclaw_rl.versions import LiveVersions

ASK = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with serving() as server:
        yield server


def test_a_caller_that_hangs_up_a_stream_stops_generation_and_the_turn_is_kept_as_aborted() -> None:
    policy = ScriptedPolicy("Hello there.")
    policy.stall_after = 5
    with serving(policy) as server:
        with (
            server.client() as client,
            client.stream("POST", "/v1/chat/completions", json={**ASK, "stream": True}) as got,
        ):
            said = ""
            for line in got.iter_lines():
                if line.startswith("data: "):
                    said += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
                if said == "Hello":
                    break
        assert policy.closed.wait(10)
        server.ledger.wait_for_turns(1)
        completion = server.ledger.last.completion
    assert (completion.finish, completion.reply.content, completion.version) == ("aborted", "Hello", 3)
    assert completion.reply_tokens == tuple(map(ord, "Hello"))
    assert completion.logprobs == (-1 / 2, -1 / 3, -1 / 4, -1 / 5, -1 / 6)
    assert completion.prompt_tokens == tuple(map(ord, "userhi"))
    assert completion.flaws == ("raw_logprobs",)


def test_a_caller_that_hangs_up_while_it_waits_for_a_whole_answer_stops_generation_too() -> None:
    policy = ScriptedPolicy("Hello there.")
    policy.stall_after = 3
    with serving(policy) as server:
        host, port = server.url.removeprefix("http://").split(":")
        body = json.dumps(ASK).encode()
        with socket.create_connection((host, int(port))) as line:
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            line.sendall(head.encode() + body)
            assert policy.began.wait(10)
        server.ledger.wait_for_turns(1)
        assert policy.closed.wait(10)
    assert server.ledger.last.completion.finish == "aborted"
    assert server.ledger.last.completion.reply.content == "Hel"


def test_while_the_backend_restarts_requests_are_held_and_none_fails(server: RunningServer) -> None:
    for stream in (False, True):
        server.policy.down = 3
        assert server.chat(stream=stream).status_code == 200
    assert len(server.policy.requests) == 8
    assert "openclaw_rl_requests_held_total 2.0" in server.get("/metrics").text


def test_a_held_stream_is_kept_alive_by_comments() -> None:
    policy = ScriptedPolicy("Hello")
    policy.down = 60
    with serving(policy, limits=request_limits(keepalive_seconds=0.02, hold_seconds=20)) as server:
        text = server.chat(stream=True).text
    assert text.startswith(": keep-alive\n\n")
    assert [d["choices"][0]["delta"].get("content") for _, d in sse_events(text) if d != "[DONE]"][1:6] == list("Hello")


def test_a_request_that_comes_before_the_model_is_ready_is_read_as_the_model_wants_it() -> None:
    policy = ScriptedPolicy(
        '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>' + "x" * 99, tool_format="none"
    )
    policy.context = 0  # nothing is known of the model yet
    looks = []

    def health() -> dict[str, bool]:
        looks.append(1)
        if len(looks) < 3:
            return {"ready": False}
        policy.context, policy.tool_format = 1000, "hermes"
        return {"ready": True}

    tool = {"type": "function", "function": {"name": "look"}}
    with serving(policy, health=health) as server:
        answer = server.chat(max_tokens=70, tools=[tool]).json()
    assert answer["usage"]["completion_tokens"] == 70
    assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "look"


def test_held_beyond_the_limit_is_503_with_a_time_to_come_back() -> None:
    policy = ScriptedPolicy()
    policy.down = 10**6
    with serving(policy, limits=request_limits(hold_seconds=0.05)) as server:
        for path in ("/api/chat", "/v1/chat/completions", "/v1/responses", "/v1/messages"):
            refused = server.post(path, {**ASK, "input": "hi"})
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["type"] == "overloaded_error"
    assert server.ledger.turns == {}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"])
def test_a_backend_that_dies_in_the_middle_of_a_stream_ends_it_with_an_error_and_the_turn_is_aborted(path: str) -> None:
    policy = ScriptedPolicy("Hello there.")
    policy.break_after = 4
    with serving(policy) as server:
        text = server.post(path, {**ASK, "input": "hi", "stream": True}).text
    if path == "/api/chat":
        told = json.loads(text.splitlines()[-1])
    else:
        told = [data for _, data in sse_events(text) if data != "[DONE]"][-1]
    assert "engine died" in json.dumps(told)
    assert (server.ledger.last.completion.finish, server.ledger.last.completion.reply.content) == ("aborted", "Hell")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"])
def test_a_whole_reply_that_loses_its_backend_is_asked_for_once_more(path: str) -> None:
    policy = ScriptedPolicy("Hello there.")
    policy.break_after, policy.breaks = 4, 1
    with serving(policy) as server:
        answer = server.post(path, {**ASK, "input": "hi", "stream": False})
    assert answer.status_code == 200
    assert "Hello there." in answer.text
    aborted, whole = server.ledger.turns.values()
    assert (aborted.completion.finish, whole.completion.finish) == ("aborted", "stop")
    assert answer.headers["x-openclaw-rl-turn"] == whole.id
    body = answer.json()
    assert whole.id in (body["turn"] if path == "/api/chat" else body["id"])


def test_a_whole_reply_that_loses_its_backend_twice_is_refused() -> None:
    policy = ScriptedPolicy("Hello there.")
    policy.break_after = 4
    with serving(policy) as server:
        answer = server.chat()
    assert (answer.status_code, len(policy.requests)) == (503, 2)


def test_a_ledger_that_fails_costs_the_record_and_not_the_reply(server: RunningServer) -> None:
    server.ledger.fails = LedgerError("disk full")
    assert server.chat().status_code == 200
    assert "openclaw_rl_turns_lost_total 1.0" in server.get("/metrics").text


def test_feedback_reaches_the_turn_by_the_id_of_any_format(server: RunningServer) -> None:
    ids = [
        server.chat().json()["id"],
        server.post("/v1/responses", {"input": "hi"}).json()["id"],
        server.post("/v1/messages", ASK).json()["id"],
    ]
    turns = list(server.ledger.turns)
    assert [ids[0], ids[1].removeprefix("resp_"), ids[2].removeprefix("msg_")] == turns
    bodies = [
        {"turn": ids[0], "thumb": "up", "comment": "nice"},
        {"response_id": ids[1], "score": -0.5, "edit": "Hi."},
        {"id": ids[2], "score": 1, "source": "explicit"},
    ]
    assert [server.post("/v1/feedback", body).status_code for body in bodies] == [200, 200, 200]
    told = server.ledger.feedback
    assert [(f.turn, f.score, f.hint, f.edit, f.source) for f in told] == [
        (turns[0], 1.0, "nice", None, "explicit"),
        (turns[1], -0.5, None, "Hi.", "explicit"),
        (turns[2], 1.0, None, None, "explicit"),
    ]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"turn": "nothere", "thumb": "up"}, 404, "turn"),
        ({"turn": "../x", "thumb": "up"}, 404, "turn"),
        ({"thumb": "up"}, 400, "turn"),
        ({"thumb": "sideways"}, 400, "thumb"),
        ({}, 400, "score"),
        ({"score": 2}, 400, "score"),
        ({"thumb": "up", "score": 1}, 400, "thumb"),
    ],
)
def test_feedback_that_says_nothing_sensible_is_refused(
    server: RunningServer, body: dict[str, object], status: int, param: str
) -> None:
    known = {"turn": server.chat().json()["id"]} if status == 400 and param != "turn" else {}
    refused = server.post("/v1/feedback", {**known, **body})
    assert (refused.status_code, refused.json()["error"]["param"]) == (status, param)
    assert server.ledger.feedback == []


def test_a_turn_of_somebody_else_cannot_be_judged() -> None:
    with serving(keys={"a": "u1", "b": "u2"}) as server:
        turn = server.chat(headers={"x-api-key": "a"}).json()["id"]
        assert server.post("/v1/feedback", {"turn": turn, "thumb": "down"}, x_api_key="b").status_code == 404
        assert server.post("/v1/feedback", {"turn": turn, "thumb": "down"}, x_api_key="a").status_code == 200


def test_the_patterns_find_what_should_not_be_kept_and_leave_the_rest() -> None:
    text = (
        "Write to u1.b+c@mail.example.org or +41 44 123 45 67, (415) 555-0123, 415-555-0123; "
        "card 4111 1111 1111 1111, not 4111 1111 1111 1112; key sk-abcdefghijklmnop1234; "
        "version 1.2.3, 2026-11-15, port 30000, 192.168.1.100"
    )
    assert patterns(text) == (
        "Write to [e-mail] or [phone], [phone], [phone]; "
        "card [card], not 4111 1111 1111 1112; key [key]; "
        "version 1.2.3, 2026-11-15, port 30000, 192.168.1.100"
    )


@pytest.mark.parametrize(
    "text",
    [
        "Co-Authored-By: Claude Code <noreply@anthropic.com>",
        "no-reply@x.example, donotreply@x.example, do-not-reply@x.example",
        '{"turn_started_at_unix_ms":1794722798054}',
    ],
)
def test_what_agents_write_into_every_prompt_is_no_reason_to_keep_a_turn_from_training(text: str) -> None:
    assert patterns(text) == text
    assert patterns("reply@x.example") == "[e-mail]"
    assert patterns("x-noreply@x.example") == "[e-mail]"


async def test_a_turn_without_tokens_says_in_its_drop_that_it_was_redacted(ledger_path: Path) -> None:
    with ServeLedger(ledger_path, sync="full") as ledger, serving(ledger=ledger, redact=patterns) as server:
        turn = server.chat("I am u1@x.example").json()["id"]
    with CollectLedger(ledger_path) as ledger:
        await CollectLoop(ledger, session_idle=60.0, env_idle=60.0).tick()
        dropped = ledger.dropped(turn)
    assert dropped is not None
    assert dropped.reason == "redacted"


def test_a_redacted_turn_is_kept_without_its_tokens_and_never_trained() -> None:
    with serving(ScriptedPolicy("Mail u2@x.example."), redact=patterns) as server:
        named = {"x-session-id": "u1@x.example", "x-openclaw-rl-group": "u1@x.example"}
        reply = server.chat("I am u1@x.example", headers=named).json()
        assert reply["choices"][0]["message"]["content"] == "Mail u2@x.example."
        server.post("/v1/feedback", {"turn": reply["id"], "comment": "ask u1@x.example"})
        turn = server.ledger.last
        server.policy.reply = "Fine."
        server.chat("nothing to hide")
    assert turn.prompt.messages[0].content == "I am [e-mail]"
    assert turn.completion.reply.content == "Mail [e-mail]."
    assert (turn.completion.prompt_tokens, turn.completion.reply_tokens, turn.completion.logprobs) == ((0,), (), ())
    assert (turn.trainable, turn.completion.flaws) == (False, ("redacted",))
    assert turn.session is not None
    assert turn.session.startswith("redacted-")
    assert turn.group == turn.session
    assert server.ledger.feedback[0].hint == "ask [e-mail]"
    assert server.ledger.last.trainable is True
    assert len(server.ledger.last.completion.reply_tokens) == 6


def test_arguments_of_a_call_are_redacted_and_stay_json() -> None:
    reply = '<tool_call>{"name": "f", "arguments": {"to": "a@b.example", "card": 4111111111111111}}</tool_call>'
    tools = [{"type": "function", "function": {"name": "f"}}]
    with serving(ScriptedPolicy(reply), redact=patterns) as server:
        server.chat(tools=tools)
    call = server.ledger.last.completion.reply.tool_calls[0]
    assert json.loads(call.arguments) == {"to": "[e-mail]", "card": "[card]"}


@pytest.mark.anyio
async def test_the_loop_takes_up_a_new_version_once() -> None:
    policy, versions = ScriptedPolicy(), MemoryVersions()
    loop = ServeLoop(policy, LiveVersions(versions))
    assert await loop.tick() == 0
    versions.add(Version(number=4, parent=3, base="scripted", adapter="/a4", state="live"))
    assert [await loop.tick(), await loop.tick()] == [1, 0]
    assert (policy.loaded, policy.live, loop.name) == ([4], 4, "serve")


def test_a_request_in_flight_ends_on_its_version_and_the_next_takes_the_new_one() -> None:
    policy = ScriptedPolicy("Hello there.")
    policy.pause_after = 5
    opened = ("POST", "/v1/chat/completions")
    with (
        serving(policy) as server,
        server.client() as client,
        client.stream(*opened, json={**ASK, "stream": True}) as first,
    ):
        lines = first.iter_lines()
        assert next(lines).startswith("data: ")
        policy.pause_after, policy._live = None, 4
        second = server.chat(stream=True)
        policy.go_on()
        rest = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert (first.headers["x-openclaw-rl-version"], second.headers["x-openclaw-rl-version"]) == ("3", "4")
    assert {chunk["system_fingerprint"] for chunk in rest} == {"openclaw-rl-v3"}
    assert sorted(turn.completion.version for turn in server.ledger.turns.values()) == [3, 4]
    assert {turn.completion.reply.content for turn in server.ledger.turns.values()} == {"Hello there."}


def test_versions_may_change_under_load_and_every_reply_names_exactly_one() -> None:
    with serving(ScriptedPolicy("Hello there.")) as server, ThreadPoolExecutor(4) as pool:

        def ask(number: int) -> tuple[str, set[str], str]:
            if number % 10 == 0:
                server.policy._live += 1
            with server.client() as client:
                got = client.post("/v1/chat/completions", json={**ASK, "stream": True})
            chunks = [data for _, data in sse_events(got.text) if data != "[DONE]"]
            text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
            return got.headers["x-openclaw-rl-version"], {chunk["system_fingerprint"] for chunk in chunks}, text

        found = list(pool.map(ask, range(100)))
    assert all(prints == {f"openclaw-rl-v{version}"} and text == "Hello there." for version, prints, text in found)
    kept = sorted(turn.completion.version for turn in server.ledger.turns.values())
    assert kept == sorted(int(version) for version, _, _ in found)
    assert len(set(kept)) == 10


def test_a_caller_that_accepts_nothing_is_let_go() -> None:
    policy = ScriptedPolicy("x" * 40_000)
    with serving(policy, limits=request_limits(send_seconds=0.1, keepalive_seconds=0.1)) as server:
        host, port = server.url.removeprefix("http://").split(":")
        body = json.dumps({**ASK, "stream": True}).encode()
        with socket.socket() as line:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            line.connect((host, int(port)))
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            line.sendall(head.encode() + body)
            server.ledger.wait_for_turns(1)
    assert server.ledger.last.completion.finish == "aborted"
    assert len(server.ledger.last.completion.reply_tokens) < 40_000


def test_a_redactor_that_fails_keeps_nothing_and_the_reply_still_comes() -> None:
    def broken(text: str) -> str:
        raise RuntimeError(text)

    with serving(redact=broken) as server:
        assert server.chat().status_code == 200
        assert "openclaw_rl_turns_lost_total 1.0" in server.get("/metrics").text
    assert server.ledger.turns == {}


def test_the_real_ledger_keeps_what_is_served(ledger_path: Path) -> None:
    with ServeLedger(ledger_path, sync="full") as ledger, serving(ledger=ledger) as server:
        told = server.chat(headers={"x-session-id": "s"}).json()
        server.post("/v1/feedback", {"turn": told["id"], "thumb": "down", "comment": "shorter, please"})
        server.post("/v1/sessions/s/end", {})
        assert ledger.turn(told["id"]).completion.reply.content == "Hello there."
        assert (ledger.has_session("s", "local"), ledger.feedback(told["id"])[0].score) == (True, -1.0)
        gone_on = server.post("/v1/responses", {"input": "more", "previous_response_id": f"resp_{told['id']}"})
        assert gone_on.status_code == 200
        assert server.post("/v1/feedback", {"turn": "0" * 26, "thumb": "up"}).status_code == 404


def test_a_private_key_is_found_whole() -> None:
    text = "a -----BEGIN RSA PRIVATE KEY-----\nMIIE\nxyz=\n-----END RSA PRIVATE KEY----- b"
    assert patterns(text) == "a [key] b"
