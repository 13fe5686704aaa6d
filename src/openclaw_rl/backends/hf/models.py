"""From a name to a model that can chat: the embedded one, a Hugging Face id, a folder, a GGUF file.

Everything becomes a folder of safetensors first. What cannot chat, is incomplete or does not fit is refused here,
before anything is loaded, with the numbers and the remedy. Code that comes with a model is never run.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from openclaw_rl.backends.hf.finding import ProgressCallback, find, format_of
from openclaw_rl.backends.hf.folder_checks import loading
from openclaw_rl.backends.hf.memory import available, fastest_dtype
from openclaw_rl.backends.hf.plain_tokenizer import with_template
from openclaw_rl.backends.hf.shapes import text_config
from openclaw_rl.backends.hf.weights import inspect
from openclaw_rl.errors import ModelRefused
from openclaw_rl.machine import GIB

SMALL = 1_000_000_000
"""parameters below which `auto` spends twice the memory to be exact"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model ready to run. ``base`` is the identity of its weights; ``context`` the most tokens it was made for."""

    model: Any
    tokenizer: Any
    name: str
    base: str
    context: int
    tool_format: str
    device: torch.device
    dtype: torch.dtype


def load(
    model: str,
    *,
    cache_dir: Path,
    device: str,
    dtype: str,
    progress: ProgressCallback,
    chat_template: str | None = None,
    tool_format: str | None = None,
) -> LoadedModel:
    """Find, check and load ``model``. ``chat_template`` (text or file) and ``tool_format`` override the model's own.

    Raises ModelRefused for a model that cannot chat, is incomplete or does not fit.
    """
    from transformers import AutoModelForCausalLM

    _quiet_bars()
    place = pick_device(device)
    folder, name = find(model, cache_dir=cache_dir, progress=progress)
    weights = inspect(folder)
    kind = pick_dtype(dtype, place, cache_dir, parameters=weights.parameters)
    tokenizer = load_tokenizer(folder, chat_template=chat_template)
    check_fits(name, weights.parameters * kind.itemsize, available(place), kind=kind, place=place)
    progress(
        f"loading {name}: {weights.parameters / 1e6:,.0f} million parameters as {str(kind).removeprefix('torch.')}"
    )
    with loading(folder):
        loaded = AutoModelForCausalLM.from_pretrained(
            folder, dtype=kind, local_files_only=True, trust_remote_code=False
        )
    return LoadedModel(
        model=loaded.to(place).eval().requires_grad_(False),
        tokenizer=tokenizer,
        name=name,
        base=f"{name}-{weights.identity}",
        context=context_of(text_config(loaded)),
        tool_format=tool_format or format_of(tokenizer.chat_template),
        device=place,
        dtype=kind,
    )


def _quiet_bars() -> None:
    """No progress bars of other libraries in our logs, nor the lock between processes that they would leave behind."""
    from tqdm import tqdm
    from transformers.utils import logging

    tqdm.set_lock(threading.RLock())
    logging.disable_progress_bar()


def load_tokenizer(folder: Path, *, chat_template: str | None = None) -> Any:
    """The tokenizer with its chat template; raises ModelRefused where there is none."""
    from transformers import AutoTokenizer

    with loading(f"the tokenizer in {folder}"):
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return with_template(tokenizer, folder, chat_template)


def check_fits(name: str, needed: int, left: int, *, kind: torch.dtype, place: torch.device) -> None:
    """Refuse weights that do not fit; a tenth is added for what a pass needs beside them."""
    total = math.ceil(needed * 1.1)
    if total > left:
        raise ModelRefused(
            f"{name} needs {total / GIB:.1f} GiB on {place.type} as {str(kind).removeprefix('torch.')}, "
            f"{left / GIB:.1f} GiB are available",
            remedy="choose a smaller model, dtype = 'bfloat16', another device, or close other programs",
        )


def pick_device(device: str) -> torch.device:
    """``auto`` is the GPU where there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    picked = torch.device(device)
    if picked.type == "cuda" and not torch.cuda.is_available():
        raise ModelRefused(
            f"no GPU for device {device!r}", remedy="set device = 'cpu', or install a CUDA build of torch"
        )
    return picked


def pick_dtype(dtype: str, device: torch.device, cache_dir: Path, *, parameters: int) -> torch.dtype:
    """``auto``: small models in float32, larger ones in bfloat16 on a GPU and in the faster of the two on this CPU.

    Rounding in bfloat16 moved the log-probs of a 135M model by 0.05 a token and more between engine and trainer, which
    is what training calls an alarm.
    """
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if dtype == "auto" and parameters < SMALL:
        return torch.float32
    if dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else fastest_dtype(cache_dir)
    if dtype not in known:
        raise ModelRefused(f"no dtype called {dtype!r}", remedy=f"known: auto, {', '.join(known)}")
    return known[dtype]


def context_of(config: Any) -> int:
    """The most tokens the model was made for."""
    return int(getattr(config, "max_position_embeddings", None) or 2048)
