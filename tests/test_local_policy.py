"""The local policy: real processes, small models. What it promises holds while versions change and processes die."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
from defaults import engine_args
from model_shapes import save_shape
from test_local_models import embedded, make_folder, prompt, quiet  # noqa: F401 (a fixture)

from openclaw_rl.backends.hf.models import load
from openclaw_rl.backends.hf.template import ChatTemplate
from openclaw_rl.backends.local.engine.policy import LocalPolicy
from openclaw_rl.errors import BackendDown, BackendError, ContextOverflow, ModelRefused, RequestError
from openclaw_rl.ports import Delta, Policy, Stream
from openclaw_rl.serve import ServeLoop
from openclaw_rl.store import TrainLedger
from openclaw_rl.testing import MemoryLedger, fake_api
from openclaw_rl.types import Completion, Message, Prompt, Sampling, Tool, Version
from openclaw_rl.versions import LiveVersions

pytestmark = pytest.mark.slow
GREEDY = Sampling(temperature=0.0, max_tokens=24)


@pytest.fixture(scope="module", params=["llama", "qwen3_5_text"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose sequences share passes, and one that is run by plain `transformers`."""
    place = tmp_path_factory.mktemp("models") / "tiny"
    if request.param == "llama":
        return make_folder(place, layers=6)
    kinds = ["linear_attention", "full_attention"]
    return save_shape(place, request.param, layer_types=kinds, num_hidden_layers=2)


@pytest.fixture(scope="module")
def adapters(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Four adapters that change what the model says."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    root = tmp_path_factory.mktemp("adapters")
    for index in range(4):
        torch.manual_seed(index)
        base = AutoModelForCausalLM.from_pretrained(folder)
        config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights=False)
        get_peft_model(base, config).save_pretrained(root / str(index))
    return [str(root / str(index)) for index in range(4)]


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    """One event loop for the module, because starting an engine takes seconds."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def policy(folder: Path, loop: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalPolicy]:
    made = local(folder, tmp_path_factory.mktemp("cache"))
    loop.run(made.start())
    yield made
    loop.run(made.stop())
    loop.run(made.stop())
    assert made.health["state"] == "stopped"


def local(folder: Path, cache: Path, **rest: Any) -> LocalPolicy:
    return LocalPolicy(
        engine_args(model=str(folder), cache_dir=cache, device="cpu", dtype="float32", **rest), progress=quiet
    )


def version(number: int, adapter: str | None) -> Version:
    return Version(number=number, parent=number - 1, base="tiny", adapter=adapter)


async def whole(
    policy: Policy, asked: Prompt, sampling: Sampling, *, version: int | None = None
) -> tuple[str, Completion]:
    """The streamed text and the completion at its end."""
    text, done = [], None
    async for item in policy.generate(asked, sampling, version=version):
        assert done is None
        if isinstance(item, Delta):
            text.append(item.text)
        else:
            done = item
    assert done is not None
    return "".join(text), done


def reference(folder: Path, asked: Prompt, adapter: str | None = None, count: int = 24) -> tuple[int, ...]:
    """What `transformers` and peft write."""
    loaded = load(str(folder), cache_dir=folder, device="cpu", dtype="float32", progress=quiet)
    model = loaded.model
    if adapter is not None:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, adapter).merge_and_unload()
    chat = ChatTemplate(loaded.tokenizer)
    ids = torch.tensor([chat.encode(asked)])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, eos_token_id=[0, 2]
    )
    return tuple(out[0, ids.shape[1] :].tolist())


def test_it_is_a_policy_and_says_what_it_serves(policy: LocalPolicy) -> None:
    assert isinstance(policy, Policy)
    assert (policy.name, policy.context, policy.tool_format, policy.live) == ("tiny", 1024, "hermes", 0)
    assert policy.base.startswith("tiny-")
    assert policy.health["state"] == "ready"


def test_it_says_how_it_runs_the_model_and_why(policy: LocalPolicy, folder: Path, loop: asyncio.Runner) -> None:
    linear = "linear_attention" in (folder / "config.json").read_text()
    alone = "plain transformers, one sequence at a time without a prefix cache: it has layers of kind linear_attention"
    assert policy.runner == (alone if linear else "fused layers, batched, with a prefix cache")
    shown = loop.run(ServeLoop(policy, LiveVersions(MemoryLedger())).status())
    assert shown["runner"] == policy.runner


def test_a_reply_streams_and_ends_with_what_was_sampled(
    policy: LocalPolicy, folder: Path, loop: asyncio.Runner
) -> None:
    text, done = loop.run(whole(policy, prompt("hello"), GREEDY))
    assert done.reply_tokens == reference(folder, prompt("hello"))
    assert done.reply == Message(role="assistant", content=text)
    assert done.prompt_tokens == loop.run(policy.encode(prompt("hello")))
    assert (done.version, done.sampling) == (0, GREEDY)
    assert len(done.logprobs) == len(done.reply_tokens)
    ended = done.reply_tokens[-1] in (0, 2)
    assert done.finish == ("stop" if ended else "length")
    shown = done.reply_tokens[:-1] if ended else done.reply_tokens
    assert text == loop.run(policy.decode(shown))


def test_a_reply_that_may_call_tools_or_follows_a_schema_may_repeat_itself(
    policy: LocalPolicy, loop: asyncio.Runner
) -> None:
    asked, ask = prompt("hello"), Sampling(seed=1, max_tokens=4, dry_multiplier=0.8)
    able = replace(asked, tools=(Tool(name="look"),))
    drawn = [
        loop.run(whole(policy, one, how))[1].sampling.dry_multiplier
        for one, how in ((asked, ask), (able, ask), (asked, replace(ask, json_schema={"type": "object"})))
    ]
    assert drawn == [0.8, 0.0, 0.0]


def test_text_and_ids_go_both_ways(policy: LocalPolicy, loop: asyncio.Runner) -> None:
    ids = loop.run(policy.tokenize("naïve 😀"))
    assert loop.run(policy.decode(ids)) == "naïve 😀<|im_end|>"


def test_scores_equal_the_logprobs_recorded_while_sampling(policy: LocalPolicy, loop: asyncio.Runner) -> None:
    ask = Sampling(temperature=0.7, max_tokens=20, seed=5)
    _, done = loop.run(whole(policy, prompt("score me"), ask))
    scores = loop.run(policy.score(done.prompt_tokens, done.reply_tokens, temperature=0.7, top_k=3))
    assert scores.logprobs == pytest.approx(done.logprobs, abs=1e-4)
    assert {len(top) for top in scores.top_tokens} == {3}
    assert loop.run(policy.score(done.prompt_tokens, ())).logprobs == ()


def test_what_cannot_fit_or_is_unknown_is_the_callers_fault(policy: LocalPolicy, loop: asyncio.Runner) -> None:
    with pytest.raises(ContextOverflow, match="maximum context length is 1024 tokens") as caught:
        loop.run(whole(policy, prompt("x" * 2000), GREEDY))
    # <|im_start|> user \n, 2000 letters, <|im_end|> \n, <|im_start|> assistant \n, and 24 for the reply
    assert caught.value.asked == 6 + 2000 + 2 + 11 + 24
    with pytest.raises(ContextOverflow):
        loop.run(whole(policy, prompt("x"), Sampling(max_tokens=1020)))
    with pytest.raises(RequestError, match="no version 77"):
        loop.run(whole(policy, prompt("x"), GREEDY, version=77))
    with pytest.raises(RequestError, match="outside the model's vocabulary"):
        loop.run(policy.score((1,), (9999,)))


def test_closing_a_stream_stops_the_engine(policy: LocalPolicy, loop: asyncio.Runner) -> None:
    async def story() -> None:
        stream = policy.generate(prompt("go on"), Sampling(max_tokens=900, seed=1, stop=("never said",)))
        async for _ in stream:
            break
        await stream.aclose()  # type: ignore[attr-defined]
        await whole(policy, prompt("short"), Sampling(temperature=0.0, max_tokens=2))

    loop.run(story())
    assert policy.health["running"] == 0
    assert policy.health["waiting"] == 0


def test_after_a_restart_every_version_of_the_ledger_answers_by_its_number(
    policy: LocalPolicy, folder: Path, adapters: list[str], loop: asyncio.Runner, tmp_path: Path
) -> None:
    with TrainLedger(tmp_path / "ledger.db", sync="normal") as ledger:
        ledger.add_version(Version(number=0, parent=None, base="tiny", state="live"))
        for number in (1, 2, 3):
            ledger.add_version(version(number, adapters[number % 4]))
        ledger.set_state(3, "live", "promoted")
        assert loop.run(ServeLoop(policy, LiveVersions(ledger)).tick()) == 1
    assert policy.live == 3
    ask = Sampling(temperature=0.0, max_tokens=10)
    loop.run(whole(policy, prompt("question 0"), ask))
    assert policy.health["versions"] == 2, "the base and the live one: the others are known, not loaded"
    for number in (1, 2):
        _, done = loop.run(whole(policy, prompt("question 0"), ask, version=number))
        assert done.reply_tokens == reference(folder, prompt("question 0"), adapters[number % 4], 10)
    with pytest.raises(RequestError, match="no version 9 of tiny; known: 0, 1, 2, 3") as told:
        loop.run(whole(policy, prompt("question 0"), ask, version=9))
    assert told.value.status == 404
    loop.run(whole(policy, prompt("question 0"), ask))
    assert policy.health["versions"] == 2, "what was asked for by number has left again"


async def copies_held(policy: LocalPolicy) -> int:
    """Copies of the weights that something in the engine still refers to, as known after one more reply."""
    await whole(policy, prompt("how many"), Sampling(temperature=0.0, max_tokens=1))
    return int(policy.health["copies_made"]) - int(policy.health["copies_freed"])


def test_twenty_swaps_under_two_hundred_requests_mix_nothing_and_leave_no_copy_behind(
    policy: LocalPolicy, folder: Path, adapters: list[str], loop: asyncio.Runner
) -> None:
    asked = [prompt(f"question {index}") for index in range(3)]
    ask = Sampling(temperature=0.0, max_tokens=10)
    choices: list[str | None] = [None, *adapters]
    expected = {
        (index, adapter): reference(folder, asked[index], adapter, 10) for index in range(3) for adapter in choices
    }
    # so that what is mixed up shows; random linear attention forgets which question it was, and shows versions only
    assert all(len({expected[index, adapter] for adapter in choices}) == 5 for index in range(3))
    if json.loads((folder / "config.json").read_text())["model_type"] == "llama":
        assert len(set(expected.values())) == 15
    of_version: dict[int, str | None] = {0: None}

    async def story() -> None:
        tasks = []

        async def ten_requests_and_a_swap(number: int) -> None:
            tasks.extend(asyncio.create_task(whole(policy, asked[index % 3], ask)) for index in range(10))
            await asyncio.sleep(0)
            of_version[number] = adapters[number % 4]
            await policy.load(version(number, adapters[number % 4]))

        await whole(policy, asked[0], ask)
        before = policy.health["copies_made"]
        for number in range(1, 21):
            await ten_requests_and_a_swap(number)
            assert policy.live == number
        served = set()
        for index, task in enumerate(tasks):
            _, done = await task
            assert done.reply_tokens == expected[index % 10 % 3, of_version[done.version]]
            served.add(done.version)
        assert len(tasks) == 200
        assert len(served) >= 15
        by_number, zero = await whole(policy, asked[0], ask, version=3), await whole(policy, asked[0], ask, version=0)
        assert by_number[1].reply_tokens == expected[0, of_version[3]]
        assert zero[1].reply_tokens == expected[0, None]
        for number in (1, 2, 3):
            await policy.admit(version(number, of_version[number]))
        assert await copies_held(policy) >= 4, "several versions at once"
        assert policy.health["copies_made"] - before >= 20
        for number in (1, 2, 3):
            await policy.dismiss(number)
        async with asyncio.timeout(600):  # a copy that is never freed
            while await copies_held(policy) > 1:
                await asyncio.sleep(0)

    loop.run(story())
    assert policy.health["versions"] == 2
    assert policy.health["kv_cache_used"] == 0


def test_a_version_that_cannot_be_loaded_changes_nothing(
    policy: LocalPolicy, loop: asyncio.Runner, tmp_path: Path
) -> None:
    before = policy.live
    with pytest.raises(BackendError, match="neither adapter_config"):
        loop.run(policy.load(version(90, str(tmp_path))))
    assert policy.live == before
    with pytest.raises(BackendError, match="never changed in place"):
        loop.run(policy.load(version(90, "/elsewhere")))
    with pytest.raises(BackendError, match="neither adapter_config"):
        loop.run(whole(policy, prompt("x"), GREEDY, version=90))
    assert loop.run(whole(policy, prompt("x"), GREEDY))[1].version == before


def test_weights_whose_folder_was_deleted_are_a_404_and_the_engine_goes_on(
    policy: LocalPolicy, loop: asyncio.Runner, tmp_path: Path
) -> None:
    policy.know(version(91, str(tmp_path / "deleted")))
    with pytest.raises(RequestError, match="the weights of version 91 are no longer kept") as told:
        loop.run(whole(policy, prompt("hello"), GREEDY, version=91))
    assert told.value.status == 404
    assert loop.run(whole(policy, prompt("hello"), GREEDY))[1].reply_tokens


@contextmanager
def halted(pid: int) -> Iterator[None]:
    """The engine's process stands still; who waits for it here is let go after a while, and has failed."""
    os.kill(pid, signal.SIGSTOP)
    waited_for = threading.Timer(60, os.kill, (pid, signal.SIGCONT))
    waited_for.start()
    try:
        yield
        assert waited_for.is_alive(), "the event loop waited for the engine"
    finally:
        waited_for.cancel()
        os.kill(pid, signal.SIGCONT)


def test_health_answers_while_the_engine_has_more_to_do_than_it_can(policy: LocalPolicy, loop: asyncio.Runner) -> None:
    async def story() -> None:
        api = fake_api(policy, MemoryLedger())
        transport = httpx2.ASGITransport(app=api)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:

            async def ask(index: int) -> int:
                body = {"model": "tiny", "max_tokens": 20, "messages": [{"role": "user", "content": f"busy {index}"}]}
                return (await client.post("/v1/chat/completions", json=body)).status_code

            with halted(policy.health["pid"]):
                tasks = [asyncio.create_task(ask(index)) for index in range(32)]
                for _ in range(5):
                    assert (await client.get("/healthz")).status_code == 200
                assert not any(task.done() for task in tasks)
            assert await asyncio.gather(*tasks) == [200] * 32

    loop.run(story())


def test_the_event_loop_stays_free_while_the_engine_is_busy(policy: LocalPolicy, loop: asyncio.Runner) -> None:
    async def story() -> None:
        ask = Sampling(max_tokens=60)
        streams = [policy.generate(prompt(f"busy {index}"), ask) for index in range(16)]
        for stream in streams:
            await anext(stream)
        with halted(policy.health["pid"]):
            tasks = [asyncio.create_task(rest(stream)) for stream in streams]
            for _ in range(1000):
                await asyncio.sleep(0)
                assert policy.health["state"] == "ready"
            assert not all(task.done() for task in tasks)
        assert all(isinstance(last, Completion) for last in await asyncio.gather(*tasks))

    async def rest(stream: Stream) -> Delta | Completion:
        return [item async for item in stream][-1]

    loop.run(story())


def test_a_crash_is_seen_shown_and_mended(
    policy: LocalPolicy, adapters: list[str], folder: Path, loop: asyncio.Runner
) -> None:
    async def story() -> None:
        await policy.load(version(100, adapters[0]))
        stream = policy.generate(prompt("a long one"), Sampling(max_tokens=900, seed=1, stop=("never said",)))
        await anext(stream)
        pid = policy.health["pid"]
        os.kill(pid, signal.SIGSTOP)
        fresh = asyncio.create_task(whole(policy, prompt("question 0"), Sampling(temperature=0.0, max_tokens=10)))
        await asyncio.sleep(0)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(BackendDown, match="exit code -9"):
            async for _ in stream:
                pass
        assert policy.health["state"] == "restarting"
        # one that had shown nothing is asked again, of the version it began with
        _, done = await fresh
        assert done.version == 100
        assert done.reply_tokens == reference(folder, prompt("question 0"), adapters[0], 10)
        assert policy.health["restarts"] == 1
        assert policy.health["state"] == "ready"
        assert "exit code -9" in policy.health["last_error"]
        assert policy.health["pid"] != pid

    loop.run(story())


def test_a_model_that_cannot_be_served_is_refused_at_start(tmp_path: Path, loop: asyncio.Runner) -> None:
    bare = make_folder(tmp_path / "bare", template=None)
    made = local(bare, tmp_path)
    with pytest.raises(ModelRefused, match="no chat template"):
        loop.run(made.start())
    assert made.health["state"] == "stopped"
    with pytest.raises(BackendDown, match="stopped"):
        loop.run(made.encode(prompt("x")))


ORPHAN = """
import asyncio, sys, time
from openclaw_rl.app.factories import policy_arguments
from openclaw_rl import plugins
from openclaw_rl.config import Config
from openclaw_rl.versions import LiveVersions

async def main():
    options = {"model": sys.argv[1], "cache_dir": sys.argv[2], "device": "cpu", "dtype": "float32"}
    policy = plugins.build("policy", "local", offered=policy_arguments(Config()), options=options)
    await policy.start()
    print(policy.health["pid"], flush=True)
    time.sleep(600)

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_the_engine_ends_when_its_parent_is_killed(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(ORPHAN)
    parent = subprocess.Popen(
        [sys.executable, str(script), str(folder), str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert _alive(child)
    parent.kill()
    parent.wait()
    # the child holds the write end of its own stdout, inherited from the parent: end of file means that it is gone
    assert parent.stdout.read() == ""
    parent.stdout.close()
    assert not _alive(child)


def _alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.is_file() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def test_the_embedded_model_answers_and_scores_what_it_said(
    embedded: Path,  # noqa: F811 (the fixture)
    tmp_path: Path,
    loop: asyncio.Runner,
) -> None:
    made = LocalPolicy(
        engine_args(model="embedded", cache_dir=embedded, dtype="float32", context=1024, max_batch=4), progress=quiet
    )

    async def story() -> None:
        await made.start()
        assert (made.name, made.context, made.tool_format) == ("SmolLM2-135M-Instruct", 1024, "none")
        asked = prompt("What is the capital of France? Answer in one word.")
        text, done = await whole(made, asked, Sampling(temperature=0.0, max_tokens=12))
        assert "Paris" in text
        assert done.finish == "stop"
        assert await made.decode(done.reply_tokens[-1:]) == "<|im_end|>"
        scores = await made.score(done.prompt_tokens, done.reply_tokens, version=0)
        assert scores.logprobs == pytest.approx(done.logprobs, abs=1e-4)
        assert made.health["prefix_cache_hits"] >= len(done.prompt_tokens) - 1

    try:
        loop.run(story())
    finally:
        loop.run(made.stop())
