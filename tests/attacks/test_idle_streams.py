"""Thousands of callers that wait in silence, and hang up together, cost another caller nothing."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import threading
from typing import Any

import pytest

from openclaw_rl.serve.loop import LONGEST, ShortCollections
from openclaw_rl.serve.request import Caller, GenerationRequest
from openclaw_rl.serve.wire.chat import ChatWire
from openclaw_rl.testing import MemoryLedger, ScriptedPolicy, fake_api, request_limits
from openclaw_rl.types import Sampling, Turn, new_id

STREAMS = 50
CALLER = Caller(user="user")


class BusyDisk(MemoryLedger):
    """A ledger that writes nothing until it may, and notes the order of the turns."""

    def __init__(self) -> None:
        super().__init__()
        self.may_write = threading.Event()
        self.finishes: list[str] = []

    def add_turn(self, turn: Turn) -> None:
        assert self.may_write.wait(60)
        self.finishes.append(turn.completion.finish)
        super().add_turn(turn)


def asked() -> GenerationRequest:
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
    return ChatWire(Sampling()).parse(body, request_limits())


@pytest.mark.anyio
async def test_a_fresh_reply_does_not_wait_until_all_turns_of_those_who_hung_up_are_written() -> None:
    policy, ledger = ScriptedPolicy("Hello there."), BusyDisk()
    answerer = fake_api(policy, ledger).state.server.answerer

    def stream() -> Any:
        return answerer.answer(asked(), CALLER, turn=new_id(), version=None)

    policy.stall_after = 4
    idle = [stream() for _ in range(STREAMS)]
    for each in idle:
        for _ in range(3):  # its beginning and two words: it has something to keep
            await anext(each)
    leaving = [asyncio.ensure_future(each.aclose()) for each in idle]
    while not all(each.ag_running for each in idle):
        await asyncio.sleep(0)
    policy.stall_after = None
    fresh = asyncio.ensure_future(_whole(stream()))
    while not answerer.pending or len(answerer.pending) <= STREAMS:
        await asyncio.sleep(0)
    ledger.may_write.set()
    await fresh
    assert ledger.finishes.index("stop") <= 1, "one aborted turn was on its way"
    await asyncio.gather(*leaving)
    assert sorted(ledger.finishes) == ["aborted"] * STREAMS + ["stop"]


async def _whole(events: Any) -> None:
    async for _ in events:
        pass


def test_objects_that_survive_a_long_collection_are_not_traversed_again_until_half_the_connections_are_closed() -> None:
    connections, times = list(range(10)), iter([0.0, 2 * LONGEST, 5.0, 5.0 + LONGEST / 2])
    frozen = gc.get_freeze_count()
    pauses = ShortCollections(connections, clock=lambda: next(times))
    pauses.begin()
    try:
        gc.collect()
        held = gc.get_freeze_count()
        assert held > frozen, "the first took long"
        gc.collect()
        assert gc.get_freeze_count() <= held, "the second did not"
        del connections[6:]
        pauses.connection_closed()
        assert gc.get_freeze_count() > 0, "six of ten are open"
        del connections[5:]
        pauses.connection_closed()
        assert gc.get_freeze_count() == 0
    finally:
        pauses.end()


@pytest.mark.slow
def test_two_hundred_idle_streams_are_kept_and_let_go_by_the_benchmark_itself() -> None:
    command = [sys.executable, "benchmarks/idle_streams.py", "--streams", "200", "--seconds", "0.1", "--chats", "5"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    figures = json.loads(done.stdout)
    assert (figures["streams"], figures["refused"]) == (200, {"0": 0, "429": 0, "503": 0})
    assert figures["files"] > 200, "each is an open file; that all were closed is what the benchmark waits for"
