"""Leases: nothing runs twice, nothing leaks, a full pool says when to come back; here and over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from openclaw_rl.app.environments import build_pool
from openclaw_rl.app.workers import OwnWorker
from openclaw_rl.config import load
from openclaw_rl.envs.pool import leases
from openclaw_rl.envs.pool.leases import EnvPool, EventLog
from openclaw_rl.envs.pool.remote import PooledEnv, RemotePool
from openclaw_rl.envs.pool.server import pool_app
from openclaw_rl.errors import EnvFailed, NotAllowed, TooMany
from openclaw_rl.ports import Observation
from openclaw_rl.testing import FakeClock, FakeEnv, make_message
from openclaw_rl.types import Message, Prompt

pytestmark = pytest.mark.anyio

JSON_HEAD = [(b"content-type", b"application/json")]
REPLY = make_message("assistant", "knock")


class Counted(FakeEnv):
    """Counts its steps, and takes each only when the door is open."""

    def __init__(self, door: asyncio.Event | None = None, **given: Any) -> None:
        super().__init__(**given)
        self.door = door
        self.stepped = 0

    async def step(self, reply: Message) -> Observation:
        self.stepped += 1
        if self.door is not None:
            await self.door.wait()
        return await super().step(reply)


class Made:
    """A pool and the environments that it made."""

    def __init__(self, make: Callable[[], FakeEnv] = lambda: Counted(rewards=(0.0, 1.0)), **given: Any) -> None:
        self.envs: list[Any] = []
        self.clock = FakeClock()
        self.events = EventLog()

        def env() -> FakeEnv:
            self.envs.append(make())
            return self.envs[-1]

        self.pool = EnvPool(env, **{"capacity": 2, "ttl": 60.0, "events": self.events, "clock": self.clock, **given})


@pytest.fixture
async def made() -> AsyncIterator[Made]:
    one = Made()
    yield one
    await one.pool.close()


async def test_the_same_request_gets_the_same_answer_and_runs_once(made: Made) -> None:
    lease = await made.pool.lease("a", seed=1, request="r1")
    assert await made.pool.lease("a", seed=1, request="r1") == lease
    assert len(made.envs) == 1
    first = await made.pool.step(lease.id, REPLY, request="s1")
    assert await made.pool.step(lease.id, REPLY, request="s1") == first
    assert made.envs[0].stepped == 1
    assert (await made.pool.step(lease.id, REPLY, request="s2")).done
    assert made.envs[0].stepped == 2
    assert made.events.counts["replayed"] == 2


async def test_a_request_whose_caller_went_away_is_finished_and_replays() -> None:
    door = asyncio.Event()
    made = Made(lambda: Counted(door, rewards=(0.0, 1.0)))
    lease = await made.pool.lease("a", seed=1, request="r1")
    gone = asyncio.create_task(made.pool.step(lease.id, REPLY, request="s1"))
    while not made.envs[0].stepped:
        await asyncio.sleep(0)
    gone.cancel()
    again = asyncio.create_task(made.pool.step(lease.id, REPLY, request="s1"))
    door.set()
    assert (await again).reward == 0.0
    assert made.envs[0].stepped == 1
    await made.pool.close()


async def test_steps_of_one_lease_wait_for_each_other() -> None:
    door = asyncio.Event()
    made = Made(lambda: Counted(door, rewards=(0.0, 1.0)))
    lease = await made.pool.lease("a", seed=1, request="r1")
    both = [asyncio.create_task(made.pool.step(lease.id, REPLY, request=name)) for name in ("s1", "s2")]
    for _ in range(9):
        await asyncio.sleep(0)
    assert made.envs[0].stepped == 1
    door.set()
    assert [(await one).reward for one in both] == [0.0, 1.0]
    await made.pool.close()


async def test_a_full_pool_says_when_to_come_back_and_has_room_again(made: Made) -> None:
    first = await made.pool.lease("a", seed=1, request="r1")
    await made.pool.lease("b", seed=1, request="r2")
    with pytest.raises(TooMany) as full:
        await made.pool.lease("c", seed=1, request="r3")
    assert full.value.retry_after > 0
    await made.pool.release(first.id)
    await made.pool.release(first.id)
    assert made.envs[0].closed == 1
    assert (await made.pool.lease("c", seed=1, request="r3")).id != first.id


async def test_of_many_that_come_at_once_no_more_begin_than_there_is_room_for(made: Made) -> None:
    asked = [made.pool.lease("a", seed=1, request=f"r{number}") for number in range(5)]
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(one).__name__ for one in found] == ["Lease", "Lease", "TooMany", "TooMany", "TooMany"]
    assert (await made.pool.status())["leased"] == 2


async def test_a_lease_that_nobody_speaks_of_is_closed_and_one_that_beats_is_not(made: Made) -> None:
    silent = await made.pool.lease("a", seed=1, request="r1")
    heard = await made.pool.lease("b", seed=1, request="r2")
    made.clock.now += 50
    await made.pool.heartbeat(heard.id)
    assert await made.pool.reap() == 0
    made.clock.now += 20
    assert await made.pool.reap() == 1
    with pytest.raises(EnvFailed, match="it was released or it expired"):
        await made.pool.step(silent.id, REPLY, request="s1")
    assert (await made.pool.step(heard.id, REPLY, request="s1")).reward == 0.0
    await made.pool.close()
    assert [env.closed for env in made.envs] == [1, 1]
    assert (await made.pool.status())["leased"] == 0


async def test_a_step_under_way_is_not_reaped_until_it_has_had_much_longer() -> None:
    made = Made(lambda: Counted(asyncio.Event(), rewards=(0.0,)))
    lease = await made.pool.lease("a", seed=1, request="r1")
    step = asyncio.create_task(made.pool.step(lease.id, REPLY, request="s1"))
    while not made.envs[0].stepped:
        await asyncio.sleep(0)
    made.clock.now += 61
    assert await made.pool.reap() == 0
    made.clock.now += leases.BUSY_SECONDS
    assert await made.pool.reap() == 1
    with pytest.raises(EnvFailed, match="released during"):
        await step
    await made.pool.close()
    assert made.envs[0].closed == 1


async def test_closing_ends_though_an_environment_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck(FakeEnv):
        async def close(self) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(leases, "CLOSE_SECONDS", 0.01)
    made = Made(Stuck)
    lease = await made.pool.lease("a", seed=1, request="r1")
    await made.pool.lease("a", seed=1, request="r2")
    await made.pool.release(lease.id)
    await made.pool.close()
    assert made.events.counts["close failed"] == 2


async def test_what_an_environment_raises_is_not_the_policys_fault(made: Made) -> None:
    made = Made(lambda: FakeEnv(fails=("a",)))
    lease = await made.pool.lease("a", seed=1, request="r1")
    for _ in range(2):
        with pytest.raises(EnvFailed, match="RuntimeError: the floor gave way under a"):
            await made.pool.step(lease.id, REPLY, request="s1")
    await made.pool.close()


async def test_what_happened_is_written_down(tmp_path: Path) -> None:
    made = Made(events=EventLog(tmp_path / "envs.jsonl"))
    lease = await made.pool.lease("a", seed=1, request="r1")
    await made.pool.step(lease.id, REPLY, request="s1")
    await made.pool.release(lease.id)
    lines = (tmp_path / "envs.jsonl").read_text().splitlines()
    assert [line.split('"event": ')[1].split(",")[0] for line in lines] == ['"leased"', '"step"', '"released"']
    assert (await made.pool.status())["counts"] == {"leased": 1, "step": 1, "released": 1}


# --- as an environment ---


async def test_an_environment_of_a_pool_looks_like_any_other_and_beats(made: Made) -> None:
    naps: list[float] = []

    async def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) > 3:
            await asyncio.Event().wait()
        await asyncio.sleep(0)

    env = PooledEnv(made.pool, sleep=sleep)
    assert tuple(env.tasks()) == ("a", "b")
    prompt = await env.reset("a", seed=5)
    assert prompt.messages[0].content == "a from 2 with 5"
    assert [(await env.step(REPLY)).reward for _ in range(2)] == [0.0, 1.0]
    assert await env.outcome() == 0.0
    await env.close()
    await env.close()
    assert naps[0] == 20.0
    assert made.envs[-1].closed == 1


async def test_an_episode_waits_for_a_place(made: Made) -> None:
    held = [await made.pool.lease("a", seed=1, request=name) for name in ("r1", "r2")]
    naps: list[float] = []

    async def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 2:
            await made.pool.release(held[0].id)
        elif len(naps) > 2:
            await asyncio.Event().wait()

    env = PooledEnv(made.pool, sleep=sleep)
    await env.reset("b", seed=1)
    assert naps[:2] == [1.0, 1.0]
    await env.close()


async def test_an_episode_that_is_ended_while_it_begins_gives_its_lease_back() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    class Slow(FakeEnv):
        async def reset(self, task: str, *, seed: int) -> Prompt:
            begun.set()
            await go_on.wait()
            return await super().reset(task, seed=seed)

    made = Made(Slow)
    episode = asyncio.create_task(PooledEnv(made.pool).reset("a", seed=1))
    await begun.wait()
    episode.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await episode
    assert made.events.counts == {"leased": 1, "released": 1}
    assert made.envs[0].closed == 1


async def test_an_episode_that_is_cancelled_again_while_it_gives_its_lease_back_leaves_none_behind() -> None:
    begun, go_on, closing, closed = (asyncio.Event() for _ in range(4))

    class Slow(FakeEnv):
        async def reset(self, task: str, *, seed: int) -> Prompt:
            begun.set()
            await go_on.wait()
            return await super().reset(task, seed=seed)

        async def close(self) -> None:
            closing.set()
            await go_on.wait()
            await super().close()
            closed.set()

    made = Made(Slow)
    episode = asyncio.create_task(PooledEnv(made.pool).reset("a", seed=1))
    await begun.wait()
    for _ in range(2):
        episode.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await episode
    go_on.set()
    await asyncio.wait_for(closed.wait(), 1)
    assert made.events.counts == {"leased": 1, "released": 1}

    env = PooledEnv(made.pool)
    await env.reset("a", seed=1)
    for event in (go_on, closing, closed):
        event.clear()
    ending = asyncio.create_task(env.close())
    await closing.wait()
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    go_on.set()
    await asyncio.wait_for(closed.wait(), 1)
    assert made.envs[-1].closed == 1, "it is closed though nobody waits for that any more"


# --- over HTTP ---


class Broken(httpx2.AsyncBaseTransport):
    """Answers through the application, but loses the first answers on the way back."""

    def __init__(self, app: Any, *, lost: int) -> None:
        self._inner = httpx2.ASGITransport(app=app)
        self.lost = lost

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        answer = await self._inner.handle_async_request(request)
        if "/step" in request.url.path and self.lost:
            self.lost -= 1
            raise httpx2.ReadError("the line went dead")
        return answer


async def no_sleep(_: float) -> None:
    pass


async def test_a_pool_elsewhere_keeps_the_same_contract_and_runs_nothing_twice(made: Made) -> None:
    wire = Broken(pool_app(made.pool, key="k"), lost=2)
    async with RemotePool(["http://one"], key="k", transport=wire, sleep=no_sleep) as pool:
        assert pool.tasks() == ("a", "b")
        env = PooledEnv(pool)
        prompt = await env.reset("a", seed=5)
        assert (prompt.messages[0].content, prompt.tools[0].name) == ("a from 2 with 5", "t")
        seen = await env.step(make_message("assistant", "knock"))
        assert (seen.messages[0].content, seen.reward, seen.done) == ("1 left after knock", 0.0, False)
        assert made.envs[-1].stepped == 1, "the answer was lost twice, the step was not"
        assert await env.outcome() == 0.0
        await env.close()
        assert made.envs[-1].closed == 1
        with pytest.raises(EnvFailed, match="no episode has begun"):
            await env.step(REPLY)


async def test_a_worker_refuses_other_keys_and_bad_requests(made: Made) -> None:
    app = pool_app(made.pool, key="k")
    with pytest.raises(NotAllowed, match="env.workers_key_env"):
        await RemotePool(["http://one"], key="other", transport=httpx2.ASGITransport(app=app)).__aenter__()
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://one") as client:
        own = {"authorization": "Bearer k"}
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/v1/status")).status_code == 401
        assert (await client.post("/v1/leases", content=b"{", headers=own)).status_code == 400
        assert (await client.post("/v1/leases", json={"task": "a"}, headers=own)).status_code == 400
        assert (
            await client.post("/v1/leases/none/step", json={"reply": {}, "request": "r"}, headers=own)
        ).status_code == 400
        gone = {"reply": {"role": "assistant", "content": "x"}, "request": "r"}
        assert (await client.post("/v1/leases/none/step", json=gone, headers=own)).status_code == 410


async def test_a_caller_who_is_killed_while_it_asks_is_no_error_of_the_worker(made: Made) -> None:
    sent: list[Any] = []

    async def gone() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    asked = {"type": "http", "method": "POST", "path": "/v1/leases", "headers": JSON_HEAD, "query_string": b""}
    await pool_app(made.pool, key=None)(asked, gone, send)
    assert sent[0]["status"] == 499
    assert made.envs == []


async def test_a_task_goes_to_its_worker_and_to_the_next_when_that_is_full_or_away() -> None:
    pools = {name: Made(capacity=1) for name in ("one.localhost", "two.localhost")}
    apps = {name: httpx2.ASGITransport(app=pool_app(one.pool, key=None)) for name, one in pools.items()}
    away: set[str] = set()

    class ByHost(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            if request.url.host in away:
                raise httpx2.ConnectError("nobody there")
            return await apps[request.url.host].handle_async_request(request)

    async with RemotePool(
        ["http://one.localhost", "http://two.localhost"], key=None, transport=ByHost(), sleep=no_sleep
    ) as pool:
        first = await pool.lease("a", seed=1, request="r1")
        await pool.lease("a", seed=1, request="r2")
        assert [(await one.pool.status())["leased"] for one in pools.values()] == [1, 1]
        with pytest.raises(TooMany):
            await pool.lease("a", seed=1, request="r3")
        await pool.release(first.id)
        [free] = [name for name, one in pools.items() if not (await one.pool.status())["leased"]]
        away.add(free)
        with pytest.raises(TooMany):
            await pool.lease("a", seed=1, request="r4")
        away.update(pools)
        with pytest.raises(EnvFailed, match="openclaw-rl envs serve"):
            await pool.lease("a", seed=1, request="r5")
    for one in pools.values():
        await one.pool.close()


@pytest.mark.slow
async def test_the_pool_beside_a_server_is_begun_anew_when_it_ends_and_ends_with_us(tmp_path: Path) -> None:
    (tmp_path / "door.py").write_text("from openclaw_rl.testing import FakeEnv\nclass Env(FakeEnv):\n    pass\n")
    config = load(file=None, preset=None, sets=[f"env.type={tmp_path}/door.py:Env"], flags={}).config
    async with OwnWorker(config, events=tmp_path / "envs.jsonl", build=build_pool) as pool:
        env = PooledEnv(pool)
        assert (env.name, tuple(env.tasks())) == ("fake", ("a", "b"))
        await env.reset("a", seed=1)
        assert (await env.step(REPLY)).reward == 1.0
        process = pool._process
        assert process is not None
        process.kill()
        await process.wait()
        with pytest.raises(EnvFailed):
            await env.step(REPLY)
        await env.reset("b", seed=1)
        assert (await pool.status())["leased"] == 1
        await env.close()
        last = pool._process
    assert last is not None
    assert last.returncode == 0
    wrong = load(file=None, preset=None, sets=["env.type=nothing"], flags={}).config
    with pytest.raises(EnvFailed, match="cannot be run: no env called 'nothing'"):
        await OwnWorker(wrong, events=None, build=build_pool).__aenter__()
