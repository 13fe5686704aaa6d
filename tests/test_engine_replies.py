"""Replies of policies on vLLM and SGLang, over contract fakes of both: tokens both ways, formats, images, refusals."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from engines import SHORT, engine, model, policy_on, reply, started, version
from fakes.engines import FakeEngine, fake_engine
from promises import broken

from openclaw_rl.backends.engines.policy import EnginePolicy
from openclaw_rl.backends.fake import logprob
from openclaw_rl.errors import BackendDown, BackendError, ContextOverflow
from openclaw_rl.ports import Delta, whole_reply
from openclaw_rl.testing import check_policy, make_prompt
from openclaw_rl.types import Completion, Message, Prompt, Sampling, Tool

__all__ = ["engine", "model"]  # fixtures

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


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
    assert "".join(shown) == "You said: née", "no half of it was shown by itself"
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


async def test_a_prompt_that_can_never_fit_is_refused_before_it_is_sent(
    engine: FakeEngine, model: Path, tmp_path: Path
) -> None:
    async with started(engine, model, tmp_path, context=256) as policy:
        before = len(engine.requests)
        with pytest.raises(ContextOverflow):
            await reply(policy, "tea " * 200)
        assert len(engine.requests) == before


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
    assert '"value": "weather\\", \\"arguments\\": "' in tag
    assert '"value": "}\\n</tool_call>"' in tag


STRICT = (Tool(name="weather", parameters=SCHEMA, strict=True), Tool(name="news", parameters=SCHEMA))
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


async def test_a_strict_tool_holds_the_calls_of_a_reply_and_only_such_a_reply_is_scored_again(
    engine: FakeEngine, model: Path, tmp_path: Path
) -> None:
    def asked(text: str) -> Prompt:
        return Prompt(messages=(Message(role="user", content=text),), tools=STRICT)

    async with started(engine, model, tmp_path) as policy:
        free = await whole_reply(policy.generate(asked("Rain?"), SHORT))
        sent = engine.requests[-1]
        held = sent["structured_outputs"] if engine.kind == "vllm" else sent["sampling_params"]
        tag = json.loads(held["structural_tag"])
        called = await whole_reply(policy.generate(asked(CALL), Sampling(max_tokens=200)))
        assert guided(engine)["structural_tag"], "the last request is the score of the reply"
    assert tag["format"]["triggers"] == ["<tool_call>"]
    first, second = tag["format"]["tags"]
    assert first["begin"] == '<tool_call>\n{"name": "weather", "arguments": '
    assert (first["content"]["json_schema"], first["end"]) == (SCHEMA, "}\n</tool_call>")
    assert second["content"]["json_schema"] == {"type": "object"}, "it is not strict"
    assert (free.reply.content, called.reply.content) == ("You said: Rain?", f"You said: {CALL}")


async def test_a_reply_whose_tools_are_strict_outlives_the_engine_while_it_calls_none(
    engine: FakeEngine, model: Path, tmp_path: Path
) -> None:
    async def ask(policy: EnginePolicy, text: str, dies: int) -> Completion:
        engine.die_after = dies
        prompt = Prompt(messages=(Message(role="user", content=text),), tools=STRICT)
        stream = asyncio.create_task(whole_reply(policy.generate(prompt, Sampling(max_tokens=200))))
        async with asyncio.timeout(10):
            while engine.alive:
                await asyncio.sleep(0.01)
        engine.revive()
        return await asyncio.wait_for(stream, 10)

    async with started(engine, model, tmp_path) as policy:
        assert (await ask(policy, "Rain?", 12)).reply.content == "You said: Rain?"
        with pytest.raises(BackendDown):
            await ask(policy, CALL, 40)


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
