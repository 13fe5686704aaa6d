"""From a version's directory to weights: an adapter is merged into copies of the layers that it changes.

Other layers are shared with the base, so a version takes memory only for its changes, and a merged layer costs nothing
per token.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from openclaw_rl.errors import BackendError, ModelRefused

_SCALE = re.compile(r"\.lora_[AB](?:\.default)?\.scale$")
"""scales that a layer in int8 stores beside each direction"""
_KEY = re.compile(r"^base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])(?:\.default)?\.weight$")


def version_model(base: Any, directory: str) -> Any:
    """Load a version's model: ``base`` with the adapter in ``directory`` merged, or the whole model in it.

    Raise `ModelRefused` if the files are damaged: unreadable, unfit for the base, or not finite.
    """
    try:
        return _version_model(base, Path(directory))
    except (OSError, SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise ModelRefused(
            f"{directory} is damaged: {type(error).__name__}: {error}", remedy="roll back, or train from its parent"
        ) from error


def _version_model(base: Any, path: Path) -> Any:
    if (path / "adapter_config.json").is_file():
        return _merged(base, path)
    if (path / "config.json").is_file():
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(
            path, dtype=base.dtype, local_files_only=True, trust_remote_code=False
        )
        return model.to(base.device).eval().requires_grad_(False)
    raise ModelRefused(
        f"{path}: neither adapter_config.json nor config.json is there",
        remedy="a version's directory holds a peft adapter or a whole model; it must not be moved or deleted",
    )


def _merged(base: Any, path: Path) -> Any:
    settings = adapter_settings(path)
    pairs = adapter_pairs(path)
    shared = {id(tensor): tensor for tensor in (*base.parameters(), *base.buffers())}
    model = copy.deepcopy(base, shared)
    for module_name, (a, b) in pairs.items():
        if not (a.isfinite().all() and b.isfinite().all()):
            raise ModelRefused(f"{path}: the adapter of {module_name} is not finite", remedy="train from its parent")
        try:
            linear = model.get_submodule(module_name)
        except AttributeError as error:
            raise ModelRefused(
                f"{path}: the base has no layer {module_name!r}", remedy="it may belong to another base"
            ) from error
        linear.weight = _with_delta(linear.weight, a, b, scaling_of(settings, module_name, rank=a.shape[0]))
    return model


def adapter_settings(path: Path) -> dict[str, Any]:
    """Read the settings of the adapter in ``path``; raise `ModelRefused` unless it is a plain LoRA adapter."""
    settings: dict[str, Any] = json.loads((path / "adapter_config.json").read_text())
    kind = settings.get("peft_type", "LORA")
    odd = [name for name in ("use_dora", "fan_in_fan_out", "modules_to_save", "lora_bias") if settings.get(name)]
    if kind != "LORA" or odd:
        raise ModelRefused(
            f"{path}: cannot merge {kind} with {odd or 'its settings'}", remedy="save a plain LoRA adapter"
        )
    return settings


def adapter_pairs(path: Path) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Read A and B of each layer."""
    sides: dict[str, dict[str, torch.Tensor]] = {}
    file = path / "adapter_model.safetensors"
    if not file.is_file():
        raise ModelRefused(
            f"{file} is missing", remedy="an adapter's directory must not be changed after it is written"
        )
    with safe_open(file, framework="pt") as tensors:
        for key in tensors.keys():  # noqa: SIM118 (a safetensors handle is no mapping)
            if _SCALE.search(key):
                continue
            match = _KEY.match(key)
            if match is None:
                raise ModelRefused(
                    f"{file}: {key!r} is no part of a plain LoRA adapter", remedy="save a plain LoRA adapter"
                )
            sides.setdefault(match["module"], {})[match["side"]] = _tensor(tensors, key)
    return {name: (pair["A"], pair["B"]) for name, pair in sides.items()}


def _tensor(tensors: Any, key: str) -> torch.Tensor:
    tensor: torch.Tensor = tensors.get_tensor(key)
    if tensor.dtype != torch.int8:
        return tensor
    scale: torch.Tensor = tensors.get_tensor(key.removesuffix("weight") + "scale")
    return tensor.float() * scale.float()


def scaling_of(settings: Mapping[str, Any], module: str, *, rank: int) -> float:
    """Return the factor of B A in a layer."""
    alpha = float(settings["lora_alpha"])
    for pattern, value in (settings.get("alpha_pattern") or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            alpha = float(value)
            break
    return alpha / rank**0.5 if settings.get("use_rslora") else alpha / rank


def _with_delta(weight: torch.Tensor, a: torch.Tensor, b: torch.Tensor, scaling: float) -> nn.Parameter:
    delta = b.to(weight.device, torch.float32) @ a.to(weight.device, torch.float32)
    return nn.Parameter(weight.detach().float().add(delta, alpha=scaling).to(weight.dtype), requires_grad=False)


# A version's manifest on disk: a description of the files beside it.

MANIFEST = "manifest.json"
STATE = "trainer.pt"
ADAPTER = "adapter_model.safetensors"
MODEL = "model.safetensors"
FORMAT = 1


def write_manifest(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Write the description of the directory's other files."""
    text = json.dumps({"format": FORMAT, **manifest}, indent=2, sort_keys=True, allow_nan=False)
    (directory / MANIFEST).write_text(text + "\n")


def read_manifest(directory: Path) -> dict[str, Any] | None:
    """Read the manifest, None for a directory of another origin; raise `BackendError` if it is damaged."""
    path = directory / MANIFEST
    if not path.exists():
        return None
    try:
        manifest = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise BackendError(f"{path} is not readable: {error}", remedy="restore it or train from its parent") from error
    if manifest.get("format") != FORMAT:
        raise BackendError(f"{path} has format {manifest.get('format')!r}, this release reads {FORMAT}")
    return dict(manifest)
