"""What sharding costs where it is not needed: a training step with FSDP2 over one rank against the same step without.

    python -m benchmarks.ranks                          a small model on this CPU
    python -m benchmarks.ranks --shape 4b --device cuda     4B-shaped random weights in bfloat16

Both are the trainer's own step on one session, gradient and update, from a batch in memory to new weights in memory;
an adapter (LoRA) and every weight (full). Every layer is divided; ``--shard-frozen auto`` does as the trainer would,
which leaves small weights whole that are not trained. The best of ``--repeat`` after ``--warm`` steps, in turns where
both fit.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.train import GIB, SHAPES, Peak, session, settings
from openclaw_rl.backends.hf.batches import collate
from openclaw_rl.backends.local.training.ranks import ALONE, Ranks, join, leave
from openclaw_rl.backends.local.training.settings import RankPlace
from openclaw_rl.backends.local.training.worker import TrainWorker, update
from openclaw_rl.types import Sample, Tokens


@dataclass(frozen=True)
class Built:
    model: Any
    tokenizer: Any


def random_weights(shape: str, *, device: str, dtype: str, **_: object) -> Built:
    """As the trainer loads a model: weights that nobody trained, and a tokenizer that nobody asks."""
    from tokenizers import Tokenizer, models
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = AutoConfig.for_model("qwen3", max_position_embeddings=65536, **SHAPES[shape])
    kind = torch.float32 if device == "cpu" or dtype == "float32" else torch.bfloat16
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=kind).eval()
    words = Tokenizer(models.WordLevel({"x": 0}, unk_token="x"))
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    return Built(model, PreTrainedTokenizerFast(tokenizer_object=words, eos_token="x", chat_template=template))


@dataclass
class Stepper:
    """A trainer and its batch: each call is one step."""

    worker: TrainWorker
    samples: Sequence[Sample]
    views: Sequence[Sequence[Tokens | None]]

    @classmethod
    def build(cls, args: argparse.Namespace, ranks: Ranks, *, lora: bool) -> Stepper:
        chosen = replace(
            settings(),
            model=args.shape,
            loader=random_weights,
            device=args.device,
            lora=lora,
            gap_alarm=1e9,
            ess_alarm=0.0,
            norm_alarm=1e9,
            micro_tokens=args.budget,
            recompute=args.recompute,
            shard_frozen=None if args.shard_frozen == "auto" else True,
            compile=None if args.compile == "auto" else args.compile == "on",
        )
        worker = TrainWorker(chosen, ranks)
        print(f"    {worker.plan}", flush=True)
        return cls(worker, *session(args.shape, args.turns, args.hints))

    def __call__(self) -> None:
        policy, checkpoints = self.worker.policy, self.worker.checkpoints
        batch = collate(self.samples, self.views, version=0, device=policy.device, wide=torch.float32)
        self.worker._gradient(batch)
        how = {"weight": 1.0, "signal": 1.0, "distillation": False}
        state, _ = update(policy, checkpoints.state, self.worker.settings, **how)  # type: ignore[arg-type]
        checkpoints.updated(state)


@dataclass
class Found:
    seconds: list[float]
    peak: float = 0.0

    @property
    def best(self) -> float:
        return min(self.seconds)


def timed(step: Callable[[], None], device: torch.device, found: Found) -> None:
    with Peak(device) as watch:
        begin = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        found.seconds.append(time.perf_counter() - begin)
    found.peak = max(found.peak, watch.bytes)


def in_turns(build: Callable[[Ranks], Stepper], ways: Sequence[Ranks], args: argparse.Namespace) -> list[Found]:
    """Both in memory, one step of each in turns: whatever else the machine does, it does to both."""
    steppers = [build(ranks) for ranks in ways]
    found = [Found([]) for _ in ways]
    for _ in range(args.warm):
        for step in steppers:
            step()
    for _ in range(args.repeat):
        for step, one in zip(steppers, found, strict=True):
            timed(step, torch.device(args.device), one)
    return found


def one_after_another(
    build: Callable[[Ranks], Stepper], ways: Sequence[Ranks], args: argparse.Namespace
) -> list[Found]:
    """Where two do not fit."""
    found: list[Found] = []
    for ranks in ways:
        found += in_turns(build, [ranks], args)
        gc.collect()
        if args.device != "cpu":
            torch.cuda.empty_cache()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(SHAPES), default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--hints", type=int, default=3)
    parser.add_argument("--warm", type=int, default=2, help="steps before any is measured")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--budget", type=int, default=None, help="tokens at once; default: as memory allows")
    parser.add_argument("--recompute", action="store_true", default=None, help="gradient checkpointing")
    parser.add_argument("--compile", choices=["auto", "on", "off"], default="auto", help="compile the layers")
    parser.add_argument("--shard-frozen", choices=["auto", "on"], default="on", help="divide what is not trained too")
    parser.add_argument("--only", choices=["lora", "full"], default=None)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = RankPlace(number=0, count=1, meeting=(Path(folder) / "meeting").as_uri())
        ways = [ALONE, join(place, torch.device("cuda:0" if args.device == "cuda" else args.device))]
        for kind in ("lora", "full"):
            if args.only not in (None, kind):
                continue
            print(f"{kind}, {args.shape} on {args.device}, {args.turns} turns with {args.hints} hinted views each")
            build = partial(Stepper.build, args, lora=kind == "lora")
            whole, sharded = (in_turns if kind == "lora" else one_after_another)(build, ways, args)
            print("            whole weights  FSDP2, one rank")
            print(f"seconds     {whole.best:>13.3f}  {sharded.best:>15.3f}  {sharded.best / whole.best - 1:+.1%}")
            print(f"peak, GiB   {whole.peak / GIB:>13.2f}  {sharded.peak / GIB:>15.2f}", flush=True)
        leave()


if __name__ == "__main__":
    main()
