"""The door itself: a caller that dawdles over the head of its request, or never ends it, is let go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from openclaw_rl.serve.loop import REFUSED_AT_ONCE, HttpServer, bind
from openclaw_rl.testing import MemoryLedger, ScriptedPolicy, fake_api

pytestmark = pytest.mark.anyio

BODY = b'{"messages": [{"role": "user", "content": "hi"}]}'
HEAD = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(BODY)}\r\n".encode()


@asynccontextmanager
async def connection(**limits: float) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a server with these limits."""
    listener = bind("127.0.0.1", 0)
    app = fake_api(ScriptedPolicy(), MemoryLedger())
    server = HttpServer(app, listener, grace=1.0, **{"head_seconds": 60.0, "head_bytes": 64 * 2**10, **limits})  # type: ignore[arg-type]
    await server.begin()
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    try:
        yield reader, writer
    finally:
        writer.close()
        await server.end()


async def answer_on(where: tuple[str, int], sent: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*where)
    writer.write(sent)
    try:
        return await reader.read()
    finally:
        writer.close()


async def test_requests_on_more_connections_than_the_server_may_have_are_503_and_probes_are_answered() -> None:
    whole = HEAD + b"connection: close\r\n\r\n" + BODY
    async with connection(connections=2) as (first, kept):
        where = kept.get_extra_info("peername")
        assert (await answer_on(where, whole)).startswith(b"HTTP/1.1 200 "), "two are allowed"
        _, idle = await asyncio.open_connection(*where)
        full = await answer_on(where, whole)
        for path in (b"/healthz", b"/readyz"):
            alive = await answer_on(
                where, b"GET " + path + b" HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
            )
            assert alive.startswith(b"HTTP/1.1 200 ")
        kept.write(whole)
        assert (await first.read()).startswith(b"HTTP/1.1 200 "), "the first has its place"
        idle.close()
    head, _, sent = full.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 5" in head
    assert json.loads(sent)["error"]["code"] == "too_many_connections"
    assert "raise its limit of open files" in json.loads(sent)["error"]["message"]


async def test_connections_far_beyond_the_limit_are_closed_before_they_say_anything() -> None:
    async with connection(connections=1) as (_, kept):
        where = kept.get_extra_info("peername")
        waiting = [await asyncio.open_connection(*where) for _ in range(REFUSED_AT_ONCE)]
        assert await answer_on(where, b"") == b""
        for _, writer in waiting:
            writer.close()


@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat", HEAD], ids=["nothing", "half a line", "no end"])
async def test_a_head_that_does_not_come_is_not_waited_for(sent: bytes) -> None:
    async with connection(head_seconds=0.05) as (reader, writer):
        writer.write(sent)
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")


async def test_a_head_without_end_is_refused_before_it_fills_the_memory() -> None:
    async with connection(head_bytes=1000) as (reader, writer):
        writer.write(HEAD + b"x-much: " + b"a" * 2000)
        assert (await reader.read()).startswith(b"HTTP/1.1 431 ")


async def test_the_head_of_a_second_request_is_watched_too_and_idleness_between_them_is_not() -> None:
    """Whether a clock runs for the head is looked at, and not waited for."""
    listener = bind("127.0.0.1", 0)
    server = HttpServer(
        fake_api(ScriptedPolicy(), MemoryLedger()), listener, grace=1.0, head_seconds=60.0, head_bytes=64 * 2**10
    )
    await server.begin()
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(HEAD + b"\r\n" + BODY)
    assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
    [watched] = server._server.server_state.connections
    assert watched._waiting is None
    writer.write(HEAD)
    while watched._waiting is None:
        await asyncio.sleep(0)
    watched._waiting._run()  # as the clock does after 60 s
    assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
    writer.close()
    await server.end()
