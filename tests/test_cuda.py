"""On a GPU: the tree, the trainer and the engine say what they say on a CPU. Skipped where there is none."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from defaults import loss_settings
from test_local_trainer import by_tree, lesson, one_by_one, order, save_tiny, some_batch, version, worker
from tiny import tiny
from torch import Tensor

from openclaw_rl import losses
from openclaw_rl.backends.hf.batches import collate
from openclaw_rl.backends.local.training import forward as train_forward
from openclaw_rl.types import Version

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
GPU = torch.device("cuda")


def wide(shape: str, seed: int = 0) -> Any:
    """Heads of 32, which the GPU's kernel needs at least half of."""
    sizes = {"hidden_size": 128, "intermediate_size": 160, "head_dim": 32}
    return tiny(shape, seed=seed, std=0.12, **sizes)


def on_gpu(shape: str, dtype: torch.dtype, seed: int = 0) -> Any:
    model = wide(shape, seed).to(GPU, dtype)
    assert train_forward.enable_tree(model) is None
    return model


def gradients(model: Any) -> Tensor:
    return torch.cat([p.grad.double().flatten().cpu() for p in model.parameters()])


@pytest.mark.parametrize("shape", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize(("dtype", "near", "along"), [(torch.float32, 2e-3, 0.9999), (torch.bfloat16, 0.25, 0.99)])
def test_a_tree_on_the_gpu_equals_its_turns_in_double_precision(
    shape: str, dtype: torch.dtype, near: float, along: float
) -> None:
    samples, views = some_batch(random.Random(3))
    student, base = on_gpu(shape, dtype), on_gpu(shape, dtype, seed=1)
    plain, plain_base = wide(shape).double(), wide(shape, seed=1).double()
    batch = collate(samples, views, version=9, device=GPU, wide=torch.float32)
    got, metrics, _ = by_tree(student, base, batch, loss_settings(), k=4, budget=None)
    wanted = one_by_one(plain, plain_base, samples, views, 4)
    total, _ = losses.loss(wanted, loss_settings())
    total.backward()
    for name in ("current", "kl", "reference"):
        torch.testing.assert_close(getattr(got, name).double().cpu(), getattr(wanted, name), rtol=0, atol=near)
    assert metrics["loss"] == pytest.approx(float(total.detach()), abs=near)
    assert float(torch.cosine_similarity(gradients(student), gradients(plain), dim=0)) > along


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = save_tiny(tmp_path_factory.mktemp("wide"))
    wide("llama").save_pretrained(place)
    return place


@pytest.mark.parametrize(
    "settings",
    [
        {"lora": True},
        {"lora": True, "dtype": "bfloat16"},
        {"lora": True, "dtype": "bfloat16", "recompute": True, "lora_dropout": 0.1},
        {"lora": False},
        {"lora": False, "dtype": "bfloat16", "offload_optimizer": True},
        {"lora": True, "teacher": "ema"},
        {"lora": True, "tree": False},
        {"lora": True, "micro_tokens": 64},
    ],
    ids=lambda settings: " ".join(f"{name}={value}" for name, value in settings.items()),
)
def test_steps_on_the_gpu_reduce_the_loss_of_a_fixed_batch(
    folder: str, tmp_path: Path, settings: dict[str, Any]
) -> None:
    trainer = worker(folder, device="cuda", lr=2e-3, kl_coef=0.0, method="opd", norm_alarm=1e6, **settings)
    parent, seen = Version(number=0, parent=None, base="tiny"), []
    for number in range(1, 9):
        done = trainer.step(order(lesson(), tmp_path / f"v{number}", number=number, parent=parent))
        assert done.skipped is None
        seen.append(done.metrics["loss"])
        parent = version(number, done.adapter)
    assert seen[-1] < seen[0] - 0.02


def test_a_step_that_was_interrupted_on_the_gpu_goes_on_from_its_parent(folder: str, tmp_path: Path) -> None:
    def steps(name: str, *, fresh: bool) -> float:
        trainer, parent = worker(folder, device="cuda"), Version(number=0, parent=None, base="tiny")
        for number in (1, 2, 3):
            trainer = worker(folder, device="cuda") if fresh else trainer
            done = trainer.step(order(lesson(), tmp_path / name / f"v{number}", number=number, parent=parent))
            parent = version(number, done.adapter)
        return done.metrics["loss"]

    assert steps("once", fresh=False) == pytest.approx(steps("again", fresh=True), abs=1e-5)
