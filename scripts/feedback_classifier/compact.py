"""Make a LoRA adapter small: keep the strongest directions of all layers together, in int8 with a scale each.

    compact(ADAPTER, OUT, size=1_900_000)

A layer keeps as many directions as its singular values earn; a layer without one keeps its strongest. The engine reads
the result as any adapter (`backends/hf/adapters.py`); peft does not.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def compact(adapter: Path, out: Path, *, size: int) -> float:
    """Write the adapter of at most about ``size`` bytes; return the share of its squared norm that is kept."""
    tensors, settings = load_file(adapter / "adapter_model.safetensors"), json.loads(_config(adapter).read_text())
    names = [name for name in tensors if ".lora_A." in name]
    parts = {name: _directions(tensors[name], tensors[name.replace(".lora_A.", ".lora_B.")]) for name in names}
    ranks = _ranks({name: (values**2, len(left) + len(right)) for name, (left, values, right) in parts.items()}, size)
    written: dict[str, torch.Tensor] = {}
    for name, (left, values, right) in parts.items():
        rank, root = ranks[name], values.sqrt()
        share = rank / settings["r"]  # the merge divides by the rank that is there
        _put(written, name, root[:rank, None] * right[:, :rank].T, dim=1)
        _put(written, name.replace(".lora_A.", ".lora_B."), left[:, :rank] * root[:rank] * share, dim=0)
    out.mkdir(parents=True, exist_ok=True)
    save_file(written, out / "adapter_model.safetensors")
    _config(out).write_text(_config(adapter).read_text())
    kept = sum(float((values[: ranks[name]] ** 2).sum()) for name, (_, values, _) in parts.items())
    return kept / sum(float((values**2).sum()) for _, values, _ in parts.values())


def _config(folder: Path) -> Path:
    return folder / "adapter_config.json"


def _directions(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The singular vectors and values of B A, strongest first."""
    left, small_left = torch.linalg.qr(b.float())
    right, small_right = torch.linalg.qr(a.float().T)
    u, values, v = torch.linalg.svd(small_left @ small_right.T)
    return left @ u, values, right @ v.T


def _ranks(layers: dict[str, tuple[torch.Tensor, int]], size: int) -> dict[str, int]:
    """Directions that each layer keeps: those of the most squared norm a byte, at least one."""
    ranks = dict.fromkeys(layers, 1)
    left = size - sum(length for _, length in layers.values())
    earned = sorted(
        (
            (float(square) / length, name, length)
            for name, (squares, length) in layers.items()
            for square in squares[1:]
        ),
        reverse=True,
    )
    for _, name, length in earned:
        if length > left:
            break
        ranks[name], left = ranks[name] + 1, left - length
    return ranks


def _put(written: dict[str, torch.Tensor], name: str, tensor: torch.Tensor, *, dim: int) -> None:
    """The tensor as int8, and the scale of each direction."""
    scale = (tensor.abs().amax(dim=dim, keepdim=True) / 127).clamp_min(1e-8)
    written[name] = (tensor / scale).round().to(torch.int8).contiguous()
    written[name.removesuffix("weight") + "scale"] = scale
