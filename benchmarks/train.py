"""One training step over a session: the token tree against one sequence per turn with plain Hugging Face logits.

    python benchmarks/train.py                            a small model on this CPU
    python benchmarks/train.py --shape 4b --device cuda --compile   4B-shaped random weights in bfloat16
    python benchmarks/train.py --curve                    cost by turns: 2, 4, 8, 16, 32

Both ways compute the same: for each turn the student with gradient, the base under the plain prompt (for the KL) and
the teacher under each hint, and the default loss; how alike their gradients are is printed beside the times, which
are the best of ``--repeat`` after a warm-up.
Where TRL is installed, its GRPO trainer computes the same turns as far as it can say them: the scalar loss and the
sampled KL to the base, no hinted views. It is compared with the tree on that work alone.
"""

from __future__ import annotations

import argparse
import random
import resource
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from openclaw_rl import losses
from openclaw_rl.app.factories import build_trainer
from openclaw_rl.backends.hf.batches import TrainBatch, collate
from openclaw_rl.backends.local.training.batch import Student, gradient
from openclaw_rl.backends.local.training.forward import ATTENTION, compile_layers, enable_tree
from openclaw_rl.backends.local.training.head import Head
from openclaw_rl.backends.local.training.model import adapter_layers, add_adapter, switched_off
from openclaw_rl.backends.local.training.references import ComputedTokens, Net, run_references
from openclaw_rl.backends.local.training.settings import TrainerArgs
from openclaw_rl.backends.local.training.trainer import LocalTrainer
from openclaw_rl.config import Config
from openclaw_rl.losses.tree import pack
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
"""tokens of the first prompt, of each reply, of what follows it"""


@dataclass(frozen=True)
class Bench:
    """A model with an adapter on it, and how its adapter is switched off."""

    model: Any
    wrapped: Any
    adapter: list[Any]
    device: torch.device
    plain_attention: str

    def cast(self) -> Any:
        mixed = self.device.type == "cuda"
        return torch.autocast("cuda", dtype=torch.bfloat16) if mixed else nullcontext()


@cache
def settings() -> TrainerArgs:
    """What the trainer works by when nothing is set."""
    trainer = build_trainer(Config())
    assert isinstance(trainer, LocalTrainer)
    return trainer.args


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
    wrapped = add_adapter(model, replace(settings(), model=shape), mixed=device.type == "cuda")
    if recompute:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return Bench(model, wrapped, adapter_layers(model), device, plain)


def attend(bench: Bench, how: str) -> None:
    if bench.model.config._attn_implementation != how:
        bench.model.set_attn_implementation(how)


def session(shape: str, turns: int, hints: int) -> tuple[list[Sample], list[list[Tokens | None]]]:
    """A conversation whose every request extends the one before; hints go in before the last message's end."""
    make, vocabulary = random.Random(0), SHAPES[shape]["vocab_size"]
    first, reply, after = SESSION[shape]

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
        history = (*history, *answer, *words(after))
    return samples, views


@torch.no_grad()
def prompt_of(sample: Sample) -> Tokens:
    """Its ids, which every sample of these sessions has."""
    assert sample.prompt_tokens is not None
    return sample.prompt_tokens


def sampled_now(bench: Bench, samples: Sequence[Sample]) -> list[Sample]:
    """The samples as if the model itself had just sampled them."""
    attend(bench, bench.plain_attention)
    bench.model.eval()

    def sampled(sample: Sample) -> Sample:
        reply = torch.tensor(sample.reply_tokens, device=bench.device)
        of_all = plain_logprobs(bench, prompt_of(sample), sample.reply_tokens)
        return replace(sample, logprobs=tuple(of_all.gather(1, reply[:, None])[:, 0].tolist()))

    return [sampled(sample) for sample in samples]


def slopes(bench: Bench, work: Callable[[], object]) -> Tensor:
    """The gradient that ``work`` leaves, as one line of numbers."""
    forget(bench)
    work()
    return torch.cat([p.grad.double().flatten() for p in bench.model.parameters() if p.grad is not None])


def forget(bench: Bench) -> None:
    for parameter in bench.model.parameters():
        parameter.grad = None


# --- the two ways


def tree_step(bench: Bench, batch: TrainBatch, budget: int | None) -> ComputedTokens:
    attend(bench, ATTENTION)
    layer, count = bench.model.get_output_embeddings(), ComputedTokens()
    head = Head(weight=layer.weight)

    if bench.model.training != bench.model.is_gradient_checkpointing:  # as the trainer does: there is no dropout
        bench.model.train(bench.model.is_gradient_checkpointing)
    base = Net(model=bench.model, head=head, tree=True, context=bench.cast)
    with switched_off(bench.adapter):
        others = run_references(batch, base, base, k=4, budget=budget, count=count)
    student = Student(net=base, training=bench.cast)
    loss = partial(losses.loss, settings=settings())
    _, why = gradient(batch, student, others, loss, lambda _: None, k=4, budget=budget, count=count)
    if why is not None:
        raise SystemExit(f"the step in trees was left out: {why}")
    return count


def plain_logprobs(bench: Bench, prompt: Tokens, reply: Tokens) -> Tensor:
    """[R, V] float32 from the model's own logits over the whole sequence."""
    ids = torch.tensor([[*prompt, *reply]], device=bench.device)
    with bench.cast():
        logits = bench.model(input_ids=ids, use_cache=False).logits
    found: Tensor = logits.float().log_softmax(-1)[0, len(prompt) - 1 : -1]
    return found


def turn_by_turn(bench: Bench, samples: Sequence[Sample], views: Sequence[Sequence[Tokens | None]]) -> None:
    attend(bench, bench.plain_attention)
    for sample, hinted in zip(samples, views, strict=True):
        reply = sample.reply_tokens
        bench.model.eval()
        with torch.no_grad(), bench.wrapped.disable_adapter():
            shown = [plain_logprobs(bench, prompt, reply) for prompt in hinted if prompt is not None]
            base = plain_logprobs(bench, prompt_of(sample), reply)
        bench.model.train()
        current = plain_logprobs(bench, prompt_of(sample), reply)
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
        torch.autograd.backward(losses.loss(inputs, settings())[0])


# --- TRL, where it is installed


@dataclass(frozen=True)
class Grpo:
    """TRL's GRPO trainer on the same weights; it takes ``at_once`` padded turns in each pass."""

    bench: Bench
    trainer: Any
    at_once: int

    @classmethod
    def build(cls, bench: Bench, at_once: int) -> Grpo:
        from datasets import Dataset
        from datasets.table import InMemoryTable
        from tokenizers import Tokenizer, models
        from transformers import PreTrainedTokenizerFast
        from trl import GRPOConfig, GRPOTrainer

        words = Tokenizer(models.WordLevel({"<pad>": 0, "x": 1}, unk_token="<pad>"))
        folder = tempfile.mkdtemp()
        trainer = GRPOTrainer(
            model=bench.wrapped,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=GRPOConfig(
                output_dir=folder,
                beta=0.05,
                epsilon_high=0.28,
                per_device_train_batch_size=8,
                gradient_checkpointing=bool(getattr(bench.model, "is_gradient_checkpointing", False)),
                bf16=bench.device.type == "cuda",
                use_cpu=bench.device.type == "cpu",
                report_to=[],
            ),
            train_dataset=Dataset(InMemoryTable.from_pydict({"prompt": ["x"]}), fingerprint="never read"),
            processing_class=PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<pad>"),
        )
        trainer.current_gradient_accumulation_steps = 1
        return cls(bench, trainer, at_once)

    def step(self, samples: Sequence[Sample]) -> None:
        attend(self.bench, self.bench.plain_attention)
        for first in range(0, len(samples), self.at_once):
            padded = self._padded(samples[first : first + self.at_once])
            ids = torch.cat([padded["prompt_ids"], padded["completion_ids"]], 1)
            mask = torch.cat([padded["prompt_mask"], padded["completion_mask"]], 1)
            keep = padded["completion_ids"].shape[1]
            self.bench.model.eval()
            with torch.no_grad(), self.bench.wrapped.disable_adapter():
                known = self.trainer._get_per_token_logps_and_entropies(self.bench.wrapped, ids, mask, keep)[0]
            self.bench.model.train()
            with self.bench.cast():
                loss = self.trainer.compute_loss(self.bench.wrapped, padded | {"ref_per_token_logps": known})
            torch.autograd.backward(loss)

    def _padded(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """Prompts padded on the left and replies on the right, as TRL lays them out."""
        wide = max(len(prompt_of(one)) for one in samples)
        long = max(len(one.reply_tokens) for one in samples)

        def rows(lines: Sequence[Sequence[int]]) -> Tensor:
            return torch.tensor(lines, device=self.bench.device)

        return {
            "prompt_ids": rows([[0] * (wide - len(prompt_of(s))) + list(prompt_of(s)) for s in samples]),
            "prompt_mask": rows([[int(at >= wide - len(prompt_of(s))) for at in range(wide)] for s in samples]),
            "completion_ids": rows([list(s.reply_tokens) + [0] * (long - len(s.reply_tokens)) for s in samples]),
            "completion_mask": rows([[int(at < len(s.reply_tokens)) for at in range(long)] for s in samples]),
            "advantages": torch.tensor([s.advantage or 0.0 for s in samples], device=self.bench.device),
            "num_items_in_batch": torch.tensor(sum(len(s.reply_tokens) for s in samples), device=self.bench.device),
        }


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
        forget(bench)
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


def floor_seconds(bench: Bench, batch: TrainBatch, count: ComputedTokens, hints: int, flops: float) -> float:
    """The multiplications that cannot be avoided: each packed token forward, the student's back again, and the head.

    What tokens see of each other is counted apart in the line below it.
    """
    student, replies = max(len(path.tokens) for path in batch.plain), len(batch.tokens)
    body: int = sum(p.numel() for n, p in bench.model.named_parameters() if "embed" not in n and "lora" not in n)
    head: int = bench.model.config.vocab_size * bench.model.config.hidden_size
    layers = 2 * body * (count.packed + student)
    return (layers + 2 * head * replies * (hints + 4)) / flops


def attention_seconds(bench: Bench, batch: TrainBatch, flops: float) -> float:
    """The same for attention: all pairs of which one sees the other, forward, and the student's back again."""
    config = bench.model.config
    pair: int = 4 * config.num_attention_heads * config.head_dim * config.num_hidden_layers
    views, plain = [path for _, _, path in batch.hinted], list(batch.plain)
    (others,), (student,) = pack([*views, *plain]), pack(plain)
    pairs = int((others.depth + 1).sum()) + 3.5 * int((student.depth + 1).sum())
    return pair * pairs / flops


def one_run(args: argparse.Namespace, bench: Bench) -> None:
    samples, views = session(args.shape, args.turns, args.hints)
    samples = sampled_now(bench, samples)
    batch = collate(samples, views, version=0, device=bench.device, wide=torch.float32)
    turns = measure(bench, lambda: turn_by_turn(bench, samples, views), args.repeat)
    wanted = slopes(bench, lambda: turn_by_turn(bench, samples, views))
    theirs = against_trl(args, bench) if find_spec("trl") else None
    if args.compile:  # only for the tree: the others are measured as people run them
        compile_layers(bench.model)
    counted = tree_step(bench, batch, args.budget)
    tree = measure(bench, lambda: tree_step(bench, batch, args.budget), args.repeat)
    alike = torch.cosine_similarity(wanted, slopes(bench, lambda: tree_step(bench, batch, args.budget)), dim=0)
    flops = peak_flops(bench.device)
    least = floor_seconds(bench, batch, counted, args.hints, flops)
    seeing = attention_seconds(bench, batch, flops)
    times, less = turns.seconds / tree.seconds, tree.peak / max(1.0, turns.peak)
    print(f"{args.shape} on {bench.device}, {args.turns} turns with {args.hints} hinted views each")
    print("            one by one    in trees")
    print(f"tokens      {counted.sequential:>10,}  {counted.packed:>10,}")
    print(f"seconds     {turns.seconds:>10.3f}  {tree.seconds:>10.3f}  {times:.1f} x faster")
    print(f"peak, GiB   {turns.peak / GIB:>10.2f}  {tree.peak / GIB:>10.2f}  {less:.2f} of it")
    print(f"gradients   of the two, their cosine: {float(alike):.4f}")
    print(f"floor       {least:.3f} s at {flops / 1e12:.2f} Tflop/s: {least / tree.seconds:.0%} of it reached")
    print(f"            {least + seeing:.3f} s with attention: {(least + seeing) / tree.seconds:.0%} of it reached")
    print(f"speed       {counted.packed / tree.seconds:,.0f} distinct tokens a second")
    if theirs is None:
        print("trl         not installed")
        return
    bare, views = session(args.shape, args.turns, 0)
    batch = collate(bare, views, version=0, device=bench.device, wide=torch.float32)
    tree = measure(bench, lambda: tree_step(bench, batch, args.budget), args.repeat)
    times, less = theirs.seconds / tree.seconds, tree.peak / max(1.0, theirs.peak)
    print(f"scalar loss and KL alone; TRL's GRPO trainer with {args.trl_turns} turn(s) at a time")
    print("                   trl    in trees")
    print(f"seconds     {theirs.seconds:>10.3f}  {tree.seconds:>10.3f}  {times:.1f} x faster")
    print(f"peak, GiB   {theirs.peak / GIB:>10.2f}  {tree.peak / GIB:>10.2f}  {less:.2f} of it")


def against_trl(args: argparse.Namespace, bench: Bench) -> Measured:
    """The part of the work that TRL's GRPO trainer can express."""
    samples, _ = session(args.shape, args.turns, 0)
    grpo = Grpo.build(bench, args.trl_turns)
    return measure(bench, lambda: grpo.step(samples), args.repeat)


def curve(args: argparse.Namespace, bench: Bench) -> None:
    if args.compile:
        compile_layers(bench.model)
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
    parser.add_argument("--trl-turns", type=int, default=1, help="padded turns that TRL takes in one pass")
    parser.add_argument("--compile", action="store_true", help="compile the layers for the token tree")
    parser.add_argument("--curve", action="store_true")
    args = parser.parse_args()
    bench = build(args.shape, torch.device(args.device), args.recompute)
    (curve if args.curve else one_run)(args, bench)


if __name__ == "__main__":
    main()
