"""The whole line over an engine: a request, a correction, a step, a loaded adapter, the new version answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.engines import FakeEngine, fake_engine, write_engine_model

from openclaw_rl.app.doctor import Diagnosis, examine
from openclaw_rl.config import load
from openclaw_rl.testing import RunningApp, running_app, ticking_app

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
WISH = "Too long. Please keep it under 30 words."
FREE = ("gate.mode=off", "notes.enabled=off", "train.prompt_distillation.enabled=off")


@pytest.fixture(params=["vllm", "sglang"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FakeEngine]:
    with fake_engine(request.param, write_engine_model(tmp_path / "toy")) as running:
        yield running


def over(engine: FakeEngine, root: Path, *more: str) -> list[str]:
    return [f"policy.backend={engine.kind}", f"policy.url={engine.url}", f"policy.model={root / 'toy'}", *more]


def text(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


async def test_a_correction_becomes_an_adapter_that_the_engine_answers_with(engine: FakeEngine, tmp_path: Path) -> None:
    settings = over(engine, tmp_path, "train.batch_size=1", "train.idle_wait=3600")
    async with ticking_app(tmp_path / "run", *settings) as walk:
        first = await walk.ask("Tell me about tea")
        assert text(first) == "You said: Tell me about tea"
        await walk.ask("Tell me about tea", text(first), WISH)
        await walk.app.finish()
        learned = await walk.ask("Tell me about rain")
        assert "under 30 words" in text(learned)
        assert learned["system_fingerprint"] == "openclaw-rl-v1"
        assert walk.show(first["id"])["step"] == 1
        old = await walk.ask("Tell me about rain", model=f"{tmp_path / 'toy'}@0")
        assert text(old).startswith("You said: ")
        assert old["system_fingerprint"] == "openclaw-rl-v0"
        assert len(engine.loads) == 1
    assert engine.adapters == {}, "what we loaded is unloaded when we leave"


async def test_several_choices_log_probs_and_a_stop_behave_as_with_any_engine(
    engine: FakeEngine, tmp_path: Path
) -> None:
    async with ticking_app(tmp_path / "run", *over(engine, tmp_path)) as walk:
        done = await walk.ask("tea and rain", n=2, logprobs=True, top_logprobs=2, stop=[" and"])
    assert [choice["message"]["content"] for choice in done["choices"]] == ["You said: tea"] * 2
    content = done["choices"][0]["logprobs"]["content"]
    assert "".join(piece["token"] for piece in content).startswith("You said: tea")
    assert {len(piece["top_logprobs"]) for piece in content} == {2}


CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
TOOL = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}


async def test_the_three_wire_formats_stream_a_tool_call_read_by_us(engine: FakeEngine, tmp_path: Path) -> None:
    async with ticking_app(tmp_path / "run", *over(engine, tmp_path)) as walk:
        chat = {"messages": [{"role": "user", "content": CALL}], "tools": [{"type": "function", "function": TOOL}]}
        messages = {
            "messages": chat["messages"],
            "max_tokens": 200,
            "tools": [{"name": "weather", "input_schema": TOOL["parameters"]}],
        }
        responses = {"input": CALL, "tools": [{"type": "function", **TOOL}]}
        for path, body in (
            ("/v1/chat/completions", chat),
            ("/v1/messages", messages),
            ("/v1/responses", responses),
        ):
            whole = await walk.client.post(path, json={"model": "toy", **body})
            assert whole.status_code == 200, whole.text
            assert "weather" in whole.text
            assert "Oslo" in whole.text
            assert "<tool_call>" not in whole.text, "it was parsed, not passed on"
            stream = await walk.client.post(path, json={"model": "toy", "stream": True, **body})
            assert "weather" in stream.text
            assert "<tool_call>" not in stream.text


async def test_a_strict_schema_is_taken_because_the_engine_can_hold_to_it(engine: FakeEngine, tmp_path: Path) -> None:
    schema = {"name": "city", "strict": True, "schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
    async with ticking_app(tmp_path / "run", *over(engine, tmp_path)) as walk:
        await walk.ask("tea", response_format={"type": "json_schema", "json_schema": schema})
    asked = json.dumps(engine.requests)
    assert "structured_outputs" in asked or "json_schema" in asked


async def streamed(walk: RunningApp, words: str) -> tuple[str, str]:
    """What a client reads of a stream, and the version it is of."""
    body = {"model": "toy", "stream": True, "messages": [{"role": "user", "content": words}]}
    said, version = "", ""
    async with walk.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line.removeprefix("data: "))
                assert "error" not in chunk, chunk
                version = chunk["system_fingerprint"]
                said += (chunk["choices"] or [{"delta": {}}])[0]["delta"].get("content") or ""
    return said, version


async def test_a_client_reads_one_stream_though_the_engine_died_in_it(engine: FakeEngine, tmp_path: Path) -> None:
    async with running_app(tmp_path / "run", *over(engine, tmp_path, *FREE)) as walk:
        engine.die_after = 9
        reading = asyncio.create_task(streamed(walk, "tell me about tea"))
        async with asyncio.timeout(10):
            while engine.alive:
                await asyncio.sleep(0.01)
        engine.revive()
        said, _ = await asyncio.wait_for(reading, 20)
        assert said == "You said: tell me about tea"
        assert walk.ledger.counts()["turns"] == 1, "nothing is lost"


def engines_line(engine: FakeEngine, root: Path, *more: str) -> Diagnosis:
    config = load(environ={}, sets=[f"run.dir={root / 'run'}", *over(engine, root, *more)]).config
    return next(each for each in examine(config) if each.check == "engines")


def test_doctor_says_what_the_engine_is_and_that_it_fits(engine: FakeEngine, tmp_path: Path) -> None:
    found = engines_line(engine, tmp_path)
    assert found.state == "ok", found
    assert (
        f"{engine.kind} {'0.32.0' if engine.kind == 'vllm' else '0.5.23'} serves base at {engine.url}" in found.detail
    )
    assert "it loads adapters while it runs" in found.detail
    assert not engine.loads


def test_doctor_tells_an_engine_whose_adapters_are_smaller_than_those_that_are_trained(
    engine: FakeEngine, tmp_path: Path
) -> None:
    assert "it takes adapters of rank 16" in engines_line(engine, tmp_path, "train.lora.rank=16").detail
    found = engines_line(engine, tmp_path, "train.lora.rank=32")
    assert (found.state, found.detail) == ("trouble", "it takes adapters up to rank 16, and train.lora.rank is 32")
    assert found.remedy == "start it with --max-lora-rank 32, or set train.lora.rank = 16"
    assert not engine.adapters
    whole = engines_line(engine, tmp_path, "train.lora.enabled=off")
    assert (whole.state, "adapters" in whole.detail) == ("ok", False)
    assert "it reads whole models from disk while it runs" in whole.detail


def test_doctor_tells_an_engine_that_does_not_read_whole_models_or_is_too_old(
    engine: FakeEngine, tmp_path: Path
) -> None:
    engine.can_sleep = False  # vLLM has its routes of control only in its development mode, SGLang always
    whole = engines_line(engine, tmp_path, "train.lora.enabled=off")
    assert whole.state == ("trouble" if engine.kind == "vllm" else "ok")
    assert ("VLLM_SERVER_DEV_MODE=1" in whole.remedy) == (engine.kind == "vllm")
    engine.version = "0.4.1"
    old = engines_line(engine, tmp_path)
    assert (old.state, old.remedy) == ("trouble", "install a newer release in the engine's environment")
    assert f"{engine.kind} 0.4.1 is too old" in old.detail


async def test_a_correction_becomes_a_whole_model_that_the_engine_answers_with(
    engine: FakeEngine, tmp_path: Path
) -> None:
    settings = over(engine, tmp_path, "train.batch_size=1", "train.idle_wait=3600", "train.lora.enabled=off")
    async with ticking_app(tmp_path / "run", *settings) as walk:
        first = await walk.ask("Tell me about tea")
        await walk.ask("Tell me about tea", text(first), WISH)
        await walk.app.finish()
        learned = await walk.ask("Tell me about rain")
        assert "under 30 words" in text(learned)
        assert learned["system_fingerprint"] == "openclaw-rl-v1"
    assert (engine.loads, engine.faults) == ([], [])
    assert engine.reloads[-1] == str(tmp_path / "toy"), "its own weights are back when we leave"


def test_doctor_tells_an_engine_with_another_tokenizer_and_one_that_is_away(engine: FakeEngine, tmp_path: Path) -> None:
    file = tmp_path / "toy" / "tokenizer.json"
    words = json.loads(file.read_text())
    known = words["model"]["vocab"]
    known["a"], known["b"] = known["b"], known["a"]
    file.write_text(json.dumps(words))
    found = engines_line(engine, tmp_path)
    assert "its tokenizer is not that of policy.model" in found.detail
    assert found.remedy == "set policy.model to the model that the engine serves"
    away = engines_line(engine, tmp_path, "policy.url=http://127.0.0.1:9")
    assert (away.state, away.remedy) == ("trouble", "start it, or correct policy.url")
    ours = engines_line(engine, tmp_path, "policy.launch=on")
    assert f"has no package {engine.kind}" in ours.detail
