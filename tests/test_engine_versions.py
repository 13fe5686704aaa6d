"""Versions on vLLM and SGLang, over contract fakes of both: beside each other, across an engine's death, let go."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from engines import engine, model, reply, started, version
from fakes.engines import FakeEngine

from openclaw_rl.backends.engines import weights as engine_weights
from openclaw_rl.backends.fake import logprob
from openclaw_rl.errors import FatalRequest, ModelRefused, RequestError
from openclaw_rl.types import Sampling, Version

__all__ = ["engine", "model"]  # fixtures

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_version_answers_beside_another_and_by_its_number(
    engine: FakeEngine, model: Path, tmp_path: Path
) -> None:
    async with started(engine, model, tmp_path) as policy:
        await policy.load(version(1, tmp_path, "be brief"))
        await policy.admit(version(2, tmp_path, "be kind"))
        assert policy.live == 1
        found = [(await reply(policy, "tea", version=number)).reply.content for number in (None, 0, 1, 2)]
        scores = await policy.score((0, 5), (7, 1), version=2, top_k=2)
    brief = "You said: tea [learned: be brief]"
    assert found == [brief, "You said: tea", brief, "You said: tea [learned: be kind]"]
    assert [len(scores.logprobs), [len(row) for row in scores.top_tokens]] == [2, [2, 2]]


async def test_each_load_has_a_name_and_a_folder_of_its_own_and_the_old_is_let_go(
    engine: FakeEngine, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_weights, "GRACE", 0.0)
    monkeypatch.setattr(engine_weights, "SPARE", 0)
    engine.pause = 0.01
    async with started(engine, model, tmp_path) as policy:
        await policy.load(version(1, tmp_path, "one"))
        first = engine.loads[0]
        stream = asyncio.create_task(reply(policy, "tea"))
        async with asyncio.timeout(10):
            while not engine.running:
                await asyncio.sleep(0.005)
        await policy.load(version(2, tmp_path, "two"))
        assert first in engine.adapters, "a request still uses it"
        assert (await stream).reply.content == "You said: tea [learned: one]"
        assert (await reply(policy, "tea")).reply.content == "You said: tea [learned: two]"
        async with asyncio.timeout(10):
            while first in engine.adapters or (tmp_path / "engine-adapters" / str(os.getpid()) / first).exists():
                await asyncio.sleep(0.01)
        await policy.load(version(3, tmp_path, "three"))
    assert len(set(engine.loads)) == 3
    assert engine.unloads[0] == first
    assert not (tmp_path / "engine-adapters").exists()


async def test_folders_of_another_process_stay_and_those_of_an_ended_one_go(
    engine: FakeEngine, model: Path, tmp_path: Path
) -> None:
    other, ended = (tmp_path / "engine-adapters" / pid / "openclaw-v1-aaa" for pid in ("1", "999999999"))
    other.mkdir(parents=True)
    ended.mkdir(parents=True)
    async with started(engine, model, tmp_path) as policy:
        await policy.load(version(1, tmp_path, "one"))
    assert [folder.name for folder in (tmp_path / "engine-adapters").iterdir()] == ["1"]
    assert other.is_dir()


async def test_streams_across_versions_fail_never_and_mix_never(
    engine: FakeEngine, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_weights, "SPARE", 0)
    asked = []
    async with started(engine, model, tmp_path) as policy:
        for number in range(1, 11):
            asked += [asyncio.create_task(reply(policy, f"question {number}.{at}")) for at in range(10)]
            await asyncio.sleep(0)
            await policy.load(version(number, tmp_path, f"rule {number}"))
        found = await asyncio.gather(*asked)
    for at, done in enumerate(found):
        rule = f" [learned: rule {done.version}]" if done.version else ""
        assert done.reply.content == f"You said: question {at // 10 + 1}.{at % 10}{rule}"
    assert len({done.version for done in found}) > 5


async def test_a_stream_whose_engine_dies_goes_on_where_it_was(engine: FakeEngine, model: Path, tmp_path: Path) -> None:
    async with started(engine, model, tmp_path) as policy:
        await policy.load(version(1, tmp_path, "be brief"))
        engine.die_after = 7
        stream = asyncio.create_task(reply(policy, "tell me about tea", Sampling(max_tokens=64, seed=1)))
        async with asyncio.timeout(10):
            while engine.alive:
                await asyncio.sleep(0.01)
        assert not stream.done()
        engine.revive()
        done = await asyncio.wait_for(stream, 10)
        assert policy.health["restarts"] >= 0
    assert done.reply.content == "You said: tell me about tea [learned: be brief]"
    assert done.logprobs == tuple(logprob(token, at) for at, token in enumerate(done.reply_tokens))
    assert len(engine.loads) == 2, "the version was loaded again, under another name"
    assert len(set(engine.loads)) == 2


async def test_an_engine_whose_core_died_says_so_and_is_lost(engine: FakeEngine, model: Path, tmp_path: Path) -> None:
    async with started(engine, model, tmp_path) as policy:
        engine.failures = 1
        assert (await reply(policy, "tea")).reply.content == "You said: tea"
        engine.failures = 1
        assert len((await policy.score((0, 5), (7,))).logprobs) == 1
        engine.failures = 3
        with pytest.raises(FatalRequest, match="ended 3 times while it worked on this request"):
            await reply(policy, "tea")


async def test_an_engine_that_lost_its_adapters_is_given_them_again(
    engine: FakeEngine, model: Path, tmp_path: Path
) -> None:
    async with started(engine, model, tmp_path) as policy:
        await policy.load(version(1, tmp_path, "be brief"))
        engine.adapters.clear()  # it was started again between two requests
        assert (await reply(policy, "tea")).reply.content == "You said: tea [learned: be brief]"
        engine.adapters.clear()
        assert len((await policy.score((0, 5), (7,), version=1)).logprobs) == 1


async def test_a_version_without_weights_is_refused_and_the_live_one_stays(
    engine: FakeEngine, model: Path, tmp_path: Path
) -> None:
    async with started(engine, model, tmp_path) as policy:
        with pytest.raises(ModelRefused, match="no longer kept"):
            await policy.load(Version(number=1, parent=0, base="toy", adapter=str(tmp_path / "nothing")))
        assert policy.live == 0
        with pytest.raises(RequestError, match="no version 9"):
            await reply(policy, "tea", version=9)
