"""One request never ends the engine: whatever is wrong with it is its own 400, and those beside it are answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from defaults import engine_args
from test_local_models import TEMPLATE, byte_tokenizer, make_folder, prompt, quiet

from openclaw_rl.backends.hf.models import load
from openclaw_rl.backends.hf.template import ChatTemplate
from openclaw_rl.backends.local.engine.engine import Engine
from openclaw_rl.backends.local.engine.messages import Finished, JobEvent, JobFailed, ScoreFinished
from openclaw_rl.backends.local.engine.policy import LocalPolicy
from openclaw_rl.backends.local.engine.runner_choice import model_runner_of
from openclaw_rl.backends.local.engine.scheduler import Generation, Scoring
from openclaw_rl.errors import RequestError
from openclaw_rl.testing import MemoryLedger, fake_api
from openclaw_rl.types import Message, Prompt, Sampling, Tool, ToolCall

pytestmark = pytest.mark.slow
DEEP = '{"a":' * 900 + "1" + "}" * 900
ARGUMENTS = {
    "200,000 brackets": "[" * 200_000,
    "an object 900 deep": DEEP,
    "half an emoji": '{"a": "\\ud83d"}',
    "a number of 5,000 digits": '{"a": ' + "1" * 5000 + "}",
    "not a number": '{"a": NaN}',
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(
        tmp_path_factory.mktemp("models") / "tiny", template=TEMPLATE.replace("arguments.a", "arguments")
    )


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def policy(folder: Path, loop: asyncio.Runner) -> Iterator[LocalPolicy]:
    made = LocalPolicy(engine_args(model=str(folder), cache_dir=folder, device="cpu", dtype="float32"), progress=quiet)
    loop.run(made.start())
    yield made
    loop.run(made.stop())


def called(arguments: str) -> dict[str, Any]:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    return {"model": "tiny", "max_tokens": 2, "messages": messages}


def test_strange_requests_are_refused_or_answered_by_one_process(policy: LocalPolicy, loop: asyncio.Runner) -> None:
    """Over the API, all at once with plain ones, in one engine process from beginning to end."""
    strange = {name: called(text) for name, text in ARGUMENTS.items()}
    for name, value in (("continue_final_message", True), ("chat_template", "{{ x.y.z }}"), ("tokenize", True)):
        strange[name] = {**called("{}"), "chat_template_kwargs": {name: value}}
    schema = {"type": "object", "properties": json.loads('{"a":' * 40 + "{}" + "}" * 40)}
    strange["a deep schema"] = {
        **called("{}"),
        "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}],
    }

    async def story() -> dict[str, int]:
        api = fake_api(policy, MemoryLedger())
        transport = httpx2.ASGITransport(app=api)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", timeout=120) as client:

            async def ask(body: dict[str, Any]) -> int:
                return (await client.post("/v1/chat/completions", json=body)).status_code

            plain = [{**called("{}"), "seed": at} for at in range(4)]
            codes = await asyncio.gather(*map(ask, [*strange.values(), *plain]))
        assert codes[len(strange) :] == [200] * 4
        return dict(zip(strange, codes[: len(strange)], strict=True))

    pid = policy.health["pid"]
    codes = loop.run(story())
    assert codes == {
        "200,000 brackets": 400,  # as text it does not fit
        "an object 900 deep": 400,
        "half an emoji": 200,
        "a number of 5,000 digits": 400,
        "not a number": 200,
        "continue_final_message": 400,
        "chat_template": 400,
        "tokenize": 400,
        "a deep schema": 200,
    }
    assert (policy.health["pid"], policy.health["restarts"]) == (pid, 0)


def test_what_cannot_travel_or_be_encoded_is_the_callers_fault(policy: LocalPolicy, loop: asyncio.Runner) -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"a": deep}
    bottomless = prompt("hi", tools=(Tool(name="f", parameters=deep),))
    half = prompt("half \ud83d")
    pid = policy.health["pid"]
    for asked in (bottomless, half, prompt("hi", template={"continue_final_message": True})):
        with pytest.raises(RequestError):
            loop.run(policy.encode(asked))
        with pytest.raises(RequestError):
            loop.run(_first(policy, asked))
    with pytest.raises(RequestError, match="outside the model's vocabulary"):
        loop.run(policy.score((-1,), (5,)))
    with pytest.raises(RequestError, match="half a character"):
        loop.run(policy.tokenize("\ud83d"))
    assert (policy.health["pid"], policy.health["restarts"]) == (pid, 0)
    while deep:
        deep = deep.pop("a")  # level by level: freed at once it would end this process


async def _first(policy: LocalPolicy, asked: Prompt) -> None:
    async for _ in policy.generate(asked, Sampling(max_tokens=2)):
        return


@pytest.mark.parametrize(
    "wrong", [RecursionError("deep"), IndexError("list"), ZeroDivisionError(), AttributeError("x")]
)
def test_a_template_that_fails_on_these_messages_is_their_fault(
    wrong: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = ChatTemplate(byte_tokenizer())

    def fail(*_: Any, **__: Any) -> str:
        raise wrong

    monkeypatch.setattr(chat.tokenizer, "apply_chat_template", fail)
    with pytest.raises(RequestError, match=f"refused the messages: {type(wrong).__name__}"):
        chat.encode(prompt("hi"))


@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments_that_are_no_object_of_moderate_depth_stay_text(arguments: str) -> None:
    chat = ChatTemplate(byte_tokenizer(TEMPLATE.replace("arguments.a", "arguments")))
    call = Message(role="assistant", tool_calls=(ToolCall(id="1", name="f", arguments=arguments),))
    text = chat.decode(chat.encode(Prompt(messages=(Message(role="user", content="x"), call))))
    assert ("nan" if "NaN" in arguments else arguments) in text


def test_a_job_that_fails_while_its_token_is_taken_in_is_the_only_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load(str(folder), cache_dir=folder, device="cpu", dtype="float32", progress=quiet)
    engine = Engine(model_runner_of(loaded.model), loaded.model, cache_tokens=512, max_batch=8)

    def decode(ids: Any) -> str:
        return "x" * len(ids)

    def broken(ids: Any) -> str:
        raise UnicodeError("no text of this")

    ask = Sampling(temperature=0.0, max_tokens=3)
    for id in (1, 2, 3):
        engine.submit(
            Generation.of(id, 0, [5, 6, 7], ask, context=64, ends=frozenset(), decode=broken if id == 2 else decode)
        )
    for id in (4, 5):
        engine.submit(Scoring(id=id, version=0, tokens=[5, 6, 7], prompt=2, reply=(7, 8), temperature=1.0, top_k=0))
    take = Scoring.take

    def failing(job: Scoring, logits: Any) -> None:
        if job.id == 4:
            raise ValueError("no score of this")
        take(job, logits)

    monkeypatch.setattr(Scoring, "take", failing)
    events: list[JobEvent] = []
    while not engine.idle:
        events += engine.step()
    assert {event.job for event in events if isinstance(event, JobFailed)} == {2, 4}
    assert {event.job for event in events if isinstance(event, Finished | ScoreFinished)} == {1, 3, 5}
    assert engine.kv_cache.held == 0
