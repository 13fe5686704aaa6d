"""Constrained decoding on the embedded model's vocabulary: what a format costs, and who keeps to it.

    python benchmarks/formats.py

`llguidance`, which the local engine uses, beside `xgrammar` and `outlines-core` where they are installed: the time for
a new schema, for the tokens that may come next, and how many of the values below are judged wrongly. At the end, what a
format adds to the sampling of one token by our engine.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch

from openclaw_rl.backends.hf.finding import find
from openclaw_rl.backends.hf.guidance import JsonPart
from openclaw_rl.backends.hf.models import load_tokenizer
from openclaw_rl.backends.local.engine.constraint import ConstraintCompiler
from openclaw_rl.backends.local.engine.sampler import RequestSampler, sample
from openclaw_rl.config import cache_dir
from openclaw_rl.types import Sampling

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}


def table(**parts: Schema) -> Schema:
    return {"type": "object", "properties": parts, "required": list(parts), "additionalProperties": False}


A, B = table(kind={"const": "a"}, n=WHOLE), table(kind={"const": "b"}, s=TEXT)
NODE = table(v=WHOLE, next={"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]})
CASES: tuple[tuple[Schema, list[Any], list[Any]], ...] = (
    (table(name=TEXT, age=WHOLE), [{"name": "Ann Lee", "age": 41}], [{"name": "Ann"}, {"name": 3, "age": 1}]),
    (
        table(city=table(name=TEXT, zip=TEXT), tags={"type": "array", "items": TEXT}),
        [{"city": {"name": "Ulm", "zip": "89073"}, "tags": ["a", "b", "c"]}],
        [{"city": {"name": "Ulm"}, "tags": []}],
    ),
    (
        table(level={"enum": ["low", "mid", "high"]}, ok={"type": "boolean"}),
        [{"level": "mid", "ok": True}],
        [{"level": "none", "ok": True}],
    ),
    (table(v={"anyOf": [TEXT, WHOLE, {"type": "null"}]}), [{"v": None}, {"v": "x"}, {"v": 7}], [{"v": 7.5}, {"v": []}]),
    (
        table(n={"type": "integer", "minimum": 3, "maximum": 12}, x={"type": "number"}),
        [{"n": 11, "x": -2.5}],
        [{"n": 13, "x": 1}, {"n": 2, "x": 1}],
    ),
    (
        table(code={"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"}),
        [{"code": "ABC-1234"}],
        [{"code": "ABCD-123"}],
    ),
    (
        table(s={"type": "string", "maxLength": 5}, a={"type": "array", "items": WHOLE, "minItems": 2, "maxItems": 3}),
        [{"s": "abcde", "a": [1, 2]}],
        [{"s": "abcdef", "a": [1, 2]}, {"s": "a", "a": [1]}],
    ),
    (table(d={"type": "string", "format": "date"}), [{"d": "2026-11-17"}], [{"d": "tomorrow"}]),
    (
        {"$defs": {"node": NODE}, "$ref": "#/$defs/node"},
        [{"v": 1, "next": {"v": 2, "next": None}}],
        [{"v": 1, "next": {"v": "x", "next": None}}],
    ),
    ({**table(a=TEXT, b=WHOLE, c=TEXT), "required": ["b"]}, [{"b": 1}, {"a": "x", "b": 2, "c": "y"}], [{"a": "x"}]),
    (
        table(**{f"field_{number}": TEXT for number in range(40)}),
        [{f"field_{number}": f"some words for {number}" for number in range(40)}],
        [],
    ),
    ({"type": "object"}, [{"any": ["thing", {"goes": 1.5}]}], []),
    (A, [{"kind": "a", "n": 0}], [{"kind": "b", "n": 0}]),
    ({"oneOf": [A, B]}, [{"kind": "b", "s": "q"}], [{"kind": "a", "s": "q"}]),
)
"""schemas, values that fit them, values that do not"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """One way to hold a reply: from a schema to a grammar, from that to a reply's place in it."""

    compile: Callable[[Schema], Any]
    begin: Callable[[Any], Any]
    allowed: Callable[[Any], Callable[[int], bool]]
    """whether a token may come next"""
    take: Callable[[Any, int], object]


def main() -> None:
    folder, _ = find("embedded", cache_dir=cache_dir(), progress=print)
    tokenizer = load_tokenizer(folder)
    print(
        f"{len(CASES)} schemas, {sum(len(good) + len(bad) for _, good, bad in CASES)} values, {len(tokenizer)} tokens"
    )
    for name, make in LIBRARIES.items():
        if find_spec(name) is None:
            print(f"{name:<14} is not installed")
            continue
        began = time.perf_counter()
        library = make(tokenizer)
        measure(name, library, tokenizer, time.perf_counter() - began)
    sampling(tokenizer)


def measure(name: str, library: Library, tokenizer: Any, reading: float) -> None:
    compiled, masks, wrong = list[float](), list[float](), 0
    for schema, good, bad in CASES:
        began = time.perf_counter()
        grammar = library.compile(schema)
        compiled.append(time.perf_counter() - began)
        for value, fits in [*((each, True) for each in good), *((each, False) for each in bad)]:
            state = library.begin(grammar)
            wrong += followed(library, state, tokenizer, json.dumps(value), masks) != fits
    masks.sort()
    print(
        f"{name:<14} vocabulary {reading:.2f} s; schema {1e3 * statistics.median(compiled):.1f} ms,"
        f" worst {1e3 * max(compiled):.0f}; token {1e6 * statistics.median(masks):.0f} us,"
        f" 99 % {1e6 * masks[int(0.99 * len(masks))]:.0f}; wrong {wrong}"
    )


def followed(library: Library, state: Any, tokenizer: Any, text: str, masks: list[float]) -> bool:
    """Whether a text can be written token by token, and end there."""
    for token in (*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id):
        began = time.perf_counter()
        may = library.allowed(state)
        masks.append(time.perf_counter() - began)
        if not may(token):
            return False
        if token != tokenizer.eos_token_id:
            library.take(state, token)
    return True


def sampling(tokenizer: Any) -> None:
    """A token of a free reply and of a held one, by the engine's own sampler."""
    size, end = len(tokenizer), tokenizer.eos_token_id
    held = ((JsonPart(schema=CASES[10][0]),),)
    compiler = ConstraintCompiler(tokenizer, vocabulary=size, ends=frozenset({end}))
    logits = torch.randn(1, size, generator=torch.Generator().manual_seed(0))
    free = RequestSampler.of(Sampling(seed=0), (), str)
    constrained = RequestSampler.of(Sampling(seed=0), (), str, compiler.constraint(held))
    plain, bound = (statistics.median(seconds(logits, sampler)) for sampler in (free, constrained))
    print(f"sampling       free {1e6 * plain:.0f} us, held {1e6 * bound:.0f} us a token: {bound / plain:.1f} times")


def seconds(logits: torch.Tensor, sampler: RequestSampler) -> Iterator[float]:
    for _ in range(200):
        began = time.perf_counter()
        sample(logits, [sampler])
        yield time.perf_counter() - began


# --- the libraries


def llguidance(tokenizer: Any) -> Library:
    from llguidance import LLMatcher, LLTokenizer

    read = LLTokenizer(tokenizer.backend_tokenizer.to_str(), n_vocab=len(tokenizer), eos_token=[tokenizer.eos_token_id])
    spacing = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

    def compiled(schema: Schema) -> Any:
        return LLMatcher(read, LLMatcher.grammar_from_json_schema(schema, overrides=spacing))

    def allowed(state: Any) -> Callable[[int], bool]:
        bits = state.compute_bitmask()
        return lambda token: bool(bits[token >> 3] >> (token & 7) & 1)

    return Library(
        compile=compiled, begin=lambda one: one.deep_copy(), allowed=allowed, take=lambda one, t: one.consume_token(t)
    )


def xgrammar(tokenizer: Any) -> Library:
    import xgrammar as xg

    info = xg.TokenizerInfo.from_huggingface(
        tokenizer, vocab_size=len(tokenizer), stop_token_ids=[tokenizer.eos_token_id]
    )
    compiler = xg.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    bits = xg.allocate_token_bitmask(1, len(tokenizer))

    def compiled(schema: Schema) -> Any:
        return compiler.compile_json_schema(json.dumps(schema), any_whitespace=False, separators=(", ", ": "))

    def allowed(state: Any) -> Callable[[int], bool]:
        state.fill_next_token_bitmask(bits, 0)
        return lambda token: bool(int(bits[0, token >> 5]) >> (token & 31) & 1)

    return Library(compile=compiled, begin=xg.GrammarMatcher, allowed=allowed, take=lambda one, t: one.accept_token(t))


LIBRARIES: dict[str, Callable[[Any], Library]] = {"llguidance": llguidance, "xgrammar": xgrammar}

if __name__ == "__main__":
    main()
