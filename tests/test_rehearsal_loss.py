"""The rehearsal loss: values and gradients worked out by hand, and the trainer's chunks against them."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from defaults import loss_settings, trainer_args
from test_local_trainer import (
    ASK,
    HINT,
    exact,
    lesson,
    log_softmax,
    net,
    one_by_one,
    order,
    some_batch,
    version,
    worker,
)
from tiny import save_tiny, tiny
from torch import Tensor

from openclaw_rl import losses
from openclaw_rl.backends.hf.collation import collate
from openclaw_rl.backends.local.training import forward as train_forward
from openclaw_rl.backends.local.training import head as train_head
from openclaw_rl.backends.local.training.batch import Student, gradient
from openclaw_rl.backends.local.training.forward import padded
from openclaw_rl.backends.local.training.head import BaseOutputs, Head
from openclaw_rl.backends.local.training.references import ComputedTokens, run_references
from openclaw_rl.errors import BackendError, ConfigError, InvalidValue
from openclaw_rl.losses import LossInputs
from openclaw_rl.types import FIRST_DRAFT, Sample, Version

REVERSE = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)  # 0.1308
FORWARD = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)  # 0.1438


def inputs(logits: Tensor, *, loss: str, rehearsed: list[bool], advantage: float | None = None) -> LossInputs:
    """One sample a token, the policy by its logits [N, 2], a teacher of one half each, current = old."""
    count = len(rehearsed)
    current = logits.log_softmax(-1)
    return losses.from_vocabulary(
        tokens=torch.zeros(count, dtype=torch.int64),
        current=current,
        old=current.detach(),
        teacher=torch.full((1, count, 2), 0.5, dtype=torch.float64).log(),
        has_teacher=torch.zeros(1, count, dtype=torch.bool),
        sample=torch.arange(count),
        advantage=torch.full((count,), advantage or 0.0, dtype=torch.float64),
        has_advantage=torch.full((count,), advantage is not None),
        rehearsed=torch.tensor(rehearsed),
        rehearsal=loss,
        k=1,
    )


def three_quarters(count: int) -> Tensor:
    return torch.tensor([[0.75, 0.25]] * count, dtype=torch.float64).log().requires_grad_()


@pytest.mark.parametrize(
    ("loss", "value", "pull"),
    [
        ("reverse", REVERSE, 0.75 * (math.log(1.5) - REVERSE)),  # q (log q - log p - KL)
        ("forward", FORWARD, 0.25),  # q - p
        ("sft", FORWARD, 0.25),
    ],
)
def test_the_kl_to_the_teacher_and_its_gradient_by_hand(loss: str, value: float, pull: float) -> None:
    logits = three_quarters(1)
    found, metrics = losses.rehearsal_loss(inputs(logits, loss=loss, rehearsed=[True]))
    assert float(found.detach()) == pytest.approx(value)
    assert metrics == {"loss_rehearsal": pytest.approx(value), "tokens_rehearsal": 1.0}
    found.backward()
    assert logits.grad is not None
    assert logits.grad[0].tolist() == pytest.approx([pull, -pull])


def test_the_gradient_ends_where_policy_and_teacher_agree() -> None:
    logits = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    found, _ = losses.rehearsal_loss(inputs(logits, loss="reverse", rehearsed=[True]))
    found.backward()
    assert float(found.detach()) == 0.0
    assert logits.grad is not None
    assert logits.grad.abs().max() == 0.0


def test_turns_learn_by_their_method_and_rehearsals_beside_them_each_over_its_own_tokens() -> None:
    settings = loss_settings(method="binary", kl_coef=0.0)
    both = losses.with_rehearsal(lambda x: losses.loss(x, settings))
    # two turns with advantage 2 at ratio 1: -2; two rehearsed tokens: the KL; neither is in the other's denominator
    x = inputs(three_quarters(4), loss="reverse", rehearsed=[False, False, True, True], advantage=2.0)
    found, metrics = both(x)
    assert float(found.detach()) == pytest.approx(-2.0 + REVERSE)
    assert (metrics["tokens_rl"], metrics["tokens_rehearsal"]) == (2.0, 2.0)
    assert metrics["loss"] == pytest.approx(-2.0 + REVERSE)


def test_a_batch_of_rehearsals_alone_never_calls_the_method() -> None:
    def never(_x: LossInputs) -> tuple[Tensor, dict[str, float]]:
        raise AssertionError("a custom loss may divide by its tokens")

    found, metrics = losses.with_rehearsal(never)(inputs(three_quarters(2), loss="forward", rehearsed=[True, True]))
    assert float(found.detach()) == pytest.approx(FORWARD)
    assert metrics["loss"] == pytest.approx(FORWARD)


def test_a_batch_without_rehearsals_is_left_to_the_method() -> None:
    x = replace(inputs(three_quarters(1), loss="reverse", rehearsed=[False]), rehearsed=None, rehearsal=None)
    assert losses.with_rehearsal(lambda _x: (torch.tensor(7.0), {}))(x)[0] == 7.0
    with pytest.raises(InvalidValue, match="nothing to rehearse"):
        losses.rehearsal_loss(x)


def test_the_effective_sample_size_is_that_of_turns() -> None:
    x = inputs(three_quarters(2), loss="reverse", rehearsed=[False, True])
    far = replace(
        x, old=torch.tensor([x.old[0], x.old[0] - 5.0])
    )  # a rehearsed token that a ratio would weigh 148-fold
    assert losses.health(far, 2.0)["ess"] == pytest.approx(1.0)


@pytest.mark.parametrize("forward", [False, True])
def test_the_vocabulary_in_chunks_gives_the_value_and_the_gradient_of_the_whole(forward: bool) -> None:
    make = torch.Generator().manual_seed(3)
    weight = torch.nn.Parameter(torch.randn(11, 4, generator=make, dtype=torch.float64), requires_grad=False)
    hidden = torch.randn(7, 4, generator=make, dtype=torch.float64, requires_grad=True)
    theirs = torch.randn(7, 4, generator=make, dtype=torch.float64)
    temperature, given = torch.linspace(0.5, 2, 7, dtype=torch.float64), torch.linspace(-1, 1, 7, dtype=torch.float64)
    head = Head(weight=weight, chunk=3)
    ours, other = ((each @ weight.t() / temperature[:, None]).log_softmax(-1) for each in (hidden, theirs))
    whole = losses.full_kl(other, ours) if forward else losses.full_kl(ours, other)
    (whole * given).sum().backward()
    known = BaseOutputs(hidden=theirs, head=head)
    chunked, slope = train_head.divergence(hidden.detach(), head, temperature, other=known, forward=forward)
    back = train_head.backward_divergence(hidden.detach(), head, temperature, given, other=known, forward=forward)
    torch.testing.assert_close(chunked, whole.detach())
    torch.testing.assert_close(back, hidden.grad)
    assert slope is not None
    torch.testing.assert_close(slope * given[:, None], hidden.grad, msg="found in the same reading")


def test_where_the_head_is_trained_the_gradient_waits_for_the_loss() -> None:
    head = Head(weight=torch.nn.Parameter(torch.randn(11, 4)))
    hidden, theirs = torch.randn(7, 4), torch.randn(7, 4)
    known = BaseOutputs(hidden=theirs, head=head)
    assert train_head.divergence(hidden, head, torch.ones(7), other=known, forward=False)[1] is None
    assert head.weight.grad is None, "nothing is added to it before the loss is known"


def rehearsals(samples: list[Sample], views: list[Any], every: int) -> list[Sample]:
    """Every so manieth sample that has a view rehearses a note by its first."""
    return [
        replace(one, rehearses="n1", advantage=None, teachers=one.teachers[:1] or (HINT,))
        if at % every == 0 and view and view[0] is not None
        else one
        for at, (one, view) in enumerate(zip(samples, views, strict=True))
    ]


def turn_by_turn(model: Any, base: Any, samples: list[Sample], views: list[Any]) -> LossInputs:
    """Whole vocabularies, one sequence after another; a rehearsal is compared with its first view."""
    hinted = [[] if one.rehearses else view for one, view in zip(samples, views, strict=True)]
    found, apart = one_by_one(model, base, samples, hinted, 4), []
    for one, view in zip(samples, views, strict=True):
        teacher = log_softmax(base, view[0] if one.rehearses else one.prompt_tokens, one).detach()
        apart.append(losses.full_kl(log_softmax(model, one.prompt_tokens, one), teacher))
    which = torch.tensor([one.rehearses is not None for one in samples])
    return replace(found, rehearsed=which[found.sample], rehearsal=torch.cat(apart))


@pytest.mark.slow
@pytest.mark.parametrize(("every", "budget"), [(1, None), (2, None), (2, 40)])
def test_a_tree_of_turns_and_rehearsals_gives_the_gradient_of_each_alone(every: int, budget: int | None) -> None:
    samples, views = some_batch(random.Random(4))
    samples = rehearsals(samples, views, every)
    student, plain, base, plain_base = (exact(tiny("llama", seed=s)) for s in (0, 0, 1, 1))
    assert train_forward.enable_tree(student) is None
    assert train_forward.enable_tree(base) is None
    batch = collate(samples, views, version=9, device=torch.device("cpu"), wide=torch.float64)
    assert bool(batch.rehearsed.any())
    both = losses.with_rehearsal(lambda x: losses.loss(x, loss_settings()))
    how: dict[str, Any] = {"k": 4, "budget": budget, "count": ComputedTokens()}
    teacher = net(base)
    references = run_references(batch, teacher, teacher, rehearsal=(teacher, False), **how)
    gradient(batch, Student(net=net(student)), references, both, lambda _: None, **how)
    both(turn_by_turn(plain, plain_base, samples, views))[0].backward()
    for mine, theirs in zip(student.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=0, atol=1e-9)


# --- the trainer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


def rehearsed() -> list[Sample]:
    return [replace(one, rehearses="n1") for one in lesson(None)]


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["reverse", "forward"])
@pytest.mark.parametrize("method", ["topk", "binary"])
def test_rehearsal_steps_bring_the_policy_nearer_to_the_teacher_whatever_the_method(
    folder: str, tmp_path: Path, loss: str, method: str
) -> None:
    trainer = worker(folder, rehearse_loss=loss, method=method, rehearse_lr=5e-3)
    parent, seen = Version(number=0, parent=None, base="tiny"), []
    for number in range(1, 6):
        done = trainer.step(order(rehearsed(), tmp_path / str(number), number=number, parent=parent))
        seen.append(done.metrics["loss_rehearsal"])
        parent = Version(number=FIRST_DRAFT + number, parent=0, base="tiny", adapter=done.adapter)
    assert seen[-1] < 0.8 * seen[0]
    assert done.metrics["lr"] == 5e-3


@pytest.mark.slow
def test_a_turn_after_a_rehearsal_goes_on_from_what_is_served(folder: str, tmp_path: Path) -> None:
    """Rehearsals serve an average; where turns serve the newest weights, these begin with that average."""
    trainer = worker(folder, rehearse_lr=5e-3, lr=1e-12, weight_decay=0.0, lr_by_signal=False)
    first = trainer.step(order(rehearsed(), tmp_path / "1"))
    second = trainer.step(order(rehearsed(), tmp_path / "2", number=2, parent=version(1, first.adapter)))
    served = trainer.policy.read(Path(str(second.adapter)))
    third = trainer.step(order(lesson(), tmp_path / "3", number=3, parent=version(2, second.adapter)))
    after = trainer.policy.read(Path(str(third.adapter)))
    assert trainer.checkpoints.state.averaged == 0
    for name, value in served.items():
        torch.testing.assert_close(after[name], value, rtol=0, atol=1e-9)


@pytest.mark.slow
def test_the_live_version_that_teaches_is_the_one_that_the_rehearsal_began_with(folder: str, tmp_path: Path) -> None:
    trainer = worker(folder, rehearse_teacher="live", rehearse_lr=5e-2, rehearse_decay=0.0)
    first = trainer.step(order(rehearsed(), tmp_path / "1"))
    draft = Version(number=FIRST_DRAFT, parent=0, base="tiny", adapter=first.adapter)
    trainer.step(order(rehearsed(), tmp_path / "2", number=1, parent=draft))
    assert trainer.checkpoints.frozen is not None
    for name, value in trainer.policy.begin().items():
        torch.testing.assert_close(trainer.checkpoints.frozen[name], value)
    fresh = worker(folder, rehearse_teacher="live")
    with pytest.raises(BackendError, match="no longer in memory"):
        fresh.step(order(rehearsed(), tmp_path / "3", number=1, parent=draft))


def test_a_rehearsal_has_one_teacher_and_no_score() -> None:
    one = lesson(None)[0]
    with pytest.raises(InvalidValue, match="a rehearsal has one"):
        replace(one, rehearses="n1", advantage=1.0)
    with pytest.raises(InvalidValue, match="a rehearsal has one"):
        replace(one, rehearses="n1", teachers=(HINT, ASK.hinted("w1 w2 w3")))


def test_a_rehearsal_loss_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match="known: reverse, forward, sft"):
        trainer_args(rehearse_loss="backward")


def test_few_lengths_stand_for_many_so_that_few_kernels_are_compiled() -> None:
    assert [padded(size) for size in (1, 129, 1000, 1025, 1537, 2049, 4096)] == [128, 256, 1024, 1536, 2048, 3072, 4096]
    assert len({padded(size) for size in range(900, 2700)}) == 4, "the batches of a rehearsal"
    assert [padded(size) for size in (4097, 9000)] == [4352, 9216], "a long one grows by a sixteenth at most"
