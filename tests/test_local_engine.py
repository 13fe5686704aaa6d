"""The engine: what it writes equals what `transformers` writes, whoever else is in the batch."""

from __future__ import annotations

import math
import random
import weakref
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import random_model

from openclaw_rl.backends.hf.adapters import version_model
from openclaw_rl.backends.hf.detokenizer import IncrementalDetokenizer, StopStrings
from openclaw_rl.backends.local.engine import attention
from openclaw_rl.backends.local.engine import model_runner as matrices
from openclaw_rl.backends.local.engine import model_runner as runners
from openclaw_rl.backends.local.engine.attention import DecodeLayout, Layout, Span
from openclaw_rl.backends.local.engine.engine import Engine
from openclaw_rl.backends.local.engine.kv_cache import KVCache, common_prefix
from openclaw_rl.backends.local.engine.messages import Finished, JobEvent, JobFailed, ScoreFinished, TokenDelta
from openclaw_rl.backends.local.engine.model_runner import (
    FusedRunner,
    TransformersRunner,
    kv_cache_for,
    version_bytes,
)
from openclaw_rl.backends.local.engine.runner_choice import model_runner_of
from openclaw_rl.backends.local.engine.sampler import DRY_WINDOW, RequestSampler, sample
from openclaw_rl.backends.local.engine.scheduler import Generation, PrefillBudget, Scoring
from openclaw_rl.errors import BackendError, ModelRefused
from openclaw_rl.types import Sampling

VOCABULARY = 320
pytestmark = pytest.mark.slow
CONTEXT = 512
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "pad_token_id": 0,
    "initializer_range": 0.3,
}
MORE: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "mistral": {"head_dim": 16, "sliding_window": 24},
    "phi3": {},
}
KINDS = sorted(MORE)


def tiny(kind: str) -> Any:
    """A small random model, the same on each call."""
    return random_model(kind, seed=KINDS.index(kind), **SHAPE, **MORE[kind]).requires_grad_(False)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {kind: tiny(kind) for kind in KINDS}


def prompts(count: int, *, seed: int = 0) -> list[list[int]]:
    """Prompts of 1 to 90 tokens."""
    chance = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 90, (count,), generator=chance).tolist()
    return [torch.randint(3, VOCABULARY, (length,), generator=chance).tolist() for length in lengths]


def letters(tokens: Sequence[int]) -> str:
    """A vocabulary where each token is one letter."""
    return "".join(chr(0x4E00 + token) for token in tokens)


GREEDY = Sampling(temperature=0.0, max_tokens=12)


def writing(
    id: int, prompt: Sequence[int], sampling: Sampling = GREEDY, *, version: int = 0, ends: Iterable[int] = (2,)
) -> Generation:
    return Generation.of(id, version, prompt, sampling, context=CONTEXT, ends=frozenset(ends), decode=letters)


def engine(model: Any, *, rows: int = 4096, batch: int = 16, prefill: PrefillBudget | None = None) -> Engine:
    return Engine(
        model_runner_of(model), model, cache_tokens=rows, max_batch=batch, prefill=prefill or PrefillBudget(16, 48)
    )


def run(machine: Engine) -> dict[int, Finished]:
    """Step until nothing is left."""
    done: dict[int, Finished] = {}
    while not machine.idle:
        done.update({event.job: event for event in machine.step() if isinstance(event, Finished)})
    return done


def plain(model: Any, prompt: Sequence[int], count: int) -> tuple[int, ...]:
    """What `transformers` writes, alone."""
    model.set_attn_implementation("sdpa")
    ids = torch.tensor([list(prompt)])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False)
    return tuple(out[0, len(prompt) :].tolist())


def forward(model: Any, tokens: Sequence[int]) -> torch.Tensor:
    model.set_attn_implementation("sdpa")
    logits: torch.Tensor = model(torch.tensor([list(tokens)]), use_cache=False).logits[0]
    return logits


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_alone_equals_transformers(models: dict[str, Any], kind: str) -> None:
    asked = prompts(4)
    expected = [plain(models[kind], prompt, 12) for prompt in asked]
    machine = engine(models[kind])
    for index, prompt in enumerate(asked):
        machine.submit(writing(index, prompt))
        assert run(machine)[index].tokens == expected[index]


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_in_a_crowd_with_joins_and_cancellations_equals_transformers(models: dict[str, Any], kind: str) -> None:
    asked = prompts(10, seed=1)
    expected = [plain(models[kind], prompt, 12) for prompt in asked]
    machine = engine(models[kind], batch=6)
    events: list[JobEvent] = []
    for index, prompt in enumerate(asked):
        machine.submit(writing(index, prompt))
        events += machine.step()
        if index == 5:
            events += machine.cancel(4)
    while not machine.idle:
        events += machine.step()
    done = {event.job: event for event in events if isinstance(event, Finished)}
    assert done[4].finish == "aborted"
    assert done[4].tokens == expected[4][: len(done[4].tokens)]
    assert [done[index].tokens for index in range(10) if index != 4] == [*expected[:4], *expected[5:]]


def test_fifty_prompts_equal_transformers(models: dict[str, Any]) -> None:
    asked = prompts(50, seed=2)
    expected = [plain(models["llama"], prompt, 8) for prompt in asked]
    machine = engine(models["llama"])
    for index, prompt in enumerate(asked):
        machine.submit(writing(index, prompt, Sampling(temperature=0.0, max_tokens=8)))
    done = run(machine)
    assert [done[index].tokens for index in range(50)] == expected


def test_shapes_known_by_heart_take_the_lean_pass_and_others_the_models_own(models: dict[str, Any]) -> None:
    assert isinstance(model_runner_of(models["qwen3"]), FusedRunner)
    assert isinstance(model_runner_of(models["phi3"]), TransformersRunner)


def test_a_model_that_the_engine_would_run_wrongly_is_refused() -> None:
    model = tiny("phi3")
    inner = model.model.forward
    calls = iter(range(100))
    # a model whose answer depends on something the engine cannot see
    model.model.forward = lambda *args, **kwargs: _tilted(inner(*args, **kwargs), next(calls))
    with pytest.raises(ModelRefused, match=r"phi3.*log-probs differ"):
        model_runner_of(model)


def _tilted(output: Any, call: int) -> Any:
    output.last_hidden_state = output.last_hidden_state.roll(call, dims=-1)
    return output


def test_logprobs_equal_a_plain_pass_raw_and_after_the_temperature(models: dict[str, Any]) -> None:
    prompt = prompts(1, seed=3)[0]
    machine = engine(models["qwen2"])
    machine.submit(
        writing(
            0, prompt, Sampling(temperature=0.5, max_tokens=20, seed=1, top_p=0.9, presence_penalty=0.5, top_logprobs=3)
        )
    )
    events = []
    while not machine.idle:
        events += machine.step()
    done = next(event for event in events if isinstance(event, Finished))
    pieces = [piece for event in events if isinstance(event, TokenDelta) for piece in event.delta.pieces]
    logits = forward(models["qwen2"], [*prompt, *done.tokens])[len(prompt) - 1 : -1]
    chosen = torch.tensor(done.tokens)[:, None]
    tempered = (logits / 0.5).log_softmax(-1).gather(1, chosen)[:, 0]
    raw = logits.log_softmax(-1)
    assert done.logprobs == pytest.approx(tempered.tolist(), abs=1e-4)
    assert [piece.logprob for piece in pieces] == pytest.approx(raw.gather(1, chosen)[:, 0].tolist(), abs=1e-4)
    assert [piece.token for piece in pieces] == list(done.tokens)
    best = raw[0].topk(3)
    assert [choice.token for choice in pieces[0].top] == best.indices.tolist()
    assert [choice.logprob for choice in pieces[0].top] == pytest.approx(best.values.tolist(), abs=1e-4)


def test_a_seed_gives_the_same_reply_whoever_else_is_there(models: dict[str, Any]) -> None:
    prompt = prompts(1, seed=4)[0]
    ask = Sampling(temperature=1.0, max_tokens=15, seed=7)
    alone = engine(models["llama"])
    alone.submit(writing(0, prompt, ask))
    crowd = engine(models["llama"])
    for index, other in enumerate(prompts(6, seed=5), start=1):
        crowd.submit(writing(index, other, Sampling(temperature=1.0, max_tokens=15)))
    crowd.submit(writing(0, prompt, ask))
    other_seed = engine(models["llama"])
    other_seed.submit(writing(0, prompt, Sampling(temperature=1.0, max_tokens=15, seed=8)))
    first = run(alone)[0].tokens
    assert run(crowd)[0].tokens == first
    assert run(other_seed)[0].tokens != first


def test_a_stop_token_is_kept_in_the_tokens_and_not_shown(models: dict[str, Any]) -> None:
    prompt = prompts(1)[0]
    whole = plain(models["llama"], prompt, 6)
    machine = engine(models["llama"])
    machine.submit(writing(0, prompt, ends=(whole[3],)))
    done = run(machine)[0]
    assert done.finish == "stop"
    cut = whole.index(whole[3]) + 1
    assert done.tokens == whole[:cut]
    assert done.text == letters(whole[: cut - 1])


def test_a_stop_string_across_tokens_ends_the_reply_before_it(models: dict[str, Any]) -> None:
    prompt = prompts(1)[0]
    whole = plain(models["llama"], prompt, 6)
    text = letters(whole)
    machine = engine(models["llama"])
    machine.submit(writing(0, prompt, Sampling(temperature=0.0, max_tokens=6, stop=("never", text[2:4]))))
    events = [*machine.step()]
    while not machine.idle:
        events += machine.step()
    done = next(event for event in events if isinstance(event, Finished))
    at = text.index(text[2:4])
    assert (done.finish, done.text) == ("stop", text[:at])
    assert done.tokens == whole[: at + 2]
    assert "".join(event.delta.text for event in events if isinstance(event, TokenDelta)) == done.text


def test_the_limit_ends_a_reply_as_length(models: dict[str, Any]) -> None:
    machine = engine(models["llama"])
    machine.submit(writing(0, [5, 6, 7], Sampling(temperature=0.0, max_tokens=3), ends=()))
    done = run(machine)[0]
    assert (done.finish, len(done.tokens)) == ("length", 3)


def test_the_next_turn_reads_only_what_is_new(models: dict[str, Any]) -> None:
    prompt = list(range(10, 110))
    machine = engine(models["qwen3"])
    machine.submit(writing(0, prompt, ends=()))
    first = run(machine)[0]
    read = machine.counts.computed
    following = [*prompt, *first.tokens, 30, 31, 32]
    machine.submit(writing(1, following, ends=()))
    second = run(machine)[1]
    # 100 + 12 - 1 tokens are known (the last was drawn, never read); 4 new ones and 11 of the reply are read
    assert machine.counts.prefix_hits == 111
    assert machine.counts.computed - read == 4 + 11
    assert second.tokens == plain(models["qwen3"], following, 12)


def test_requests_that_share_a_prompt_read_it_once(models: dict[str, Any]) -> None:
    prompt = list(range(10, 210))
    machine = engine(models["llama"])
    for index in range(3):
        machine.submit(writing(index, [*prompt, 20 + index]))
    done = run(machine)
    assert [done[index].tokens for index in range(3)] == [
        plain(models["llama"], [*prompt, 20 + index], 12) for index in range(3)
    ]
    assert machine.counts.prefix_hits == 400


def test_another_version_never_takes_the_values_of_this_one(models: dict[str, Any]) -> None:
    prompt = list(range(10, 110))
    machine = engine(models["llama"])
    other = tiny("llama")
    other.lm_head.weight.mul_(1.0)
    for parameter in other.model.layers.parameters():
        parameter.add_(0.02)
    machine.install(1, FusedRunner(other), live=True)
    machine.submit(writing(0, prompt))
    base = run(machine)[0]
    machine.submit(writing(1, prompt, version=1))
    changed = run(machine)[1]
    assert machine.counts.prefix_hits == 0
    assert base.tokens == plain(models["llama"], prompt, 12)
    assert changed.tokens == plain(other, prompt, 12)
    assert (base.version, changed.version) == (0, 1)


def test_versions_run_side_by_side_and_leave_when_nobody_needs_them(models: dict[str, Any]) -> None:
    asked = prompts(6, seed=6)
    others = {}
    machine = engine(models["llama"])
    for version in (1, 2):
        others[version] = tiny("llama")
        for parameter in others[version].model.layers.parameters():
            parameter.add_(0.01 * version)
        machine.install(version, FusedRunner(others[version]), live=True)
        machine.submit(writing(version * 10, asked[version], version=version))
    assert sorted(machine.runners) == [0, 1, 2]
    for index in (0, 3):
        machine.submit(writing(index, asked[index]))
    done = run(machine)
    assert sorted(machine.runners) == [0, 2]
    assert done[10].tokens == plain(others[1], asked[1], 12)
    assert done[20].tokens == plain(others[2], asked[2], 12)
    assert done[3].tokens == plain(models["llama"], asked[3], 12)


def test_the_weights_of_a_version_that_left_are_held_by_nobody(models: dict[str, Any]) -> None:
    machine = engine(models["llama"])
    machine.install(1, FusedRunner(tiny("llama")), live=True)
    runner = machine.runners[1]
    assert isinstance(runner, FusedRunner)
    weights = weakref.ref(runner.layers[0].qkv.weight)
    del runner
    machine.submit(writing(0, [5, 6, 7], version=1))
    machine.step()
    machine.promote(0)
    assert weights() is not None
    run(machine)
    assert weights() is None


def test_a_version_that_cannot_be_had_fails_its_requests_only(models: dict[str, Any]) -> None:
    wanted: list[int] = []
    machine = Engine(
        model_runner_of(models["llama"]), models["llama"], cache_tokens=1024, max_batch=4, request_version=wanted.append
    )
    machine.submit(writing(0, [5, 6], version=9))
    machine.submit(writing(1, [5, 6]))
    assert wanted == [9]
    assert list(run(machine)) == [1]
    events = machine.refuse(9, BackendError("gone"))
    assert [event.job for event in events if isinstance(event, JobFailed)] == [0]


def test_replies_that_outgrow_the_memory_are_preempted_and_still_right(models: dict[str, Any]) -> None:
    asked = [prompt[:60] for prompt in prompts(5, seed=7)]
    ask = Sampling(temperature=0.0, max_tokens=200)
    machine = engine(models["llama"], rows=640)
    for index, prompt in enumerate(asked):
        machine.submit(writing(index, prompt, ask, ends=()))
    done = run(machine)
    assert machine.counts.preempted > 0
    model = models["llama"]
    for index, prompt in enumerate(asked):
        logits = forward(model, [*prompt, *done[index].tokens])[len(prompt) - 1 : -1]
        assert len(done[index].tokens) == 200
        assert tuple(logits.argmax(-1).tolist()) == done[index].tokens


def test_a_long_prompt_does_not_stop_running_replies(models: dict[str, Any]) -> None:
    machine = engine(models["llama"], prefill=PrefillBudget(8, 48))
    machine.submit(writing(0, [5, 6, 7], Sampling(temperature=0.0, max_tokens=60), ends=()))
    machine.step()
    machine.submit(writing(1, list(range(10, 210))))
    said = [sum(isinstance(event, TokenDelta) and event.job == 0 for event in machine.step()) for _ in range(20)]
    assert said == [1] * 20
    assert machine.counts.computed == 3 + 20 * (1 + 8)


def test_scores_equal_a_plain_pass_and_share_their_prompt(models: dict[str, Any]) -> None:
    prompt, reply = list(range(10, 90)), (40, 41, 42, 43, 2)
    machine = engine(models["qwen2"])
    machine.submit(scoring(0, prompt, reply, temperature=0.7, top_k=4))
    machine.submit(scoring(1, prompt, (7,), temperature=1.0, top_k=0))
    found = {}
    while not machine.idle:
        found.update({event.job: event.scores for event in machine.step() if isinstance(event, ScoreFinished)})
    logits = forward(models["qwen2"], [*prompt, *reply])[len(prompt) - 1 : -1]
    expected = (logits / 0.7).log_softmax(-1)
    best = expected.topk(4)
    assert found[0].logprobs == pytest.approx(expected.gather(1, torch.tensor(reply)[:, None])[:, 0].tolist(), abs=1e-4)
    assert found[0].top_tokens == tuple(map(tuple, best.indices.tolist()))
    assert found[0].top_logprobs[4] == pytest.approx(best.values[4].tolist(), abs=1e-4)
    assert found[1].logprobs == pytest.approx([float(logits[0].log_softmax(-1)[7])], abs=1e-4)
    assert found[1].top_tokens == ()
    assert machine.counts.prefix_hits == 79


def scoring(id: int, prompt: list[int], reply: tuple[int, ...], *, temperature: float, top_k: int) -> Scoring:
    tokens = [*prompt, *reply[:-1]]
    return Scoring(
        id=id, version=0, tokens=tokens, prompt=len(prompt), reply=reply, temperature=temperature, top_k=top_k
    )


def test_an_adapter_merges_to_the_same_weights_as_peft(models: dict[str, Any], tmp_path: Path) -> None:
    from peft import LoraConfig, PeftModel, get_peft_model

    torch.manual_seed(0)
    trained = get_peft_model(
        tiny("qwen3"), LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights=False)
    )
    trained.save_pretrained(tmp_path)
    ours = version_model(models["qwen3"], str(tmp_path))
    theirs = PeftModel.from_pretrained(tiny("qwen3"), tmp_path).merge_and_unload()
    tokens = list(range(10, 60))
    assert torch.allclose(forward(ours, tokens), forward(theirs, tokens), atol=1e-5)
    assert not torch.allclose(forward(ours, tokens), forward(models["qwen3"], tokens), atol=1e-2)
    assert ours.model.embed_tokens.weight is models["qwen3"].model.embed_tokens.weight
    runner = model_runner_of(ours, like=model_runner_of(models["qwen3"]))
    machine = engine(models["qwen3"])
    machine.install(3, runner, live=True)
    machine.submit(writing(0, tokens, version=3))
    assert run(machine)[0].tokens == plain(theirs, tokens, 12)


@pytest.mark.parametrize("kind", KINDS)
def test_single_tokens_answered_together_equal_those_answered_one_by_one(
    models: dict[str, Any], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pasts of 40 and 70 tokens, copied into rows of 128; or, where no row may be copied, read where they lie."""
    monkeypatch.setattr(attention, "COPIED", 0)
    runner = model_runner_of(models[kind])
    room = kv_cache_for(models[kind], rows=512)
    pasts = [list(range(10, 50)), list(range(100, 170))]
    slots = []
    for past in pasts:
        slot = room.open(0, [], 128)
        assert slot is not None
        runner(torch.tensor(past), Layout(room, [Span(slot, len(past))]), torch.tensor([0]))
        slot.tokens.extend(past)
        slots.append(slot)
    tokens, keep = torch.tensor([7, 8]), torch.tensor([0, 1])
    apart = runner(tokens, Layout(room, [Span(slot, 1) for slot in slots]), keep)
    starts = torch.tensor([slot.start for slot in slots])
    together = runner(tokens, DecodeLayout(room, starts, torch.tensor([40, 70]), 128), keep)
    assert torch.allclose(apart, together, atol=1e-4)


def test_short_pasts_are_copied_and_long_ones_are_read_where_they_lie(
    models: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "COPIED", 128)
    room = kv_cache_for(models["mistral"], rows=2048)
    spans = []
    for length in (30, 200, 30, 90, 5):
        slot = room.open(0, [], 256)
        assert slot is not None
        slot.tokens.extend(range(length))
        spans.append(Span(slot, 4 if length == 5 else 1))
    # three of the single tokens' pasts would be 3 x 91 rows, two are 2 x 31
    assert Layout(room, spans)._grouped == [0, 2]
    asked = [*prompts(6, seed=4), list(range(3, 300))]
    expected = [plain(models["mistral"], prompt, 12) for prompt in asked]
    machine = engine(models["mistral"])
    for index, prompt in enumerate(asked):
        machine.submit(writing(index, prompt))
    done = run(machine)
    assert [done[index].tokens for index in range(7)] == expected


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_packed_weights_write_the_same_and_a_version_shares_what_it_did_not_change(
    models: dict[str, Any], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from peft import LoraConfig, get_peft_model

    monkeypatch.setattr(runners, "worth_packing", lambda *_, **__: True)
    config = LoraConfig(r=4, target_modules=["down_proj"], init_lora_weights=False)
    get_peft_model(tiny(kind), config).save_pretrained(tmp_path)
    changed = version_model(models[kind], str(tmp_path))
    base = model_runner_of(models[kind])
    version = model_runner_of(changed, like=base)
    assert isinstance(base, FusedRunner)
    assert isinstance(version, FusedRunner)
    assert base.head.packed is not None
    assert version.head is base.head
    assert version.layers[1].qkv is base.layers[1].qkv
    assert version.layers[1].down is not base.layers[1].down
    assert version_bytes(models[kind], base) == 2 * sum(p.nbytes for p in models[kind].model.layers.parameters())
    machine = Engine(base, models[kind], cache_tokens=4096, max_batch=16, prefill=PrefillBudget(16, 48))
    machine.install(1, version, live=True)
    asked = prompts(6, seed=5)
    for index, prompt in enumerate(asked):
        machine.submit(writing(index, prompt, version=index % 2))
    done = run(machine)
    expected = [plain((models[kind], changed)[index % 2], prompt, 12) for index, prompt in enumerate(asked)]
    assert [done[index].tokens for index in range(6)] == expected


def test_nothing_is_packed_where_memory_is_short_or_it_would_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.ones(64, 32)
    monkeypatch.setattr(matrices, "_gain", lambda *_: 2.0)
    monkeypatch.setattr(matrices, "available", lambda _: 4000)
    assert matrices.worth_packing(weight, needed=1000)
    assert not matrices.worth_packing(weight, needed=1001)
    monkeypatch.setattr(matrices, "_gain", lambda *_: 1.1)
    assert not matrices.worth_packing(weight, needed=1000)


def test_a_directory_without_weights_is_no_version(models: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="neither adapter_config"):
        version_model(models["llama"], str(tmp_path))


# --- the kv_cache -------------------------------------------------------------------------------------------------------


def kv_cache(rows: int = 256) -> KVCache:
    return KVCache(layers=1, heads=1, dim=2, rows=rows, dtype=torch.float32, device=torch.device("cpu"), page=64)


def test_shared_counts_the_common_beginning() -> None:
    assert common_prefix(array("q", [1, 2, 3]), [1, 2, 4, 5]) == 2
    assert common_prefix(array("q", [1, 2]), [1, 2, 3]) == 2
    assert common_prefix(array("q"), [1]) == 0


def test_the_least_recent_idle_strand_makes_way() -> None:
    room = kv_cache()
    slots = []
    for first in (100, 200, 300, 400):
        slot = room.open(0, [], 64)
        assert slot is not None
        slot.tokens.extend(range(first, first + 20))
        slots.append(slot)
    assert room.open(0, [], 64) is None
    room.close(slots[2])
    room.close(slots[1])
    assert room.open(0, [1], 64) is not None
    assert slots[2] not in room.slots
    assert slots[1] in room.slots


def test_scattered_free_rows_are_brought_together_with_their_values() -> None:
    room = kv_cache()
    slots = [room.open(0, [], 64) for _ in range(4)]
    for index, slot in enumerate(slots):
        assert slot is not None
        slot.tokens.extend([index] * 3)
        room.data[:, slot.start : slot.start + 3] = float(index)
    first, kept, third, last = slots
    assert first is not None
    assert third is not None
    assert kept is not None
    assert last is not None
    room.drop(first)
    room.drop(third)
    wide = room.open(0, [], 128)
    assert wide is not None
    assert wide.room == 128
    assert room.data[0, kept.start : kept.start + 3].unique().tolist() == [1.0]
    assert room.data[0, last.start : last.start + 3].unique().tolist() == [3.0]


# --- drawing ---------------------------------------------------------------------------------------------------------


def drawn(logits: list[float], count: int = 400, **ask: Any) -> set[int]:
    """Which tokens come up in many draws."""
    sampler = RequestSampler.of(Sampling(seed=1, **ask), [0], str)
    table = torch.tensor([[math.log(max(value, 1e-30)) for value in logits]])
    found = set()
    for _ in range(count):
        found.add(sample(table, [sampler])[0].token)
        sampler.counts.clear()
    return found


def test_filters_keep_the_tokens_they_promise() -> None:
    probs = [0.5, 0.3, 0.15, 0.05]
    assert drawn(probs) == {0, 1, 2, 3}
    assert drawn(probs, top_k=2) == {0, 1}
    assert drawn(probs, top_p=0.75) == {0, 1}
    assert drawn(probs, top_p=0.81) == {0, 1, 2}
    assert drawn(probs, min_p=0.25) == {0, 1, 2}
    # of the two that top-k leaves, the first alone has 0.625 of the mass
    assert drawn(probs, top_k=2, top_p=0.6) == {0}
    assert drawn(probs, temperature=0.0) == {0}
    assert drawn(probs, top_k=1) == {0}


def test_top_p_beyond_the_head_sorts_the_whole_vocabulary() -> None:
    flat = [1 / 2000] * 2000
    assert max(drawn(flat, top_p=0.999, count=300)) > 1000


def test_draws_follow_the_chances() -> None:
    sampler = RequestSampler.of(Sampling(seed=3), [], str)
    table = torch.tensor([[0.7, 0.2, 0.1]]).log()
    tokens = [sample(table, [sampler])[0].token for _ in range(2000)]
    assert [tokens.count(token) / 2000 for token in range(3)] == pytest.approx([0.7, 0.2, 0.1], abs=0.04)


def test_penalties_act_as_documented_and_leave_the_recorded_logprob_alone() -> None:
    logits = torch.tensor([[2.0, 1.9, -1.0]])
    norm = math.log(math.exp(2.0) + math.exp(1.9) + math.exp(-1.0))
    repeated = RequestSampler.of(Sampling(temperature=0.0, repetition_penalty=1.2), [0], str)
    # 2.0 / 1.2 = 1.67 is below 1.9
    first = sample(logits, [repeated])[0]
    assert first.token == 1
    assert first.raw == pytest.approx(1.9 - norm, abs=1e-6)
    often = RequestSampler.of(Sampling(temperature=0.0, frequency_penalty=0.06), [0], str)
    # token 0 leads by 0.1: after two times it has lost 0.12
    assert [sample(logits, [often])[0].token for _ in range(4)] == [0, 0, 1, 0]
    once = RequestSampler.of(Sampling(temperature=0.0, presence_penalty=0.2), [0], str)
    assert [sample(logits, [once])[0].token for _ in range(3)] == [0, 1, 0]


def word(token: int) -> str:
    return f"word{token}"


def leading(token: int) -> torch.Tensor:
    """Logits of four tokens, of which one leads token 0 by 3 and the others by more."""
    return torch.tensor([[3.0 if each == token else -1.0 * each for each in range(4)]])


def test_a_phrase_that_comes_again_and_again_is_left_and_ordinary_repeats_are_not() -> None:
    wanted = [1, 2, 3] * 3
    sampler = RequestSampler.of(Sampling(temperature=0.0, dry_multiplier=2.0), [1, 2, 3, 1, 2, 3], word)
    said = [sample(leading(token), [sampler])[0] for token in wanted]
    # two in a row may come again; what then followed loses 2 and, after three in a row, 3.5, more than the lead of 3
    assert [one.token for one in said] == [1, 2, 3, 1, 2, 3, 0, 2, 3]
    plain = leading(1).log_softmax(-1)
    assert said[6].raw == pytest.approx(float(plain[0, 0]), abs=1e-6)
    off = RequestSampler.of(Sampling(temperature=0.0), [], str)
    assert [sample(leading(token), [off])[0].token for token in wanted] == wanted


def test_signs_and_figures_may_come_again_but_not_the_same_item_whatever_its_number() -> None:
    ask = Sampling(temperature=0.0, dry_multiplier=2.0)
    marks = [1, 2, 3] * 6
    signs = RequestSampler.of(ask, [], lambda token: f"{token}.\n")
    assert [sample(leading(token), [signs])[0].token for token in marks] == marks
    numbered = RequestSampler.of(ask, [], lambda token: "fog" if token < 2 else f"\n{token}. ")
    # what follows the second item loses 2; what follows the third, with its mark a repeat of four, 2 times 1.75 squared
    items = [1, 2, 1, 3, 1, 2, 1]
    assert [sample(leading(token), [numbered])[0].token for token in items] == [1, 2, 1, 3, 1, 2, 0]


def test_looking_for_repeats_is_bounded() -> None:
    ask = Sampling(temperature=0.0, dry_multiplier=4.0)
    far, near = RequestSampler.of(ask, [], word), RequestSampler.of(ask, [], word)
    far.history.extend([1, 2, 3, *range(10, 10 + DRY_WINDOW - 4), 1, 2])
    assert sample(leading(3), [far])[0].token == 3
    near.history.extend([1, 2, 3, *range(10, 10 + DRY_WINDOW - 5), 1, 2])
    assert sample(leading(3), [near])[0].token == 0
    endless = RequestSampler.of(ask, [], word)
    endless.history.extend([1] * DRY_WINDOW)
    # after twelve in a row or more the penalty is 4 times 1.75 to the tenth, 1077
    assert [sample(leading(1) * lead, [endless])[0].token for lead in (360.0, 350.0)] == [1, 0]


# --- text ------------------------------------------------------------------------------------------------------------


def raw_bytes(tokens: Sequence[int]) -> str:
    return bytes(tokens).decode("utf-8", errors="replace")


def test_half_a_character_waits_for_its_other_half() -> None:
    words = IncrementalDetokenizer(raw_bytes)
    shown = [words.push(byte) for byte in "a€😀b".encode()]
    assert shown == ["a", "", "", "€", "", "", "", "😀", "b"]
    assert words.flush() == ""


def test_bytes_that_are_no_text_are_shown_in_the_end() -> None:
    words = IncrementalDetokenizer(raw_bytes)
    assert words.push(0xE2) == ""
    assert words.flush() == "\ufffd"
    endless = IncrementalDetokenizer(raw_bytes)
    assert "".join(endless.push(0xFF) for _ in range(8)) == "\ufffd" * 5, "three may still begin a character"
    assert endless.flush() == "\ufffd" * 3


def test_a_character_after_bytes_that_are_no_text_is_shown_whole() -> None:
    words = IncrementalDetokenizer(raw_bytes)
    assert [words.push(byte) for byte in b"\xff" + "😀".encode()] == ["", "", "", "\ufffd", "😀"]
    rng = random.Random(3)
    for _ in range(2_000):
        data = bytes(rng.choice(b"a\xff\xf0\x9f\x98\x80\xe2\x82\xac") for _ in range(12))
        words = IncrementalDetokenizer(raw_bytes)
        assert "".join(words.push(byte) for byte in data) + words.flush() == raw_bytes(data), data


def test_stop_strings_are_found_across_pieces_and_false_beginnings_released() -> None:
    stops = StopStrings(("</end>", "END"))
    assert stops.push("hello <") == ("hello ", False)
    assert stops.push("/e") == ("", False)
    assert stops.push("x") == ("</ex", False)
    assert stops.push(" E") == (" ", False)
    assert stops.push("ND more") == ("", True)
    rest = StopStrings(("abc",))
    assert rest.push("xab") == ("x", False)
    assert rest.flush() == "ab"
