"""Constrained decoding: whatever the weights want, a reply keeps to its format, and its log-probs stay what they were."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import torch
from defaults import engine_args
from promises import broken
from test_local_models import byte_tokenizer, make_folder

from openclaw_rl.backends.hf.guidance import HeldCalls, JsonPart, held_calls, held_reply
from openclaw_rl.backends.local.engine.policy import LocalPolicy
from openclaw_rl.backends.local.engine.sampler import RequestSampler, sample
from openclaw_rl.errors import RequestError
from openclaw_rl.formats.reply_parser import ReplyParser
from openclaw_rl.ports import whole_reply
from openclaw_rl.serve.structured_output import enforce_format
from openclaw_rl.store import ServeLedger
from openclaw_rl.tasks.coding import schema_error
from openclaw_rl.testing import check_policy, make_completion, make_turn
from openclaw_rl.train.samples import chosen_tokens
from openclaw_rl.types import Completion, Message, Prompt, Sampling, Tool

pytest.importorskip("llguidance", reason="constrained decoding needs llguidance, of the extra 'local'")

from openclaw_rl.backends.local.engine.constraint import ConstraintCompiler, grammar_of

VOCABULARY, END = 259, 0
TEXT = {"type": "string", "maxLength": 6}
CITY = {
    "type": "object",
    "properties": {"city": TEXT},
    "required": ["city"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "whole numbers in bounds": {"type": "integer", "minimum": 3, "maximum": 12},
    "choices": {"enum": ["low", "mid", None, 7]},
    "objects": CITY,
    "lists": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    "objects of objects": {
        "type": "object",
        "properties": {"at": CITY, "n": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "null"}]}},
        "required": ["at", "n"],
        "additionalProperties": False,
    },
    "what may be left out": {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "b": {"type": "boolean"}, "c": {"type": "boolean"}},
        "required": ["b"],
        "additionalProperties": False,
    },
    "patterns": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    "references": {"$defs": {"word": TEXT}, "type": "array", "items": {"$ref": "#/$defs/word"}, "maxItems": 2},
}


@pytest.fixture(scope="module")
def compiler() -> Iterator[ConstraintCompiler]:
    made = ConstraintCompiler(byte_tokenizer(None), vocabulary=VOCABULARY, ends=frozenset({END}))
    yield made
    made.close()


def written(compiler: ConstraintCompiler, held: Any, *, seed: int, most: int = 400) -> str:
    """A reply by weights that want anything at all, token by token."""
    sampler = RequestSampler.of(Sampling(seed=seed), (), str, compiler.constraint(held))
    torch.manual_seed(seed)
    tokens: list[int] = []
    while (found := sample(torch.randn(1, VOCABULARY) * 4, [sampler])[0].token) != END:
        tokens.append(found)
        assert len(tokens) < most, "it does not end"
    return str(byte_tokenizer(None).decode(tokens))


# --- what a reply must consist of


TOOLS = (Tool(name="weather", parameters=CITY), Tool(name="web", parameters={}))


def asked(*, choice: str = "auto", opening: str = "", tools: tuple[Tool, ...] = TOOLS) -> Prompt:
    return Prompt(messages=(Message(role="user", content="Rain?"),), tools=tools, tool_choice=choice, opening=opening)


def test_who_asks_for_no_format_is_free() -> None:
    assert held_reply(asked(), Sampling(), tool_format="hermes") is None
    assert held_reply(asked(choice="required"), Sampling(), tool_format="pythonic") is None
    assert held_reply(asked(opening="Well, "), Sampling(json_schema=CITY), tool_format="hermes") is None


def test_a_forced_call_goes_on_from_its_opening() -> None:
    named = asked(choice="name:web", opening='<tool_call>\n{"name": "web", "arguments":')
    end = "}\n</tool_call>"
    assert held_reply(named, Sampling(), tool_format="hermes") == ((JsonPart(schema={"type": "object"}), end),)
    any_tool = asked(choice="required", opening='<tool_call>\n{"name": "')
    assert held_reply(any_tool, Sampling(), tool_format="hermes") == (
        ('weather", "arguments":', JsonPart(schema=CITY), end),
        ('web", "arguments":', JsonPart(schema={"type": "object"}), end),
    )
    llama = asked(choice="required", opening='{"name": "')
    found = held_reply(llama, Sampling(), tool_format="llama")
    assert found is not None
    assert found[0] == ('weather", "parameters":', JsonPart(schema=CITY), "}")


def test_a_schema_holds_the_reply_and_tools_may_be_called_instead() -> None:
    wanted = Sampling(json_schema=CITY)
    assert held_reply(asked(tools=()), wanted, tool_format="hermes") == ((JsonPart(schema=CITY),),)
    assert held_reply(asked(choice="none"), wanted, tool_format="hermes") == ((JsonPart(schema=CITY),),)
    both = held_reply(asked(), wanted, tool_format="hermes")
    assert both is not None
    assert both[0] == (JsonPart(schema=CITY),)
    assert both[1][0] == '<tool_call>\n{"name": "weather", "arguments":'


STRICT = (Tool(name="weather", parameters=CITY, strict=True), Tool(name="web", parameters=CITY))


def test_a_strict_tool_holds_the_calls_of_a_reply_that_need_not_make_one() -> None:
    prompt, free = asked(tools=STRICT), Sampling()
    assert held_calls(prompt, free, tool_format="hermes") == HeldCalls(
        trigger="<tool_call>",
        ways=(
            ('\n{"name": "weather", "arguments":', JsonPart(schema=CITY), "}\n</tool_call>"),
            ('\n{"name": "web", "arguments":', JsonPart(schema={"type": "object"}), "}\n</tool_call>"),
        ),
    )
    assert held_calls(asked(), free, tool_format="hermes") is None, "no tool is strict"
    assert held_calls(prompt, free, tool_format="llama") is None, "nothing marks where a call begins"
    assert held_calls(asked(tools=STRICT, choice="none"), free, tool_format="hermes") is None
    assert held_calls(prompt, Sampling(json_schema=CITY), tool_format="hermes") is None, "the reply is held whole"


# --- whatever the weights want


@pytest.mark.parametrize("name", SCHEMAS)
def test_random_weights_keep_to_a_schema(compiler: ConstraintCompiler, name: str) -> None:
    for seed in range(4):
        text = written(compiler, ((JsonPart(schema=SCHEMAS[name]),),), seed=seed)
        assert jsonschema_rs.is_valid(SCHEMAS[name], json.loads(text)), text
        assert "\n" not in text


def test_random_weights_make_the_call_that_is_forced_on_them(compiler: ConstraintCompiler) -> None:
    names = Counter[str]()
    for seed in range(6):
        prompt = asked(
            choice="required", opening='<tool_call>\n{"name": "', tools=(TOOLS[0], Tool(name="why", parameters=CITY))
        )
        held = held_reply(prompt, Sampling(), tool_format="hermes")
        parser = ReplyParser(prompt, tool_format="hermes", reasoning="auto")
        parser.add_prefix(prompt.opening)
        parser.feed(written(compiler, held, seed=seed))
        parser.end(cut=False)
        [call] = parser.message().tool_calls
        assert schema_error(CITY, json.loads(call.arguments)) is None
        names[call.name] += 1
    assert set(names) == {"weather", "why"}


def test_text_is_free_and_a_call_that_begins_in_it_keeps_to_its_schema(compiler: ConstraintCompiler) -> None:
    held = held_calls(asked(tools=STRICT), Sampling(), tool_format="hermes")
    assert held is not None
    place = compiler.constraint(held)

    def write(text: str) -> str:
        """What may follow the text; ``.`` stands for the end."""
        for token in byte_tokenizer(None).encode(text, add_special_tokens=False):
            assert place.allowed()[token], text
            place.take(token)
        may = place.allowed().nonzero()[:, 0].tolist()
        return "".join("." if token == END else str(byte_tokenizer(None).decode([token])) for token in may)

    for free in ("Well, <tool", "_cal", 'led> {"name"', "\n"):
        assert {".", "<", "a", "{"} <= set(write(free))
    assert write("<tool_call>") == "\n"
    assert set(write('\n{"name": "we')) == {"a", "b"}
    assert write('ather", "arguments": {"') == "c"
    assert {".", "a"} <= set(write('city": "Rome"}}\n</tool_call>')), "free again after it"
    assert write(" And <tool_call>") == "\n", "the second call too"
    assert "z" in write('\n{"name": "web", "arguments": {"'), "any object where the tool is not strict"


def test_a_strict_tool_whose_schema_cannot_be_held_is_named(compiler: ConstraintCompiler) -> None:
    tool = Tool(name="odd", parameters={"type": "colour"}, strict=True)
    held = held_calls(asked(tools=(tool,)), Sampling(), tool_format="hermes")
    assert held is not None
    with pytest.raises(RequestError, match="this format cannot be held") as caught:
        compiler.constraint(held)
    assert caught.value.field == "tools"


def test_a_schema_that_cannot_be_held_is_refused_with_what_is_wrong(compiler: ConstraintCompiler) -> None:
    with pytest.raises(RequestError, match=r'this format cannot be held: .*Unimplemented keys: \["not"\]') as caught:
        compiler.constraint(((JsonPart(schema={"type": "object", "properties": {"a": {"not": {"type": "string"}}}}),),))
    assert caught.value.field == "response_format"
    with pytest.raises(RequestError, match="this format cannot be held"):
        compiler.constraint(((JsonPart(schema={"type": "colour"}),),))


def test_a_text_is_quoted_whatever_stands_in_it(compiler: ConstraintCompiler) -> None:
    text = 'a "b" \\ /c/ {d} \n%e é'
    assert written(compiler, ((text,),), seed=0) == text
    assert "way_0:" in grammar_of(((text,),))


def test_formats_are_compiled_once_and_each_reply_has_its_own_place_in_it(compiler: ConstraintCompiler) -> None:
    held = ((JsonPart(schema={"enum": ["ab", "cd"]}),),)
    one, other = compiler.constraint(held), compiler.constraint(held)
    first = one.allowed().nonzero()[:, 0].tolist()
    one.take(first[0])
    assert other.allowed().nonzero()[:, 0].tolist() == first
    assert one.allowed().nonzero()[:, 0].tolist() != first


# --- the distribution


class Only:
    """A format that allows these tokens."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = tokens

    def allowed(self) -> torch.Tensor:
        return torch.tensor([token in self.tokens for token in range(4)])

    def take(self, token: int) -> None:
        assert token in self.tokens


LOGITS = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()


def test_the_log_prob_is_that_of_the_free_distribution_and_what_was_allowed_is_kept_beside_it() -> None:
    sampler = RequestSampler.of(Sampling(seed=1), (), str, Only(1, 3))
    found = [sample(LOGITS, [sampler])[0] for _ in range(200)]
    for one in found:
        assert one.tempered == pytest.approx(math.log({1: 0.3, 3: 0.1}[one.token]), abs=1e-5)
        assert one.allowed == pytest.approx(math.log(0.4), abs=1e-5)
    assert Counter(one.token for one in found)[1] == pytest.approx(150, abs=30), "3 to 1, as the model has them"


def test_temperature_filters_and_greed_act_on_what_is_allowed() -> None:
    half = RequestSampler.of(Sampling(seed=1, temperature=0.5), (), str, Only(1, 3))
    squares = 0.16 + 0.09 + 0.04 + 0.01
    assert sample(LOGITS, [half])[0].allowed == pytest.approx(math.log(0.10 / squares), abs=1e-5)
    for given in ({"temperature": 0.0}, {"top_k": 1}, {"top_p": 0.5}, {"min_p": 0.9}):
        sampler = RequestSampler.of(Sampling(seed=1, **given), (), str, Only(1, 3))
        assert {sample(LOGITS, [sampler])[0].token for _ in range(20)} == {1}, given


def test_a_free_row_beside_a_held_one_is_left_alone() -> None:
    free, held = RequestSampler.of(Sampling(seed=5), (), str), RequestSampler.of(Sampling(seed=5), (), str, Only(2))
    alone = [sample(LOGITS, [RequestSampler.of(Sampling(seed=5), (), str)])[0] for _ in range(1)]
    both = sample(LOGITS.repeat(2, 1), [free, held])
    assert both[0] == alone[0]
    assert both[0].allowed is None
    assert (both[1].token, both[1].allowed) == (2, pytest.approx(math.log(0.2), abs=1e-5))


# --- the trainer knows


def test_tokens_that_the_format_chose_teach_nothing_and_the_others_do() -> None:
    values = (-3.0, -0.1, math.log(0.5), -0.7)
    done = make_completion("abcd", reply_tokens=(5, 6, 7, 8), logprobs=(-3.0, -0.5, -1.0, -2.0), allowed=values)
    assert chosen_tokens(done) == (False, True, True, False)
    assert chosen_tokens(make_completion("ab")) == (True,) * len(make_completion("ab").reply_tokens)


def test_what_was_allowed_is_in_the_ledger(ledger_path: Path) -> None:
    done = make_completion(
        "abcd", reply_tokens=(5, 6, 7, 8), logprobs=(-3.0, -0.5, -1.0, -2.0), allowed=(-3.0, -0.1, -0.25, 0.0)
    )
    with ServeLedger(ledger_path, sync="normal") as ledger:
        ledger.add_turn(make_turn(id="held", completion=done))
        ledger.add_turn(make_turn(id="free"))
        assert ledger.turn("held").completion.allowed == (-3.0, -0.1, -0.25, 0.0)
        assert ledger.turn("free").completion.allowed is None


# --- real weights


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.mark.slow
def test_the_local_policy_keeps_every_promise_with_weights_that_are_nothing_but_chance(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "tiny")
    assert broken(check_policy, LocalPolicy(engine_args(model=str(folder), cache_dir=tmp_path))) == []


@pytest.mark.slow
def test_the_embedded_model_makes_calls_and_json_that_parse(loop: asyncio.Runner) -> None:
    """A model of 135 million parameters, which makes neither by itself."""
    policy = LocalPolicy(engine_args(model="embedded", tool_format="hermes"))

    async def talk() -> tuple[Completion, Completion, Completion]:
        await policy.start()
        try:
            sampling = Sampling(max_tokens=60, json_schema=CITY)
            held = await whole_reply(policy.generate(asked(tools=()), sampling))
            tools = (TOOLS[0], Tool(name="why", parameters=CITY))
            request = _request(asked(choice="required", tools=tools), Sampling(max_tokens=60))
            sent, unenforced = enforce_format(request, policy)
            assert unenforced is None
            called = await whole_reply(policy.generate(sent.prompt, sent.sampling))
            score = await policy.score(held.prompt_tokens, held.reply_tokens)
            assert held.logprobs == pytest.approx(score.logprobs, abs=1e-3), "as if it had been free"
            return held, called, await whole_reply(policy.generate(asked(tools=()), Sampling(max_tokens=8)))
        finally:
            await policy.stop()

    held, called, free = loop.run(talk())
    assert schema_error(CITY, json.loads(held.reply.content)) is None
    assert held.allowed is not None
    assert all(own <= left + 1e-4 for own, left in zip(held.logprobs, held.allowed, strict=True))
    assert called.reply.content.endswith("}\n</tool_call>")
    assert free.allowed is None


def _request(prompt: Prompt, sampling: Sampling) -> Any:
    from openclaw_rl.serve.request import GenerationRequest

    return GenerationRequest(prompt=prompt, sampling=sampling, model="embedded")
