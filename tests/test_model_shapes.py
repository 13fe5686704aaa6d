"""Models whose past is more than keys and values: served and trained one by one, exactly as `transformers` runs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from defaults import engine_args
from model_shapes import SHAPES, save_shape, shaped
from test_local_models import prompt, quiet
from test_local_trainer import order, worker
from transformers import AutoModelForCausalLM

from openclaw_rl.backends.hf.adapters import version_model
from openclaw_rl.backends.hf.models import LoadedModel, load
from openclaw_rl.backends.hf.template import ChatTemplate
from openclaw_rl.backends.local.engine import scheduler
from openclaw_rl.backends.local.engine import worker as engine_worker
from openclaw_rl.backends.local.engine.engine import Engine
from openclaw_rl.backends.local.engine.messages import Finished, JobFailed, ScoreFinished
from openclaw_rl.backends.local.engine.runner_choice import OwnCacheRunner, model_runner_of, runner_words
from openclaw_rl.backends.local.engine.scheduler import Generation, Scoring
from openclaw_rl.backends.local.engine.worker import cache_rows
from openclaw_rl.backends.local.training.head import LogitForm, logit_form
from openclaw_rl.backends.local.training.model import linear_layers
from openclaw_rl.errors import ModelRefused
from openclaw_rl.types import Sample, Sampling

pytestmark = pytest.mark.slow

ASKED = [prompt("hello"), prompt("a rather longer question, of more than one window"), prompt("x")]
TEMPERATURE = 0.8
ALONE = "plain transformers, one sequence at a time without a prefix cache"
SHARED = "transformers layers, batched, with a prefix cache"
ROADS = {
    "qwen3_5_text": f"{ALONE}: it has layers of kind linear_attention",
    "qwen3_5_moe_text": f"{ALONE}: it has layers of kind linear_attention",
    "qwen3_next": f"{ALONE}: it has layers of kind linear_attention",
    "gpt_oss": f"{ALONE}: it has attention sinks in a shared pass",
    "gemma2": f"{ALONE}: it has capped attention scores in a shared pass",
    "gemma3_text": SHARED,
    "lfm2": f"{ALONE}: it has layers of kind conv",
    "mamba": f"{ALONE}, prompts whole: it has layers of kind linear_attention",
    "falcon_h1": f"{ALONE}: it has layers of kind hybrid",
    "granite": SHARED,
    "recurrent_gemma": f"{ALONE} and no cache at all: it keeps a recurrent state",
}
TREES = {"granite"}


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shapes")


def loaded(root: Path, shape: str) -> LoadedModel:
    folder = root / shape
    if not folder.is_dir():
        save_shape(folder, shape)
    return load(str(folder), cache_dir=root, device="cpu", dtype="float32", progress=quiet)


def engine_of(found: LoadedModel, *, rows: int = 2048, batch: int = 4) -> Engine:
    return Engine(model_runner_of(found.model), found.model, cache_tokens=rows, max_batch=batch)


def generation(id: int, chat: ChatTemplate, sampling: Sampling, *, version: int = 0) -> Generation:
    ids = chat.encode(ASKED[id % len(ASKED)])
    return Generation.of(id, version, ids, sampling, context=1024, ends=chat.ends, decode=chat.decode)


def run(engine: Engine) -> dict[int, Finished]:
    done: dict[int, Finished] = {}
    while not engine.idle:
        events = engine.step()
        assert not [event for event in events if isinstance(event, JobFailed)]
        done.update({event.job: event for event in events if isinstance(event, Finished)})
    return done


@torch.no_grad()
def plain(model: Any, done: Finished, temperature: float = TEMPERATURE) -> list[float]:
    """The log-probs of a reply by one forward pass of a model that nobody has touched."""
    tokens = torch.tensor([[*done.prompt, *done.tokens]])
    logits = model(input_ids=tokens, use_cache=False).logits[0, len(done.prompt) - 1 : -1].float() / temperature
    found: list[float] = logits.log_softmax(-1).gather(1, torch.tensor(done.tokens)[:, None])[:, 0].tolist()
    return found


def samples(done: Sequence[Finished]) -> list[Sample]:
    return [
        Sample(
            turn=f"t{one.job}",
            user="u",
            prompt=ASKED[one.job],
            prompt_tokens=one.prompt,
            reply_tokens=one.tokens,
            logprobs=one.logprobs,
            mask=(True,) * len(one.tokens),
            advantage=1.0,
            teachers=(),
            temperature=TEMPERATURE,
            version=0,
        )
        for one in done
    ]


@pytest.mark.parametrize("shape", SHAPES)
def test_each_shape_is_served_trained_and_served_again_as_transformers_runs_it(
    shape: str, root: Path, tmp_path: Path
) -> None:
    found = loaded(root, shape)
    chat = ChatTemplate(found.tokenizer)
    engine = engine_of(found)
    assert runner_words(engine.runners[0]) == ROADS[shape]
    for id in range(3):
        engine.submit(generation(id, chat, Sampling(temperature=TEMPERATURE, max_tokens=12, seed=id)))
    done = run(engine)
    untouched = AutoModelForCausalLM.from_pretrained(root / shape, dtype=torch.float32)
    for one in done.values():
        assert one.logprobs == pytest.approx(plain(untouched, one), abs=2e-3)

    trainer = worker(str(root / shape), loader=load, dtype="float32", lr=2e-5, kl_coef=0.0, gap_alarm=0.05)
    batch = samples([done[id] for id in range(3)])
    step = trainer.step(order(batch, tmp_path / "v1"))
    assert step.skipped is None
    assert step.metrics["tree"] == float(shape in TREES)
    assert step.metrics["gap_mean"] < 1e-3
    assert step.adapter is not None

    better = model_runner_of(version_model(found.model, step.adapter), like=engine.runners[0])
    engine.install(1, better, live=True)
    before, after = (sum(sum(score(engine, one, version)) for one in done.values()) for version in (0, 1))
    assert after > before + 0.02
    with_adapter = merged(root / shape, step.adapter)
    assert score(engine, done[1], 1) == pytest.approx(plain(with_adapter, done[1]), abs=2e-3)


def score(engine: Engine, one: Finished, version: int) -> tuple[float, ...]:
    """The log-probs of a reply by what the engine serves as ``version``."""
    tokens = [*one.prompt, *one.tokens[:-1]]
    job = Scoring(99, version, tokens, len(one.prompt), one.tokens, TEMPERATURE, 0)
    engine.submit(job)
    while True:
        for event in engine.step():
            if isinstance(event, ScoreFinished):
                return event.scores.logprobs


def merged(folder: Path, adapter: str) -> Any:
    """The weights with their adapter, by peft."""
    from peft import PeftModel

    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return PeftModel.from_pretrained(base, adapter).merge_and_unload()


def whole_replies(found: LoadedModel, count: int) -> dict[int, Finished]:
    """Greedy replies, each asked of an engine of its own."""
    chat = ChatTemplate(found.tokenizer)
    done: dict[int, Finished] = {}
    for id in range(3):
        engine = engine_of(found)
        engine.submit(generation(id, chat, Sampling(temperature=0.0, max_tokens=count)))
        done |= run(engine)
    return done


@pytest.mark.parametrize("shape", ["qwen3_5_text", "gpt_oss", "mamba"])
def test_replies_that_outgrow_the_memory_are_preempted_and_still_right(
    shape: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "LOOKAHEAD", 4)
    found = loaded(root, shape)
    alone = whole_replies(found, 60)
    longest = max(len(one.prompt) for one in alone.values())
    engine, chat = engine_of(found, rows=longest + 60), ChatTemplate(found.tokenizer)
    for id in range(3):
        engine.submit(generation(id, chat, Sampling(temperature=0.0, max_tokens=60)))
    assert {id: one.tokens for id, one in run(engine).items()} == {id: one.tokens for id, one in alone.items()}
    assert engine.counts.preempted > 0
    assert engine.stats()["kv_cache_used"] == engine.stats()["prefix_cache_hits"] == 0


def test_a_cancelled_reply_ends_with_what_it_has_and_gives_its_place_back(root: Path) -> None:
    found = loaded(root, "qwen3_next")
    engine, chat = engine_of(found), ChatTemplate(found.tokenizer)
    engine.submit(generation(0, chat, Sampling(temperature=0.0, max_tokens=50)))
    for _ in range(5):
        engine.step()
    (ended,) = engine.cancel(0)
    assert isinstance(ended, Finished)
    assert (ended.finish, len(ended.tokens)) == ("aborted", 5)
    assert ended.tokens == whole_replies(found, 5)[0].tokens
    assert engine.idle
    assert engine.stats()["kv_cache_used"] == 0


def test_a_state_is_counted_once_for_each_sequence_and_keys_for_each_token(root: Path) -> None:
    runner = model_runner_of(loaded(root, "qwen3_5_text").model)
    assert isinstance(runner, OwnCacheRunner)
    # one layer of full attention: keys and values of 2 heads of 16 numbers of 4 bytes; three layers of linear
    # attention: 4 heads of 8 x 8 numbers, and the last 4 of 2 x 2 x 8 + 4 x 8 channels of the convolution
    assert runner.state_bytes() == (2 * 2 * 16 * 4, 3 * 4 * (4 * 8 * 8 + 4 * 64))
    assert OwnCacheRunner(runner.model, "again", why="").state_bytes() == (0, 0)


def test_the_cache_has_room_for_the_states_of_a_full_batch_first(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = loaded(root, "qwen3_5_text")
    runner = model_runner_of(found.model)
    assert isinstance(runner, OwnCacheRunner)
    each, fixed = runner.state_bytes()
    monkeypatch.setattr(engine_worker, "available", lambda _: 8 * fixed + 2000 * each)
    args = engine_args(model="m", cache_dir="c", max_batch=8, cache_tokens=2000)
    assert cache_rows(found, runner, args) == 2000
    with pytest.raises(ModelRefused, match="the cache has"):
        cache_rows(found, runner, replace(args, max_batch=9))


def test_a_model_that_no_way_runs_rightly_is_refused_with_the_remedy() -> None:
    model = shaped("lfm2")
    inner, calls = model.model.forward, iter(range(100))

    def fickle(*args: Any, **kwargs: Any) -> Any:
        output = inner(*args, **kwargs)
        output.last_hidden_state = output.last_hidden_state.roll(next(calls), dims=-1)
        return output

    model.model.forward = fickle
    with pytest.raises(ModelRefused, match=r"'lfm2' \(it has layers of kind conv; by itself: its log-probs.*vLLM"):
        model_runner_of(model)


@pytest.mark.parametrize(
    ("shape", "form"),
    [
        ("gemma2", LogitForm(cap=2.0)),
        ("falcon_h1", LogitForm(scale=0.5)),
        ("granite", LogitForm(scale=0.25)),
        ("gpt_oss", LogitForm()),
    ],
)
def test_what_a_model_makes_of_its_heads_product_is_found_out(shape: str, form: LogitForm) -> None:
    assert logit_form(shaped(shape)) == form


def test_logits_of_another_kind_are_refused_for_training() -> None:
    model = shaped("granite")
    inner = model.forward

    def squared(*args: Any, **kwargs: Any) -> Any:
        output = inner(*args, **kwargs)
        output.logits = output.logits.square()
        return output

    model.forward = squared
    with pytest.raises(ModelRefused, match=r"not the product of its head.*'openclaw-rl serve' alone"):
        logit_form(model)


@pytest.mark.parametrize("form", [LogitForm(cap=2.0), LogitForm(scale=0.25), LogitForm(scale=3.0, cap=1.5)])
def test_the_gradient_goes_back_through_what_became_of_the_product(form: LogitForm) -> None:
    product = torch.tensor([0.3, -2.0, 5.0], dtype=torch.float64, requires_grad=True)
    logits = form(product)
    given = torch.tensor([1.0, -0.5, 2.0], dtype=torch.float64)
    (wanted,) = torch.autograd.grad(logits, product, given)
    torch.testing.assert_close(form.back(given, logits.detach()), wanted)


def test_experts_are_left_alone_and_naming_one_of_their_parts_is_refused(root: Path) -> None:
    loaded(root, "qwen3_next")
    found = linear_layers(shaped("qwen3_next"))
    # attention, linear attention, and the gate of the shared expert, whose own parts are named like those of the others
    assert found == [
        "in_proj_ba",
        "in_proj_qkvz",
        "k_proj",
        "o_proj",
        "out_proj",
        "q_proj",
        "shared_expert_gate",
        "v_proj",
    ]
    with pytest.raises(ModelRefused, match=r"names gate_proj, up_proj.*fused.*lora_targets empty"):
        worker(
            str(root / "qwen3_next"), loader=load, dtype="float32", lora_targets=("shared_expert.gate_proj", "up_proj")
        )
