"""An engine that is alive and silent is seen, ended and started again; the request that did it is not tried again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx2
import pytest
from test_engine_dies import Machine, body, client, machine, reply, toy  # noqa: F401 (a fixture)

from openclaw_rl.app.application import App
from openclaw_rl.backends.local.engine.heartbeat import RESTART, UNREADY, Heartbeats, Watchdog
from openclaw_rl.backends.local.engine.policy import LocalPolicy
from openclaw_rl.config import load
from openclaw_rl.errors import FatalRequest
from openclaw_rl.testing import MemoryLedger, ScriptedPolicy, fake_api
from openclaw_rl.types import Completion, Prompt, Tokens

pytestmark = pytest.mark.anyio


def test_only_looks_without_a_beat_count_and_one_beat_ends_them() -> None:
    beats = Heartbeats([0] * 4)
    dog = Watchdog(beats)
    assert [dog.look(), dog.look(), dog.look()] == [0, 1, 2]
    beats.receiving.beat()
    assert dog.look() == 3, "the other thread is silent all the same"
    beats.computing.work_on(7)
    assert (dog.look(), beats.computing.request) == (1, 7)
    beats.receiving.beat()
    assert (dog.look(), dog.cause) == (1, 7), "the computing thread has not beaten since it began with request 7"


def look(policy: LocalPolicy, machine: Machine, times: int) -> None:  # noqa: F811
    """As the client does every two seconds, without the seconds."""
    for _ in range(times):
        machine.links[-1].beat()
        policy._engine.look()


async def until_silent(machine: Machine) -> None:  # noqa: F811
    while not machine.links[-1].silent:
        await asyncio.sleep(0)


async def test_readyz_is_false_while_the_engine_is_silent_and_true_again_after_the_restart(
    machine: Machine,  # noqa: F811
    tmp_path: Path,
) -> None:
    sets = [f"run.dir={tmp_path}", "policy.backend=fake", "policy.model=fake", "train.backend=fake", "gate.mode=off"]
    app, policy = App(load(environ={}, sets=sets).config), toy()
    app.policy.outage = None  # type: ignore[union-attr]
    await policy.start()
    transport = httpx2.ASGITransport(app=app.api)
    async with app.started(), httpx2.AsyncClient(transport=transport, base_url="http://localhost") as api:

        async def ready() -> tuple[int, list[str]]:
            app.policy.outage = policy.outage  # type: ignore[union-attr]
            answer = await api.get("/readyz")
            return answer.status_code, answer.json()["reasons"]

        look(policy, machine, 3 * RESTART)
        assert await ready() == (200, []), "an idle engine beats"
        endless = asyncio.create_task(reply(policy, "endless"))
        await until_silent(machine)
        look(policy, machine, UNREADY + 1)
        assert await ready() == (503, ["the local engine is silent for 30 s; it is restarted after 120 s"])
        look(policy, machine, RESTART - UNREADY)
        assert await ready() == (503, ["the local engine was silent and is being started again"])
        with pytest.raises(FatalRequest, match="fell silent while it worked on this request"):
            await endless
        assert (await reply(policy, "hello")).reply.content == "ok"
        assert await ready() == (200, [])
    assert (machine.deaths, policy.health["restarts"]) == (1, 1)
    await policy.stop()


@pytest.mark.parametrize("names_cause", [True, False], ids=["the cause is known", "several shared the pass"])
async def test_what_silenced_the_engine_is_not_tried_again_and_all_others_are_answered(
    machine: Machine,  # noqa: F811
    names_cause: bool,
) -> None:
    machine.names_cause = names_cause
    policy = toy()
    await policy.start()
    texts = ["endless", *(f"question {at}" for at in range(4))]
    tasks = [asyncio.create_task(reply(policy, text)) for text in texts]
    for _ in range(1 if names_cause else 2):  # without a known cause each is asked alone, and shows itself
        await until_silent(machine)
        look(policy, machine, RESTART + 1)
        while machine.links[-1].silent:
            await asyncio.sleep(0)
    endless, *others = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(endless, FatalRequest)
    assert [other.reply.content for other in others if isinstance(other, Completion)] == ["ok"] * 4
    assert sum(asked.count("endless") for asked in machine.asked) == (1 if names_cause else 2)
    await policy.stop()


async def test_a_stream_cut_off_by_a_dead_backend_ends_without_asking_that_backend_for_anything() -> None:
    asked: list[Prompt] = []

    class Dying(ScriptedPolicy):
        async def encode(self, prompt: Prompt) -> Tokens:
            asked.append(prompt)  # an engine that is being started again answers minutes later
            return await super().encode(prompt)

    dying, ledger = Dying("Hello there."), MemoryLedger()
    dying.break_after = 4
    transport = httpx2.ASGITransport(app=fake_api(dying, ledger))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as api:
        answer = await api.post("/v1/chat/completions", json=body("hello") | {"stream": True})
    assert "engine died" in answer.text
    assert (ledger.last.completion.finish, ledger.last.completion.reply.content) == ("aborted", "Hell")
    assert len(asked) == 1, "as the reply began, and not again for the aborted turn"


async def test_the_caller_of_a_request_that_silences_the_engine_is_asked_not_to_send_it_again(
    machine: Machine,  # noqa: F811
) -> None:
    policy = toy()
    await policy.start()
    async with client(policy) as api:
        asking = asyncio.create_task(api.post("/v1/chat/completions", json=body("endless")))
        await until_silent(machine)
        look(policy, machine, RESTART + 1)
        answer = await asking
        assert (answer.status_code, answer.headers["x-should-retry"]) == (500, "false")
        assert (await api.post("/v1/chat/completions", json=body("hello"))).status_code == 200
    await policy.stop()
