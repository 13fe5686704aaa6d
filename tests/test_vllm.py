"""The real vLLM, its CPU build, on the embedded model's weights: `make test-vllm` sets it up and runs these.

They take minutes and some 5 GB of memory, so they are skipped unless OPENCLAW_RL_VLLM_PYTHON names the Python that
has it.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.app.factories import build_policy
from openclaw_rl.config import load
from openclaw_rl.errors import ModelRefused
from openclaw_rl.ports import Delta, whole_reply
from openclaw_rl.testing import make_prompt, ticking_app
from openclaw_rl.types import Completion, Sampling, Version

PYTHON = os.environ.get("OPENCLAW_RL_VLLM_PYTHON")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="the real vLLM is run by `make test-vllm`"),
]
ENGINE = ("policy.backend=vllm", "policy.model=embedded", "policy.context=2048", f"policy.engine_python={PYTHON}")
VERSIONS, REQUESTS, AT_ONCE = 20, 1000, 16
GREEDY = Sampling(temperature=0.0, max_tokens=6)


@asynccontextmanager
async def engine(run: Path, *more: str) -> AsyncIterator[Any]:
    policy: Any = build_policy(load(environ={}, sets=[f"run.dir={run}", *ENGINE, *more]).config)
    await policy.start()
    try:
        yield policy
    finally:
        await policy.stop()


@pytest.fixture
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Adapters that each make the model say something else."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from openclaw_rl import config
    from openclaw_rl.backends.hf.finding import find

    folder, _ = find("embedded", cache_dir=config.cache_dir(), progress=print)
    root = tmp_path_factory.mktemp("adapters")
    targets = ["q_proj", "v_proj", "down_proj"]
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    wrapped = get_peft_model(base, LoraConfig(r=8, lora_alpha=16, target_modules=targets, init_lora_weights=False))
    for number in range(1, VERSIONS + 1):
        torch.manual_seed(number)
        with torch.no_grad():
            for name, value in wrapped.named_parameters():
                if "lora_" in name:
                    value.normal_(std=0.02 if "lora_A" in name else 0.06)
        wrapped.save_pretrained(root / str(number))
    return [str(root / str(number)) for number in range(1, VERSIONS + 1)]


async def examined(policy: Any, run: Path, *, rank: int) -> str:
    """What doctor says of an engine that runs."""
    sets = [f"run.dir={run}", *ENGINE, f"policy.url={policy.health['url']}", f"train.lora.rank={rank}"]
    other: Any = build_policy(load(environ={}, sets=sets).config)
    return "; ".join(each.what for each in await other.examine())


def version(number: int, adapters: list[str]) -> Version:
    return Version(number=number, parent=number - 1, base="embedded", adapter=adapters[number - 1])


async def reply(policy: Any, text: str, sampling: Sampling = GREEDY, **given: Any) -> Completion:
    return await whole_reply(policy.generate(make_prompt(text), sampling, **given))


def test_a_correction_becomes_an_adapter_that_vllm_answers_with(tmp_path: Path, loop: asyncio.Runner) -> None:
    """Chat, correction, step, adapter loaded, new version answers; trainer and engine agree on log-probs."""
    settings = (
        *ENGINE,
        "train.backend=local",
        "train.batch_size=1",
        "train.lora.rank=8",
        "train.prompt_distillation.enabled=off",
        "gate.probes=2",
        "gate.replays=1",
        "gate.tokens=12",
        "gate.limits.min_words=0",
        "policy.sampling.max_tokens=40",
        "train.train_truncated=on",
    )

    async def walk() -> None:
        async with ticking_app(tmp_path / "run", *settings) as run:
            first = await run.ask("Tell me about tea.")
            said = first["choices"][0]["message"]["content"]
            await run.ask("Tell me about tea.", said, "Too long. Please keep it under 20 words.")
            await run.app.finish()
            step = run.ledger.last_step()
            assert step is not None
            assert step.metrics["gap_mean"] < 0.01, step.metrics
            assert run.show(first["id"])["step"] == 1
            learned = await run.ask("Tell me about rain.")
            print(said, step.metrics, learned, run.ledger.versions(), sep="\n")
            assert run.ledger.versions()[-1].state == "live"
            assert learned["system_fingerprint"] == "openclaw-rl-v1"

    loop.run(walk())


def test_a_thousand_streams_across_twenty_versions_fail_never_and_mix_never(
    tmp_path: Path, loop: asyncio.Runner, adapters: list[str]
) -> None:
    async def run() -> None:
        async with engine(tmp_path, "train.lora.rank=8") as policy:
            expected: dict[int, str] = {0: (await reply(policy, "Tea?")).reply.content}
            seen: list[tuple[int, str]] = []
            places = asyncio.Semaphore(AT_ONCE)

            async def one() -> None:
                async with places:
                    done = await reply(policy, "Tea?")
                    seen.append((done.version, done.reply.content))

            for number in range(1, VERSIONS + 1):
                await policy.load(version(number, adapters))
                expected[number] = (await reply(policy, "Tea?")).reply.content
                nearly = [asyncio.create_task(one()) for _ in range(REQUESTS // VERSIONS)]
                await asyncio.wait(nearly[: len(nearly) // 2])  # the next version comes while the others run
                seen_tasks.extend(nearly)
            await asyncio.gather(*seen_tasks)
            assert len(seen) == REQUESTS
            mixed = [(number, said) for number, said in seen if said != expected[number]]
            print(f"{len(seen)} replies of {len({n for n, _ in seen})} versions, {len(mixed)} mixed", expected)
            assert len(set(expected.values())) > VERSIONS // 2
            assert mixed == []

    seen_tasks: list[asyncio.Task[None]] = []
    loop.run(run())


@pytest.fixture(scope="module")
def whole_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The embedded model with other weights in its last layers, as a full fine-tune is published."""
    import torch
    from transformers import AutoModelForCausalLM

    from openclaw_rl import config
    from openclaw_rl.backends.hf.finding import find

    found, _ = find("embedded", cache_dir=config.cache_dir(), progress=print)
    model = AutoModelForCausalLM.from_pretrained(found, dtype=torch.float32)
    torch.manual_seed(1)
    with torch.no_grad():
        for layer in model.model.layers[-4:]:
            layer.mlp.down_proj.weight += 0.05 * torch.randn_like(layer.mlp.down_proj.weight)
    folder = tmp_path_factory.mktemp("whole") / "1"
    model.save_pretrained(folder)
    return str(folder)


def test_a_whole_model_is_read_from_disk_between_requests(
    tmp_path: Path, loop: asyncio.Runner, whole_model: str
) -> None:
    sampling = Sampling(temperature=0.0, max_tokens=12)

    async def run() -> None:
        async with engine(tmp_path, "train.lora.enabled=off") as policy:
            base = await reply(policy, "Tea?", sampling)
            asked = [asyncio.create_task(reply(policy, "Tea?", sampling)) for _ in range(6)]
            await asyncio.sleep(0.2)
            taking_up = asyncio.create_task(
                policy.load(Version(number=1, parent=0, base="embedded", adapter=whole_model))
            )
            while not taking_up.done():
                asked.append(asyncio.create_task(reply(policy, "Tea?", sampling)))
                await asyncio.sleep(0.5)
            await taking_up
            learned = await reply(policy, "Tea?", sampling)
            assert learned.version == 1
            assert learned.reply_tokens != base.reply_tokens
            expected = {0: base.reply_tokens, 1: learned.reply_tokens}
            found = await asyncio.gather(*asked)
            assert [done.reply_tokens for done in found] == [expected[done.version] for done in found]
            scores = await policy.score(learned.prompt_tokens, learned.reply_tokens, version=1)
            assert scores.logprobs == pytest.approx(learned.logprobs, abs=1e-3)
            again = await reply(policy, "Tea?", sampling, version=0)
            assert again.reply_tokens == base.reply_tokens, "the base model has its turn, with its own weights"
            print(f"{len(found)} requests across the change, 0 failed, 0 mixed; versions {[d.version for d in found]}")

    loop.run(run())


def test_a_reply_outlives_the_engine(tmp_path: Path, loop: asyncio.Runner, adapters: list[str]) -> None:
    """`kill -9` in the middle of a stream: it is held, and goes on with the tokens that an unbroken one has."""
    sampling = Sampling(temperature=0.0, max_tokens=40)

    async def run() -> None:
        async with engine(tmp_path, "train.lora.rank=8") as policy:
            await policy.load(version(3, adapters))
            assert "up to rank 8, and train.lora.rank is 64" in await examined(policy, tmp_path, rank=64)
            assert "it takes adapters of rank 8" in await examined(policy, tmp_path, rank=8)
            stream = policy.generate(make_prompt("Tell me a story about rain."), sampling)
            count, broken = 0, None
            async for item in stream:
                count += isinstance(item, Delta)
                if count == 10:
                    os.kill(policy.health["pid"], signal.SIGKILL)
                    count += 1
                broken = item
            whole = await reply(policy, "Tell me a story about rain.", sampling)
            assert isinstance(broken, Completion)
            assert broken.reply_tokens == whole.reply_tokens
            assert broken.logprobs == pytest.approx(whole.logprobs, abs=1e-4)
            assert policy.health["restarts"] == 1

    loop.run(run())


def test_an_engine_that_cannot_start_says_why(tmp_path: Path, loop: asyncio.Runner) -> None:
    async def start(*more: str) -> None:
        async with engine(tmp_path, *more):
            pass

    with pytest.raises(ModelRefused, match=r"vllm did not start: this release of it does not know --no-such-flag"):
        loop.run(start("policy.engine_flags=--no-such-flag"))
