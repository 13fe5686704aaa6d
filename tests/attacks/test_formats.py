"""A format whose grammar cannot be compiled costs its own request alone: the engine goes on and so do all others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from defaults import engine_args
from test_local_models import byte_tokenizer, make_folder, quiet

from openclaw_rl.backends.hf.guidance import JsonPart
from openclaw_rl.backends.local.engine.policy import LocalPolicy
from openclaw_rl.errors import RequestError
from openclaw_rl.testing import MemoryLedger, fake_api

pytest.importorskip("llguidance", reason="constrained decoding needs llguidance, of the extra 'local'")

from openclaw_rl.backends.local.engine.constraint import ConstraintCompiler
from openclaw_rl.backends.local.engine.engine import FormatQueue
from openclaw_rl.backends.local.engine.format_check import NO_REPLY, TOO_LONG, FormatChecker
from openclaw_rl.backends.local.engine.sampler import SampledToken
from openclaw_rl.backends.local.engine.scheduler import Generation
from openclaw_rl.types import Sampling

pytestmark = pytest.mark.slow


def exploding(at: int = 0) -> dict[str, Any]:
    """A schema of 2 kB whose grammar doubles with each of its 40 patterns."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    return {"allOf": [{"type": "string", "pattern": f".*{letters[n % 26]}{n}.*{at}"} for n in range(40)]}


OPTIONAL = {"type": "object", "properties": {f"p{at}": {"type": "string"} for at in range(2000)}}
HOSTILE: dict[str, dict[str, Any]] = {
    "40 patterns at once": exploding(),
    "a reference to itself": {"$ref": "#"},
    "references in a circle": {
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        "$ref": "#/$defs/a",
    },
    "a reference to itself beside a type": {
        "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {"type": "object"}]}},
        "$ref": "#/$defs/a",
    },
    "2,000 optional properties": {**OPTIONAL, "additionalProperties": False},
    "a constant of 1 MB": {"const": "x" * 2**20},
}
SMALL = {"type": "integer", "minimum": 0, "maximum": 9}


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def policy(loop: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalPolicy]:
    folder: Path = make_folder(tmp_path_factory.mktemp("models") / "tiny")
    made = LocalPolicy(engine_args(model=str(folder), cache_dir=folder, device="cpu", dtype="float32"), progress=quiet)
    loop.run(made.start())
    yield made
    loop.run(made.stop())


def body(schema: dict[str, Any] | None) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "f", "schema": schema, "strict": True}}
    held = {} if schema is None else {"response_format": form}
    return {"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}], **held}


def tool(schema: dict[str, Any]) -> dict[str, Any]:
    function = {"name": "f", "parameters": schema, "strict": True}
    return {**body(None), "tools": [{"type": "function", "function": function}]}


async def answers(policy: LocalPolicy, bodies: list[dict[str, Any]]) -> list[httpx2.Response]:
    transport = httpx2.ASGITransport(app=fake_api(policy, MemoryLedger()))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", timeout=300) as client:
        return await asyncio.gather(*(client.post("/v1/chat/completions", json=body) for body in bodies))


def test_hostile_formats_are_400_and_everybody_else_is_served_by_the_same_process(
    policy: LocalPolicy, loop: asyncio.Runner
) -> None:
    hostile = [(name, field, ask(schema)) for name, schema in HOSTILE.items() for field, ask in ASKED.items()]
    plain = [body(None)] * 4 + [body(SMALL), tool(SMALL)]
    pid = policy.health["pid"]
    found = loop.run(answers(policy, [*(ask for _, _, ask in hostile), *plain]))
    for (name, field, _), answer in zip(hostile, found, strict=False):
        assert (name, field, answer.status_code) == (name, field, 400), answer.text
        error = answer.json()["error"]
        assert error["param"] == field
        assert error["message"].startswith(f"{field}: ")
        assert "make the schema s" in error["message"], "impler or maller"
        assert not any(word in error["message"] for word in ("NoExtension", "Current row", "3(8)"))
        assert "\n" not in error["message"]
        assert len(error["message"]) < 600
    assert [answer.status_code for answer in found[len(hostile) :]] == [200] * len(plain)
    assert json.loads(found[-2].json()["choices"][0]["message"]["content"]) in range(10)
    assert (policy.health["pid"], policy.health["restarts"]) == (pid, 0)


ASKED = {"response_format": body, "tools": tool}
WIRES: dict[str, tuple[str, dict[str, Any]]] = {
    "response_format": ("/v1/chat/completions", body(HOSTILE["a reference to itself"])),
    "text.format": (
        "/v1/responses",
        {"input": "hi", "text": {"format": {"type": "json_schema", "name": "f", "schema": {"$ref": "#"}}}},
    ),
    "output_config.format": (
        "/v1/messages",
        {
            "max_tokens": 4,
            "messages": [{"role": "user", "content": "hi"}],
            "output_config": {"format": {"type": "json_schema", "schema": {"$ref": "#"}}},
        },
    ),
}


@pytest.mark.parametrize("field", WIRES)
def test_a_refused_format_has_the_name_that_its_caller_gave_it(
    policy: LocalPolicy, loop: asyncio.Runner, field: str
) -> None:
    path, asked = WIRES[field]

    async def answer() -> httpx2.Response:
        transport = httpx2.ASGITransport(app=fake_api(policy, MemoryLedger()))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", timeout=300) as client:
            return await client.post(path, json={"model": "tiny", **asked})

    refused = loop.run(answer())
    message = refused.json()["error"]["message"]
    assert (refused.status_code, message.split(";")[0]) == (400, f"{field}: this format cannot be held: {NO_REPLY}")


@pytest.fixture
def compiler() -> Iterator[ConstraintCompiler]:
    tokenizer = byte_tokenizer(None)
    made = ConstraintCompiler(tokenizer, vocabulary=len(tokenizer), ends=frozenset({0}))
    yield made
    made.close()


def held(schema: dict[str, Any]) -> Any:
    return ((JsonPart(schema=schema),),)


def test_the_compiler_that_was_ended_is_replaced_and_a_refused_format_is_not_compiled_again(
    compiler: ConstraintCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    fault = FormatChecker.fault

    def counted(checker: FormatChecker, grammar: str, starts: list[str]) -> str:
        asked.append(grammar)
        return fault(checker, grammar, starts)

    monkeypatch.setattr(FormatChecker, "fault", counted)
    for _ in range(3):
        with pytest.raises(RequestError, match=TOO_LONG):
            compiler.constraint(held(exploding()))
    assert len(asked) == 1
    assert bool(compiler.constraint(held(SMALL)).allowed().any())
    assert len(asked) == 2


def job(id: int) -> Generation:
    return Generation.of(id, 0, [5, 6], Sampling(), context=64, ends=frozenset({0}), decode=lambda ids: "x" * len(ids))


def test_a_known_format_passes_those_that_wait_to_be_compiled_and_a_cancelled_one_never_starts(
    compiler: ConstraintCompiler,
) -> None:
    submitted: list[int] = []
    refused: list[int] = []
    queue = FormatQueue(
        compiler, submit=lambda job: submitted.append(job.id), refuse=lambda id, error: refused.append(id)
    )
    queue.put(job(1), held(SMALL))
    queue.next()
    queue.put(job(2), held(exploding()))
    queue.put(job(3), held({"type": "boolean"}))
    queue.put(job(4), held(SMALL))
    assert submitted == [1, 4], "4 does not wait for 2"
    cancelled: list[int] = []
    queue.cancel(3, lambda: cancelled.append(3))
    queue.next()
    queue.next()
    assert (submitted, refused, cancelled) == ([1, 4], [2], [3])
    with pytest.raises(RequestError):
        queue.put(job(5), held(exploding()))


def test_a_grammar_that_fails_in_the_middle_of_a_reply_is_the_requests_fault(compiler: ConstraintCompiler) -> None:
    reply, place = job(1), compiler.constraint(held(SMALL))
    reply.hold(place)
    place.take(ord("x") + 3)  # no token that may come, so the grammar is lost
    sampled = SampledToken(token=5, tempered=-0.5, raw=-0.5, top=(), allowed=0.0)
    with pytest.raises(RequestError, match="this format cannot be held") as caught:
        reply.take(sampled)
    assert (caught.value.field, "\n" in str(caught.value)) == ("response_format", False)
