"""Peak memory of a training step with the optimizer's state on the device and in main memory, phase by phase.

    python benchmarks/offload.py                         # a random model of 0.6 billion weights, a full tune, on a GPU
    python benchmarks/offload.py --small                 # a few thousand weights, on a CPU too: that both end alike

The two runs start from the same weights and take the same two steps. ``gradient`` is the forward and backward pass,
``update`` the optimizer's step; each peak is `torch.cuda.max_memory_allocated` over that phase of the second step.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from typing import Any

import torch

from openclaw_rl.backends.local.training import worker as updates

GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """Bytes at most in each phase of a step; None without a GPU."""

    gradient: int | None
    update: int | None


def model(small: bool, device: torch.device) -> Any:
    """A random Qwen3-shaped model in float32, as a full tune trains it."""
    from transformers import AutoConfig, AutoModelForCausalLM

    wide = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16}
    tiny = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes = tiny if small else wide
    heads = {"num_key_value_heads": sizes["num_attention_heads"] // 2, "vocab_size": 61 if small else 151_936}
    torch.manual_seed(0)
    config = AutoConfig.for_model("qwen3", **sizes, **heads, head_dim=8 if small else 128, tie_word_embeddings=True)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).to(device)


def two_steps(net: Any, device: torch.device, *, offload: bool, tokens: int) -> Peaks:
    """The peaks of the second step: the first makes the state."""
    group = {"lr": 1e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0}
    parameters, state = list(net.parameters()), None
    step = updates._step_one_by_one if offload else updates._step
    ids = torch.arange(tokens, device=device)[None] % net.config.vocab_size
    for _ in range(2):
        gradient = _peak(device, lambda: net(input_ids=ids, labels=ids).loss.backward())
        found: list[Any] = []
        update = _peak(device, lambda state=state, found=found: found.append(step(parameters, state, group)))
        state = found[0]
        net.zero_grad(set_to_none=True)
    return Peaks(gradient=gradient, update=update)


def _peak(device: torch.device, work: Any) -> int | None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    work()
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a few thousand weights: a smoke test")
    parser.add_argument("--tokens", type=int, default=512, help="tokens of the one sequence [default: 512]")
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not given.small:
        parser.error("there is no GPU here to measure; --small checks that both ways end with the same weights")
    ends, report = [], {}
    for name, offload in (("on the device", False), ("in main memory", True)):
        net = model(given.small, device)
        peaks = two_steps(net, device, offload=offload, tokens=min(given.tokens, 64) if given.small else given.tokens)
        report[name] = {phase: None if size is None else round(size / GIB, 3) for phase, size in vars(peaks).items()}
        ends.append([p.detach().cpu() for p in net.parameters()])
        del net
    apart = max(float((a - b).abs().max()) for a, b in zip(*ends, strict=True))
    print(json.dumps({"device": str(device), "peak_gib": report, "largest_difference": apart}, indent=2))


if __name__ == "__main__":
    main()
