"""The local engine against `transformers.generate`: tokens per second, time to the first token, distance to the floor.

    python benchmarks/engine.py                               # the embedded model on this CPU
    python benchmarks/engine.py --vllm-python VENV/bin/python # and vLLM, from an environment of its own
    python benchmarks/engine.py --shape 4b --device cuda      # a 4B-shaped random model on a GPU

One run measures all rows on the same machine, one after another, so that ratios can be trusted more than times; load by
others between two measurements shows in both (``--rounds`` repeats everything and keeps the best).
The floor of batch 1 is the time to read every weight once at the bandwidth that this device shows in a plain sum.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
import torch
from safetensors.torch import save_file

from openclaw_rl.backends.hf.adapters import version_model
from openclaw_rl.backends.hf.finding import find
from openclaw_rl.backends.hf.models import load, pick_device, pick_dtype
from openclaw_rl.backends.local.engine.engine import Engine
from openclaw_rl.backends.local.engine.messages import Finished, TokenDelta
from openclaw_rl.backends.local.engine.model_runner import ModelRunner
from openclaw_rl.backends.local.engine.runner_choice import model_runner_of
from openclaw_rl.backends.local.engine.scheduler import Generation
from openclaw_rl.types import Sampling

CONTEXT = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table, in tokens per second."""

    at_once: int
    engine: float
    adapter: float
    static: float
    one_by_one: float
    vllm: float | None = None

    @property
    def ratio(self) -> float:
        return self.engine / self.one_by_one


def main() -> None:
    """Measure and print."""
    ask = _arguments()
    if ask.threads:
        torch.set_num_threads(ask.threads)
    model = _model(ask)
    runner = model_runner_of(model)
    with tempfile.TemporaryDirectory() as folder:
        tuned = model_runner_of(version_model(model, _random_adapter(model, Path(folder))), like=runner)
    print(f"{_size(model) / 1e6:,.0f} MB of weights, {model.dtype}, {model.device}, {type(runner).__name__} pass")
    rows = _best([_throughput(model, runner, tuned, ask) for _ in range(ask.rounds)])
    first = {"engine": _first_token(model, runner, ask.prefix)}
    floor = _size(model) / _bandwidth(model.device)
    if ask.vllm_python:
        rows, first["vLLM"] = _with_vllm(model, rows, ask)
    _print(rows, first, floor, ask.prefix)
    if ask.json:
        Path(ask.json).write_text(json.dumps({"rows": [asdict(row) for row in rows], "first": first, "floor": floor}))


def _best(rounds: Sequence[list[Row]]) -> list[Row]:
    """The best of several rounds, figure by figure."""
    names = ("engine", "adapter", "static", "one_by_one")
    return [
        Row(at_once=rows[0].at_once, **{name: max(getattr(row, name) for row in rows) for name in names})
        for rows in zip(*rounds, strict=True)
    ]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded", help="as the policy takes it")
    parser.add_argument("--shape", choices=sorted(SHAPES), help="a random model of this shape instead")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--at-once", default="1,4,16,64", help="how many requests run together")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each reply")
    parser.add_argument("--prefix", type=int, default=3000, help="tokens of the shared prompt")
    parser.add_argument("--rounds", type=int, default=1, help="repeat the throughput and keep the best")
    parser.add_argument("--vllm-python", metavar="PATH", help="the Python of an environment with vLLM")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--cache-dir", default=str(Path.home() / ".cache" / "openclaw-rl"))
    parser.add_argument("--json", help="write the figures there too")
    return parser.parse_args()


SHAPES = {
    "4b": {
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
    },
    "135m": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "vocab_size": 49152,
    },
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 1024,
    },
}


def _model(ask: argparse.Namespace) -> Any:
    from transformers import AutoModelForCausalLM, Qwen3Config

    cache = Path(ask.cache_dir)
    if not ask.shape:
        loaded = load(ask.model, cache_dir=cache, device=ask.device, dtype=ask.dtype, progress=print)
        return loaded.model
    device = pick_device(ask.device)
    config = Qwen3Config(**SHAPES[ask.shape], max_position_embeddings=CONTEXT, tie_word_embeddings=True)
    with torch.device("meta"):
        parameters = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    with device:
        kind = pick_dtype(ask.dtype, device, cache, parameters=parameters)
        model = AutoModelForCausalLM.from_config(config, dtype=kind)
    return model.eval().requires_grad_(False)


def _random_adapter(model: Any, folder: Path) -> str:
    """A rank-16 adapter on every projection, in peft's own form."""
    tensors: dict[str, torch.Tensor] = {}
    for name, part in model.named_modules():
        if isinstance(part, torch.nn.Linear) and ".layers." in name:
            key = f"base_model.model.{name}.lora_"
            tensors[f"{key}A.weight"] = torch.randn(16, part.in_features) * 0.01
            tensors[f"{key}B.weight"] = torch.randn(part.out_features, 16) * 0.01
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 16, "lora_alpha": 32}))
    return str(folder)


def _size(model: Any) -> int:
    """Bytes of weights that one token reads: an embedding that is not the head is looked up, not read."""
    total = sum(part.nbytes for part in model.parameters())
    tied = model.lm_head.weight is model.model.embed_tokens.weight
    return int(total if tied else total - model.model.embed_tokens.weight.nbytes)


def _prompts(model: Any, count: int, length: int, *, seed: int = 0) -> list[list[int]]:
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(3, min(model.config.vocab_size, 40000), (count, length), generator=rng).tolist()


def _submit(machine: Engine, index: int, prompt: Sequence[int], count: int, version: int) -> None:
    ask = Sampling(temperature=1.0, max_tokens=count, seed=index)
    job = Generation.of(
        index, version, prompt, ask, context=CONTEXT, ends=frozenset(), decode=lambda ids: "x" * len(ids)
    )
    machine.submit(job)


def _engine(model: Any, runner: ModelRunner, tuned: ModelRunner | None = None, *, batch: int = 64) -> Engine:
    machine = Engine(runner, model, cache_tokens=batch * 512 + 2 * CONTEXT, max_batch=batch)
    if tuned is not None:
        machine.install(1, tuned, live=True)
    return machine


def _throughput(model: Any, runner: ModelRunner, tuned: ModelRunner, ask: argparse.Namespace) -> list[Row]:
    _static(model, 1, 4)
    alone = _static(model, 1, ask.tokens)
    rows = []
    for count in map(int, ask.at_once.split(",")):
        plain = _served(model, runner, tuned, count, ask.tokens, version=0)
        merged = _served(model, runner, tuned, count, ask.tokens, version=1)
        together = _static(model, count, ask.tokens)
        rows.append(Row(at_once=count, engine=plain, adapter=merged, static=together, one_by_one=alone))
        print(f"  {rows[-1]}", file=sys.stderr)
    return rows


def _served(model: Any, runner: ModelRunner, tuned: ModelRunner, count: int, tokens: int, *, version: int) -> float:
    """Tokens per second of ``count`` requests that come together."""
    machine = _engine(model, runner, tuned, batch=count)
    _submit(machine, 9999, _prompts(model, 1, 32, seed=1)[0], 4, version)
    _run(machine)
    for index, prompt in enumerate(_prompts(model, count, 32)):
        _submit(machine, index, prompt, tokens, version)
    return count * tokens / _timed(model.device, lambda: _run(machine))


def _run(machine: Engine) -> None:
    while not machine.idle:
        machine.step()


@torch.inference_mode()
def _static(model: Any, count: int, tokens: int) -> float:
    """Tokens per second of `generate` on a static batch of equal lengths."""
    model.set_attn_implementation("sdpa")
    ids = torch.tensor(_prompts(model, count, 32), device=model.device)
    settings = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": True, "pad_token_id": 0}

    def action() -> None:
        model.generate(ids, attention_mask=torch.ones_like(ids), **settings)

    seconds = _timed(model.device, action)
    return count * tokens / seconds


ENDINGS = (("unseen", [5]), ("seen", [6, 7, 8]))


def _first_token(model: Any, runner: ModelRunner, prefix: int) -> dict[str, float]:
    """Seconds to the first token after a prompt of ``prefix`` tokens: unseen, then seen with another ending.

    On a GPU the same is done once before, with another prompt: kernels are loaded when they are first used.
    """
    machine = _engine(model, runner, batch=4)
    found: dict[str, float] = {}
    for seed in (3, 2) if model.device.type == "cuda" else (2,):
        prompt = _prompts(model, 1, prefix, seed=seed)[0]
        for index, (name, ending) in enumerate(ENDINGS):
            _submit(machine, 10 * seed + index, [*prompt, *ending], 2, 0)
            found[name] = _timed(model.device, lambda: _until_said(machine))
            _run(machine)
    return found


def _with_vllm(model: Any, rows: Sequence[Row], ask: argparse.Namespace) -> tuple[list[Row], dict[str, float]]:
    """The rows with vLLM's figures, and its times to the first token."""
    if ask.shape:
        raise SystemExit("vLLM needs a model's folder: leave --shape out")
    folder, _ = find(ask.model, cache_dir=Path(ask.cache_dir), progress=print)
    with vllm_server(ask.vllm_python, folder, dtype=str(model.dtype).removeprefix("torch.")) as url:
        vllm_speed(url, _prompts(model, 1, 32, seed=1), 4)
        full = [
            replace(row, vllm=vllm_speed(url, _prompts(model, row.at_once, 32), ask.tokens, best_of=ask.rounds))
            for row in rows
        ]
        prompt = _prompts(model, 1, ask.prefix, seed=2)[0]
        return full, {name: vllm_first(url, [*prompt, *ending]) for name, ending in ENDINGS}


@contextlib.contextmanager
def vllm_server(python: str, folder: Path, *, dtype: str) -> Iterator[str]:
    """vLLM's own server for a model's folder, in its own environment; gone at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--served-model-name", "m"]
    words += ["--host", "127.0.0.1", "--port", str(port), "--dtype", dtype, "--max-model-len", str(CONTEXT)]
    words += ["--max-num-seqs", "64", "--enable-prefix-caching"]
    kept = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_LOGGING_LEVEL": "WARNING"}
    process = subprocess.Popen(words, env={**os.environ, **kept}, stdout=sys.stderr)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            if process.poll() is not None:
                raise SystemExit(f"vLLM ended with exit code {process.returncode} before it answered")
            with contextlib.suppress(httpx2.TransportError):
                if httpx2.get(f"{url}/health", timeout=5).status_code == 200:
                    break
            time.sleep(1)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=60)


def vllm_speed(url: str, prompts: Sequence[Sequence[int]], tokens: int, *, best_of: int = 1) -> float:
    """Tokens per second of requests that come together."""
    body = {"model": "m", "max_tokens": tokens, "ignore_eos": True, "temperature": 1.0}

    def one(prompt: Sequence[int]) -> None:
        httpx2.post(f"{url}/v1/completions", json={**body, "prompt": list(prompt)}, timeout=600).raise_for_status()

    took = []
    with ThreadPoolExecutor(len(prompts)) as pool:
        for _ in range(best_of):
            begin = time.perf_counter()
            list(pool.map(one, prompts))
            took.append(time.perf_counter() - begin)
    return len(prompts) * tokens / min(took)


def vllm_first(url: str, prompt: Sequence[int]) -> float:
    """Seconds to the first token."""
    body = {"model": "m", "prompt": list(prompt), "max_tokens": 2, "ignore_eos": True, "stream": True}
    begin = time.perf_counter()
    with httpx2.stream("POST", f"{url}/v1/completions", json=body, timeout=600) as response:
        next(line for line in response.iter_lines() if line.startswith("data: "))
        return time.perf_counter() - begin


def _until_said(machine: Engine) -> None:
    while not any(isinstance(event, TokenDelta | Finished) for event in machine.step()):
        pass


def _timed(device: torch.device, action: Callable[[], None]) -> float:
    _wait(device)
    begin = time.perf_counter()
    action()
    _wait(device)
    return time.perf_counter() - begin


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _bandwidth(device: torch.device) -> float:
    """Bytes per second of a plain sum over memory larger than any cache; the best of five."""
    data = torch.ones((1 << 30 if device.type == "cuda" else 1 << 27), device=device)
    data.sum()
    return data.nbytes / min(_timed(device, lambda: _total(data)) for _ in range(5))


def _total(data: torch.Tensor) -> None:
    data.sum()


def _print(rows: Sequence[Row], first: dict[str, dict[str, float]], floor: float, prefix: int) -> None:
    names = ["at once", "engine", "with adapter", "generate, static batch", "generate, one by one", "vLLM"]
    print(f"| {' | '.join(names)} | engine / one by one |")
    print("|---" * (len(names) + 1) + "|")
    for row in rows:
        figures = (row.engine, row.adapter, row.static, row.one_by_one, row.vllm)
        shown = " | ".join("-" if value is None else f"{value:,.1f}" for value in figures)
        print(f"| {row.at_once} | {shown} | {row.ratio:.1f}x |")
    print()
    for who, times in first.items():
        unseen, seen = times["unseen"], times["seen"]
        more = f"unseen {unseen:.3f} s, seen {seen:.3f} s ({unseen / seen:.0f}x sooner)"
        print(f"first token after {prefix} tokens, {who}: {more}")
    for row in rows:
        if row.at_once == 1:
            took = 1 / row.engine
            print(f"batch 1: {1000 * took:.2f} ms a token, floor {1000 * floor:.2f} ms: {took / floor:.1f}x the floor")


if __name__ == "__main__":
    main()
