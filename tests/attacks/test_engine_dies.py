"""What an engine process died of is not tried again; all else is, and a policy that is down says so and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
from defaults import engine_args

from openclaw_rl.app.application import App
from openclaw_rl.backends.local.engine import client as local
from openclaw_rl.backends.local.engine.heartbeat import Heartbeats
from openclaw_rl.backends.local.engine.messages import (
    CallResult,
    EngineArgs,
    EngineFailure,
    EngineOutput,
    EngineReady,
    Finished,
    GenerateRequest,
    LoadRequest,
    ScoreRequest,
    TokenDelta,
)
from openclaw_rl.backends.local.engine.policy import LocalPolicy
from openclaw_rl.config import load
from openclaw_rl.errors import BackendError, BackendGone, FatalRequest
from openclaw_rl.ports import Delta, ReportsOutage
from openclaw_rl.serve import ServeLoop
from openclaw_rl.testing import FakeClock, MemoryLedger, MemoryVersions, fake_api, request_limits
from openclaw_rl.types import Completion, Message, Prompt, Sampling, Version
from openclaw_rl.versions import LiveVersions

READY = EngineReady(
    name="toy",
    base="toy",
    context=100,
    tool_format="none",
    device="cpu",
    dtype="float32",
    cache_tokens=100,
    memory=0,
    runner="toy",
)


@dataclass
class Machine:
    """Engine processes without a process: what they are asked, what kills them, which versions they can load."""

    deaths: int = 0
    starts: int = 0
    broken: set[int] = field(default_factory=set)  # versions whose weights cannot be read
    no_start: bool = False
    names_cause: bool = True  # whether a process that is silent shows which request it works on
    asked: list[list[str]] = field(default_factory=list)  # per process, the prompts it was sent
    together: list[int] = field(default_factory=list)  # at each death, how many prompts had shown nothing
    links: list[Toy] = field(default_factory=list)


class Toy:
    """An `EngineProcess` to such a process. It works on what it has been sent when the event loop comes round."""

    def __init__(
        self, machine: Machine, args: EngineArgs, *, received: Callable[..., None], ended: Callable[..., None]
    ) -> None:
        self.machine, self._received, self._ended = machine, received, ended
        self.pid = machine.starts = machine.starts + 1
        self.dead = self.silent = False
        self.heartbeats = Heartbeats([0] * 4)
        self.open: list[GenerateRequest | ScoreRequest] = []
        machine.asked.append([])
        machine.links.append(self)
        self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        if self.machine.no_start:
            self.die()
        else:
            self._received(self, READY)

    def send(self, request: Any) -> None:
        if isinstance(request, LoadRequest):
            bad = request.version in self.machine.broken
            reply = (
                EngineFailure(request.id, "backend", "damaged weights")
                if bad
                else CallResult(request.id, request.version)
            )
            self._loop.call_soon(self._received, self, reply)
        elif isinstance(request, GenerateRequest | ScoreRequest):
            self.machine.asked[-1].append(_text(request))
            self.open.append(request)
            if len(self.open) == 1:
                self._loop.call_soon(lambda: self._loop.call_soon(self._work))

    def _work(self) -> None:
        if self.dead:
            return
        if any("poison" in _text(request) for request in self.open):
            self.die()
            return
        if any("endless" in _text(request) for request in self.open):
            self._hang()
            return
        for request in self.open:
            if isinstance(request, GenerateRequest):
                done = Finished(request.id, "ok", (1,), (2,), (-0.5,), "stop", request.version)
                self._received(self, EngineOutput((TokenDelta(request.id, Delta(text="ok")), done), {}))
        self.open = []

    def _hang(self) -> None:
        """Alive and silent: its computing thread works on the request for ever."""
        [endless] = [request for request in self.open if "endless" in _text(request)]
        self.heartbeats.computing.work_on(endless.id if self.machine.names_cause else 0)
        self.silent = True

    def beat(self) -> None:
        self.heartbeats.receiving.beat()
        if not self.silent:
            self.heartbeats.computing.beat()

    def kill(self) -> None:
        self._loop.call_soon(self.die)

    def die(self) -> None:
        if not self.dead:
            self.dead = True
            self.machine.deaths += 1
            self.machine.together.append(len(self.open))
            self._ended(self, -9)

    def close(self) -> None:
        self.dead = True


def _text(request: Any) -> str:
    return request.prompt.messages[-1].content if isinstance(request, GenerateRequest) else "poison"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(local, "EngineProcess", lambda args, **rest: Toy(made, args, **rest))
    monkeypatch.setattr(local, "BACKOFF", 0.0)
    return made


def toy() -> LocalPolicy:
    return LocalPolicy(engine_args(model="toy", cache_dir="."), progress=lambda _: None)


def said(text: str) -> Prompt:
    return Prompt(messages=(Message(role="user", content=text),))


async def reply(policy: LocalPolicy, text: str, version: int | None = None) -> Completion:
    done = [item async for item in policy.generate(said(text), Sampling(), version=version)][-1]
    assert isinstance(done, Completion)
    return done


def version(number: int, parent: int = 0) -> Version:
    return Version(number=number, parent=parent, base="toy", adapter=f"/folder {number}")


async def test_one_that_kills_the_engine_is_told_after_its_second_death_and_costs_nobody_else(machine: Machine) -> None:
    policy = toy()
    await policy.start()
    texts = [f"innocent {at}" for at in range(7)]
    texts.insert(3, "poison")
    found = await asyncio.gather(*(reply(policy, text) for text in texts), return_exceptions=True)
    assert [type(one).__name__ for one in found].count("Completion") == 7
    assert isinstance(found[3], FatalRequest)
    assert machine.deaths == 2
    assert machine.together == [8, 1], "all together at first, then one at a time"
    assert (await reply(policy, "another")).reply.content == "ok"
    assert policy.health["state"] == "ready"
    await policy.stop()


async def test_a_killed_process_loses_no_request_that_had_shown_nothing(machine: Machine) -> None:
    policy = toy()
    await policy.start()
    tasks = [asyncio.create_task(reply(policy, f"question {at}")) for at in range(5)]
    while len(machine.links[0].open) < 5:
        await asyncio.sleep(0)
    machine.links[0].die()  # kill -9
    assert [done.reply.content for done in await asyncio.gather(*tasks)] == ["ok"] * 5
    assert machine.deaths == 1
    assert sorted(machine.asked[1]) == sorted(machine.asked[0])
    await policy.stop()


async def test_a_score_that_kills_the_engine_is_not_tried_a_third_time(machine: Machine) -> None:
    policy = toy()
    await policy.start()
    with pytest.raises(FatalRequest, match="ended twice"):
        await policy.score((1,), (2,))
    assert machine.deaths == 2
    await policy.stop()


async def test_a_caller_hears_of_it_once_and_clients_are_told_not_to_send_it_again(machine: Machine) -> None:
    policy = toy()
    await policy.start()
    async with client(policy) as api:
        told = await api.post("/v1/chat/completions", json=body("poison"))
        assert (told.status_code, told.json()["error"]["code"]) == (500, "engine_died")
        assert told.headers["x-should-retry"] == "false"
        assert (await api.post("/v1/chat/completions", json=body("hello"))).status_code == 200
    assert machine.deaths == 2
    await policy.stop()


async def test_an_engine_that_cannot_be_started_refuses_at_once_and_comes_back(machine: Machine) -> None:
    policy = toy()
    assert isinstance(policy, ReportsOutage)
    await policy.start()
    machine.no_start = True
    machine.links[0].die()
    with pytest.raises(BackendGone, match="the local engine is down: the engine process ended with exit code -9"):
        await reply(policy, "held until the last start has failed")
    starts = machine.starts
    assert starts == 1 + local.RESTARTS
    assert "down" in str(policy.outage)
    async with client(policy) as api:
        told = await api.post("/v1/chat/completions", json=body("hello"))
    assert (told.status_code, told.headers["retry-after"]) == (503, "60")
    assert machine.starts == starts, "nobody's request starts it"
    with pytest.raises(BackendGone):
        await policy.load(version(1))
    assert machine.starts == starts + 1, "a version is a reason to try"
    machine.no_start = False
    await policy.load(version(2))
    assert (policy.live, policy.outage, (await reply(policy, "hello")).version) == (2, None, 2)
    await policy.stop()


async def test_one_that_is_down_is_started_again_by_itself(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = toy()
    await policy.start()
    machine.no_start = True
    monkeypatch.setattr(local, "RETRY_DOWN", 0.0)
    machine.links[0].die()
    while policy.outage is None:
        await asyncio.sleep(0)
    machine.no_start = False
    while policy.outage is not None:
        await asyncio.sleep(0)
    assert (await reply(policy, "hello")).reply.content == "ok"
    await policy.stop()


async def test_where_the_live_weights_are_gone_the_nearest_older_ones_answer_and_it_is_said(machine: Machine) -> None:
    policy, ledger = toy(), MemoryVersions(Version(number=0, parent=None, base="toy"))
    await policy.start()
    ledger.add(version(1), version(2, 1), version(3, 2), version(4, 2))  # 3 was refused: 4 was trained from 2
    clock = FakeClock()
    loop = ServeLoop(policy, LiveVersions(ledger), clock=clock)
    await loop.tick()
    assert policy.live == 4
    machine.broken = {4, 2}
    waiting = asyncio.create_task(reply(policy, "asked of version 4"))
    while not machine.links[0].open:
        await asyncio.sleep(0)
    machine.links[0].die()
    assert (await waiting).version == 1, "the turn is kept with the version that answered"
    assert (policy.live, sorted(policy.health["unloadable"])) == (1, [2, 4])
    with pytest.raises(BackendError):
        await policy.load(version(2, 1))
    loads = machine.starts
    await loop.tick()
    (alarm,) = (await loop.status())["alarms"]
    assert alarm["what"] == "version 4 is live but cannot be loaded, version 1 answers: damaged weights"
    machine.broken = set()
    await loop.tick()
    assert policy.live == 1, "not at every tick"
    clock.now += 61
    await loop.tick()
    assert (policy.live, (await loop.status())["alarms"], machine.starts) == (4, [], loads)
    await policy.stop()


async def test_a_run_whose_live_weights_are_gone_starts_with_older_ones(machine: Machine) -> None:
    policy, ledger = toy(), MemoryVersions(Version(number=0, parent=None, base="toy"))
    ledger.add(version(1), version(2, 1), version(3, 2))
    machine.broken = {3, 2}
    await policy.start()
    loop = ServeLoop(policy, LiveVersions(ledger))
    assert (await loop.tick(), policy.live) == (1, 1)
    assert (await loop.tick(), policy.live) == (0, 1)
    ledger.add(version(4, 1))
    assert (await loop.tick(), policy.live, (await loop.status())["alarms"]) == (1, 4, [])
    await policy.stop()


async def test_a_version_that_kills_the_engine_is_not_loaded_again_and_again(machine: Machine) -> None:
    policy = toy()
    await policy.start()
    policy.know(version(1))
    await policy.load(version(2, 1))

    def lethal(link: Toy, request: Any, send: Callable[[Toy, Any], None] = Toy.send) -> None:
        if isinstance(request, LoadRequest) and request.version == 2:
            link._loop.call_soon(link.die)
        else:
            send(link, request)

    with patched(Toy, "send", lethal):
        machine.links[0].die()
        assert (await reply(policy, "hello")).version == 1
    assert machine.deaths == 3, "killed once, died twice of version 2"
    await policy.stop()


async def test_readyz_says_why_and_what_is_not_ready_is_refused_not_held(tmp_path: Path) -> None:
    sets = [f"run.dir={tmp_path}", "policy.backend=fake", "policy.model=fake", "train.backend=fake", "gate.mode=off"]
    app = App(load(environ={}, sets=sets).config)
    transport = httpx2.ASGITransport(app=app.api)
    async with app.started(), httpx2.AsyncClient(transport=transport, base_url="http://localhost") as api:
        assert (await api.get("/readyz")).json()["reasons"] == []
        app.policy.outage = "the local engine is down: no memory"  # type: ignore[union-attr]
        told = await api.get("/readyz")
        assert (told.status_code, told.json()["reasons"]) == (503, ["the local engine is down: no memory"])
        (alarm,) = (await app.loops["serve"].status())["alarms"]  # type: ignore[attr-defined]
        assert alarm["what"] == "the local engine is down: no memory"


@contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def client(policy: LocalPolicy) -> httpx2.AsyncClient:
    api = fake_api(policy, MemoryLedger(), limits=request_limits(hold_seconds=1000))
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=api), base_url="http://localhost", timeout=60)


def body(text: str) -> dict[str, Any]:
    return {"model": "toy", "messages": [{"role": "user", "content": text}]}
