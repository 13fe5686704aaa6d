"""The field's methods by name, each with numbers worked by hand: its loss, and the advantages that go into it."""

from __future__ import annotations

import math

import pytest
import torch
from defaults import loss_settings
from torch import Tensor

from openclaw_rl import losses
from openclaw_rl.app.factories import build_sample_settings
from openclaw_rl.config import Config, load
from openclaw_rl.losses import LossInputs
from openclaw_rl.train.credit import credited
from openclaw_rl.types import PlayedStep


def batch(rhos: list[list[float]], advantages: list[float]) -> tuple[LossInputs, Tensor]:
    """A reply for each list of ratios to the old probability 1/4, and the log-probs that carry the gradient."""
    flat = torch.tensor([rho for reply in rhos for rho in reply], dtype=torch.float64)
    current = (flat / 4).log().requires_grad_()
    old = torch.full((len(flat), 2), 0.25, dtype=torch.float64).log()
    x = losses.from_vocabulary(
        tokens=torch.zeros(len(flat), dtype=torch.int64),
        current=torch.stack([current, (1 - current.exp()).log()], -1),
        old=old,
        teacher=old[None],
        sample=torch.tensor([place for place, reply in enumerate(rhos) for _ in reply]),
        advantage=torch.tensor(advantages, dtype=torch.float64),
        has_teacher=torch.zeros(1, len(flat), dtype=torch.bool),
        k=1,
    )
    return x, current


def worked(
    method: str, rhos: list[list[float]], advantages: list[float], **change: object
) -> tuple[float, list[float]]:
    """The loss, and its gradient by the log-prob of each token."""
    x, current = batch(rhos, advantages)
    total, _ = losses.loss(x, loss_settings(**{"method": method, "kl_coef": 0.0} | change))
    return float(total.detach()), torch.autograd.grad(total, current)[0].tolist()


def test_gspo_has_one_ratio_and_one_clip_for_a_whole_reply() -> None:
    # reply 0: the mean log-ratio is 1e-4, so s = e^0.0001, within 1.0004; reply 1: s = 1/2 is cut at 0.9997
    near = math.exp(3e-4)
    loss, gradient = worked("gspo", [[near, 1.0, 1.0], [0.5]], [1.0, -1.0])
    s = math.exp(1e-4)
    assert loss == pytest.approx((-s + 0.9997) / 2)
    assert gradient == pytest.approx([-s / 3 / 2] * 3 + [0.0]), "each token of a reply is moved alike"


def test_cispo_clips_the_weight_of_a_token_and_keeps_its_gradient() -> None:
    # A = 1, rho = 2: weight 1.28; rho = 0.1: weight 0.1, for there is no lower end
    loss, gradient = worked("cispo", [[2.0, 0.1]], [1.0])
    assert loss == pytest.approx(-(1.28 * math.log(0.5) + 0.1 * math.log(0.025)) / 2)
    assert gradient == pytest.approx([-0.64, -0.05])
    assert worked("binary", [[2.0, 0.1]], [1.0])[1] == pytest.approx([0.0, -0.05]), "the surrogate lets it go"


def test_dr_grpo_divides_by_no_length() -> None:
    loss, gradient = worked("dr_grpo", [[1.0, 1.0, 1.0], [1.0]], [1.0, -1.0])
    assert loss == pytest.approx((-3 + 1) / 256 / 2)
    assert gradient == pytest.approx([-1 / 512] * 3 + [1 / 512])
    assert worked("dr_grpo", [[1.0]], [1.0], aggregate="sample")[0] == pytest.approx(-1 / 256), "the setting has no say"


def test_dapo_counts_every_token_alike_and_clips_higher_above_than_below() -> None:
    loss, gradient = worked("dapo", [[1.25, 1.3, 1.0], [0.75]], [1.0, -1.0], aggregate="sample")
    assert loss == pytest.approx((-1.25 - 1.28 - 1.0 + 0.8) / 4)
    assert gradient == pytest.approx([-1.25 / 4, 0.0, -1.0 / 4, 0.0])


@pytest.mark.parametrize("method", ["reinforce++", "rloo"])
def test_these_two_are_the_surrogate_with_advantages_of_their_own(method: str) -> None:
    case = ([[1.1, 1.3], [0.9]], [0.7, -0.4])
    assert worked(method, *case) == worked("binary", *case)


def config(method: str, *sets: str) -> Config:
    return load(environ={}, flags={"--method": method}, sets=["train.num_rollouts_per_prompt=2", *sets]).config


def play(name: str, outcome: float, *, task: str = "t", tokens: int = 0, room: int | None = None) -> PlayedStep:
    return PlayedStep(episode=name, task=task, index=0, outcome=outcome, vote=None, tokens=tokens, room=room)


GROUP = {"a": play("A", 1.0), "b": play("B", 0.0), "c": play("C", -0.4)}  # mean 0.2, spread sqrt(1.04 / 3) = 0.5888
SPREAD = math.sqrt(1.04 / 3)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        *((name, [0.8 / SPREAD, -0.2 / SPREAD, -0.6 / SPREAD]) for name in ("binary", "gspo", "cispo", "dapo")),
        ("reinforce++", [0.8 / SPREAD, -0.2 / SPREAD, -0.6 / SPREAD]),  # the group is the whole batch
        ("dr_grpo", [0.8, -0.2, -0.6]),
        ("rloo", [1.2, -0.3, -0.9]),  # 1 less the mean of 0 and -0.4, and so on
    ],
)
def test_a_method_named_on_the_command_line_measures_a_group_by_its_own_rule(
    method: str, expected: list[float]
) -> None:
    found = credited(GROUP, build_sample_settings(config(method)).credit).advantages
    assert list(found.values()) == pytest.approx(expected, abs=1e-4)


def test_reinforce_plus_plus_measures_all_tasks_of_a_batch_together() -> None:
    both = {"a": play("A", 1.0), "b": play("B", 1.0), "c": play("C", 0.0, task="u"), "d": play("D", 0.0, task="u")}
    found = credited(both, build_sample_settings(config("reinforce++")).credit).advantages
    assert list(found.values()) == pytest.approx([1, 1, -1, -1], abs=1e-4)


def test_dapo_trains_replies_that_were_cut_off_and_has_them_lose_reward_before() -> None:
    settings = build_sample_settings(config("dapo"))
    assert settings.train_truncated
    # the last fifth of 100 tokens: 80 cost nothing, 90 half a point: rewards 1 and 0.5, spread 0.25
    group = {"a": play("A", 1.0, tokens=80, room=100), "b": play("B", 1.0, tokens=90, room=100)}
    assert list(credited(group, settings.credit).advantages.values()) == pytest.approx([1, -1], abs=1e-4)
    assert not build_sample_settings(config("binary")).train_truncated


def test_the_division_by_the_spread_is_a_setting_of_its_own() -> None:
    plain = build_sample_settings(config("binary", "train.credit_scaled=false")).credit
    assert list(credited(GROUP, plain).advantages.values()) == pytest.approx([0.8, -0.2, -0.6])
    assert build_sample_settings(config("rloo", "train.credit_scaled=true")).credit.scaled


@pytest.mark.parametrize("method", ["gspo", "cispo", "dr_grpo", "dapo", "reinforce++", "rloo"])
def test_none_of_them_learns_from_hints(method: str) -> None:
    settings = build_sample_settings(config(method))
    assert (settings.policy_gradient, settings.distillation) == (True, False)
    assert losses.needs(loss_settings(method=method)) == (0, True)
