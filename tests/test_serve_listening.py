"""The door itself: a caller that dawdles over the head of its request, or never ends it, is let go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from openclaw_rl.serve.listener import HttpServer, bind
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
    async with connection(head_seconds=0.1) as (reader, writer):
        writer.write(HEAD + b"\r\n" + BODY)
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(size)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), timeout=0.3)
        writer.write(HEAD)
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
