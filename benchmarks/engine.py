"""The local engine against `transformers.generate`: tokens per second, time to the first token, distance to the floor.

    python benchmarks/engine.py                               # the embedded model on this CPU
    python benchmarks/engine.py --shape 4b --device cuda      # a 4B-shaped random model on a GPU

One run measures all rows on the same machine, one after another, so that ratios can be trusted more than times.
The floor of batch 1 is the time to read every weight once at the bandwidth that this device shows in a plain sum.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from openclaw_rl.backends.local.adapters import version_model
from openclaw_rl.backends.local.brains import Brain, brain_of
from openclaw_rl.backends.local.engine import Engine
from openclaw_rl.backends.local.events import Finished, Said
from openclaw_rl.backends.local.jobs import Writing
from openclaw_rl.backends.local.models import load, pick_device, pick_dtype
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

    @property
    def ratio(self) -> float:
        return self.engine / self.one_by_one


def main() -> None:
    """Measure and print."""
    ask = _arguments()
    if ask.threads:
        torch.set_num_threads(ask.threads)
    model = _model(ask)
    brain = brain_of(model)
    with tempfile.TemporaryDirectory() as folder:
        tuned = brain_of(version_model(model, _random_adapter(model, Path(folder))), like=brain)
    print(f"{_size(model) / 1e6:,.0f} MB of weights, {model.dtype}, {model.device}, {type(brain).__name__} pass")
    rows = _throughput(model, brain, tuned, ask)
    first = _first_token(model, brain, ask.prefix)
    floor = _size(model) / _bandwidth(model.device)
    _print(rows, first, floor, ask.prefix)
    if ask.json:
        Path(ask.json).write_text(json.dumps({"rows": [asdict(row) for row in rows], "first": first, "floor": floor}))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded", help="as the policy takes it")
    parser.add_argument("--shape", choices=sorted(SHAPES), help="a random model of this shape instead")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--at-once", default="1,4,16,64", help="how many requests run together")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each reply")
    parser.add_argument("--prefix", type=int, default=3000, help="tokens of the shared prompt")
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
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=pick_dtype(ask.dtype, device, cache))
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
    chance = torch.Generator().manual_seed(seed)
    return torch.randint(3, min(model.config.vocab_size, 40000), (count, length), generator=chance).tolist()


def _submit(machine: Engine, index: int, prompt: Sequence[int], count: int, version: int) -> None:
    ask = Sampling(temperature=1.0, max_tokens=count, seed=index)
    job = Writing.of(index, version, prompt, ask, context=CONTEXT, ends=frozenset(), decode=lambda ids: "x" * len(ids))
    machine.submit(job)


def _engine(model: Any, brain: Brain, tuned: Brain | None = None, *, batch: int = 64) -> Engine:
    machine = Engine(brain, model, cache_tokens=batch * 512 + 2 * CONTEXT, max_batch=batch)
    if tuned is not None:
        machine.install(1, tuned, live=True)
    return machine


def _throughput(model: Any, brain: Brain, tuned: Brain, ask: argparse.Namespace) -> list[Row]:
    _static(model, 1, 4)
    alone = _static(model, 1, ask.tokens)
    rows = []
    for count in map(int, ask.at_once.split(",")):
        plain = _served(model, brain, tuned, count, ask.tokens, version=0)
        merged = _served(model, brain, tuned, count, ask.tokens, version=1)
        together = _static(model, count, ask.tokens)
        rows.append(Row(at_once=count, engine=plain, adapter=merged, static=together, one_by_one=alone))
        print(f"  {count} at once: measured", file=sys.stderr)
    return rows


def _served(model: Any, brain: Brain, tuned: Brain, count: int, tokens: int, *, version: int) -> float:
    """Tokens per second of ``count`` requests that come together."""
    machine = _engine(model, brain, tuned, batch=count)
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


def _first_token(model: Any, brain: Brain, prefix: int) -> dict[str, float]:
    """Seconds to the first token after a prompt of ``prefix`` tokens: unseen, then seen with another ending."""
    machine = _engine(model, brain, batch=4)
    prompt = _prompts(model, 1, prefix, seed=2)[0]
    found = {}
    for index, (name, ending) in enumerate((("unseen", [5]), ("seen", [6, 7, 8]))):
        _submit(machine, index, [*prompt, *ending], 2, 0)
        found[name] = _timed(model.device, lambda: _until_said(machine))
        _run(machine)
    return found


def _until_said(machine: Engine) -> None:
    while not any(isinstance(event, Said | Finished) for event in machine.step()):
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


def _print(rows: Sequence[Row], first: dict[str, float], floor: float, prefix: int) -> None:
    print("| at once | engine | with adapter | generate, static batch | generate, one by one | engine / one by one |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        figures = (row.engine, row.adapter, row.static, row.one_by_one)
        print(f"| {row.at_once} | {' | '.join(f'{value:,.1f}' for value in figures)} | {row.ratio:.1f}x |")
    unseen, seen = first["unseen"], first["seen"]
    print(
        f"\nfirst token after {prefix} tokens: unseen {unseen:.3f} s, seen {seen:.3f} s ({unseen / seen:.0f}x sooner)"
    )
    for row in rows:
        if row.at_once == 1:
            took = 1 / row.engine
            print(f"batch 1: {1000 * took:.2f} ms a token, floor {1000 * floor:.2f} ms: {took / floor:.1f}x the floor")


if __name__ == "__main__":
    main()
