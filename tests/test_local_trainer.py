"""The local trainer: a tree equals its turns, a step is exact, and what goes wrong is told."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from defaults import loss_settings, trainer_args
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from tiny import TEMPLATE, VOCABULARY, save_tiny, tiny
from torch import Tensor, nn

from openclaw_rl import losses
from openclaw_rl.backends.hf import adapters as train_manifest
from openclaw_rl.backends.hf.batches import TrainBatch, collate, norm_alarm
from openclaw_rl.backends.local.training import batch as train_batch
from openclaw_rl.backends.local.training import forward as train_forward
from openclaw_rl.backends.local.training.batch import Student, gradient, loss_inputs, score
from openclaw_rl.backends.local.training.head import Head, largest
from openclaw_rl.backends.local.training.memory import ModelShape, plan
from openclaw_rl.backends.local.training.references import ComputedTokens, Net, hidden_states, run_references
from openclaw_rl.backends.local.training.settings import StepRequest
from openclaw_rl.backends.local.training.trainer import LocalTrainer
from openclaw_rl.backends.local.training.worker import TrainWorker
from openclaw_rl.errors import BackendError, ConfigError, ModelRefused
from openclaw_rl.losses import LossInputs, LossSettings
from openclaw_rl.losses.tree import TokenPath, distinct, pack
from openclaw_rl.ports import StepResult, Trainer
from openclaw_rl.testing import wait_until
from openclaw_rl.types import Message, Prompt, Sample, Version

SHAPES = ("llama", "qwen2", "qwen3")


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


# --- tiny models


def exact(model: Any) -> Any:
    """In double precision throughout: the stock norms round to single on their way."""
    model.double()
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child).__name__.endswith("RMSNorm"):
                norm = nn.RMSNorm(child.weight.shape[0], eps=child.variance_epsilon, dtype=torch.float64)
                norm.weight = child.weight
                setattr(module, name, norm)
    return model


@dataclass
class Loaded:
    model: Any
    tokenizer: Any


def load(model: str, *, device: str = "cpu", dtype: str = "auto", **_: object) -> Loaded:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    kind = {"auto": torch.float32, "bfloat16": torch.bfloat16}[dtype]
    return Loaded(
        AutoModelForCausalLM.from_pretrained(model, dtype=kind).to(device), AutoTokenizer.from_pretrained(model)
    )


def load_nothing(model: str, **_: object) -> Loaded:
    raise RuntimeError("the disk is on fire")


def half_the_ratio(inputs: LossInputs) -> tuple[Tensor, dict[str, float]]:
    return -0.5 * (inputs.current - inputs.old).exp().mean(), {"mine": 1.0}


def dies_of_thirteen(inputs: LossInputs) -> tuple[Tensor, dict[str, float]]:
    if 13.0 in inputs.advantage:
        os._exit(3)
    return half_the_ratio(inputs)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


# --- a tree equals its turns


ASK = Prompt(messages=(Message(role="user", content="w1 w2"),))


def sample(prompt: Sequence[int], reply: Sequence[int], **change: Any) -> Sample:
    given = {
        "turn": f"t{prompt}{reply}",
        "user": "u",
        "prompt": ASK,
        "prompt_tokens": tuple(prompt),
        "reply_tokens": tuple(reply),
        "logprobs": (-3.0,) * len(reply),
        "mask": (True,) * len(reply),
        "advantage": 1.0,
        "teachers": (),
        "temperature": 1.0,
        "version": 0,
    }
    return Sample(**(given | change))


def some_batch(make: random.Random) -> tuple[list[Sample], list[list[tuple[int, ...] | None]]]:
    """A session of a few turns, siblings, an unrelated sample; hinted prompts that share their beginning; some missing."""

    def words(low: int, high: int) -> list[int]:
        return [make.randrange(VOCABULARY) for _ in range(make.randint(low, high))]

    history, pairs = words(2, 6), []
    for _ in range(make.randint(2, 4)):
        reply = words(1, 5)
        pairs.append((list(history), reply))
        if make.random() < 0.4:
            pairs.append((list(history), [*reply[:1], *words(1, 2)]))
        history += [*reply, *words(1, 3)]
    pairs.append((words(1, 3), words(1, 3)))
    samples, views = [], []
    for prompt, reply in pairs:
        samples.append(
            sample(
                prompt,
                reply,
                logprobs=tuple(-make.uniform(2.0, 5.0) for _ in reply),
                mask=tuple(make.random() < 0.9 for _ in reply),
                advantage=(score := make.choice([None, 1.0, -0.5])),
                teachers=(ASK,) if score is None else (),
                temperature=make.choice([0.0, 0.7, 1.3]),
            )
        )
        hinted = [(*prompt[:-1], *words(1, 3), prompt[-1]) for _ in range(make.randint(0, 3))]
        views.append([None if make.random() < 0.2 else view for view in hinted])
    return samples, views


def log_softmax(model: Any, prompt: Sequence[int], one: Sample) -> Tensor:
    """[R, V] by plain Hugging Face logits, one sequence."""
    logits = model(input_ids=torch.tensor([[*prompt, *one.reply_tokens]])).logits[0, len(prompt) - 1 : -1]
    return (logits / (one.temperature or 1.0)).log_softmax(-1)


def one_by_one(model: Any, base: Any, samples: list[Sample], views: list[Any], k: int) -> LossInputs:
    """What the trainer computes at once, turn by turn over whole vocabularies."""
    hints = max(1, *(len(view) for view in views))
    current = torch.cat([log_softmax(model, one.prompt_tokens, one) for one in samples])
    teacher = torch.zeros(hints, *current.shape, dtype=torch.float64)
    has = torch.zeros(hints, len(current), dtype=torch.bool)
    start = 0
    for one, view in zip(samples, views, strict=True):
        rows = slice(start, start + len(one.reply_tokens))
        start = rows.stop
        for h, prompt in enumerate(view):
            if prompt is not None:
                teacher[h, rows], has[h, rows] = log_softmax(base, prompt, one).detach(), True
    found = losses.from_vocabulary(
        tokens=torch.tensor([token for one in samples for token in one.reply_tokens]),
        current=current,
        old=current.detach(),
        teacher=teacher,
        reference=torch.cat([log_softmax(base, one.prompt_tokens, one) for one in samples]).detach(),
        sample=torch.tensor([at for at, one in enumerate(samples) for _ in one.reply_tokens]),
        advantage=torch.tensor([one.advantage or 0.0 for one in samples], dtype=torch.float64),
        has_advantage=torch.tensor([one.advantage is not None for one in samples]),
        mask=torch.tensor([kept for one in samples for kept in one.mask]),
        has_teacher=has,
        k=k,
    )
    return replace(found, old=torch.tensor([lp for one in samples for lp in one.logprobs], dtype=torch.float64))


def net(model: Any, tree: bool = True) -> Net:
    layer = model.get_output_embeddings()
    return Net(model=model, head=Head(weight=layer.weight, bias=layer.bias, chunk=3), tree=tree)


def by_tree(
    model: Any, base: Any, batch: TrainBatch, loss: LossSettings, *, k: int, budget: int | None, tree: bool = True
) -> tuple[LossInputs, dict[str, float], ComputedTokens]:
    """The trainer's road, and its inputs once more for a look at them."""
    count = ComputedTokens()
    teacher = net(base, tree)
    others = run_references(batch, teacher, teacher, k=k, budget=budget, count=count)
    student = Student(net=net(model, tree))
    metrics, why = gradient(
        batch, student, others, lambda x: losses.loss(x, loss), lambda _: None, k=k, budget=budget, count=count
    )
    assert why is None
    at_tokens = torch.cat(hidden_states(student.net, batch.plain, budget, ComputedTokens()))
    return loss_inputs(batch, score(batch, at_tokens, student.net.head, others, k=k)[0])[0], metrics, count


def compare(got: LossInputs, wanted: LossInputs) -> None:
    for name in ("current", "student_old", "kl", "reference", "mask", "student_ids", "has_teacher", "advantage"):
        torch.testing.assert_close(getattr(got, name), getattr(wanted, name), rtol=0, atol=1e-9, msg=name)
    for name in ("teacher", "student_teacher", "teacher_ids", "teacher_top", "teacher_old"):
        there = wanted.has_teacher
        torch.testing.assert_close(getattr(got, name)[there], getattr(wanted, name)[there], rtol=0, atol=1e-9, msg=name)


PAIRS: dict[str, tuple[Any, Any, Any]] = {}


def pair(shape: str) -> tuple[Any, Any, Any]:
    """A student that sees trees, the same weights with plain attention, and a base that sees trees."""
    if shape not in PAIRS:
        student, plain, base = exact(tiny(shape)), exact(tiny(shape)), exact(tiny(shape, seed=1))
        assert train_forward.enable_tree(student) is None
        assert train_forward.enable_tree(base) is None
        PAIRS[shape] = student, plain, base
    return PAIRS[shape]


def plain_base(shape: str) -> Any:
    return PAIRS.setdefault(f"{shape} plain", (exact(tiny(shape, seed=1)),) * 3)[0]


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), budget=st.sampled_from([None, 12, 40]), k=st.sampled_from([1, 4, 99]))
def test_a_tree_gives_the_log_probs_sets_and_gradients_of_its_turns(
    shape: str, seed: int, budget: int | None, k: int
) -> None:
    make = random.Random(seed)
    samples, views = some_batch(make)
    student, plain, base = pair(shape)
    loss = loss_settings(
        hint_selection=make.choice(list(losses.HINTS)),
        subset=make.choice(list(losses.SUBSETS)),
        kl=make.choice(["full", "k3"]),
        aggregate=make.choice(["token", "sample"]),
    )
    student.zero_grad()
    plain.zero_grad()
    batch = collate(samples, views, version=9, device=torch.device("cpu"), wide=torch.float64)
    got, metrics, _ = by_tree(student, base, batch, loss, k=k, budget=budget)
    wanted = one_by_one(plain, plain_base(shape), samples, views, k)
    total, _ = losses.loss(wanted, loss)
    total.backward()
    compare(got, wanted)
    assert metrics["loss"] == pytest.approx(float(total.detach()), abs=1e-9)
    for (name, mine), (_, theirs) in zip(student.named_parameters(), plain.named_parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=0, atol=1e-9, msg=name)


def test_recomputed_layers_and_many_query_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_forward, "_QUERIES", 4)
    samples, views = some_batch(random.Random(5))
    student, plain, base = (exact(tiny("qwen3", seed=s)) for s in (0, 0, 1))
    assert train_forward.enable_tree(student) is None
    assert train_forward.enable_tree(base) is None
    student.gradient_checkpointing_enable({"use_reentrant": False})
    student.train()
    batch = collate(samples, views, version=9, device=torch.device("cpu"), wide=torch.float64)
    by_tree(student, base, batch, loss_settings(), k=4, budget=None)
    losses.loss(one_by_one(plain, plain_base("qwen3"), samples, views, 4), loss_settings())[0].backward()
    for mine, theirs in zip(student.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=0, atol=1e-9)


def test_a_reply_sampled_under_a_note_is_taught_without_it_from_the_students_own_log_probs() -> None:
    """Its l_old is the student's as it stands, so its ratio is 1; no engine's figure is compared with it."""
    samples = [sample([1, 2, 3], [50, 51], logprobs=None), sample([4, 5], [52, 53, 54], version=9)]
    student, _, base = pair("llama")
    student.zero_grad()
    batch = collate(samples, [[], []], version=9, device=torch.device("cpu"), wide=torch.float64)
    inputs, metrics, _ = by_tree(student, base, batch, loss_settings(), k=2, budget=None)
    got = [parameter.grad.clone() for parameter in student.parameters()]
    assert inputs.same_weights.tolist() == [False, False, True, True, True]
    torch.testing.assert_close(inputs.old[:2], inputs.current[:2].detach(), rtol=0, atol=0)
    assert inputs.old[2:].tolist() == [-3.0, -3.0, -3.0]
    own = tuple(inputs.current[:2].tolist())
    student.zero_grad()
    known = collate(
        [replace(samples[0], logprobs=own), samples[1]],
        [[], []],
        version=9,
        device=torch.device("cpu"),
        wide=torch.float64,
    )
    _, same, _ = by_tree(student, base, known, loss_settings(), k=2, budget=None)
    assert metrics["loss"] == pytest.approx(same["loss"], abs=1e-12)
    for mine, parameter in zip(got, student.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad, rtol=0, atol=1e-12)


def test_a_session_is_computed_once_and_not_once_per_turn() -> None:
    prompts = [list(range(1, 11 + 10 * turn)) for turn in range(4)]  # 10, 20, 30, 40 ids, each extending the last
    samples = [sample(prompt, [50, 51]) for prompt in prompts]
    count = ComputedTokens()
    student, _, _ = pair("llama")
    hidden_states(
        net(student),
        collate(samples, [[]] * 4, version=0, device=torch.device("cpu"), wide=torch.float64).plain,
        None,
        count,
    )
    assert count.sequential == 11 + 21 + 31 + 41
    assert count.packed == 40 + 4  # the longest prompt, and the first reply token of each turn


def test_the_block_mask_of_the_fast_kernel_says_what_the_tree_says() -> None:
    make = random.Random(3)
    stem = [make.randrange(9) for _ in range(40)]
    paths = [
        TokenPath(tokens=(*stem[: make.randrange(1, 40)], *(make.randrange(9) for _ in range(12))), reply=3)
        for _ in range(9)
    ]
    (packed,) = pack(paths)
    size = -(-packed.size // 8) * 8
    end = torch.cat([packed.end, torch.arange(packed.size + 1, size + 1)])
    mask = train_forward.block_mask(end, block=8)
    at = torch.arange(size)
    sees = (at[None] <= at[:, None]) & (at[:, None] < end[None])
    blocks = sees.view(size // 8, 8, size // 8, 8).permute(0, 2, 1, 3).flatten(2)
    dense = {
        "any": torch.zeros(size // 8, size // 8, dtype=torch.bool),
        "all": torch.zeros(size // 8, size // 8, dtype=torch.bool),
    }
    for row in range(size // 8):
        dense["any"][row, mask.kv_indices[0, 0, row, : mask.kv_num_blocks[0, 0, row]].long()] = True
        dense["all"][row, mask.full_kv_indices[0, 0, row, : mask.full_kv_num_blocks[0, 0, row]].long()] = True
    assert torch.equal(dense["all"], blocks.all(-1))
    assert torch.equal(dense["any"], blocks.any(-1) & ~blocks.all(-1))
    assert torch.equal(mask.mask_mod(None, None, at[:, None], at[None]), sees)


def test_a_model_that_cannot_see_a_tree_says_so_and_runs_turn_by_turn() -> None:
    windowed = exact(tiny("qwen2", sliding_window=4, use_sliding_window=True, max_window_layers=0))
    assert train_forward.enable_tree(windowed) == "its attention slides over 4 tokens"
    samples, views = some_batch(random.Random(8))
    batch = collate(samples, views, version=9, device=torch.device("cpu"), wide=torch.float64)
    got, _, count = by_tree(windowed, windowed, batch, loss_settings(), k=4, budget=None, tree=False)
    assert count.packed == count.sequential
    compare(got, one_by_one(windowed, windowed, samples, views, 4))


# --- steps


def order(
    samples: Sequence[Sample], target: Path, *, number: int = 1, parent: Version | None = None, base: str = "tiny"
) -> StepRequest:
    return StepRequest(
        samples=tuple(samples),
        number=number,
        parent=parent or Version(number=0, parent=None, base=base),
        target=str(target),
    )


def version(number: int, adapter: str | None) -> Version:
    return Version(number=number, parent=number - 1, base="tiny", adapter=adapter)


def worker(folder: str, **change: Any) -> TrainWorker:
    given = {
        "model": folder,
        "cache_dir": folder,
        "loader": load,
        "seed": 7,
        "lr": 5e-4 if change.get("lora", True) else 5e-5,
        "threads": 1,
        "gap_alarm": 99.0,
        "ess_alarm": 0.0,
    }
    return TrainWorker(trainer_args(**(given | change)))


HINT = ASK.hinted("w9 w9 w8")


def lesson(advantage: float | None = 1.0, teachers: tuple[Prompt, ...] = (HINT,)) -> list[Sample]:
    ids = (1, 4, 8, 9, 2, 1, 5)  # <s> user w1 w2 </s> <s> assistant
    replies = [(20, 21, 2), (22, 23, 24, 2), (20, 30, 2)]
    return [
        sample(
            ids, reply, advantage=advantage, teachers=teachers, logprobs=(-4.0,) * len(reply), turn=f"t{at}", version=9
        )
        for at, reply in enumerate(replies)
    ]


def same_files(a: str | None, b: str | None, name: str = train_manifest.ADAPTER) -> bool:
    assert a is not None
    assert b is not None
    return (Path(a) / name).read_bytes() == (Path(b) / name).read_bytes()


@pytest.mark.parametrize("lora", [True, False])
@pytest.mark.parametrize("method", ["topk", "opd"])
def test_steps_on_a_fixed_batch_reduce_its_loss(folder: str, tmp_path: Path, lora: bool, method: str) -> None:
    trainer = worker(folder, lora=lora, method=method, lr=2e-3, kl_coef=0.0)
    parent, seen = Version(number=0, parent=None, base="tiny"), []
    for number in range(1, 6):
        done = trainer.step(order(lesson(), tmp_path / f"v{number}", number=number, parent=parent))
        seen.append(done.metrics["loss"])
        parent = version(number, done.adapter)
    assert seen[-1] < seen[0] - 0.05
    assert done.metrics["tokens_computed"] < done.metrics["tokens_one_by_one"]


@pytest.mark.parametrize("lora", [True, False])
def test_scores_alone_without_hints_and_without_the_pull_train_too(folder: str, tmp_path: Path, lora: bool) -> None:
    trainer = worker(folder, lora=lora, method="binary", kl_coef=0.0, lr=2e-3)
    first = trainer.step(order(lesson(teachers=()), tmp_path / "v1"))
    again = trainer.step(order(lesson(teachers=()), tmp_path / "v2", number=2, parent=version(1, first.adapter)))
    assert again.metrics["loss"] < first.metrics["loss"]


def test_a_prompt_without_its_note_is_rendered_as_the_engine_would_have(folder: str, tmp_path: Path) -> None:
    given = [replace(one, logprobs=None) for one in lesson()]
    told = worker(folder).step(order(given, tmp_path / "given"))
    rendered = [replace(one, prompt_tokens=None) for one in given]
    assert same_files(worker(folder).step(order(rendered, tmp_path / "rendered")).adapter, told.adapter)
    too_long = replace(rendered[0], prompt=ASK.hinted("w9 " * 5000))
    done = worker(folder).step(order([too_long, *rendered[1:]], tmp_path / "long"))
    assert done.dropped == {"t0": done.dropped["t0"]}
    assert "its prompt without the note is unavailable" in done.dropped["t0"]


def test_an_adapter_leaves_the_base_bit_for_bit_and_a_full_tune_moves_it(folder: str, tmp_path: Path) -> None:
    lora = worker(folder)
    before = {n: p.detach().clone() for n, p in lora.policy.model.named_parameters() if "lora" not in n}
    lora.step(order(lesson(), tmp_path / "lora"))
    after = dict(lora.policy.model.named_parameters())
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert any(bool(p.detach().any()) for n, p in after.items() if "lora_B" in n)
    full = worker(folder, lora=False, lr=1e-3)
    full.step(order(lesson(), tmp_path / "full"))
    moved = load_file(tmp_path / "full" / train_manifest.MODEL)
    assert not torch.equal(moved["model.layers.0.self_attn.q_proj.weight"], before_of(folder))


def before_of(folder: str) -> Tensor:
    return load_file(Path(folder) / "model.safetensors")["model.layers.0.self_attn.q_proj.weight"]


def test_a_published_adapter_is_read_by_peft_and_speaks_as_the_trainer_does(folder: str, tmp_path: Path) -> None:
    from peft import PeftModel

    trainer = worker(folder, lr=1e-2)
    trainer.step(order(lesson(), tmp_path / "v1"))
    served = PeftModel.from_pretrained(load(folder).model, str(tmp_path / "v1")).eval()
    ids = torch.tensor([[1, 4, 8, 9, 2, 1, 5]])
    (packed,) = pack([TokenPath(tokens=(*ids[0].tolist(), 0), reply=1)])
    mine = trainer.policy.model.lm_head(train_forward.hidden(trainer.policy.model, packed, tree=True))
    torch.testing.assert_close(served(input_ids=ids).logits[0], mine, rtol=0, atol=1e-5)


def test_a_full_tune_is_published_as_a_model_that_loads_by_its_folder(folder: str, tmp_path: Path) -> None:
    trainer = worker(folder, lora=False, lr=1e-3)
    trainer.step(order(lesson(), tmp_path / "v1"))
    again = load(str(tmp_path / "v1"))
    for (name, a), (_, b) in zip(again.model.named_parameters(), trainer.policy.model.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    assert again.tokenizer.chat_template == TEMPLATE


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"lora_dropout": 0.3},
        {"teacher": "ema", "ema_decay": 0.5},
        {"average": 2, "lr_by_signal": False},
        {"average": 2, "lr_by_signal": False, "lora": False, "lr": 1e-3, "dtype": "bfloat16"},
        {"lora": False, "lr": 1e-3},
        {"lora": False, "lr": 1e-3, "dtype": "bfloat16"},
    ],
    ids=lambda settings: "-".join(map(str, settings)) or "lora",
)
def test_a_run_that_was_interrupted_ends_with_the_same_weights(
    folder: str, tmp_path: Path, settings: dict[str, Any]
) -> None:
    def run(trainers: list[TrainWorker], where: str) -> str | None:
        parent = Version(number=0, parent=None, base="tiny")
        for number, trainer in enumerate(trainers, 1):
            done = trainer.step(order(lesson(), tmp_path / where / f"v{number}", number=number, parent=parent))
            parent = version(number, done.adapter)
        return parent.adapter

    name = train_manifest.ADAPTER if settings.get("lora", True) else train_manifest.MODEL
    steady = worker(folder, **settings)
    whole = run([steady] * 3, "whole")
    assert same_files(run([worker(folder, **settings), worker(folder, **settings), steady], "broken"), whole, name)
    # asked again, from an earlier parent than the one in memory
    parent = version(1, str(tmp_path / "whole" / "v1"))
    repeated = steady.step(order(lesson(), tmp_path / "repeated", number=2, parent=parent))
    assert same_files(repeated.adapter, str(tmp_path / "whole" / "v2"), name)


def test_the_second_step_goes_on_with_the_momentum_of_the_first(folder: str, tmp_path: Path) -> None:
    first = worker(folder).step(order(lesson(), tmp_path / "v1"))
    parent = version(1, first.adapter)
    second = worker(folder).step(order(lesson(), tmp_path / "v2", number=2, parent=parent))
    kept = torch.load(tmp_path / "v2" / train_manifest.STATE, weights_only=True)
    assert {int(state["step"]) for state in kept["optimizer"]["state"].values()} == {2}
    assert len(kept["norms"]) == 2
    (tmp_path / "v1" / train_manifest.STATE).unlink()
    without = worker(folder).step(order(lesson(), tmp_path / "v2b", number=2, parent=parent))
    assert not same_files(second.adapter, without.adapter)


def test_a_step_that_was_published_but_never_reported_is_reported_and_not_done_twice(
    folder: str, tmp_path: Path
) -> None:
    first = worker(folder).step(order(lesson(), tmp_path / "v1"))
    stamp = (tmp_path / "v1" / train_manifest.ADAPTER).stat().st_mtime_ns
    again = worker(folder).step(order(lesson(), tmp_path / "v1"))
    assert again.metrics == first.metrics
    assert (tmp_path / "v1" / train_manifest.ADAPTER).stat().st_mtime_ns == stamp
    other = worker(folder).step(order(lesson()[:2], tmp_path / "v1"))  # another batch: what lies there is a leftover
    assert other.metrics["samples"] == 2


def test_the_manifest_tells_where_a_version_comes_from(folder: str, tmp_path: Path) -> None:
    worker(folder, method="opd").step(order(lesson(), tmp_path / "v4", number=4))
    manifest = json.loads((tmp_path / "v4" / "manifest.json").read_text())
    assert (manifest["parent"], manifest["base"], manifest["step"], manifest["kind"]) == (0, "tiny", 4, "lora")
    assert manifest["turns"] == ["t0", "t1", "t2"]
    assert manifest["config"]["losses"]["method"] == "opd"
    assert math.isfinite(manifest["metrics"]["grad_norm"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v4"]


# --- skips and alarms


def unchanged(trainer: TrainWorker, weights: dict[str, Tensor], state: Any) -> bool:
    return (
        all(torch.equal(weights[n], p) for n, p in trainer.policy.parameters.items())
        and trainer.checkpoints.state is state
    )


@pytest.mark.parametrize(
    ("settings", "samples", "reason"),
    [
        ({}, lesson(advantage=0.0, teachers=()), "every advantage is zero"),
        ({"method": "opd"}, lesson(teachers=()), "there is no hint"),
        ({"w_opd": 0.0}, lesson(advantage=0.0), "every advantage is zero"),
        ({"gap_alarm": 0.05}, [replace(one, version=1) for one in lesson()], "trainer and engine differ"),
        ({"ess_alarm": 1.0}, lesson(), "effective sample size"),
        ({}, [replace(one, mask=(False,) * len(one.mask)) for one in lesson()], "every token is masked"),
    ],
    ids=["equal-rewards", "no-hint", "weight-zero", "gap", "ess", "masked"],
)
def test_a_skipped_step_says_why_and_leaves_weights_and_optimizer_bit_for_bit(
    folder: str, tmp_path: Path, settings: dict[str, Any], samples: list[Sample], reason: str
) -> None:
    trainer = worker(folder, **settings)
    # a first step that is taken, so that there is an optimizer to leave alone
    trainer.settings = replace(trainer.settings, gap_alarm=99.0, ess_alarm=0.0)
    first = trainer.step(order(lesson(), tmp_path / "v1"))
    trainer.settings = worker(folder, **settings).settings
    weights, state = trainer.policy.weights(), trainer.checkpoints.state
    done = trainer.step(order(samples, tmp_path / "v2", number=2, parent=version(1, first.adapter)))
    assert done.adapter is None
    assert reason in str(done.skipped)
    assert unchanged(trainer, weights, state)
    assert not (tmp_path / "v2").exists()


@pytest.mark.parametrize("setting", [True, False])
def test_a_batch_that_says_little_moves_little(folder: str, tmp_path: Path, setting: bool) -> None:
    def moved(name: str, samples: list[Sample]) -> float:
        trainer = worker(folder, lr_by_signal=setting)
        before = trainer.policy.weights()
        done = trainer.step(order(samples, tmp_path / name))
        assert done.metrics["lr"] == pytest.approx(5e-4 * (done.metrics["signal"] if setting else 1.0))
        return sum(float((now - before[name]).norm()) for name, now in trainer.policy.weights().items())

    told, faint = moved("told", lesson()), moved("faint", lesson(advantage=0.1, teachers=()))
    assert faint / told == pytest.approx(0.1 if setting else 1.0, rel=0.2)
    content = moved("content", [replace(one, urgency=0.25) for one in lesson(advantage=0.1)])
    assert content / told == pytest.approx(0.25 if setting else 1.0, rel=0.2)


def test_a_correction_after_many_thanks_is_no_alarm(folder: str, tmp_path: Path) -> None:
    trainer, parent = worker(folder, lr=1e-5), Version(number=0, parent=None, base="tiny")
    for number in range(1, 5):
        done = trainer.step(order(lesson(0.05, ()), tmp_path / f"v{number}", number=number, parent=parent))
        parent = version(number, done.adapter)
    quiet = done.metrics["grad_norm"]
    done = trainer.step(order(lesson(), tmp_path / "v5", number=5, parent=parent))
    assert done.skipped is None
    assert done.metrics["grad_norm"] > 10 * quiet


def test_a_gradient_that_is_not_finite_or_far_beyond_its_median_raises_an_alarm() -> None:
    assert norm_alarm(5.0, [1.0, 2.0, 3.0], 10.0) is None
    assert norm_alarm(19.9, [1.0, 2.0, 3.0], 10.0) is None
    assert "above 10 times its median 2" in str(norm_alarm(20.1, [1.0, 2.0, 3.0], 10.0))
    assert norm_alarm(1e9, [1.0, 1.0], 10.0) is None  # two steps are no history
    assert "not finite" in str(norm_alarm(math.nan, [], 10.0))


def test_broken_weights_skip_the_step(folder: str, tmp_path: Path) -> None:
    trainer = worker(folder)
    with torch.no_grad():
        trainer.policy.model.get_output_embeddings().weight[3] = math.nan
    done = trainer.step(order(lesson(), tmp_path / "v1"))
    assert "not finite" in str(done.skipped)


def test_the_gap_of_an_on_policy_batch_is_rounding_alone(folder: str, tmp_path: Path) -> None:
    model = load(folder).model
    samples = []
    for one in lesson():
        scores = log_softmax(model, one.prompt_tokens, one).gather(-1, torch.tensor(one.reply_tokens)[:, None])[:, 0]
        samples.append(replace(one, logprobs=tuple(scores.tolist()), version=0))
    done = worker(folder, gap_alarm=0.05, ess_alarm=0.3).step(order(samples, tmp_path / "v1"))
    assert done.skipped is None
    assert done.metrics["gap_mean"] < 1e-5
    assert done.metrics["ess"] == pytest.approx(1.0)
    assert (done.metrics["lag_mean"], done.metrics["masked_off_policy"]) == (0.0, 0.0)


# --- averages


def steps(trainer: TrainWorker, where: Path, count: int) -> list[str]:
    """So many steps on the same lesson, each from the one before; where they lie."""
    made: list[str] = []
    for number in range(1, count + 1):
        parent = version(number - 1, made[-1]) if made else None
        made.append(str(trainer.step(order(lesson(), where / f"v{number}", number=number, parent=parent)).adapter))
    return made


def published(folder: str | None) -> dict[str, Tensor]:
    return load_file(Path(str(folder)) / train_manifest.ADAPTER)


def test_what_is_published_is_the_mean_of_the_trained_weights_and_training_goes_on_from_the_newest(
    folder: str, tmp_path: Path
) -> None:
    raw, mean = (
        [published(one) for one in steps(worker(folder, average=over, lr_by_signal=False), tmp_path / str(over), 3)]
        for over in (1, 2)
    )
    for name, first in raw[0].items():
        assert torch.equal(mean[0][name], first)
        second = (first + raw[1][name]) / 2
        torch.testing.assert_close(mean[1][name], second)
        torch.testing.assert_close(mean[2][name], (second + raw[2][name]) / 2)


def test_the_more_a_batch_says_the_more_of_it_is_served_at_once(folder: str, tmp_path: Path) -> None:
    told = [replace(one, urgency=0.6) for one in lesson(advantage=0.0)]
    found = {}
    for over in (1, 4):
        trainer, where = worker(folder, average=over), tmp_path / str(over)
        first = trainer.step(order(told, where / "v1"))
        second = trainer.step(order(told, where / "v2", number=2, parent=version(1, first.adapter)))
        assert second.metrics["signal"] == pytest.approx(0.6)
        found[over] = published(first.adapter), published(second.adapter)
    for name, newest in found[1][1].items():
        torch.testing.assert_close(found[4][1][name], 0.4 * found[1][0][name] + 0.6 * newest)


def test_the_engine_is_compared_with_the_average_that_it_serves(folder: str, tmp_path: Path) -> None:
    from peft import PeftModel

    trainer = worker(folder, average=8, lr=2e-2, lr_by_signal=False)
    parent = version(2, steps(trainer, tmp_path, 2)[-1])
    served = PeftModel.from_pretrained(load(folder).model, str(parent.adapter)).eval()
    on_policy = []
    for one in lesson():
        scores = log_softmax(served, one.prompt_tokens, one).gather(-1, torch.tensor(one.reply_tokens)[:, None])[:, 0]
        on_policy.append(replace(one, logprobs=tuple(scores.tolist()), version=2))
    third = trainer.step(order(on_policy, tmp_path / "v3", number=3, parent=parent))
    assert third.metrics["gap_mean"] < 1e-5, "at the weights that are served"
    assert third.metrics["masked_off_policy"] == 0.0
    assert third.metrics["ess"] < 0.999, "the newest weights are elsewhere"


def test_without_averaging_training_goes_on_from_what_is_served(folder: str, tmp_path: Path) -> None:
    parent = version(2, steps(worker(folder, average=4, lr_by_signal=False), tmp_path, 2)[-1])
    after = worker(folder, lr=1e-12).step(order(lesson(), tmp_path / "v3", number=3, parent=parent))
    for name, value in published(parent.adapter).items():
        torch.testing.assert_close(published(after.adapter)[name], value)


# --- teachers and custom losses


def test_a_teacher_whose_prompt_does_not_fit_is_missing_and_counted(folder: str, tmp_path: Path) -> None:
    long = ASK.hinted("w1 " * 600)
    done = worker(folder).step(order(lesson(teachers=(HINT, long)), tmp_path / "v1"))
    assert done.metrics["teachers_missing"] == 3
    alone = worker(folder, method="opd").step(order(lesson(advantage=None, teachers=(long,)), tmp_path / "v2"))
    assert "no teacher's prompt" in str(alone.skipped)
    partly = lesson(advantage=None, teachers=(long,))[:1] + lesson(advantage=None)[1:]
    half = worker(folder, method="opd").step(order(partly, tmp_path / "v3"))
    assert half.metrics["signal"] == pytest.approx(2 / 3)  # a hint that cannot be said says nothing


def test_the_teacher_is_the_base_the_live_weights_or_their_average(folder: str, tmp_path: Path) -> None:
    found = {}
    for teacher, decay in (("base", 0.0), ("live", 0.0), ("ema", 0.0), ("ema", 1.0 - 1e-9)):
        settings = {"method": "opd", "lr": 2e-2, "kl_coef": 0.0, "clip": 0.0}
        trainer = worker(folder, teacher=teacher, ema_decay=decay, **settings)
        place = tmp_path / f"{teacher}{decay:.0f}"
        first = trainer.step(order(lesson(), place / "v1"))
        # after one step the live weights have moved away from the base; an average of decay 0 is where they are,
        # one of decay 1 stands still
        second = trainer.step(order(lesson(), place / "v2", number=2, parent=version(1, first.adapter)))
        found[teacher, round(decay)] = second.metrics["loss"]
    assert found["ema", 0] == pytest.approx(found["live", 0], abs=1e-6)
    assert found["ema", 1] == pytest.approx(found["base", 0], abs=1e-4)
    assert abs(found["live", 0] - found["base", 0]) > 1e-3


def test_a_custom_loss_is_a_function_of_the_same_inputs(folder: str, tmp_path: Path) -> None:
    done = worker(folder, loss=f"{__name__}:half_the_ratio").step(order(lesson(), tmp_path / "v1"))
    assert done.metrics["mine"] == 1.0
    assert done.adapter is not None


def test_a_custom_loss_may_learn_from_scores_whatever_the_method_says(folder: str, tmp_path: Path) -> None:
    trainer = worker(folder, loss=f"{__name__}:half_the_ratio", method="opd")
    done = trainer.step(order(lesson(advantage=0.5, teachers=()), tmp_path / "v1"))
    assert done.metrics["lr"] == pytest.approx(0.5 * 5e-4)


def test_pieces_of_a_batch_add_up_to_the_whole(folder: str, tmp_path: Path) -> None:
    whole = worker(folder, kl_coef=0.3).step(order(lesson(), tmp_path / "whole"))
    cut = worker(folder, kl_coef=0.3, micro_tokens=9).step(order(lesson(), tmp_path / "cut"))
    assert cut.metrics["passes"] > whole.metrics["passes"]
    assert cut.metrics["loss"] == pytest.approx(whole.metrics["loss"], abs=1e-5)
    assert cut.metrics["grad_norm"] == pytest.approx(whole.metrics["grad_norm"], rel=1e-4)


def test_running_out_of_memory_halves_the_tokens_at_once_until_it_fits(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = train_forward.hidden

    def small_device(model: Any, packed: Any, *, tree: bool) -> Tensor:
        if packed.size > room:
            raise torch.OutOfMemoryError(f"{packed.size} tokens")
        return real(model, packed, tree=tree)

    monkeypatch.setattr(train_batch, "hidden", small_device)
    room = 13
    done = worker(folder).step(order(lesson(), tmp_path / "v1"))
    monkeypatch.setattr(train_batch, "hidden", real)
    assert same_loss(done, worker(folder).step(order(lesson(), tmp_path / "v2")))
    monkeypatch.setattr(train_batch, "hidden", small_device)
    room = 3
    with pytest.raises(BackendError, match="out of memory with a single turn of 14 tokens"):
        worker(folder).step(order(lesson(), tmp_path / "v3"))


def test_layers_are_recomputed_only_for_batches_that_need_it(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, full = train_forward.hidden, True
    modes: list[bool] = []

    def watched(model: Any, packed: Any, *, tree: bool) -> Tensor:
        if torch.is_grad_enabled():
            modes.append(model.is_gradient_checkpointing)
            if full and not modes[-1]:
                raise torch.OutOfMemoryError("all that the layers keep")
        return real(model, packed, tree=tree)

    def step(name: str, **settings: int | bool) -> StepResult:
        trainer = worker(folder)
        trainer.plan = replace(trainer.plan, **settings)
        return trainer.step(order(lesson(), tmp_path / name))

    paths = [TokenPath(tokens=(*one.prompt_tokens, *one.reply_tokens), reply=1) for one in lesson()]
    tokens = distinct(paths)
    assert tokens < sum(len(path.tokens) for path in paths), "what its turns share is computed, and kept, once"
    monkeypatch.setattr(train_batch, "hidden", watched)
    full = False
    kept = step("kept", recompute=True, spared=tokens)
    again = step("again", recompute=True, spared=tokens - 1)
    assert modes == [False, True]
    assert same_loss(kept, again)
    assert kept.metrics["grad_norm"] == pytest.approx(again.metrics["grad_norm"], rel=1e-5)
    full = True  # the plan was wrong: they are recomputed before any piece gets smaller
    late = step("late", recompute=True, spared=tokens)
    assert modes[2:] == [False, True]
    assert late.metrics["passes"] == kept.metrics["passes"]


def test_what_was_added_up_before_memory_ran_out_is_forgotten(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = [sample([at] * 8, [20, 21, 22], turn=f"t{at}", version=9, logprobs=(-4.0,) * 3) for at in range(10, 14)]
    real, runs = train_forward.hidden, []

    def fails_once(model: Any, packed: Any, *, tree: bool) -> Tensor:
        if torch.is_grad_enabled():
            runs.append(packed.size)
            if len(runs) == 2:
                raise torch.OutOfMemoryError("the second piece")
        return real(model, packed, tree=tree)

    steady = worker(folder, micro_tokens=10).step(order(samples, tmp_path / "v1"))
    monkeypatch.setattr(train_batch, "hidden", fails_once)
    shaken = worker(folder, micro_tokens=20).step(order(samples, tmp_path / "v2"))
    assert runs == [20, 20, 10, 10, 10, 10]
    assert shaken.metrics["grad_norm"] == pytest.approx(steady.metrics["grad_norm"], rel=1e-5)


def same_loss(a: StepResult, b: StepResult) -> bool:
    return a.metrics["loss"] == pytest.approx(b.metrics["loss"], abs=1e-5)


# --- the memory plan, the directory, the settings


SMALL = ModelShape(
    parameters=1000,
    trainable=100,
    layers=2,
    hidden=8,
    intermediate=16,
    vocabulary=50,
    weight_bytes=4,
    trainable_bytes=4,
)


def test_the_plan_counts_what_a_token_leaves_behind() -> None:
    # a layer leaves (14 * 8 + 6 * 16) * 4 = 832 bytes, two of them 1,664; training 100 * 4 * 3 = 1,200; head 10 * 4 * 5
    found = plan(SMALL, 1_200 + 200 + 1_664 * 1000, recompute=False, chunk=10)
    assert (found.per_token, found.training, found.head, found.tokens) == (1_664, 1_200, 200, 1000)
    # recomputed: 2 layers * 8 * 4 kept, and two layers' worth alive
    assert plan(SMALL, 10**7, recompute=True, chunk=10).per_token == 64 + 2 * 832
    assert plan(SMALL, None, recompute=None).recompute is False
    # room for 1,000 tokens as they are is little: larger batches are recomputed, smaller ones are spared
    short = plan(SMALL, 1_200 + 200 + 1_664 * 1000, recompute=None, chunk=10)
    assert (short.recompute, short.spared, short.per_token) == (True, 1000, 64 + 2 * 832)
    assert "recompute on beyond 1000" in str(short)


def test_a_model_that_does_not_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(ModelRefused, match=r"does not fit: weights .* tokens at once.*use LoRA"):
        plan(SMALL, 10_000, recompute=None, chunk=10)


def test_a_setting_that_leads_nowhere_is_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="no teacher called 'oracle'; known: base, live, ema"):
        trainer_args(model="x", cache_dir=Path("x"), teacher="oracle")
    with pytest.raises(ConfigError, match="no subset called 'both'"):
        trainer_args(model="x", cache_dir=Path("x"), subset="both")


# --- the process


@pytest.mark.anyio
async def test_a_worker_that_dies_in_a_step_is_an_error_and_the_next_step_starts_another(
    folder: str, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"loss": f"{__name__}:dies_of_thirteen", "gap_alarm": 99.0}
    trainer = LocalTrainer(
        trainer_args(model=folder, cache_dir=Path(folder), loader=load, seed=7, threads=1, ess_alarm=0.0, **settings)
    )
    assert isinstance(trainer, Trainer)
    base = Version(number=0, parent=None, base="tiny")
    try:
        with pytest.raises(BackendError, match=r"died \(exit code 3\); the next step starts a new one"):
            await trainer.step(lesson(advantage=13.0), number=1, parent=base, target=str(tmp_path / "v1"))
        assert not (tmp_path / "v1").exists()
        done = await trainer.step(lesson(), number=1, parent=base, target=str(tmp_path / "v1"))
        assert trainer.process_id is not None
        wanted = min(19, os.getpriority(os.PRIO_PROCESS, 0) + 10)  # 19 is the lowest priority there is
        assert os.getpriority(os.PRIO_PROCESS, trainer.process_id) == wanted
    finally:
        await trainer.stop()
        await trainer.stop()
    assert trainer.process_id is None
    here = worker(folder, **settings).step(order(lesson(), tmp_path / "here"))
    assert same_files(done.adapter, here.adapter)


@pytest.mark.anyio
async def test_a_worker_that_fails_tells_the_end_of_its_traceback(folder: str) -> None:
    trainer = LocalTrainer(trainer_args(model=folder, cache_dir=Path(folder), loader=load_nothing))
    with pytest.raises(BackendError, match="the disk is on fire"):
        await trainer.start()
    assert trainer.process_id is None


ORPHAN = """
import os, pathlib, time
from openclaw_rl import plugins
from openclaw_rl.app.factories import trainer_arguments
from openclaw_rl.config import Config

here = pathlib.Path(__file__).parent

def load(*_, **__):
    (here / "pid").write_text(str(os.getpid()))
    time.sleep(60)

if __name__ == "__main__":
    import asyncio
    trainer = plugins.build("trainer", "local", offered=trainer_arguments(Config()), options={"loader": load})
    asyncio.run(trainer.start())
"""


def test_a_worker_does_not_outlive_its_parent(tmp_path: Path) -> None:
    (tmp_path / "orphan.py").write_text(ORPHAN)
    with subprocess.Popen([sys.executable, "orphan.py"], cwd=tmp_path) as parent:
        told = tmp_path / "pid"
        wait_until(lambda: told.exists() and told.read_text() != "")
        child = int(told.read_text())
        assert alive(child)
        parent.kill()
    wait_until(lambda: not alive(child))


def alive(pid: int) -> bool:
    """Whether the process still runs; one that only waits to be fetched does not."""
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("width", [100, 2048, 5003, 49152])
@pytest.mark.parametrize("k", [1, 4, 16])
def test_the_k_largest_of_long_rows_are_those_that_a_plain_search_finds(width: int, k: int) -> None:
    logits = torch.randn(7, width, generator=torch.Generator().manual_seed(width + k), dtype=torch.float64)
    logits[:, -1] = 9.0  # in the part that fills no block
    logits[:, :3] = 8.0 + torch.arange(3)  # several in one block
    values, where = largest(logits, k)
    assert torch.equal(values, logits.topk(k, -1).values)
    assert torch.equal(logits.gather(1, where), values)
