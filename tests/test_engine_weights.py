"""Whole models on an engine, one after the other, and an engine that sleeps: requests wait, none fails, none mixes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from engines import SHORT, engine, model, policy_on, reply, started, version
from fakes.engines import FakeEngine

from openclaw_rl.app.checks import refuse_apart
from openclaw_rl.app.factories import TurnTakingTrainer, trainer_of
from openclaw_rl.backends.engines import weights
from openclaw_rl.backends.fake import FakeTrainer
from openclaw_rl.config import load
from openclaw_rl.errors import BackendError, ConfigError, ModelRefused
from openclaw_rl.ports import StepResult
from openclaw_rl.types import Version

__all__ = ["engine", "model"]  # fixtures

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "PATIENCE", 0.05)
    monkeypatch.setattr(weights, "LINGER", 0.02)


async def until(settled: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not settled():
            await asyncio.sleep(0.005)


async def test_a_whole_model_answers_once_it_is_live(engine: FakeEngine, model: Path, tmp_path: Path) -> None:
    async with started(engine, model, tmp_path, lora=False) as policy:
        await policy.load(version(1, tmp_path, "be brief"))
        done = await reply(policy, "tea")
        assert (done.reply.content, done.version) == ("You said: tea [learned: be brief]", 1)
        assert policy.health["adapters"] == {1: "base"}
        assert not engine.loads
        assert len((await policy.score((0, 5), (7,), version=1)).logprobs) == 1
    assert engine.reloads == [str(tmp_path / "v1"), str(model)], "an engine of others has its own weights again"
    assert engine.faults == []


async def test_a_version_waits_for_requests_under_way_and_holds_those_that_come(
    engine: FakeEngine, model: Path, tmp_path: Path
) -> None:
    engine.pause, engine.reload_seconds = 0.01, 0.05
    async with started(engine, model, tmp_path, lora=False) as policy:
        first = asyncio.create_task(reply(policy, "tea"))
        await until(lambda: engine.running > 0)
        loading = asyncio.create_task(policy.load(version(1, tmp_path, "one")))
        await asyncio.sleep(0.1)
        assert not loading.done()
        held = asyncio.create_task(reply(policy, "rain"))
        await loading
        assert (await first).reply.content == "You said: tea"
        assert (await held).reply.content == "You said: rain [learned: one]"
        assert len(engine.reloads) == 1, "the one that was held took the new version, not the old one once more"
    assert engine.faults == []


async def test_streams_across_whole_models_fail_never_and_mix_never(
    engine: FakeEngine, model: Path, tmp_path: Path
) -> None:
    asked = []
    async with started(engine, model, tmp_path, lora=False) as policy:
        for number in range(1, 6):
            asked += [asyncio.create_task(reply(policy, f"question {number}.{at}")) for at in range(6)]
            asked.append(asyncio.create_task(reply(policy, f"question {number}.6", version=0)))
            await asyncio.sleep(0.01)
            await policy.load(version(number, tmp_path, f"rule {number}"))
        found = await asyncio.gather(*asked)
    for at, done in enumerate(found):
        rule = f" [learned: rule {done.version}]" if done.version else ""
        assert done.reply.content == f"You said: question {at // 7 + 1}.{at % 7}{rule}"
    assert len({done.version for done in found}) > 2
    assert engine.faults == []


async def test_a_candidate_and_the_base_model_have_the_engine_in_turn_and_it_goes_back(
    engine: FakeEngine, model: Path, tmp_path: Path
) -> None:
    async with started(engine, model, tmp_path, lora=False) as policy:
        await policy.load(version(1, tmp_path, "one"))
        await policy.admit(version(2, tmp_path, "two"))
        assert policy.live == 1
        found = await asyncio.gather(*(reply(policy, "tea", version=number) for number in (2, 1, 0, 2, 1, 0)))
        assert [done.reply.content.removeprefix("You said: tea") for done in found] == [
            " [learned: two]",
            " [learned: one]",
            "",
        ] * 2
        await policy.dismiss(2)
        await until(lambda: engine.weights == str(tmp_path / "v1"))
    assert engine.faults == []


async def test_a_rollback_to_the_same_weights_reads_nothing(engine: FakeEngine, model: Path, tmp_path: Path) -> None:
    async with started(engine, model, tmp_path, lora=False) as policy:
        first = version(1, tmp_path, "one")
        await policy.load(first)
        await policy.load(Version(number=2, parent=1, base="toy", adapter=first.adapter))
        assert (policy.live, len(engine.reloads)) == (2, 1)


async def test_weights_that_cannot_be_read_are_refused_and_the_live_ones_come_back(
    engine: FakeEngine, model: Path, tmp_path: Path
) -> None:
    async with started(engine, model, tmp_path, lora=False) as policy:
        await policy.load(version(1, tmp_path, "one"))
        (tmp_path / "v2").mkdir()
        with pytest.raises(BackendError):
            await policy.load(Version(number=2, parent=1, base="toy", adapter=str(tmp_path / "v2")))
        with pytest.raises(ModelRefused, match="no longer kept"):
            await policy.load(Version(number=3, parent=1, base="toy", adapter=str(tmp_path / "v3")))
        assert policy.live == 1
        assert (await reply(policy, "tea")).reply.content == "You said: tea [learned: one]"


async def test_an_engine_that_was_started_again_is_given_the_live_weights(
    engine: FakeEngine, model: Path, tmp_path: Path
) -> None:
    async with started(engine, model, tmp_path, lora=False) as policy:
        await policy.load(version(1, tmp_path, "one"))
        engine.die_after = 7
        stream = asyncio.create_task(reply(policy, "tell me about tea"))
        await until(lambda: not engine.alive)
        engine.revive()
        done = await asyncio.wait_for(stream, 10)
    assert done.reply.content == "You said: tell me about tea [learned: one]"
    assert engine.reloads[:2] == [str(tmp_path / "v1")] * 2


async def test_giving_up_a_wait_leaves_the_line_in_order(engine: FakeEngine, model: Path, tmp_path: Path) -> None:
    engine.pause = 0.01
    async with started(engine, model, tmp_path, lora=False) as policy:
        policy.know(version(1, tmp_path, "one"))
        running = asyncio.create_task(reply(policy, "tea"))
        await until(lambda: engine.running > 0)
        waiting = asyncio.create_task(reply(policy, "rain", version=1))
        await asyncio.sleep(0.02)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await running).reply.content == "You said: tea"
        assert (await reply(policy, "salt")).reply.content == "You said: salt"
    assert engine.reloads == []


# --- turns on one GPU


class SlowTrainer(FakeTrainer):
    """Takes its time, and notes whether the engine slept."""

    def __init__(self, engine: FakeEngine) -> None:
        super().__init__()
        self.engine = engine
        self.slept: list[bool] = []
        self.stops = 0

    async def step(self, *args: object, **given: object) -> StepResult:
        self.slept.append(self.engine.asleep)
        await asyncio.sleep(0.1)
        self.slept.append(self.engine.asleep)
        return await super().step(*args, **given)  # type: ignore[arg-type]

    async def stop(self) -> None:
        self.stops += 1


async def test_the_engine_sleeps_through_a_step_and_requests_wait_for_its_end(
    engine: FakeEngine, model: Path, tmp_path: Path
) -> None:
    engine.pause = 0.005
    async with started(engine, model, tmp_path, turns=True) as policy:
        trainer = SlowTrainer(engine)
        both = TurnTakingTrainer(trainer, policy)
        await both.start()
        under_way = asyncio.create_task(reply(policy, "tea"))
        await until(lambda: engine.running > 0)
        parent = Version(number=0, parent=None, base="toy", adapter=None)
        step = asyncio.create_task(both.step([], number=1, parent=parent, target=str(tmp_path / "v1")))
        await until(lambda: engine.asleep)
        assert under_way.done(), "it ended before the engine slept"
        assert policy.health["state"] == "asleep"
        waits = [asyncio.create_task(reply(policy, "rain")), asyncio.create_task(policy.score((0, 5), (7,)))]
        await step
        done, scores = await asyncio.gather(*waits)
        assert done.reply.content == "You said: rain"  # type: ignore[union-attr]
        assert len(scores.logprobs) == 1
        assert policy.health["state"] == "ready"
    assert trainer.slept == [True, True]
    assert trainer.stops == 1, "its memory is the engine's between steps"
    assert (engine.faults, engine.asleep) == ([], False)


async def test_an_engine_that_cannot_sleep_says_what_lets_it_and_goes_on(
    engine: FakeEngine, model: Path, tmp_path: Path
) -> None:
    engine.can_sleep = False
    async with started(engine, model, tmp_path, turns=True) as policy:
        with pytest.raises(BackendError, match=r"refuses /.*; start (vLLM|SGLang) with .*--enable-"):
            async with policy.asleep():
                pass
        assert (await reply(policy, "tea")).reply.content == "You said: tea"


async def test_an_engine_that_died_in_its_sleep_is_waited_for(engine: FakeEngine, model: Path, tmp_path: Path) -> None:
    async with started(engine, model, tmp_path, turns=True) as policy:
        await policy.load(version(1, tmp_path, "be brief"))
        async with policy.asleep():
            engine.adapters.clear()
            waits = asyncio.create_task(reply(policy, "tea", SHORT))
            await asyncio.sleep(0.02)
            assert not waits.done()
        assert (await asyncio.wait_for(waits, 10)).reply.content == "You said: tea [learned: be brief]"


def test_flags_of_an_engine_follow_from_whole_models_and_turns(model: Path, tmp_path: Path) -> None:
    commands = {}
    for kind in ("vllm", "sglang"):
        nothing = FakeEngine(kind, model)  # type: ignore[arg-type]
        policy = policy_on(nothing, model, tmp_path, url=None, lora=False, turns=True)
        plan = policy._settings.plan(policy._read_model())
        commands[kind] = " ".join(policy._dialect.command(plan))
    assert "VLLM_SERVER_DEV_MODE=1" in commands["vllm"]
    assert "--enable-sleep-mode" in commands["vllm"]
    assert "--enable-memory-saver" in commands["sglang"]
    assert "lora" not in "".join(commands.values()).replace("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "")


def test_what_two_processes_cannot_do_with_one_engine_is_refused_with_the_remedy() -> None:
    engine = ("policy.backend=vllm", "policy.url=http://127.0.0.1:9")
    turns = load(environ={}, sets=[*engine, "gpus.turns=on", "train.backend=fake"]).config
    with pytest.raises(ConfigError, match="this process does not serve.*openclaw-rl up"):
        trainer_of(turns, None)
    whole = load(environ={}, sets=[*engine, "train.lora.enabled=off"]).config
    with pytest.raises(ConfigError, match="cannot be examined apart from the process that serves.*openclaw-rl up"):
        refuse_apart(whole)
    refuse_apart(load(environ={}, sets=engine).config)
