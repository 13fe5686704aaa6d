"""How much memory there is, what a probe of this machine says is fastest, and giving memory back."""

from __future__ import annotations

import ctypes
import gc
import json
import platform
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional

from openclaw_rl import files
from openclaw_rl.machine import free_memory, total_memory

LARGE = 1 << 26


def available(device: torch.device) -> int:
    """Bytes that can still be taken on ``device``; a very large number where the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = free_memory()
    return sys.maxsize if free is None else free


def total(device: torch.device) -> int:
    """Bytes that ``device`` has; a very large number where the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return total_memory() or sys.maxsize


def release(*, wait: float = 0.0) -> None:
    """Give freed memory back to the system.

    On some CPUs torch has an allocator of its own, which gives back what the calling thread itself took and freed, a
    moment after that, and only when it is called for something large: hence ``wait`` seconds and the large piece.
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
    """bfloat16 or float32, whichever is faster on this CPU: measured once per machine, kept in ``cache_dir``."""
    file = cache_dir / "cpu.json"
    key = f"{platform.node()} {platform.machine()} {platform.processor()} torch {torch.__version__}"
    known: dict[str, str] = json.loads(file.read_text()) if file.is_file() else {}
    if key not in known:
        known[key] = "bfloat16" if _seconds(torch.bfloat16) < _seconds(torch.float32) else "float32"
        cache_dir.mkdir(parents=True, exist_ok=True)
        files.write(file, json.dumps(known))
    return torch.bfloat16 if known[key] == "bfloat16" else torch.float32


def _seconds(dtype: torch.dtype) -> float:
    """The time of a small layer for one token and for sixteen, the best of three."""
    weight = torch.ones(1536, 576, dtype=dtype)
    inputs = [torch.ones(count, 576, dtype=dtype) for count in (1, 16)]
    with warnings.catch_warnings(), torch.inference_mode():
        # a CPU without fast bfloat16 says so in a warning; the figure says it too
        warnings.simplefilter("ignore")
        return best_of(lambda: [functional.linear(x, weight) for x in inputs], times=3)


def best_of(action: Callable[[], object], *, times: int) -> float:
    """Seconds of the fastest of several calls."""
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)
