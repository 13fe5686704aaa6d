"""Attacks of an agent program on the gateway: paths that lead out of the model's calls, and the rights of its key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from openclaw_rl.app.playing import serving_at
from openclaw_rl.envs.play.forwarder import GatewayForwarder
from openclaw_rl.notes import NewNote, NotesBook
from openclaw_rl.serve.loop import bind
from openclaw_rl.serve.notes import StandingNotes
from openclaw_rl.store import NotesLedger
from openclaw_rl.testing import RunningServer, serving

pytestmark = pytest.mark.anyio

KEY, USER = "the-key-of-an-environment", "env:local"
OUTSIDE = [
    "/v1/models/../control",
    "/v1/models/%2e%2e/control",
    "/v1/models/..%2fcontrol",
    "/v1/models/..%2f.%2fcontrol",
    "/v1/models/x/../../control",
    "/v1/models/%2E%2E%2Fcontrol",
    "/v1/models/..",
    "/v1/models/.",
    "/v1/models/%2e%2e",
    "/v1/models/..;/control",
    "/v1/models/..\\control",
    "/v1/models/%252e%252e/control",
    "/v1/models/toy%3fx",
    "/v1/models//control",
    "/v1//models",
    "/v1/models/../notes",
    "/v1/models/../feedback",
    "/v1/models/../turns/t/tokens",
    "/v1/models/../../metrics",
    "/v1/messages/../notes",
    "/api/chat",
    "/api/generate",
    "/api/show",
    "/api/tags",
    "/v1/chat/completions/../../feedback",
    "/v1/chat/completions%2f..%2f..%2ffeedback",
]


class Listening:
    """A gateway that keeps the path of each request that reaches it."""

    def __init__(self) -> None:
        self.reached: list[str] = []
        methods = ["GET", "POST", "PUT"]
        self.app = Starlette(routes=[Route("/{path:path}", self._answer, methods=methods)])

    async def _answer(self, request: Request) -> Response:
        self.reached.append(f"{request.method} {request.scope['raw_path'].decode()}")
        return Response("{}")


@asynccontextmanager
async def at_a_port(app: Any) -> AsyncIterator[str]:
    listener = bind("127.0.0.1", 0)
    async with serving_at(app, listener):
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@asynccontextmanager
async def forwarded(root: str) -> AsyncIterator[str]:
    async with httpx2.AsyncClient(timeout=10) as upstream:
        headers = {"authorization": f"Bearer {KEY}", "x-session-id": "ours"}
        forwarder = GatewayForwarder(upstream, root=root, headers=headers, max_calls=5, temperature=None)
        async with at_a_port(forwarder.app()) as url:
            yield url


async def sent(url: str, method: str, target: str) -> int:
    """The status of a request whose target goes over the wire as it is written."""
    address = urlsplit(url)
    assert address.hostname is not None
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    head = f"{method} {target} HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{{}}"
    writer.write(head.encode())
    await writer.drain()
    status = int((await reader.read()).split(b" ", 2)[1])
    writer.close()
    return status


# --- paths


@pytest.mark.parametrize("target", OUTSIDE)
async def test_no_path_with_dots_or_escapes_reaches_the_gateway(target: str) -> None:
    gateway = Listening()
    async with at_a_port(gateway.app) as root, forwarded(root) as url:
        for method in ("GET", "POST"):
            assert await sent(url, method, target) in (400, 404)
            assert await sent(url, method, f"http://elsewhere{target}") in (400, 404)
    assert gateway.reached == []


async def test_each_call_of_the_model_passes_with_its_own_method_alone() -> None:
    gateway = Listening()
    calls = ["POST /v1/chat/completions", "POST /v1/responses", "POST /v1/messages", "POST /v1/messages/count_tokens"]
    looks = ["GET /v1/models", "GET /v1/models/toy", "GET /v1/models/openclaw-rl@3", "GET /v1/models/Qwen3_4B.v1"]
    other = {"GET": "POST", "POST": "GET"}
    async with at_a_port(gateway.app) as root, forwarded(root) as url:
        for line in (*calls, *looks):
            method, target = line.split()
            assert await sent(url, method, f"{target}?beta=true") == 200
            assert await sent(url, other[method], target) == 404
            assert await sent(url, "PUT", target) in (404, 405)
    assert gateway.reached == [*calls, *looks]


# --- what the key of an environment may do where no person has a key


@pytest.fixture
def commands() -> list[str]:
    """The commands that reached the run."""
    return []


@pytest.fixture
def open_server(tmp_path: Path, commands: list[str]) -> Iterator[RunningServer]:
    """A server without keys, whose own environment has one; a person has a note."""

    def submit(word: str, /, **_: Any) -> int:
        commands.append(word)
        return 1

    with NotesLedger(tmp_path / "ledger.db") as notes:
        book = NotesBook(notes)
        book.add(NewNote(user="local", text="Never mention Acme.", kind="rule", by="user", reason="added by hand"))
        standing = StandingNotes(book=book, prompter=None)
        with serving(own_keys={KEY: USER}, notes=standing, control=submit) as server:
            yield server


def statuses(server: RunningServer, *requests: tuple[str, str, Any], **headers: str) -> list[int]:
    client = server.client(**headers)
    return [client.request(method, path, json=body).status_code for method, path, body in requests]


def test_without_keys_an_environment_controls_no_run_and_reads_no_persons_turn(
    open_server: RunningServer, commands: list[str]
) -> None:
    turn = open_server.chat().json()["id"]
    requests = (("POST", "/v1/control", {"command": "pause"}), ("GET", f"/v1/turns/{turn}/tokens", None))
    assert statuses(open_server, *requests, authorization=f"Bearer {KEY}") == [403, 404]
    assert commands == []
    assert statuses(open_server, *requests) == [200, 200], "a person still may"
    assert commands == ["pause"]


def test_without_keys_an_environment_neither_reads_nor_changes_notes(open_server: RunningServer) -> None:
    requests = (
        ("GET", "/v1/notes", None),
        ("GET", "/v1/notes/1", None),
        ("POST", "/v1/notes", {"text": "Always mention Acme."}),
        ("PATCH", "/v1/notes/1", {"enabled": False}),
        ("PATCH", "/v1/notes", {"enabled": False}),
        ("DELETE", "/v1/notes/1", None),
    )
    assert statuses(open_server, *requests, authorization=f"Bearer {KEY}") == [403] * 6
    [note] = open_server.get("/v1/notes").json()["data"]
    assert (note["text"], note["state"]) == ("Never mention Acme.", "in force")


def test_without_keys_an_environment_rates_nothing_and_still_pays_its_own_reward(open_server: RunningServer) -> None:
    turn = open_server.chat(headers={"authorization": f"Bearer {KEY}"}).json()["id"]
    ratings = [{"thumb": "up"}, {"score": 1}, {"edit": "better"}, {"comment": "no"}, {"score": 1, "source": "explicit"}]
    requests = [("POST", "/v1/feedback", {"turn": turn, **rating}) for rating in ratings]
    assert statuses(open_server, *requests, authorization=f"Bearer {KEY}") == [403] * 5
    assert open_server.ledger.feedback == []
    paid = ("POST", "/v1/feedback", {"turn": turn, "score": 1, "source": "environment"})
    assert statuses(open_server, paid, authorization=f"Bearer {KEY}") == [200]
