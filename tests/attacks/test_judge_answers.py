"""A judge's endpoint that sends anything but an answer: the vote fails and waits, within bounds, and nothing raises."""

from __future__ import annotations

import asyncio
import gzip
import json
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from judges import settings

from openclaw_rl.errors import JudgeUnavailable
from openclaw_rl.judge.llm import LlmJudge
from openclaw_rl.judge.voters import MOST
from openclaw_rl.ports import Case
from openclaw_rl.testing import make_completion, make_message, make_outcome, make_turn

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

Writer = asyncio.StreamWriter
ANSWER = json.dumps({"choices": [{"message": {"content": '{"reason": "\\ud800", "score": 1, "hint": null}'}}]}).encode()
ZEROS = bytes(64 * MOST)


class Server:
    """Sends what it is told to, whatever is asked; counts the bytes that were taken from it."""

    def __init__(self, send: Callable[[Server, Writer], Awaitable[None]]) -> None:
        self._send = send
        self.sent = 0

    async def write(self, writer: Writer, data: bytes) -> None:
        writer.write(data)
        await writer.drain()
        self.sent += len(data)

    async def answer(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            await reader.readexactly(int(head.split("content-length:")[1].split("\r\n")[0]))
            await self._send(self, writer)
        except (OSError, asyncio.IncompleteReadError):
            return  # the judge went away
        finally:
            writer.close()


def whole(body: bytes, *headers: str) -> Callable[[Server, Writer], Awaitable[None]]:
    async def send(server: Server, writer: Writer) -> None:
        lines = ["HTTP/1.1 200 OK", f"content-length: {len(body)}", "connection: close", *headers]
        await server.write(writer, "\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    return send


async def endless(server: Server, writer: Writer) -> None:
    await server.write(writer, b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
    while True:
        await server.write(writer, b" " * 65_536)


async def dripping(server: Server, writer: Writer) -> None:
    await server.write(writer, b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
    while True:
        await server.write(writer, b" ")
        await asyncio.sleep(0.01)


@asynccontextmanager
async def judging(
    send: Callable[[Server, Writer], Awaitable[None]], *, deadline: float = 20.0
) -> AsyncIterator[tuple[Server, LlmJudge]]:
    server = Server(send)
    listening = await asyncio.start_server(server.answer, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    judge = LlmJudge(settings=settings(base_url=f"http://127.0.0.1:{port}/v1", votes=1, retries=0, deadline=deadline))
    try:
        yield server, judge
    finally:
        await judge.close()
        listening.close()


def case() -> Case:
    turn = make_turn("hello", completion=make_completion("hi"))
    return Case(turn=turn, outcome=make_outcome(turn, next_state=(make_message("user", "so it is then"),)))


async def test_a_plain_answer_counts_even_with_half_a_character_in_it() -> None:
    async with judging(whole(ANSWER, "content-type: text/plain")) as (_, judge):
        assert (await judge.judge(case())).score == 1


@pytest.mark.parametrize(
    ("body", "header"),
    [
        (gzip.compress(ZEROS, 1), "content-encoding: gzip"),
        (zlib.compress(ZEROS, 1), "content-encoding: deflate"),
        (b"\x1b" + bytes(1000), "content-encoding: br"),
        (gzip.compress(ANSWER), "content-encoding: identity, gzip"),
        (b" " * (MOST + 1), "content-type: application/json"),
        (b"[" * 200_000, "content-type: application/json"),
        (b'{"choices":' * 50_000, "content-type: application/json"),
    ],
    ids=["gzip bomb", "deflate bomb", "br", "twice encoded", "too long", "deep lists", "deep objects"],
)
async def test_an_answer_out_of_bounds_is_a_vote_that_failed_and_the_turn_waits(body: bytes, header: str) -> None:
    async with judging(whole(body, header)) as (_, judge):
        tracemalloc.start()
        try:
            with pytest.raises(JudgeUnavailable):
                await judge.judge(case())
            assert tracemalloc.get_traced_memory()[1] < 12 * MOST
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize(
    "body", [b"<html>no</html>", b"\xff\xfe\x00", b'{"choices": [{"message": {"content": 5}}]}', b"null", b""]
)
async def test_an_answer_of_another_kind_waits_too(body: bytes) -> None:
    async with judging(whole(body, "content-type: text/html")) as (_, judge):
        with pytest.raises(JudgeUnavailable):
            await judge.judge(case())


async def test_an_endless_answer_is_left_after_a_million_bytes() -> None:
    async with judging(endless) as (server, judge):
        with pytest.raises(JudgeUnavailable):
            await judge.judge(case())
        assert server.sent < 16 * MOST, "what was under way in buffers counts"


async def test_an_answer_that_drips_is_given_up_at_the_deadline() -> None:
    async with judging(dripping, deadline=0.3) as (_, judge):
        with pytest.raises(JudgeUnavailable, match=r"no answer within 0\.3 s"):
            await judge.judge(case())
