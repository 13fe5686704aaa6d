"""Who comes in, what is refused, and how it is said."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from openclaw_rl.errors import LedgerError
from openclaw_rl.store import LedgerReader, ServeLedger
from openclaw_rl.testing import RunningServer, ScriptedPolicy, request_limits, serving
from openclaw_rl.types import Prompt

ASK = {"messages": [{"role": "user", "content": "hi"}]}
KEYS = {"key-of-u1": "u1", "key-of-u2": "u2"}
U1 = {"authorization": "Bearer key-of-u1"}
U2 = {"x-api-key": "key-of-u2"}


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with serving() as server:
        yield server


@pytest.fixture
def locked() -> Iterator[RunningServer]:
    with serving(keys=KEYS) as server:
        yield server


def test_a_key_is_needed_and_its_user_is_written_into_the_turn(locked: RunningServer) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic key-of-u1"}, {"x-api-key": "ké"}):
        refused = locked.chat(headers={name: value.encode("latin-1") for name, value in headers.items()})  # type: ignore[misc]
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == "Bearer"
        assert refused.json()["error"]["type"] == "authentication_error"
    assert locked.chat(headers=U1).status_code == 200
    assert locked.chat(headers=U2).status_code == 200
    assert [turn.user for turn in locked.ledger.turns.values()] == ["u1", "u2"]
    assert locked.post("/v1/messages", ASK).json()["error"]["type"] == "authentication_error"


def test_only_health_and_the_description_are_open_without_a_key(locked: RunningServer) -> None:
    found = {
        path: locked.get(path).status_code
        for path in ("/healthz", "/readyz", "/openapi.json", "/metrics", "/v1/models")
    }
    assert found == {"/healthz": 200, "/readyz": 200, "/openapi.json": 200, "/metrics": 401, "/v1/models": 401}


def test_a_session_is_ended_by_the_key_that_opened_it(locked: RunningServer) -> None:
    assert locked.chat(headers={**U1, "x-session-id": "s1"}).status_code == 200
    assert locked.post("/v1/sessions/s1/end", {}, **U2).status_code == 404
    assert locked.post("/v1/sessions/s1/end", {}, **U1).json() == {"object": "session.ended", "session": "s1"}
    assert locked.post("/v1/sessions/s9/end", {}, **U1).status_code == 404
    assert locked.ledger.endings == [("s1", "u1")]


@pytest.mark.parametrize(
    ("headers", "body", "session"),
    [
        ({"x-session-id": "a", "session_id": "b"}, {"session_id": "c"}, "a"),
        ({"session_id": "b:1", "x-session-affinity": "b:1"}, {}, "b:1"),
        ({"session-id": "s", "thread-id": "t"}, {"prompt_cache_key": "k"}, "t"),
        ({}, {"session_id": "c", "metadata": {"session_id": "d"}}, "c"),
        ({}, {"metadata": {"session_id": "d"}, "prompt_cache_key": "k"}, "d"),
        ({}, {"prompt_cache_key": "k", "user": "u"}, "k"),
        ({}, {"user": "u"}, "u"),
        ({}, {"user": 7, "metadata": "x"}, None),
        ({}, {}, None),
    ],
)
def test_a_session_is_found_where_clients_put_it(
    server: RunningServer, headers: dict[str, str], body: dict[str, object], session: str | None
) -> None:
    assert server.chat(headers=headers, **body).status_code == 200
    assert server.ledger.last.session == session


def test_headers_say_main_or_side_done_and_the_group(server: RunningServer) -> None:
    server.chat(headers={"x-turn-type": "Side", "x-session-done": "true", "x-openclaw-rl-group": "g1"})
    turn = server.ledger.last
    assert (turn.declared, turn.done, turn.group, turn.trainable) == ("side", True, "g1", True)
    for name, value in (("x-turn-type", "middle"), ("x-session-done", "perhaps"), ("x-openclaw-rl-train", "maybe")):
        refused = server.chat(headers={name: value})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)


def test_a_caller_can_keep_a_turn_a_session_and_a_key_out_of_training() -> None:
    with serving(keys=KEYS, optout_users=["u2"]) as server:
        server.chat(headers={**U1, "x-openclaw-rl-train": "off"})
        server.chat(headers=U2)
        server.chat(headers={**U1, "x-session-id": "s", "x-openclaw-rl-train": "off-session"})
        server.chat(headers={**U1, "x-session-id": "s"})
        server.chat(headers={**U1, "x-session-id": "t"})
    assert [turn.trainable for turn in server.ledger.turns.values()] == [False, False, False, False, True]


@pytest.mark.parametrize("stored", [True, False])
def test_a_session_that_was_taken_out_of_training_stays_out_after_a_restart(ledger_path: Path, stored: bool) -> None:
    for headers in ({"x-openclaw-rl-train": "off-session"}, {}):
        with (
            ServeLedger(ledger_path, sync="full") as ledger,
            serving(ledger=ledger, keys=KEYS, store_optouts=stored) as w,
        ):
            assert w.chat(headers={**U1, "x-session-id": "s", **headers}).status_code == 200
            assert w.chat(headers={**U2, "x-session-id": "s"}).status_code == 200
    with LedgerReader(ledger_path) as ledger:
        kept = [(turn.user, turn.trainable) for _, turn in ledger.turns_after(0, 9)]
        assert kept == ([("u1", False), ("u2", True)] * 2 if stored else [("u2", True)] * 2)


def test_an_opt_out_that_cannot_be_written_holds_until_the_end_of_the_process(server: RunningServer) -> None:
    server.ledger.fails = LedgerError("no room")
    assert server.chat(headers={"x-session-id": "s", "x-openclaw-rl-train": "off-session"}).status_code == 200
    server.ledger.fails = None
    server.chat(headers={"x-session-id": "s"})
    assert [turn.trainable for turn in server.ledger.turns.values()] == [False]


def test_a_session_cannot_be_taken_out_without_a_name(server: RunningServer) -> None:
    refused = server.chat(headers={"x-openclaw-rl-train": "off-session"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "x-openclaw-rl-train")


def test_turns_kept_out_of_training_are_not_stored_where_the_setting_says_so() -> None:
    with serving(store_optouts=False) as server:
        assert server.chat(headers={"x-openclaw-rl-train": "off"}).status_code == 200
        server.chat()
    assert [turn.trainable for turn in server.ledger.turns.values()] == [True]


def test_without_keys_a_foreign_web_page_gets_nothing(server: RunningServer) -> None:
    assert server.chat(headers={"origin": "https://evil.example"}).status_code == 403
    assert server.chat(headers={"host": "evil.example"}).status_code == 403
    assert server.chat(headers={"origin": server.url}).status_code == 200
    assert "access-control-allow-origin" not in server.chat(headers={"origin": server.url}).headers


def test_cors_is_answered_only_for_the_origins_that_were_named() -> None:
    with serving(cors_origins=["https://mine.example"]) as server:
        mine = server.chat(headers={"origin": "https://mine.example"})
        assert (mine.status_code, mine.headers["access-control-allow-origin"]) == (200, "https://mine.example")
        assert server.chat(headers={"origin": "https://evil.example"}).status_code == 403


BAD: dict[str, tuple[bytes, str | None]] = {
    "no JSON": (b"{", None),
    "nothing": (b"", None),
    "a list": (b"[]", None),
    "not UTF-8": (b'{"messages": "\xff"}', None),
    "deep": (b'{"messages": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", None),
    "rather deep": (b'{"x": ' + b"[" * 70 + b"]" * 70 + b"}", None),
    "not a number": (b'{"temperature": NaN}', None),
    "a huge float": (b'{"temperature": 1e999}', None),
    "a huge integer": (b'{"seed": ' + b"9" * 5000 + b"}", None),
    "no messages": (b"{}", "messages"),
    "empty messages": (b'{"messages": []}', "messages"),
    "a message that is none": (b'{"messages": ["x"]}', "messages[0]"),
    "unknown role": (b'{"messages": [{"role": "robot"}]}', "messages[0].role"),
    "content of a wrong type": (b'{"messages": [{"role": "user", "content": 7}]}', "messages[0].content"),
    "unknown part": (
        b'{"messages": [{"role": "user", "content": [{"type": "smell"}]}]}',
        "messages[0].content[0].type",
    ),
    "an image to fetch": (
        b'{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]}',
        "messages[0].content[0].image_url.url",
    ),
    "a temperature that is text": (b'{"messages": [{"role": "user"}], "temperature": "hot"}', "temperature"),
    "a truth for a number": (b'{"messages": [{"role": "user"}], "max_tokens": true}', "max_tokens"),
    "no tokens at all": (b'{"messages": [{"role": "user"}], "max_completion_tokens": 0}', "max_completion_tokens"),
    "a large seed": (b'{"messages": [{"role": "user"}], "seed": 9223372036854775808}', "seed"),
    "no such tool": (
        b'{"messages": [{"role": "user"}], "tool_choice": {"type": "function", "function": {"name": "x"}}}',
        "tool_choice.function.name",
    ),
    "nine choices": (b'{"messages": [{"role": "user"}], "n": 9}', "n"),
    "top_p of nothing": (b'{"messages": [{"role": "user"}], "top_p": 0}', "top_p"),
    "stop that is empty": (b'{"messages": [{"role": "user"}], "stop": [""]}', "stop[0]"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_read_is_400_with_the_path_of_the_field(server: RunningServer, name: str) -> None:
    body, param = BAD[name]
    response = server.post("/v1/chat/completions", body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert "Traceback" not in response.text
    assert server.policy.requests == []


def test_the_same_faults_are_400_in_the_other_formats(server: RunningServer) -> None:
    for body in (body for body, param in BAD.values() if param is None):
        for path in ("/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/v1/feedback"):
            assert server.post(path, body).status_code == 400, (path, body[:80])


def test_unknown_paths_and_methods_are_answered_in_shape(server: RunningServer) -> None:
    assert server.post("/v1/nothing", {}).json()["error"]["type"] == "invalid_request_error"
    assert server.get("/v1/chat/completions").status_code == 405
    assert server.get("/v1/messages").json()["type"] == "error"


def test_large_bodies_headers_and_histories_are_refused() -> None:
    with serving(limits=request_limits(body_bytes=1000, header_bytes=2000, messages=3)) as server:
        assert server.chat("x" * 2000).status_code == 413
        with server.client() as client:
            streamed = client.post("/v1/chat/completions", content=(b"x" * 500 for _ in range(4)))
        assert streamed.status_code == 413
        assert server.chat(headers={"x-long": "y" * 3000}).status_code == 431
        many = server.post("/v1/chat/completions", {"messages": ASK["messages"] * 4})
        assert (many.status_code, many.json()["error"]["param"]) == (400, "messages")


def test_a_client_that_sends_too_slowly_is_told_so() -> None:
    with serving(limits=request_limits(read_seconds=0.05)) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as line:
            line.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
            assert line.recv(1000).startswith(b"HTTP/1.1 408")


def test_beyond_its_streams_and_its_queue_a_key_is_asked_to_come_back() -> None:
    policy = ScriptedPolicy("Hello")
    policy.stall_after = 2
    limits = request_limits(streams_per_key=1, queue_per_key=1)
    with (
        serving(policy, keys=KEYS, limits=limits) as server,
        ThreadPoolExecutor(2) as pool,
        server.client(**U1) as first,
    ):
        with first.stream("POST", "/v1/chat/completions", json={**ASK, "stream": True}) as running:
            lines = running.iter_lines()
            assert next(lines).startswith("data: ")
            waiting = pool.submit(server.chat, headers=U1)
            while "openclaw_rl_requests_waiting 1.0" not in server.get("/metrics", **U1).text:
                pass  # until the second stands in line
            refused = server.chat(headers=U1)
            assert refused.status_code == 429
            assert refused.headers["retry-after"] == "1"
            assert refused.json()["error"]["type"] == "rate_limit_error"
            policy.stall_after = None
            assert server.chat(headers=U2).status_code == 200
        assert waiting.result(timeout=10).status_code == 200


def test_nothing_of_a_conversation_is_logged_above_debug(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    def explode(prompt: Prompt) -> str:
        raise RuntimeError(prompt.messages[0].content)

    with caplog.at_level(logging.INFO):
        server.chat("secret words")
        server.post("/v1/chat/completions", {"messages": [{"role": "secret words"}]})
        server.policy.reply = explode
        failed = server.chat("secret words")
    assert failed.status_code == 500
    assert "secret" not in failed.text
    assert "secret" not in caplog.text
    assert "RuntimeError" in caplog.text
    assert "turn id=" in caplog.text


def test_readiness_follows_what_the_process_says_of_itself() -> None:
    told = {"ready": True, "train": "ok"}
    with serving(health=lambda: told) as server:
        about = {"model": "toy", "version": 3, "ready": True, "reasons": [], "train": "ok"}
        assert server.get("/readyz").json() == about
        told["reasons"] = ["no disk"]
        unfit = server.get("/readyz")
        assert (unfit.status_code, unfit.json()["ready"], unfit.json()["reasons"]) == (503, False, ["no disk"])
        assert server.chat().status_code == 200, "who asks all the same is answered"
        del told["reasons"]
        told["ready"] = False
        assert server.get("/readyz").status_code == 503
        assert server.get("/healthz").status_code == 200


def test_metrics_count_requests_tokens_and_turns(server: RunningServer) -> None:
    server.chat()
    server.post("/v1/chat/completions", b"{")
    page = server.get("/metrics").text
    assert 'openclaw_rl_requests_total{status="200",wire="chat"} 1.0' in page
    assert 'openclaw_rl_requests_total{status="400",wire="chat"} 1.0' in page
    assert 'openclaw_rl_tokens_total{side="reply"} 13.0' in page
    assert 'openclaw_rl_turns_total{finish="stop"} 1.0' in page
    assert "openclaw_rl_version 3.0" in page


def test_many_at_once_are_all_answered(server: RunningServer) -> None:
    together = threading.Barrier(8)

    def one(_: int) -> int:
        together.wait()
        return server.chat(stream=True).status_code

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(8))) == [200] * 8
    assert len(server.ledger.turns) == 8
    assert json.loads(server.get("/readyz").text)["ready"] is True


def test_only_an_environment_pays_and_only_its_own_sessions() -> None:
    keys = {"k1": "env:door", "k2": "env:other", "k3": "ann"}
    door, other, ann = ({"authorization": f"Bearer {key}"} for key in keys)
    with serving(keys=keys) as server:
        assert server.chat(headers={**door, "x-session-id": "s1"}).status_code == 200
        paid = server.post("/v1/sessions/s1/reward", {"score": 0.5}, **door)
        assert paid.json() == {"object": "session.reward", "session": "s1", "score": 0.5, "failed": None}
        assert server.post("/v1/sessions/s1/reward", {"failed": "no disk"}, **door).status_code == 200
        assert server.post("/v1/sessions/s1/reward", {"score": 1}, **other).status_code == 404
        assert server.post("/v1/sessions/s1/reward", {"score": 1}, **ann).status_code == 403
        assert server.post("/v1/sessions/s1/reward", {"score": 1, "group": "mon/7"}, **door).status_code == 200
        assert server.ledger.rewards.pop().group == "mon/7"
        refused = server.post("/v1/sessions/s1/reward", {"score": 1, "group": ""}, **door)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "group")
        for wrong in ({}, {"score": 2}, {"score": 1, "failed": "both"}, {"score": "much"}):
            assert server.post("/v1/sessions/s1/reward", wrong, **door).status_code == 400, wrong
        assert [(one.user, one.score, one.failed) for one in server.ledger.rewards] == [
            ("env:door", 0.5, None),
            ("env:door", None, "no disk"),
        ]
        server.ledger.add_reward = lambda reward: False  # type: ignore[method-assign]
        late = server.post("/v1/sessions/s1/reward", {"score": 1}, **door)
        assert (late.status_code, "has trained" in late.json()["error"]["message"]) == (409, True)
