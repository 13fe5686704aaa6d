"""A checkpoint as files: an adapter in peft's format."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from typing import Any

from fakes.tinker.lora import LoraModel, TrainingState


def adapter_files(base: Any, model: str, state: TrainingState) -> dict[str, bytes]:
    """The files of an adapter over ``base``, which is called ``model``."""
    from safetensors.torch import save

    tensors = {f"base_model.model.{name.replace('.default', '')}": value for name, value in state.weights.items()}
    config = LoraModel(base, state.shape).config.to_dict()
    config |= {"target_modules": sorted(config["target_modules"]), "base_model_name_or_path": model}
    plain = {name: value for name, value in config.items() if isinstance(value, str | int | float | bool | list | None)}
    return {
        "adapter_model.safetensors": save(tensors, metadata={"format": "pt"}),
        "adapter_config.json": json.dumps(plain).encode(),
    }


def archived(files: Mapping[str, bytes]) -> bytes:
    """The same in one archive."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return made.getvalue()
