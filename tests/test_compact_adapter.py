"""An adapter made small: the engine reads it as any other, and it says nearly the same."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from safetensors.torch import save_file  # noqa: E402 (torch may be missing)
from torch import nn  # noqa: E402

from openclaw_rl.backends.hf.adapters import version_model  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts" / "feedback_classifier"))
from compact import compact  # noqa: E402 (a script beside the package)

RANK, WIDTH = 4, 32


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, 2 * WIDTH, bias=False)


def adapter(folder: Path) -> Path:
    """Both layers changed, the first along two directions alone."""
    folder.mkdir()
    tensors = {}
    for name, out, rank in (("first", WIDTH, 2), ("second", 2 * WIDTH, RANK)):
        a, b = torch.randn(RANK, WIDTH), torch.randn(out, RANK)
        a[rank:] = 0
        tensors |= {f"base_model.model.{name}.lora_{side}.weight": each for side, each in (("A", a), ("B", b))}
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": RANK, "lora_alpha": 8}))
    return folder


def test_an_adapter_with_room_for_all_directions_is_the_same_to_a_percent(tmp_path: Path) -> None:
    torch.manual_seed(0)
    whole, base = adapter(tmp_path / "whole"), Base()
    assert compact(whole, tmp_path / "small", size=10_000) == pytest.approx(1.0, abs=1e-5)
    wanted, found = version_model(base, str(whole)), version_model(base, str(tmp_path / "small"))
    for name in ("first", "second"):
        delta = getattr(wanted, name).weight - getattr(base, name).weight
        off = getattr(found, name).weight - getattr(wanted, name).weight
        assert off.norm() < 0.01 * delta.norm()


def test_what_does_not_fit_are_the_weakest_directions(tmp_path: Path) -> None:
    torch.manual_seed(0)
    whole = adapter(tmp_path / "whole")
    kept = compact(whole, tmp_path / "small", size=2 * (2 * WIDTH) + 3 * (3 * WIDTH))
    assert 0.7 < kept < 1.0
    sizes = (tmp_path / "small" / "adapter_model.safetensors").stat().st_size
    assert sizes < (whole / "adapter_model.safetensors").stat().st_size / 2
