"""What the loops are told of the settings agrees with what the parts make of them."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from defaults import loss_settings

from openclaw_rl.app.factories import build_sample_settings, build_trainer
from openclaw_rl.backends.local.training.trainer import LocalTrainer
from openclaw_rl.config import Config
from openclaw_rl.losses import METHODS, needs


@pytest.mark.parametrize(("method", "w_rl", "w_opd"), [*product(METHODS, (0.0, 0.5), (0.0, 0.5))])
def test_a_turn_is_kept_for_just_what_its_method_looks_at(method: str, w_rl: float, w_opd: float) -> None:
    settings = {"method": method, "w_rl": w_rl, "w_opd": w_opd}
    hints, scores = needs(loss_settings(**settings))
    train = {"method": method, "loss": {"w_rl": w_rl, "w_opd": w_opd}}
    kept = build_sample_settings(Config.model_validate({"train": train}))
    assert (kept.policy_gradient, kept.distillation) == (scores, hints != 0)


def test_a_loss_of_ones_own_is_given_scores_and_hints() -> None:
    mine = Path(__file__).parents[1] / "examples" / "custom_loss.py"
    kept = build_sample_settings(Config.model_validate({"train": {"method": "binary", "loss": {"custom": str(mine)}}}))
    assert (kept.policy_gradient, kept.distillation) == (True, True)


def test_what_is_remembered_and_averaged_reaches_who_remembers_and_averages() -> None:
    config = Config.model_validate({"train": {"backend": "local", "remember": 7, "optim": {"average": 3}}})
    assert build_sample_settings(config).remember == 7
    trainer = build_trainer(config)
    assert isinstance(trainer, LocalTrainer)
    assert trainer.args.average == 3
