"""A judge endpoint that hangs, talks nonsense, fails or is gone: serving does not notice, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import httpx2
import pytest

from openclaw_rl.testing import RunningApp, running_app, until
from openclaw_rl.views import status as views

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

VOTE = json.dumps({"score": 1, "hint": None})
ANSWER = json.dumps({"choices": [{"message": {"role": "assistant", "content": VOTE}, "finish_reason": "stop"}]})


class Endpoint:
    """A bare HTTP server whose mood can be changed while it runs."""

    mood = "well"
    waiting = 0
    """calls of the judge that have no answer yet"""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.waiting += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            await reader.readexactly(int(head.split("content-length:")[1].split("\r\n")[0]))
            if self.mood == "hangs":
                await reader.read()  # until the judge gives up
            body = {"well": ANSWER, "garbage": "<html>no</html>", "fails": "{}"}.get(self.mood, ANSWER)
            status = "500 Internal Server Error" if self.mood == "fails" else "200 OK"
            writer.write(
                f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n{body}".encode()
            )
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            return  # the judge gave up waiting
        finally:
            self.waiting -= 1
            writer.close()


def running(root: Path, port: int) -> AbstractAsyncContextManager[RunningApp]:
    judge = ("kind=llm", f"llm.base_url=http://127.0.0.1:{port}/v1", "llm.model=judge", "llm.deadline=0.4")
    judge += ("llm.retries=0", "llm.breaker_failures=2", "llm.breaker_seconds=0.3")
    return running_app(root, *(f"judge.{setting}" for setting in judge), "run.poll=0.02")


async def talk(client: httpx2.AsyncClient, topic: str) -> None:
    """A question and a follow-up that no rule understands."""
    messages = [{"role": "user", "content": f"Tell me of {topic}"}]
    for following in (f"So {topic} it is, then", None):
        done = await client.post("/v1/chat/completions", json={"model": "fake", "messages": messages})
        assert done.status_code == 200
        if following:
            said = done.json()["choices"][0]["message"]["content"]
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": following}]


@pytest.mark.parametrize("trouble", ["hangs", "garbage", "fails", "gone"])
async def test_serving_goes_on_and_every_outcome_is_judged_once_the_endpoint_is_back(
    tmp_path: Path, trouble: str
) -> None:
    endpoint = Endpoint()
    server = await asyncio.start_server(endpoint.answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with running(tmp_path, port) as run:
        client, reader = run.client, run.ledger
        for number in range(16):
            await talk(client, f"tea {number}")
        if trouble == "gone":
            # a server closed with a connection half accepted leaves it open, and asyncio says so in a later test
            await until(lambda: reader.counts()["verdicts"] == 16)
            server.close()
        endpoint.mood = trouble
        await talk(client, "rain")
        await until(lambda: trouble != "hangs" or endpoint.waiting > 0)
        meanwhile = 0
        for number in range(14):
            await talk(client, f"rain {number}")
            meanwhile += endpoint.waiting > 0
        assert trouble != "hangs" or meanwhile > 0, "users had their answers while the judge waited for its own"
        await until(lambda: reader.counts()["outcomes"] == 31)
        waiting = reader.backlog()
        assert waiting > 0, "the trouble was real: some outcomes wait for their votes"
        if trouble == "gone":
            server = await asyncio.start_server(endpoint.answer, "127.0.0.1", port)
        endpoint.mood = "well"
        await until(lambda: reader.counts()["verdicts"] == 31)
        scores = reader.rows("SELECT turn, score FROM verdicts")
        assert len(scores) == len({row["turn"] for row in scores}) == 31, "each outcome is judged once"
        assert {row["score"] for row in scores} == {1.0}, "no trouble was mistaken for a score"
        [judge] = [loop for loop in views.status(reader, starve_after=20)["loops"] if loop["loop"] == "judge"]
        assert judge["detail"]["judge"] == "llm"
    server.close()
