"""From a name to a model that can chat: the embedded one, a Hugging Face id, a folder, a GGUF file.

Every model first becomes a folder of safetensors. A model that cannot chat, is incomplete or does not fit is refused
here, before loading, with the numbers and the remedy. A model's own code is never run.
"""

from __future__ import annotations

import ctypes
import gc
import json
import math
import platform
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from openclaw_rl import files
from openclaw_rl.backends.hf.finding import ProgressCallback, find, format_of, inspect
from openclaw_rl.backends.hf.folder_checks import loading
from openclaw_rl.backends.hf.plain_tokenizer import with_template
from openclaw_rl.errors import ModelRefused
from openclaw_rl.machine import GIB, free_memory, total_memory

# Available memory, the fastest type on this machine, and releasing memory.

LARGE = 1 << 26


def available(device: torch.device) -> int:
    """Return the free bytes on ``device``; a very large number if the system does not report them."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = free_memory()
    return sys.maxsize if free is None else free


def total(device: torch.device) -> int:
    """Return the total bytes on ``device``; a very large number if the system does not report them."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return total_memory() or sys.maxsize


def release(*, wait: float = 0.0) -> None:
    """Return freed memory to the system.

    On some CPUs torch has its own allocator, which releases the calling thread's freed memory a moment later, and only
    on a large allocation: hence ``wait`` seconds and the large tensor.
    """
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
    if wait:
        time.sleep(wait)
        torch.empty(LARGE, dtype=torch.uint8)


def fastest_dtype(cache_dir: Path) -> torch.dtype:
    """Return the faster of bfloat16 and float32 on this CPU: measured once per machine, cached in ``cache_dir``."""
    file = cache_dir / "cpu.json"
    key = f"{platform.node()} {platform.machine()} {platform.processor()} torch {torch.__version__}"
    measured: dict[str, str] = json.loads(file.read_text()) if file.is_file() else {}
    if key not in measured:
        measured[key] = "bfloat16" if _seconds(torch.bfloat16) < _seconds(torch.float32) else "float32"
        cache_dir.mkdir(parents=True, exist_ok=True)
        files.write(file, json.dumps(measured))
    return torch.bfloat16 if measured[key] == "bfloat16" else torch.float32


def _seconds(dtype: torch.dtype) -> float:
    """Return the time of a small layer for one token and for sixteen, the best of three."""
    weight = torch.ones(1536, 576, dtype=dtype)
    inputs = [torch.ones(count, 576, dtype=dtype) for count in (1, 16)]
    with warnings.catch_warnings(), torch.inference_mode():
        # a CPU without fast bfloat16 warns; the measurement shows the same
        warnings.simplefilter("ignore")
        return best_of(lambda: [functional.linear(x, weight) for x in inputs], times=3)


def best_of(action: Callable[[], object], *, times: int) -> float:
    """Return the fastest call's seconds."""
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


# Assumptions of a shared pass, checked against the model's config and its attention.
#
# Engine and trainer both compute many sequences in one pass, with their own attention. That is correct if a token's
# past is only keys and values that it attends to. Both check here, then compare the result with the model's own pass
# (`runner_choice.model_runner_of`, `forward.enable_tree`); a model that fails runs one sequence at a time.

WINDOWED = "sliding_attention"
PLAIN = frozenset({"full_attention", WINDOWED})
PROBE = range(3, 27)
MORE = {"s_aux": "attention sinks", "softcap": "capped attention scores", "position_bias": "a bias by position"}
"""further arguments that some models pass to their attention"""


def text_config(model: Any) -> Any:
    """Return the text part's sizes; multimodal models have them one level down."""
    return model.config.get_text_config()


def probe_ids(model: Any) -> list[int]:
    """Return a few token ids in this model's vocabulary, for trial runs."""
    return [token % text_config(model).vocab_size for token in PROBE]


def own_state(model: Any) -> str | None:
    """Return the reason that a token's past is more than keys and values; None without a sign."""
    kinds = set(getattr(text_config(model), "layer_types", None) or ()) - PLAIN
    if kinds:
        return f"it has layers of kind {', '.join(sorted(kinds))}"
    return "it keeps a recurrent state" if getattr(model, "_is_stateful", False) else None


def window_of(model: Any) -> int | None:
    """Return some layers' attention window in tokens; None if every token sees its whole past."""
    config = text_config(model)
    size: int | None = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    slides = WINDOWED in kinds if kinds else getattr(config, "use_sliding_window", True)
    return size if slides else None


def check_plain(arguments: Mapping[str, object]) -> None:
    """Raise `TypeError` for attention arguments that our attention does not implement."""
    for name, what in MORE.items():
        if arguments.get(name) is not None:
            raise TypeError(f"it has {what}")


SMALL = 1_000_000_000
"""parameters below which `auto` doubles the memory for exactness"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model ready to run. ``base`` is its weights' identity; ``context`` is its designed maximum in tokens."""

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

    Raise `ModelRefused` for a model that cannot chat, is incomplete or does not fit.
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
    """Disable other libraries' progress bars, and the lock between processes that they would leave behind."""
    from tqdm import tqdm
    from transformers.utils import logging

    tqdm.set_lock(threading.RLock())
    logging.disable_progress_bar()


def load_tokenizer(folder: Path, *, chat_template: str | None = None) -> Any:
    """Load the tokenizer with its chat template; raise `ModelRefused` without one."""
    from transformers import AutoTokenizer

    with loading(f"the tokenizer in {folder}"):
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return with_template(tokenizer, folder, chat_template)


def check_fits(name: str, needed: int, left: int, *, kind: torch.dtype, place: torch.device) -> None:
    """Refuse weights that do not fit; a tenth is added for a pass's own memory."""
    total = math.ceil(needed * 1.1)
    if total > left:
        raise ModelRefused(
            f"{name} needs {total / GIB:.1f} GiB on {place.type} as {str(kind).removeprefix('torch.')}, "
            f"{left / GIB:.1f} GiB are available",
            remedy="choose a smaller model, dtype = 'bfloat16', another device, or close other programs",
        )


def pick_device(device: str) -> torch.device:
    """Return the device; ``auto`` is a GPU if available."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    picked = torch.device(device)
    if picked.type == "cuda" and not torch.cuda.is_available():
        raise ModelRefused(
            f"no GPU for device {device!r}", remedy="set device = 'cpu', or install a CUDA build of torch"
        )
    return picked


def pick_dtype(dtype: str, device: torch.device, cache_dir: Path, *, parameters: int) -> torch.dtype:
    """Return the type; ``auto``: small models in float32, larger ones in bfloat16 on a GPU, on a CPU the faster type.

    Rounding in bfloat16 moved a 135M model's log-probs by 0.05 a token and more between engine and trainer, which
    raises a training alarm.
    """
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if dtype == "auto" and parameters < SMALL:
        return torch.float32
    if dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else fastest_dtype(cache_dir)
    if dtype not in dtypes:
        raise ModelRefused(f"no dtype called {dtype!r}", remedy=f"known: auto, {', '.join(dtypes)}")
    return dtypes[dtype]


def context_of(config: Any) -> int:
    """Return the model's designed maximum in tokens."""
    return int(getattr(config, "max_position_embeddings", None) or 2048)
