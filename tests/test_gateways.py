"""Three gateways on one PostgreSQL server, and ``kill -9`` of every one of them, of the loops and of the server."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from fakes.postgres import PostgresServer
from system import System, Talker
from test_kill import assert_nothing_lost, settled

from openclaw_rl.app.application import App
from openclaw_rl.app.runner import LoopWakes
from openclaw_rl.store import LedgerReader, ServeLedger, ServerPlace, TrainLedger, submit_request
from openclaw_rl.store.database import WATCHED
from openclaw_rl.store.stores import listen
from openclaw_rl.testing import fake_config, make_turn, wait_until
from openclaw_rl.types import Version

KILLS = 9


class Rover(Talker):
    """A client that asks another gateway each time, in the middle of a session too."""

    def __init__(self, name: str, answered: set[str], gateways: dict[System, str]) -> None:
        self._gateways = gateways
        super().__init__(name, answered)

    @property
    def url(self) -> str | None:
        urls = list(self._gateways.values())
        return self.rng.choice(urls) if urls else None

    @url.setter
    def url(self, _: str | None) -> None:
        """Where the gateways are is known already."""


@pytest.fixture
def gateways(tmp_path: Path, database: ServerPlace) -> Iterator[list[System]]:
    """One process with all loops, and two that serve alone; none outlives the test."""
    more = (f"store.url={database.url}", "run.backoff=0.5")
    systems = [System(tmp_path, *more, command=command) for command in ("up", "serve", "serve")]
    yield systems
    for system in systems:
        if hasattr(system, "process") and system.process.poll() is None:
            system.kill()


def shown(database: ServerPlace) -> dict[str, object]:
    """What `openclaw-rl status` says."""
    words = ["status", "--json", "--rl-buffer-dir", str(database.root)]
    command = [sys.executable, "-m", "openclaw_rl", *words]
    environment = {**os.environ, "OPENCLAW_RL__STORE__URL": database.url}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    found: dict[str, object] = json.loads(done.stdout)
    return found


@asynccontextmanager
async def two_gateways(database: ServerPlace) -> AsyncIterator[list[httpx2.AsyncClient]]:
    """Two servers on one ledger, each reached by a client of its own."""
    async with AsyncExitStack() as stack:
        clients = []
        for _ in range(2):
            app = App(fake_config(database.root, f"store.url={database.url}"), loops=("serve",))
            await stack.enter_async_context(app.started())
            way = httpx2.ASGITransport(app=app.api)
            client = httpx2.AsyncClient(transport=way, base_url="http://localhost", verify=False)
            clients.append(await stack.enter_async_context(client))
        yield clients


async def ask(client: httpx2.AsyncClient, text: str, **headers: str) -> str:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    body = {"model": "fake", "messages": [{"role": "user", "content": text}]}
    done = await client.post("/v1/chat/completions", json=body, headers=named)
    assert done.status_code == 200, done.text
    return str(done.json()["id"])


async def test_a_session_that_opts_out_at_one_gateway_trains_at_none(database: ServerPlace) -> None:
    async with two_gateways(database) as (first, second):
        before = await ask(first, "hi", x_session_id="s")
        await ask(second, "not this", x_session_id="s", x_openclaw_rl_train="off-session")
        after = await ask(first, "and now?", x_session_id="s")
        with LedgerReader(database) as ledger:
            assert [ledger.turn(turn).trainable for turn in (before, after)] == [True, False]


async def test_any_gateway_goes_on_with_what_another_one_answered(database: ServerPlace) -> None:
    async with two_gateways(database) as (first, second):
        began = (await first.post("/v1/responses", json={"model": "fake", "input": "my name is Ann"})).json()
        more = {"model": "fake", "input": "who am I?", "previous_response_id": began["id"]}
        went_on = await second.post("/v1/responses", json=more)
        assert went_on.status_code == 200, went_on.text
        turn = await ask(first, "hi", x_session_id="s")
        assert (await second.post("/v1/feedback", json={"turn": turn, "thumb": "up"})).status_code == 200
        assert (await second.post("/v1/sessions/s/end")).status_code == 200
        with LedgerReader(database) as ledger:
            prompt = ledger.turn(went_on.json()["id"].removeprefix("resp_")).prompt.messages
            assert [message.content for message in prompt][0::2] == ["my name is Ann", "who am I?"]
            assert ledger.feedback(turn)[0].score == 1.0


async def test_who_waits_hears_of_what_another_process_writes(database: ServerPlace) -> None:
    heard: asyncio.Queue[frozenset[str]] = asyncio.Queue()
    with TrainLedger(database, sync="full") as train:
        listening = asyncio.create_task(listen(database, heard.put_nowait))
        assert await heard.get() == WATCHED, "nobody knows what came before"
        with ServeLedger(database, sync="full") as serve:
            await asyncio.to_thread(serve.add_turn, make_turn())
        assert await heard.get() == {"turns"}
        await asyncio.to_thread(train.add_version, Version(number=0, parent=None, base="b", state="live"))
        assert await heard.get() == {"states"}
        await asyncio.to_thread(submit_request, database, "pause")
        assert await heard.get() == {"requests"}
        listening.cancel()
        await asyncio.wait([listening])
    wakes = LoopWakes(database, ("serve", "collect"))
    assert [wakes.poll(loop, 0.2) for loop in ("serve", "collect", "train")] == [1.0, 1.0, 0.2]


@pytest.mark.slow
def test_kills_of_gateways_loops_and_server_lose_no_answered_turn_and_train_none_twice(
    database: ServerPlace, gateways: list[System], postgres: PostgresServer
) -> None:
    answered, urls, rng = set[str](), dict[System, str](), random.Random(3)
    talkers = [Rover(name, answered, urls) for name in ("u1", "u2", "u3")]
    for system in gateways:
        urls[system] = system.start(forked=True)
    for talker in talkers:
        talker.start()
    for kill in range(KILLS):
        before = len(answered)
        wait_until(lambda before=before: len(answered) > before + 3)
        time.sleep(rng.uniform(0.0, 0.3))
        if kill % 3 == 2:  # the server, and with it every connection
            postgres.kill()
            postgres.start()
            continue
        system = gateways[kill % 3 if kill < 6 else rng.randrange(3)]
        urls.pop(system)
        system.kill()
        if kill % 2:  # the server too, while a gateway is away
            postgres.kill()
            postgres.start()
        urls[system] = system.start(forked=True)
    before = len(answered)
    wait_until(lambda: len(answered) >= before + 30)  # the system goes on
    found = shown(database)
    for talker in talkers:
        talker.over = True
    for talker in talkers:
        talker.join(timeout=30)
    with LedgerReader(database) as ledger:
        wait_until(lambda: settled(ledger))
    assert [system.end() for system in gateways] == [0, 0, 0]

    assert {one["url"] for one in found["gateways"]} == set(urls.values())
    assert [one["gateway"] for one in found["gateways"]] == [1, 2, 3]
    with LedgerReader(database) as ledger:
        assert_nothing_lost(ledger, answered)
        passed_by = ledger.rows(
            "SELECT id FROM turns t WHERE NOT EXISTS (SELECT 1 FROM outcomes o WHERE o.turn = t.id)"
            " AND NOT EXISTS (SELECT 1 FROM drops d WHERE d.turn = t.id)"
            " AND NOT EXISTS (SELECT 1 FROM open_turns p WHERE p.turn_seq = t.seq)"
        )
        assert passed_by == [], "whichever gateway committed first"
        threads = ledger.rows("SELECT o.session, count(*) AS n FROM outcomes o GROUP BY o.session HAVING count(*) > 1")
        assert len(threads) > 5, "conversations go on at another gateway"
