"""GGUF files, turned once into a folder of safetensors: quantised layouts are slow to run and cannot be trained."""

from __future__ import annotations

import hashlib
import shutil
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

from openclaw_rl.errors import ModelRefused


def gguf_folder(file: Path, *, cache_dir: Path, progress: Callable[[str], None]) -> Path:
    """The folder made from ``file``; made on the first call, whole or not at all."""
    with file.open("rb") as stream:
        digest = hashlib.sha256(stream.read(1 << 20) + str(file.stat().st_size).encode()).hexdigest()[:10]
    target = cache_dir / "models" / f"{file.stem}-{digest}"
    if (target / "config.json").is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    progress(f"converting {file.name} to safetensors, once ({file.stat().st_size / 1e6:,.0f} MB)")
    fresh = Path(tempfile.mkdtemp(dir=target.parent, prefix=".converting-"))
    try:
        _convert(file, fresh, progress)
        _settle(fresh, target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    progress(f"converted: {target.name}")
    return target


def _convert(file: Path, target: Path, progress: Callable[[str], None]) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    try:
        progress("reading the tokenizer (1 of 3)")
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        progress("reading the weights (2 of 3)")
        model = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
        )
    except (ValueError, OSError, KeyError, NotImplementedError, struct.error) as error:  # what its readers raise
        raise ModelRefused(
            f"{file} cannot be converted: {error}",
            remedy="give the original model by its Hugging Face id or folder instead",
        ) from error
    progress("writing safetensors (3 of 3)")
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _settle(fresh: Path, target: Path) -> None:
    """Move the finished folder into place; another process may have been first, and its folder is as good."""
    try:
        fresh.rename(target)
    except OSError:
        if not (target / "config.json").is_file():
            raise
