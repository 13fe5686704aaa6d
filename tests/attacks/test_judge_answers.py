"""A judge's endpoint that sends anything but an answer: the vote fails and waits, within bounds, and nothing raises."""

from __future__ import annotations

import asyncio
import gzip
import json
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from judges import judge_loop, settings

from openclaw_rl.errors import JudgeUnavailable
from openclaw_rl.judge.llm import LlmJudge
from openclaw_rl.judge.voters import MOST, EndpointVoter
from openclaw_rl.ports import Case
from openclaw_rl.store import CollectLedger, JudgeLedger, ServeLedger
from openclaw_rl.testing import FakeClock, make_completion, make_message, make_outcome, make_turn

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

Writer = asyncio.StreamWriter
ANSWER = json.dumps({"choices": [{"message": {"content": '{"reason": "\\ud800", "score": 1, "hint": null}'}}]}).encode()
ZEROS = bytes(64 * MOST)


class Server:
    """Sends what it is told to, whatever is asked; counts the bytes that were taken from it."""

    def __init__(self, send: Callable[[Server, Writer], Awaitable[None]]) -> None:
        self._send = send
        self.sent = self.asked = self.port = 0

    async def write(self, writer: Writer, data: bytes) -> None:
        writer.write(data)
        await writer.drain()
        self.sent += len(data)

    async def answer(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            self.asked += 1
            if "content-length:" in head:
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
    send: Callable[[Server, Writer], Awaitable[None]],
    *,
    clock: Callable[[], float] | None = None,
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    model: str = "m",
    **given: Any,
) -> AsyncIterator[tuple[Server, LlmJudge]]:
    server = Server(send)
    listening = await asyncio.start_server(server.answer, "127.0.0.1", 0)
    port = server.port = listening.sockets[0].getsockname()[1]
    llm = {"votes": 1, "retries": 0, "deadline": 20.0, **given}
    made = settings(base_url=f"http://127.0.0.1:{port}/v1", **llm)
    assert made.endpoint is not None
    voter = EndpointVoter(replace(made.endpoint, model=model), made.sampling, sleep=sleep)
    judge = LlmJudge(settings=made, voter=voter, clock=clock or asyncio.get_running_loop().time)
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


# --- what else an endpoint can send ---

HEADERS = "content-type: application/json"
VALUES = {
    "NaN": b"NaN",
    "infinity": b"-Infinity",
    "a number of 5,000 digits": b"9" * 5_000,
    "a float beyond all": b"1e999",
    "true": b"true",
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
async def test_numbers_that_are_none_cast_no_vote_and_spend_no_tokens(value: bytes) -> None:
    text = json.dumps(f'{{"reason": "", "score": {value.decode()}, "hint": null}}').encode()
    body = (
        b'{"choices":[{"message":{"content":%s},"logprobs":{"content":[{"logprob":NaN}]}}],"usage":{"total_tokens":%s}}'
    )
    async with judging(whole(body % (text, value), HEADERS)) as (_, judge):
        with pytest.raises(JudgeUnavailable):
            await judge.judge(case())
        assert 0 <= judge.tokens.spent < 10_000, "the votes count as long as their texts are"


async def test_a_redirect_is_not_followed_and_carries_no_key_away() -> None:
    async with judging(whole(ANSWER, HEADERS)) as (other, _):
        location = f"location: http://127.0.0.1:{other.port}/v1/chat/completions"

        async def send(server: Server, writer: Writer) -> None:
            head = f"HTTP/1.1 307 Temporary Redirect\r\n{location}\r\ncontent-length: 0\r\n\r\n"
            await server.write(writer, head.encode())

        async with judging(send) as (_, judge):
            with pytest.raises(JudgeUnavailable, match="the endpoint answered 307"):
                await judge.judge(case())
        assert other.sent == 0, "the second endpoint was never asked"


@pytest.mark.parametrize("wait", [b"\xb2", b"9" * 4_000, b"-1", b"nan", b".", b"Fri, 31 Dec 9999 23:59:59 GMT"])
async def test_a_retry_after_that_is_no_number_of_seconds_is_passed_over(wait: bytes) -> None:
    async def send(server: Server, writer: Writer) -> None:
        await server.write(writer, b"HTTP/1.1 503 No\r\nretry-after: " + wait + b"\r\ncontent-length: 0\r\n\r\n")

    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async with judging(send, retries=1, sleep=sleep) as (_, judge):
        with pytest.raises(JudgeUnavailable, match="the endpoint answered 503"):
            await judge.judge(case())
    assert len(slept) == 1
    assert 0.25 <= slept[0] <= 30.0


@pytest.mark.parametrize(
    "body",
    [b" " * 2 * MOST, b'{"data":' * 50_000, b'{"data":[{"id":"%s"}]}' % (b"m" * 100_000), b'{"data":[{"id":NaN}]}'],
    ids=["2 MB", "deep", "a name of 100 kB", "no name"],
)
async def test_a_list_of_models_out_of_bounds_names_none_and_stays_small(body: bytes) -> None:
    def send(server: Server, writer: Writer) -> Awaitable[None]:
        return whole(body if server.asked == 1 else ANSWER, HEADERS)(server, writer)

    async with judging(send, model="") as (_, judge):
        tracemalloc.start()
        try:
            assert (await judge.judge(case())).score == 1
            assert tracemalloc.get_traced_memory()[1] < 12 * MOST
        finally:
            tracemalloc.stop()
        assert judge.voter.model == ""


async def test_endless_models_are_given_up_as_an_answer_is() -> None:
    async with judging(endless, model="") as (server, judge):
        with pytest.raises(JudgeUnavailable):
            await judge.judge(case())
        assert server.sent < 32 * MOST, "the list of models and the answer"


async def test_the_loop_goes_on_with_the_turn_undecided_and_counted_until_the_endpoint_answers(
    ledger_path: Path,
) -> None:
    """One turn, an endpoint that sends eight kinds of nothing, and then an answer."""
    nothing = [
        whole(b"[" * 200_000, HEADERS),
        whole(gzip.compress(ZEROS, 1), "content-encoding: gzip"),
        whole(b'{"choices":[{"message":{"content":"{\\"score\\":NaN}"}}]}', HEADERS),
        whole(b"9" * 100_000, HEADERS),
        whole(b"<html>", "content-type: text/html"),
        whole(b"", "location: http://127.0.0.1:1/"),
        whole(b"\xff\xfe\x00", HEADERS),
        endless,
    ]

    def send(server: Server, writer: Writer) -> Awaitable[None]:
        return (nothing[server.asked - 1] if server.asked <= len(nothing) else whole(ANSWER, HEADERS))(server, writer)

    clock = FakeClock()
    given = case()
    with ServeLedger(ledger_path, sync="normal") as serve, CollectLedger(ledger_path) as collect:
        serve.add_turn(given.turn)
        collect.settle([given.outcome], [], turns_read=1)
        with JudgeLedger(ledger_path) as ledger:
            async with judging(send, clock=clock) as (server, judge):
                loop = judge_loop(ledger, judge, clock=clock)
                while server.asked < len(nothing):
                    before = server.asked
                    await loop.tick()
                    clock.now += 1.0 if server.asked == before else 0.0
                    assert ledger.verdict(given.turn.id) is None
                    status = await loop.status()
                    assert (status["waiting"], status["failed"]) == (1, 0)
                    assert serve.backlog() == 1
                assert status["paused"]
                assert status["reason"]
                while ledger.verdict(given.turn.id) is None:
                    clock.now += 1.0
                    await loop.tick()
                assert (await loop.status())["waiting"] == 0
                found = ledger.verdict(given.turn.id)
                assert found is not None
                assert found.score == 1
