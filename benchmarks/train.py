"""One training step over a session: the token tree against one sequence per turn with plain Hugging Face logits.

    python benchmarks/train.py                            a small model on this CPU
    python benchmarks/train.py --shape 4b --device cuda   4B-shaped random weights in bfloat16
    python benchmarks/train.py --curve                    cost by turns: 2, 4, 8, 16, 32

Both roads compute the same: for each turn the student with gradient, the base under the plain prompt (for the KL) and
the teacher under each hint, and the default loss. Times are the best of ``--repeat`` after a warm-up.
"""

from __future__ import annotations

import argparse
import random
import resource
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from openclaw_rl.backends.local.train_batch import Batch, Count, Net, Student, ask_others, collate, gradient
from openclaw_rl.backends.local.train_forward import enable_tree
from openclaw_rl.backends.local.train_head import Head
from openclaw_rl.backends.local.train_model import add_adapter
from openclaw_rl.backends.local.train_settings import LoraSettings
from openclaw_rl.train import losses
from openclaw_rl.types import Message, Prompt, Sample, Tokens

GIB = 1024**3
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4}
    | {"num_key_value_heads": 2, "head_dim": 32, "vocab_size": 8192, "tie_word_embeddings": True},
    "135m": {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9}
    | {"num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49152, "tie_word_embeddings": True},
    "4b": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32}
    | {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": True},
}
SESSION = {"tiny": (150, 20, 20), "135m": (100, 20, 20), "4b": (1500, 200, 200)}
"""tokens of the first prompt, of each reply, of what is said after it"""


@dataclass(frozen=True)
class Bench:
    """A model with an adapter on it, and how its adapter is switched off."""

    model: Any
    wrapped: Any
    device: torch.device
    plain_attention: str

    def cast(self) -> Any:
        mixed = self.device.type == "cuda"
        return torch.autocast("cuda", dtype=torch.bfloat16) if mixed else nullcontext()


def build(shape: str, device: torch.device, recompute: bool) -> Bench:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model("qwen3", max_position_embeddings=65536, **SHAPES[shape])
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    plain = model.config._attn_implementation
    why = enable_tree(model)
    if why is not None:
        raise SystemExit(f"this model cannot see a tree: {why}")
    wrapped = add_adapter(model, LoraSettings(), shape, mixed=device.type == "cuda")
    if recompute:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return Bench(model, wrapped, device, plain)


def session(shape: str, turns: int, hints: int) -> tuple[list[Sample], list[list[Tokens | None]]]:
    """A conversation whose every request extends the one before; hints go in before the last message's end."""
    make, vocabulary = random.Random(0), SHAPES[shape]["vocab_size"]
    first, reply, said = SESSION[shape]

    def words(count: int) -> tuple[int, ...]:
        return tuple(make.randrange(vocabulary) for _ in range(count))

    ask, history = Prompt(messages=(Message(role="user", content="x"),)), words(first)
    samples: list[Sample] = []
    views: list[list[Tokens | None]] = []
    for turn in range(turns):
        answer = words(reply)
        samples.append(
            Sample(
                turn=f"t{turn}",
                user="u",
                prompt=ask,
                prompt_tokens=history,
                reply_tokens=answer,
                logprobs=(-5.0,) * reply,
                mask=(True,) * reply,
                advantage=1.0 if turn % 2 else -1.0,
                teachers=(),
                temperature=1.0,
                version=1,
            )
        )
        views.append([(*history[:-4], *words(30), *history[-4:]) for _ in range(hints)])
        history = (*history, *answer, *words(said))
    return samples, views


# --- two roads


def tree_step(bench: Bench, batch: Batch, budget: int | None) -> Count:
    bench.model.set_attn_implementation("openclaw_tree")
    layer, count = bench.model.get_output_embeddings(), Count()
    head = Head(weight=layer.weight)

    def asked() -> Any:
        bench.model.eval()
        return bench.cast()

    def training() -> Any:
        bench.model.train()
        return bench.cast()

    base = Net(model=bench.model, head=head, tree=True, context=asked)
    with bench.wrapped.disable_adapter():
        others = ask_others(batch, base, base, k=4, budget=budget, count=count)
    student = Student(net=Net(model=bench.model, head=head, tree=True, context=asked), training=training)
    gradient(batch, student, others, losses.loss, lambda _: None, k=4, budget=budget, count=count)
    return count


def plain_logprobs(bench: Bench, prompt: Tokens, reply: Tokens) -> Tensor:
    """[R, V] float32 from the model's own logits over the whole sequence."""
    ids = torch.tensor([[*prompt, *reply]], device=bench.device)
    with bench.cast():
        logits = bench.model(input_ids=ids, use_cache=False).logits
    found: Tensor = logits.float().log_softmax(-1)[0, len(prompt) - 1 : -1]
    return found


def turn_by_turn(bench: Bench, samples: Sequence[Sample], views: Sequence[Sequence[Tokens | None]]) -> None:
    bench.model.set_attn_implementation(bench.plain_attention)
    for sample, hinted in zip(samples, views, strict=True):
        reply = sample.reply_tokens
        bench.model.eval()
        with torch.no_grad(), bench.wrapped.disable_adapter():
            shown = [plain_logprobs(bench, prompt, reply) for prompt in hinted if prompt is not None]
            base = plain_logprobs(bench, sample.prompt_tokens, reply)
        bench.model.train()
        current = plain_logprobs(bench, sample.prompt_tokens, reply)
        inputs = losses.from_vocabulary(
            tokens=torch.tensor(reply, device=bench.device),
            current=current,
            old=current.detach(),
            teacher=torch.stack(shown) if shown else base[None],
            reference=base,
            sample=torch.zeros(len(reply), dtype=torch.int64, device=bench.device),
            advantage=torch.tensor([sample.advantage or 0.0], device=bench.device),
            has_teacher=torch.full((max(1, len(shown)), len(reply)), bool(shown), device=bench.device),
        )
        torch.autograd.backward(losses.loss(inputs)[0])


# --- measuring


@dataclass(frozen=True)
class Measured:
    seconds: float
    peak: float
    """bytes above what was held before"""


def measure(bench: Bench, work: Callable[[], object], repeat: int) -> Measured:
    work()
    best, peak = float("inf"), 0.0
    for _ in range(repeat):
        for parameter in bench.model.parameters():
            parameter.grad = None
        with Peak(bench.device) as watch:
            begin = time.perf_counter()
            work()
            if bench.device.type == "cuda":
                torch.cuda.synchronize()
            best = min(best, time.perf_counter() - begin)
        peak = max(peak, watch.bytes)
    return Measured(best, peak)


class Peak:
    """The most memory taken inside a ``with``: the allocator's own on CUDA, else the resident set, looked at often."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self.bytes = 0.0
        self._over = threading.Event()

    def __enter__(self) -> Peak:
        if self.cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self._before = float(torch.cuda.memory_allocated())
        else:
            self._before = _resident()
            self._watch = threading.Thread(target=self._look, daemon=True)
            self._watch.start()
        return self

    def _look(self) -> None:
        while not self._over.wait(0.002):
            self.bytes = max(self.bytes, _resident() - self._before)

    def __exit__(self, *_: object) -> None:
        if self.cuda:
            self.bytes = torch.cuda.max_memory_allocated() - self._before
        else:
            self._over.set()
            self._watch.join()


def _resident() -> float:
    path = Path("/proc/self/statm")
    if path.exists():
        return float(path.read_text().split()[1]) * resource.getpagesize()
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def peak_flops(device: torch.device) -> float:
    """What one large multiplication reaches here, in the type that the model is multiplied in."""
    size, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (1536, torch.float32)
    a = torch.randn(size, size, device=device, dtype=dtype)
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        a @ a
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begin)
    return 2 * size**3 / best


def floor_seconds(bench: Bench, count: Count, student: int, replies: int, hints: int, flops: float) -> float:
    """The multiplications that cannot be avoided: each packed token forward, the student's back again, and the head."""
    body: int = sum(p.numel() for n, p in bench.model.named_parameters() if "embed" not in n and "lora" not in n)
    head: int = bench.model.config.vocab_size * bench.model.config.hidden_size
    layers = 2 * body * (count.packed + student)
    return (layers + 2 * head * replies * (hints + 4)) / flops


def one_run(args: argparse.Namespace, bench: Bench) -> None:
    samples, views = session(args.shape, args.turns, args.hints)
    batch = collate(samples, views, version=0, device=bench.device, wide=torch.float32)
    counted = tree_step(bench, batch, args.budget)
    tree = measure(bench, lambda: tree_step(bench, batch, args.budget), args.repeat)
    turns = measure(bench, lambda: turn_by_turn(bench, samples, views), args.repeat)
    student = max(len(path.tokens) for path in batch.plain)
    flops = peak_flops(bench.device)
    least = floor_seconds(bench, counted, student, len(batch.tokens), args.hints, flops)
    times, less = turns.seconds / tree.seconds, tree.peak / max(1.0, turns.peak)
    print(f"{args.shape} on {bench.device}, {args.turns} turns with {args.hints} hinted views each")
    print("            one by one    in trees")
    print(f"tokens      {counted.sequential:>10,}  {counted.packed:>10,}")
    print(f"seconds     {turns.seconds:>10.3f}  {tree.seconds:>10.3f}  {times:.1f} x faster")
    print(f"peak, GiB   {turns.peak / GIB:>10.2f}  {tree.peak / GIB:>10.2f}  {less:.2f} of it")
    print(f"floor       {least:.3f} s at {flops / 1e12:.2f} Tflop/s: {least / tree.seconds:.0%} of it reached")
    print(f"speed       {counted.packed / tree.seconds:,.0f} distinct tokens a second")
    note = "installed; its trainer has no hinted views, so it is not compared" if find_spec("trl") else "not installed"
    print(f"trl         {note}")


def curve(args: argparse.Namespace, bench: Bench) -> None:
    print("turns  distinct tokens  seconds  microseconds a token")
    for turns in (2, 4, 8, 16, 32):
        samples, views = session(args.shape, turns, args.hints)
        batch = collate(samples, views, version=0, device=bench.device, wide=torch.float32)
        count = tree_step(bench, batch, args.budget)
        found = measure(bench, lambda batch=batch: tree_step(bench, batch, args.budget), args.repeat)  # type: ignore[misc]
        print(f"{turns:>5}  {count.packed:>15,}  {found.seconds:>7.3f}  {found.seconds / count.packed * 1e6:>20.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(SHAPES), default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--hints", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--budget", type=int, default=None, help="tokens at once; default: all")
    parser.add_argument("--recompute", action="store_true", help="gradient checkpointing, for both")
    parser.add_argument("--curve", action="store_true")
    args = parser.parse_args()
    bench = build(args.shape, torch.device(args.device), args.recompute)
    (curve if args.curve else one_run)(args, bench)


if __name__ == "__main__":
    main()
