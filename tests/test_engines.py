"""Policies on vLLM and SGLang, over contract fakes of both: tokens both ways, versions, deaths, refusals."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from promises import broken

from openclaw_rl.backends.engines import adapters as shelf
from openclaw_rl.backends.engines.factories import sglang_policy, vllm_policy
from openclaw_rl.backends.engines.policy import EnginePolicy
from openclaw_rl.backends.fake import logprob, write_adapter
from openclaw_rl.errors import (
    BackendDown,
    BackendError,
    ConfigError,
    ContextOverflow,
    FatalRequest,
    ModelRefused,
    RequestError,
)
from openclaw_rl.ports import Delta, whole_reply
from openclaw_rl.testing import check_policy, make_prompt
from openclaw_rl.testing.engines import FakeEngine, fake_engine, write_engine_model
from openclaw_rl.types import Completion, Message, Prompt, Sampling, Tool, Version

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
MAKERS = {"vllm": vllm_policy, "sglang": sglang_policy}
SHORT = Sampling(max_tokens=64)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_engine_model(tmp_path_factory.mktemp("model") / "toy")


@pytest.fixture(params=["vllm", "sglang"])
def engine(request: pytest.FixtureRequest, model: Path) -> Iterator[FakeEngine]:
    with fake_engine(request.param, model) as running:
        yield running


def policy_on(engine: FakeEngine, model: Path, run: Path, **changes: Any) -> EnginePolicy:
    settings: dict[str, Any] = {
        "model": str(model),
        "cache_dir": run,
        "device": "cpu",
        "dtype": "auto",
        "context": None,
        "max_batch": 8,
        "chat_template": None,
        "tool_format": None,
        "url": engine.url,
        "launch": None,
        "key": None,
        "engine_python": None,
        "engine_flags": (),
        "memory_share": None,
        "gpus": (),
        "lora": True,
        "lora_rank": 8,
        "turns": False,
        "follow": False,
        "run_dir": run,
    }
    made: EnginePolicy = MAKERS[engine.kind](**{**settings, **changes})
    return made


@asynccontextmanager
async def started(engine: FakeEngine, model: Path, run: Path, **changes: Any) -> AsyncIterator[EnginePolicy]:
    policy = policy_on(engine, model, run, **changes)
    await policy.start()
    try:
        yield policy
    finally:
        await policy.stop()


def version(number: int, run: Path, *rules: str) -> Version:
    folder = run / f"v{number}"
    write_adapter(str(folder), rules=rules, turns=(), manifest={})
    return Version(number=number, parent=number - 1, base="toy", adapter=str(folder))


async def reply(policy: EnginePolicy, text: str, sampling: Sampling = SHORT, **given: Any) -> Completion:
    return await whole_reply(policy.generate(make_prompt(text), sampling, **given))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def test_a_policy_on_an_engine_keeps_the_promises_of_a_policy(engine: FakeEngine, model: Path, tmp_path: Path) -> None:
    assert broken(check_policy, policy_on(engine, model, tmp_path)) == []


async def test_a_reply_is_the_very_tokens_and_log_probs_of_the_engine(
    engine: FakeEngine, model: Path, tmp_path: Path
) -> None:
    async with started(engine, model, tmp_path) as policy:
        done = await reply(policy, "tea")
    assert done.reply.content == "You said: tea"
    assert (done.finish, done.version, done.reply_tokens[-1]) == ("stop", 0, 1)
    assert done.logprobs == tuple(logprob(token, at) for at, token in enumerate(done.reply_tokens))
    sent = engine.requests[-1]
    assert tuple(sent["prompt"] if engine.kind == "vllm" else sent["input_ids"]) == done.prompt_tokens


async def test_a_stop_string_ends_a_reply_across_tokens_and_is_not_shown(
    engine: FakeEngine, model: Path, tmp_path: Path
) -> None:
    async with started(engine, model, tmp_path) as policy:
        engine.pause = 0.005
        done = await reply(policy, "green tea, please", Sampling(max_tokens=64, stop=("tea",)))
        assert (done.reply.content, done.finish) == ("You said: green ", "stop")
        assert len(done.reply_tokens) == len("You said: green tea")
        engine.pause = 0.0
        cut = await reply(policy, "tea", Sampling(max_tokens=5))
    assert (cut.reply.content, cut.finish) == ("You s", "length")


async def test_tokens_that_come_together_are_shown_together(engine: FakeEngine, model: Path, tmp_path: Path) -> None:
    async with started(engine, model, tmp_path) as policy:
        stream = policy.generate(make_prompt("tea"), SHORT)
        first = await anext(stream)
        async with asyncio.timeout(10):
            while engine.running:  # the engine is ahead of whoever reads
                await asyncio.sleep(0.01)
        rest = [item async for item in stream]
    assert isinstance(first, Delta)
    shown = [first, *(item for item in rest if isinstance(item, Delta))]
    assert "".join(delta.text for delta in shown) == "You said: tea"
    assert len(shown) < len("You said: tea"), "not one piece for each token"
    tokens = [piece.token for delta in shown for piece in delta.pieces]
    assert isinstance(rest[-1], Completion)
    assert tuple(tokens) == rest[-1].reply_tokens


async def test_half_a_character_waits_for_its_other_half(engine: FakeEngine, model: Path, tmp_path: Path) -> None:
    async with started(engine, model, tmp_path) as policy:
        engine.pause = 0.005  # each token by itself
        items = [item async for item in policy.generate(make_prompt("née"), SHORT)]
    shown = [item.text for item in items if isinstance(item, Delta)]
    assert "é" in shown
    assert "�" not in "".join(shown)
    assert (
        len([piece for item in items if isinstance(item, Delta) for piece in item.pieces]) == len("You said: née") + 2
    )


async def test_closing_a_stream_early_stops_the_engine(engine: FakeEngine, model: Path, tmp_path: Path) -> None:
    engine.pause = 0.01
    async with started(engine, model, tmp_path) as policy:
        stream: Any = policy.generate(make_prompt("a long story"), SHORT)
        await anext(stream)
        await stream.aclose()
        async with asyncio.timeout(10):
            while engine.running:
                await asyncio.sleep(0.01)
    assert engine.cancelled >= 1


async def test_sampling_parameters_reach_the_engine(engine: FakeEngine, model: Path, tmp_path: Path) -> None:
    async with started(engine, model, tmp_path) as policy:
        asked = Sampling(temperature=0.5, top_p=0.9, top_k=7, seed=3, max_tokens=9, repetition_penalty=1.1)
        await reply(policy, "tea", asked)
    sent = engine.requests[-1]
    inner = sent.get("sampling_params", sent)
    seed, limit = ("seed", "max_tokens") if engine.kind == "vllm" else ("sampling_seed", "max_new_tokens")
    found = [inner[name] for name in ("temperature", "top_p", "top_k", seed, limit, "repetition_penalty")]
    assert found == [0.5, 0.9, 7, 3, 9, 1.1]


async def test_the_likeliest_tokens_are_given_where_a_client_asks_for_them(
    engine: FakeEngine, model: Path, tmp_path: Path
) -> None:
    async with started(engine, model, tmp_path) as policy:
        stream = policy.generate(make_prompt("tea"), Sampling(max_tokens=4, top_logprobs=3))
        pieces = [piece async for item in stream if isinstance(item, Delta) for piece in item.pieces]
    assert [len(piece.top) for piece in pieces] == [3, 3, 3, 3]
    assert pieces[0].text == "Y"


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
    monkeypatch.setattr(shelf, "GRACE", 0.0)
    monkeypatch.setattr(shelf, "SPARE", 0)
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
    monkeypatch.setattr(shelf, "SPARE", 0)
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


async def test_a_prompt_that_can_never_fit_is_refused_before_it_is_sent(
    engine: FakeEngine, model: Path, tmp_path: Path
) -> None:
    async with started(engine, model, tmp_path, context=256) as policy:
        before = len(engine.requests)
        with pytest.raises(ContextOverflow):
            await reply(policy, "tea " * 200)
        assert len(engine.requests) == before


async def test_a_version_without_weights_is_refused_and_the_live_one_stays(
    engine: FakeEngine, model: Path, tmp_path: Path
) -> None:
    async with started(engine, model, tmp_path) as policy:
        with pytest.raises(ModelRefused, match="no longer kept"):
            await policy.load(Version(number=1, parent=0, base="toy", adapter=str(tmp_path / "nothing")))
        assert policy.live == 0
        with pytest.raises(RequestError, match="no version 9"):
            await reply(policy, "tea", version=9)


async def test_where_nobody_listens_the_remedy_is_named(model: Path, tmp_path: Path) -> None:
    with fake_engine("vllm", model) as engine:
        pass
    with pytest.raises(BackendDown, match=r"no vllm engine answers at .*start it, correct policy.url"):
        await policy_on(engine, model, tmp_path).start()
    with pytest.raises(ConfigError, match="policy.launch is off"):
        policy_on(engine, model, tmp_path, url=None, launch=False)


async def test_something_else_than_an_engine_is_told_apart(model: Path, tmp_path: Path) -> None:
    with fake_engine("sglang", model) as engine:
        engine.kind = "vllm"  # type: ignore[assignment]
        async with started(engine, model, tmp_path) as policy:  # the model list is the same: only its use tells
            with pytest.raises(BackendError, match=r"the engine refused the request.*is it a vllm engine\?"):
                await reply(policy, "tea")


# --- guided decoding


def guided(engine: FakeEngine) -> Any:
    sent = engine.requests[-2]  # the last is the score of the reply
    return sent["structured_outputs"] if engine.kind == "vllm" else sent["sampling_params"]


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


async def test_a_schema_goes_to_guided_decoding_and_the_reply_is_scored_without_it(
    engine: FakeEngine, model: Path, tmp_path: Path
) -> None:
    async with started(engine, model, tmp_path) as policy:
        done = await reply(policy, "tea", Sampling(max_tokens=32, json_schema=SCHEMA))
    wanted = guided(engine)
    assert wanted.get("json", SCHEMA) == SCHEMA
    assert "json" in wanted or '"city"' in wanted["json_schema"]
    assert len(done.logprobs) == len(done.reply_tokens)


async def test_a_forced_call_is_guided_from_its_opening_on(engine: FakeEngine, model: Path, tmp_path: Path) -> None:
    tools = (Tool(name="weather", parameters=SCHEMA), Tool(name="news", parameters=SCHEMA))
    asked = Prompt(
        messages=(Message(role="user", content="Rain?"),),
        tools=tools,
        tool_choice="required",
        opening='<tool_call>\n{"name": "',
    )
    async with started(engine, model, tmp_path) as policy:
        await whole_reply(policy.generate(asked, SHORT))
    tag = guided(engine)["structural_tag"]
    assert '"value": "weather\\", \\"arguments\\":"' in tag
    assert '"value": "}\\n</tool_call>"' in tag


# --- images


async def test_images_go_to_the_engine_which_makes_the_prompts_tokens(
    engine: FakeEngine, model: Path, tmp_path: Path
) -> None:
    seen = Message(role="user", content="What is this?", images=("data:image/png;base64,AA==",))
    async with started(engine, model, tmp_path) as policy:
        await policy.load(version(1, tmp_path, "be brief"))
        done = await whole_reply(policy.generate(Prompt(messages=(seen,)), SHORT, version=0))
        learned = await whole_reply(policy.generate(Prompt(messages=(seen,)), SHORT))
    sent = engine.requests[-1]
    assert done.reply.content == "You said: (image) What is this?"
    assert sent["messages"][0]["content"][0] == {"type": "image_url", "image_url": {"url": seen.images[0]}}
    assert len(done.logprobs) == len(done.reply_tokens)
    assert "(image)" in engine.tokenizer.decode(list(done.prompt_tokens), skip_special_tokens=False)
    assert learned.reply.content == "You said: (image) What is this? [learned: be brief]"


# --- an engine that we start

STUB = """#!{python}
import sys
from pathlib import Path
from openclaw_rl.testing.engines import fake_engine
port, folder = (sys.argv[sys.argv.index(name) + 1] for name in ("--port", "--model"))
with fake_engine("vllm", Path(folder), port=int(port)):
    sys.stdin.close()
    while True:
        __import__("time").sleep(60)
"""


def stub(folder: Path, text: str) -> str:
    file = folder / "python"
    file.write_text(text.replace("{python}", sys.executable))
    file.chmod(0o755)
    return str(file)


@pytest.mark.slow
async def test_an_engine_that_we_start_is_started_again_when_it_is_killed(model: Path, tmp_path: Path) -> None:
    nothing = FakeEngine("vllm", model)
    policy = policy_on(nothing, model, tmp_path, url=None, engine_python=stub(tmp_path, STUB))
    await policy.start()
    try:
        await policy.load(version(1, tmp_path, "be brief"))
        os.kill(policy.health["pid"], signal.SIGKILL)
        assert (await reply(policy, "tea")).reply.content == "You said: tea [learned: be brief]"
        assert (policy.health["state"], policy.health["restarts"]) == ("ready", 1)
        left = policy.health["pid"]
    finally:
        await policy.stop()
        await policy.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(left, 0)
    assert (tmp_path / "engine.log").exists()


async def test_another_process_of_the_run_uses_the_engine_that_was_started_already(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = policy_on(FakeEngine("vllm", model), model, tmp_path, url=None, engine_python=stub(tmp_path, STUB))
    await first.start()
    try:
        kept = json.loads((tmp_path / "engine.json").read_text())
        assert (kept["url"], kept["pid"]) == (first.health["url"], os.getpid())
        (tmp_path / "engine.json").write_text(json.dumps(kept | {"pid": os.getppid()}))  # as another process sees it
        second = policy_on(
            FakeEngine("vllm", model), model, tmp_path, url=None, follow=True, engine_python="/no/python"
        )
        await second.start()
        assert (second.health["url"], second.health["pid"]) == (first.health["url"], None)
        await second.admit(version(1, tmp_path, "be brief"))
        assert (await reply(second, "tea", version=1)).reply.content == "You said: tea [learned: be brief]"
        await second.stop()
        assert first.health["pid"] is not None, "who did not start it does not end it"
        (tmp_path / "engine.json").write_text(json.dumps(kept))
    finally:
        await first.stop()
    assert not (tmp_path / "engine.json").exists()


async def test_who_follows_an_engine_finds_it_at_its_new_address(model: Path, tmp_path: Path) -> None:
    def served_at(url: str, pid: int) -> None:
        (tmp_path / "engine.json").write_text(json.dumps({"engine": "vllm", "url": url, "pid": pid}))

    with fake_engine("vllm", model) as old, fake_engine("vllm", model) as new:
        served_at(old.url, os.getppid())
        async with started(old, model, tmp_path, url=None, follow=True) as policy:
            await policy.load(version(1, tmp_path, "be brief"))
            served_at(new.url, os.getppid())
            old.die()
            assert (await reply(policy, "tea")).reply.content == "You said: tea [learned: be brief]"
            assert policy.health["url"] == new.url
        served_at(old.url, 999_999_999)  # of a process that is gone
        lonely = policy_on(old, model, tmp_path, url=None, follow=True, engine_python="/no/python")
        with pytest.raises(ModelRefused, match="did not start"):
            await lonely.start()


WHY = {
    "ModuleNotFoundError: No module named 'vllm'": "its Python has no package 'vllm'",
    "OSError: [Errno 98] Address already in use": "its port is taken",
    "torch.cuda.OutOfMemoryError: CUDA out of memory.": "there is too little memory",
    "api_server.py: error: unrecognized arguments: --no-such": "this release of it does not know --no-such",
    "RuntimeError: something else": "RuntimeError: something else; see its log, ",
}


@pytest.mark.parametrize("line", WHY)
async def test_an_engine_that_does_not_start_says_why_and_what_to_do(model: Path, tmp_path: Path, line: str) -> None:
    dying = stub(tmp_path, f"#!/bin/sh\necho loading\necho {shlex.quote(line)} >&2\nexit 1\n")
    policy = policy_on(FakeEngine("vllm", model), model, tmp_path, url=None, engine_python=dying)
    with pytest.raises(ModelRefused) as caught:
        await policy.start()
    assert f"vllm did not start: {WHY[line]}" in str(caught.value)
    assert str(tmp_path / "engine.log") in str(caught.value)
