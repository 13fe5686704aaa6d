"""The distillation loss: values and gradients worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from defaults import loss_settings, trainer_args
from torch import Tensor

from openclaw_rl import losses
from openclaw_rl.backends.local.training import head as train_head
from openclaw_rl.backends.local.training.head import BaseOutputs, Head
from openclaw_rl.errors import ConfigError, InvalidValue
from openclaw_rl.losses import LossInputs

REVERSE = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)  # 0.1308
FORWARD = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)  # 0.1438


def inputs(logits: Tensor, *, loss: str, distilled: list[bool], advantage: float | None = None) -> LossInputs:
    """One sample a token, the policy by its logits [N, 2], a teacher of one half each, current = old."""
    count = len(distilled)
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
        distilled=torch.tensor(distilled),
        distillation=loss,
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
    found, metrics = losses.distillation_loss(inputs(logits, loss=loss, distilled=[True]))
    assert float(found.detach()) == pytest.approx(value)
    assert metrics == {"loss_distillation": pytest.approx(value), "tokens_distillation": 1.0}
    found.backward()
    assert logits.grad is not None
    assert logits.grad[0].tolist() == pytest.approx([pull, -pull])


def test_the_gradient_ends_where_policy_and_teacher_agree() -> None:
    logits = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    found, _ = losses.distillation_loss(inputs(logits, loss="reverse", distilled=[True]))
    found.backward()
    assert float(found.detach()) == 0.0
    assert logits.grad is not None
    assert logits.grad.abs().max() == 0.0


def test_a_reply_that_is_better_than_others_of_its_step_becomes_likelier_beside_the_kl() -> None:
    logits = three_quarters(2)
    x = inputs(logits, loss="reverse", distilled=[True, True], advantage=0.5)
    x = replace(x, advantage=torch.tensor([0.5, -1.0], dtype=torch.float64))
    found, metrics = losses.distillation_loss(x)
    by_score = (-0.5 + 1.0) * math.log(0.75) / 2  # -A log q, the mean of two tokens
    assert float(found.detach()) == pytest.approx(REVERSE + by_score)
    assert (metrics["loss_distillation"], metrics["loss_distillation_score"]) == pytest.approx((REVERSE, by_score))
    found.backward()
    assert logits.grad is not None
    pulls = [(0.75 * (math.log(1.5) - REVERSE) - advantage * (1 - 0.75)) / 2 for advantage in (0.5, -1.0)]
    assert logits.grad[:, 0].tolist() == pytest.approx(pulls)


def test_turns_learn_by_their_method_and_distillations_beside_them_each_over_its_own_tokens() -> None:
    settings = loss_settings(method="binary", kl_coef=0.0)
    both = losses.with_distillation(lambda x: losses.loss(x, settings))
    # two turns with advantage 2 at ratio 1: -2; two distilled tokens: the KL; neither is in the other's denominator
    x = inputs(three_quarters(4), loss="reverse", distilled=[False, False, True, True], advantage=2.0)
    x = replace(x, has_advantage=torch.tensor([True, True, False, False]))
    found, metrics = both(x)
    assert float(found.detach()) == pytest.approx(-2.0 + REVERSE)
    assert (metrics["tokens_rl"], metrics["tokens_distillation"]) == (2.0, 2.0)
    assert metrics["loss"] == pytest.approx(-2.0 + REVERSE)


def test_a_batch_of_distillations_alone_never_calls_the_method() -> None:
    def never(_x: LossInputs) -> tuple[Tensor, dict[str, float]]:
        raise AssertionError("a custom loss may divide by its tokens")

    found, metrics = losses.with_distillation(never)(inputs(three_quarters(2), loss="forward", distilled=[True, True]))
    assert float(found.detach()) == pytest.approx(FORWARD)
    assert metrics["loss"] == pytest.approx(FORWARD)


def test_a_batch_without_distillations_is_left_to_the_method() -> None:
    x = replace(inputs(three_quarters(1), loss="reverse", distilled=[False]), distilled=None, distillation=None)
    assert losses.with_distillation(lambda _x: (torch.tensor(7.0), {}))(x)[0] == 7.0
    with pytest.raises(InvalidValue, match="nothing to distill"):
        losses.distillation_loss(x)


def test_the_effective_sample_size_is_that_of_turns() -> None:
    x = inputs(three_quarters(2), loss="reverse", distilled=[False, True])
    far = replace(
        x, old=torch.tensor([x.old[0], x.old[0] - 5.0])
    )  # a distilled token that a ratio would weigh 148-fold
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
    (whole * given).sum().backward(retain_graph=True)
    known = BaseOutputs(hidden=theirs, head=head)
    tokens = torch.arange(7)
    found = train_head.divergence(hidden.detach(), head, temperature, other=known, forward=forward, tokens=tokens)
    back = train_head.backward_divergence(hidden.detach(), head, temperature, given, other=known, forward=forward)
    torch.testing.assert_close(found.kl, whole.detach())
    torch.testing.assert_close(back, hidden.grad)
    assert found.slope is not None
    torch.testing.assert_close(found.slope * given[:, None], hidden.grad, msg="found in the same reading")
    hidden.grad = None
    (ours.gather(1, tokens[:, None])[:, 0] * given).sum().backward()
    assert found.pull is not None
    torch.testing.assert_close(found.pull * given[:, None], hidden.grad, msg="and so is that of each token")
    torch.testing.assert_close(found.norm, (hidden.detach() @ weight.t() / temperature[:, None]).logsumexp(-1))


def test_where_the_head_is_trained_the_gradient_waits_for_the_loss() -> None:
    head = Head(weight=torch.nn.Parameter(torch.randn(11, 4)))
    hidden, theirs = torch.randn(7, 4), torch.randn(7, 4)
    known = BaseOutputs(hidden=theirs, head=head)
    found = train_head.divergence(hidden, head, torch.ones(7), other=known, forward=False, tokens=torch.arange(7))
    assert (found.slope, found.pull) == (None, None)
    assert head.weight.grad is None, "nothing is added to it before the loss is known"


def test_a_distillation_loss_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match="known: reverse, forward, sft"):
        trainer_args(distillation_loss="backward")
