"""Distillation in the trainer: a tree of turns and distillations against each alone, and steps on small models."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from defaults import loss_settings
from test_local_trainer import (
    ASK,
    HINT,
    exact,
    lesson,
    log_softmax,
    net,
    one_by_one,
    order,
    same_files,
    some_batch,
    version,
    worker,
)
from tiny import save_tiny, tiny

from openclaw_rl import config, losses
from openclaw_rl.app.factories import trainer_arguments
from openclaw_rl.backends.hf.batches import collate
from openclaw_rl.backends.local.training import batch as train_batch
from openclaw_rl.backends.local.training import forward as train_forward
from openclaw_rl.backends.local.training.batch import Student, gradient
from openclaw_rl.backends.local.training.forward import padded
from openclaw_rl.backends.local.training.references import ComputedTokens, run_references
from openclaw_rl.errors import BackendError, InvalidValue
from openclaw_rl.losses import LossInputs
from openclaw_rl.train.prompt_distillation.notebook import Said, beside
from openclaw_rl.types import FIRST_DRAFT, Sample, Version

pytestmark = pytest.mark.slow


def distillations(samples: list[Sample], views: list[Any], every: int, **more: Any) -> list[Sample]:
    """Every so manieth sample that has a view distills a note by its first."""
    return [
        replace(one, distills="n1", teachers=one.teachers[:1] or (HINT,), **more)
        if at % every == 0 and view and view[0] is not None
        else one
        for at, (one, view) in enumerate(zip(samples, views, strict=True))
    ]


def turn_by_turn(model: Any, base: Any, samples: list[Sample], views: list[Any]) -> LossInputs:
    """Whole vocabularies, one sequence after another; a distillation is compared with its first view."""
    hinted = [[] if one.distills else view for one, view in zip(samples, views, strict=True)]
    found, apart = one_by_one(model, base, samples, hinted, 4), []
    for one, view in zip(samples, views, strict=True):
        teacher = log_softmax(base, view[0] if one.distills else one.prompt_tokens, one).detach()
        apart.append(losses.full_kl(log_softmax(model, one.prompt_tokens, one), teacher))
    which = torch.tensor([one.distills is not None for one in samples])
    return replace(found, distilled=which[found.sample], distillation=torch.cat(apart))


@pytest.mark.parametrize("scored", [{}, {"advantage": None}, {"advantage": -1.5}], ids=["some", "none", "all"])
@pytest.mark.parametrize(("every", "budget"), [(1, None), (2, None), (2, 40)])
def test_a_tree_of_turns_and_distillations_gives_the_gradient_of_each_alone(
    every: int, budget: int | None, scored: dict[str, Any]
) -> None:
    samples, views = some_batch(random.Random(4))
    samples = distillations(samples, views, every, **scored)
    student, plain, base, plain_base = (exact(tiny("llama", seed=s)) for s in (0, 0, 1, 1))
    assert train_forward.enable_tree(student) is None
    assert train_forward.enable_tree(base) is None
    batch = collate(samples, views, version=9, device=torch.device("cpu"), wide=torch.float64)
    assert bool(batch.distilled.any())
    both = losses.with_distillation(lambda x: losses.loss(x, loss_settings()))
    how: dict[str, Any] = {"k": 4, "budget": budget, "count": ComputedTokens()}
    teacher = net(base)
    references = run_references(batch, teacher, teacher, distillation=(teacher, False), **how)
    gradient(batch, Student(net=net(student)), references, both, lambda _: None, **how)
    both(turn_by_turn(plain, plain_base, samples, views))[0].backward()
    for mine, theirs in zip(student.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("head", "budget"), [("trained", None), ("trained", 40), ("frozen", None), ("frozen", 40)])
@pytest.mark.parametrize("loss", ["reverse", "forward"])
@pytest.mark.parametrize("scored", [{}, {"advantage": None}], ids=["some", "none"])
def test_distillations_alone_read_the_vocabulary_once_and_find_the_same_gradient(
    monkeypatch: pytest.MonkeyPatch, scored: dict[str, Any], loss: str, head: str, budget: int | None
) -> None:
    samples, views = some_batch(random.Random(4))
    kept = [at for at, view in enumerate(views) if view and view[0] is not None]
    samples, views = [samples[at] for at in kept], [views[at][:1] for at in kept]
    samples = distillations(samples, views, 1, **scored)
    base, grads = exact(tiny("llama", seed=1)), []
    for once in (True, False):
        student = exact(tiny("llama", seed=0))
        student.lm_head.weight.requires_grad_(head == "trained")
        if not once:
            monkeypatch.setattr(train_batch, "_distils_alone", lambda *_: False)
        batch = collate(samples, views, version=9, device=torch.device("cpu"), wide=torch.float64)
        how: dict[str, Any] = {"k": 4, "budget": budget, "count": ComputedTokens()}
        references = run_references(batch, net(base), None, distillation=(net(base), loss == "forward"), **how)
        both = losses.with_distillation(lambda x: losses.loss(x, loss_settings()))
        metrics, why = gradient(batch, Student(net=net(student)), references, both, lambda _: None, **how)
        assert why is None
        grads.append(([one.grad for one in student.parameters()], metrics))
    (mine, found), (theirs, expected) = grads
    assert found == pytest.approx(expected)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


# --- the trainer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


def distilled() -> list[Sample]:
    return [replace(one, distills="n1") for one in lesson(None)]


@pytest.mark.parametrize("loss", ["reverse", "forward"])
@pytest.mark.parametrize("method", ["topk", "binary"])
def test_distillation_steps_bring_the_policy_nearer_to_the_teacher_whatever_the_method(
    folder: str, tmp_path: Path, loss: str, method: str
) -> None:
    trainer = worker(folder, distillation_loss=loss, method=method, distillation_lr=5e-3)
    parent, seen = Version(number=0, parent=None, base="tiny"), []
    for number in range(1, 6):
        done = trainer.step(order(distilled(), tmp_path / str(number), number=number, parent=parent))
        seen.append(done.metrics["loss_distillation"])
        parent = Version(number=FIRST_DRAFT + number, parent=0, base="tiny", adapter=done.adapter)
    assert seen[-1] < 0.8 * seen[0]
    assert done.metrics["lr"] == 5e-3


def test_a_distillation_goes_less_far_the_less_is_left_of_it(folder: str, tmp_path: Path) -> None:
    trainer = worker(folder, distillation_lr=5e-3, lr_by_signal=False)
    later = [replace(one, urgency=0.2) for one in distilled()]
    done = trainer.step(order(later, tmp_path / "1"))
    assert (done.metrics["lr"], done.metrics["signal"]) == pytest.approx((1e-3, 0.2))


def test_a_wider_model_takes_smaller_steps_unless_their_rate_is_set(folder: str, tmp_path: Path) -> None:
    """The tiny model is 32 wide."""
    for at, (width, rate) in enumerate([(8, 1.25e-3), (32, 5e-3), (576, 5e-3), (None, 5e-3)]):
        trainer = worker(folder, distillation_lr=5e-3, distillation_width=width)
        done = trainer.step(order(distilled(), tmp_path / str(at)))
        assert done.metrics["lr"] == pytest.approx(rate), width


def test_a_rate_that_is_set_is_meant_for_the_model_in_use() -> None:
    found = trainer_arguments(config.load(preset="qwen3-4b-lora").config)
    assert (found["distillation_lr"], found["distillation_width"]) == (1.5e-3, 576)
    found = trainer_arguments(config.load(preset="qwen3-4b-lora", sets=["train.prompt_distillation.lr=2e-4"]).config)
    assert (found["distillation_lr"], found["distillation_width"]) == (2e-4, None)


def test_a_turn_after_a_distillation_goes_on_from_what_is_served(folder: str, tmp_path: Path) -> None:
    """Distillations serve an average; where turns serve the newest weights, these begin with that average."""
    trainer = worker(folder, distillation_lr=5e-3, lr=1e-12, weight_decay=0.0, lr_by_signal=False)
    first = trainer.step(order(distilled(), tmp_path / "1"))
    second = trainer.step(order(distilled(), tmp_path / "2", number=2, parent=version(1, first.adapter)))
    served = trainer.policy.read(Path(str(second.adapter)))
    third = trainer.step(order(lesson(), tmp_path / "3", number=3, parent=version(2, second.adapter)))
    after = trainer.policy.read(Path(str(third.adapter)))
    assert trainer.checkpoints.state.averaged == 0
    for name, value in served.items():
        torch.testing.assert_close(after[name], value, rtol=0, atol=1e-9)


def test_a_step_of_turns_repeats_notes_at_the_turns_own_rate(folder: str, tmp_path: Path) -> None:
    turns = [replace(one, teachers=()) for one in lesson(0.5)]
    repeated = [replace(one, teachers=(HINT,)) for one in beside(turns, {turns[0].user: Said(1, "w")}, share=1.0)]
    trainer = worker(folder, lr=2e-3, distillation_lr=5e-3, lr_by_signal=True)
    alone = trainer.step(order(turns, tmp_path / "1"))
    trainer = worker(folder, lr=2e-3, distillation_lr=5e-3, lr_by_signal=True)
    both = trainer.step(order([*turns, *repeated], tmp_path / "2"))
    assert both.metrics["lr"] == pytest.approx(alone.metrics["lr"])
    assert both.metrics["signal"] == pytest.approx(alone.metrics["signal"])
    assert trainer.checkpoints.state.averaged == 0
    assert (both.metrics["tokens_distillation"], "tokens_distillation" in alone.metrics) == (10.0, False)
    more = both.metrics["tokens_computed"] - alone.metrics["tokens_computed"]
    assert more == 12, "the teacher's alone: the policy's are those of the turns, 13 of them"
    assert not same_files(alone.adapter, both.adapter)


def test_the_live_version_that_teaches_is_the_one_that_the_distillation_began_with(folder: str, tmp_path: Path) -> None:
    trainer = worker(folder, distillation_teacher="live", distillation_lr=5e-2, distillation_decay=0.0)
    first = trainer.step(order(distilled(), tmp_path / "1"))
    draft = Version(number=FIRST_DRAFT, parent=0, base="tiny", adapter=first.adapter)
    trainer.step(order(distilled(), tmp_path / "2", number=1, parent=draft))
    assert trainer.checkpoints.frozen is not None
    for name, value in trainer.policy.begin().items():
        torch.testing.assert_close(trainer.checkpoints.frozen[name], value)
    fresh = worker(folder, distillation_teacher="live")
    with pytest.raises(BackendError, match="no longer in memory"):
        fresh.step(order(distilled(), tmp_path / "3", number=1, parent=draft))


def test_a_distillation_has_one_teacher() -> None:
    one = lesson(None)[0]
    with pytest.raises(InvalidValue, match="prompt distillation has one"):
        replace(one, distills="n1", teachers=(HINT, ASK.hinted("w1 w2 w3")))


def test_few_lengths_stand_for_many_so_that_few_kernels_are_compiled() -> None:
    assert [padded(size) for size in (1, 129, 1000, 1025, 1537, 2049, 4096)] == [128, 256, 1024, 1536, 2048, 3072, 4096]
    assert len({padded(size) for size in range(900, 2700)}) == 4, "the batches of a distillation"
    assert [padded(size) for size in (4097, 9000)] == [4352, 9216], "a long one grows by a sixteenth at most"
