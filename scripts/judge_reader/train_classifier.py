"""Train the reader's classifier: a LoRA adapter that reads (request, reply, next) and names the kind of message.

    python train_classifier.py --model FOLDER --voices data/voices --fold 0/7 --out OUT    one fold: held-out log-probs
    python train_classifier.py --model FOLDER --voices data/voices --fold every/7 --out OUT    all seven folds in turn
    python train_classifier.py --model FOLDER --voices data/voices --fold all --out OUT    the adapter to ship

A fold K/N trains on the voices outside fold K and writes `fold-K-of-N.jsonl`: per line its voice, index, kind and the
log-probs of the six kinds. `all` trains on every voice and writes `adapter/`, an ordinary LoRA folder in float16.
Needs torch, transformers and peft, and the file `voices.py` beside it.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from voices import KINDS, Line, dealt, read_phrases, read_voices, some_voices

BUDGETS = {"request": 96, "reply": 224, "next": 224}
"""tokens of each part, its head and tail kept; what a reader sees must be cut the same way"""
VOCABULARY_WEIGHT = 0.05
"""of the loss over the whole vocabulary: it keeps the six words among the likeliest, so one scoring call finds them"""


def parts(line: Line, *, context: bool) -> list[tuple[str, int]]:
    """The pieces of the text and the most tokens of each; each piece is encoded by itself."""
    before = [(f"User: {line.request}\n", BUDGETS["request"]), (f"Assistant: {line.reply}\n", BUDGETS["reply"])]
    return [*(before if context else []), (f"User: {line.next}\n", BUDGETS["next"]), ("This message is", 16)]


def cut(tokens: list[int], most: int) -> list[int]:
    """Head and tail of what is too long: two thirds and one third."""
    if len(tokens) <= most:
        return tokens
    tail = most // 3
    return tokens[: most - tail] + tokens[-tail:]


def encode(tokenizer: Any, line: Line, *, context: bool) -> list[int]:
    pieces = parts(line, context=context)
    return [token for text, most in pieces for token in cut(tokenizer.encode(text, add_special_tokens=False), most)]


def label_tokens(tokenizer: Any) -> list[int]:
    """The first token of each kind's word; they must differ."""
    tokens = [tokenizer.encode(f" {kind}", add_special_tokens=False)[0] for kind in KINDS]
    if len(set(tokens)) != len(KINDS):
        raise SystemExit(
            f"this tokenizer gives two kinds the same first token: {dict(zip(KINDS, tokens, strict=True))}"
        )
    return tokens


def class_weights(lines: Sequence[Line], *, temper: float) -> torch.Tensor:
    """Rarer kinds weigh more: the inverse frequency to the power ``temper``, one on average over the lines."""
    counts = Counter(line.kind for line in lines)
    raw = torch.tensor([(len(lines) / counts[kind]) ** temper if counts[kind] else 0.0 for kind in KINDS])
    mean = sum(float(raw[KINDS.index(kind)]) * count for kind, count in counts.items()) / len(lines)
    return raw / mean


def batches(examples: Sequence[Any], size: int, length: Any, rng: random.Random | None) -> Iterable[list[Any]]:
    """Batches of similar length, in random order when there is an ``rng``."""
    order = list(examples)
    if rng is not None:
        rng.shuffle(order)
    pool = size * 32 if rng is not None else len(order)
    groups = []
    for start in range(0, len(order), max(1, pool)):
        near = sorted(order[start : start + pool], key=length)
        groups += [near[at : at + size] for at in range(0, len(near), size)]
    if rng is not None:
        rng.shuffle(groups)
    return groups


class Classifier:
    """The model, its LoRA layers, and the six tokens whose log-probs are the answer."""

    def __init__(self, folder: str, *, rank: int, dropout: float, device: str, seed: int) -> None:
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.manual_seed(seed)
        self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self.labels = torch.tensor(label_tokens(self.tokenizer), device=device)
        base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
        config = LoraConfig(
            r=rank, lora_alpha=2 * rank, lora_dropout=dropout, target_modules="all-linear", task_type="CAUSAL_LM"
        )
        self.peft = get_peft_model(base.to(device), config)
        self.device = device

    def logits(self, batch: Sequence[list[int]], *, reading: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Over the whole vocabulary, at the last token of each text `[B, V]`; and the mean loss of at most
        ``reading`` of the texts' own tokens, which teaches the languages that the base hardly knows."""
        longest = max(len(tokens) for tokens in batch)
        ids = torch.tensor([tokens + [0] * (longest - len(tokens)) for tokens in batch], device=self.device)
        last = torch.tensor([len(tokens) - 1 for tokens in batch], device=self.device)
        mask = torch.arange(longest, device=self.device) <= last[:, None]
        model = self.peft.get_base_model()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=self.device.startswith("cuda")):
            hidden = model.model(input_ids=ids, attention_mask=mask.long(), use_cache=False).last_hidden_state
            answers = model.lm_head(hidden[torch.arange(len(batch), device=self.device), last]).float()
            if not reading:
                return answers, answers.new_zeros(())
            row, column = mask[:, 1:].nonzero(as_tuple=True)
            chosen = torch.randperm(len(row), device=self.device)[:reading]
            row, column = row[chosen], column[chosen]
            read = model.lm_head(hidden[row, column]).float()
        return answers, functional.cross_entropy(read, ids[row, column + 1])

    def save(self, folder: Path) -> None:
        """As float16 safetensors with adapter_config.json; where the base lay on this machine is left out."""
        from peft import get_peft_model_state_dict
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        state = {key: value.half().cpu().contiguous() for key, value in get_peft_model_state_dict(self.peft).items()}
        save_file(state, folder / "adapter_model.safetensors")
        config = self.peft.peft_config["default"]
        config.base_model_name_or_path = None
        config.inference_mode = True
        config.save_pretrained(folder)


def fit(classifier: Classifier, lines: Sequence[Line], args: argparse.Namespace) -> None:
    """Cross-entropy over the six kinds at the last position; context is left out of some lines at random."""
    rng = random.Random(args.seed)
    trained = [parameter for parameter in classifier.peft.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=args.lr, weight_decay=0.01)
    total = args.epochs * math.ceil(len(lines) / args.batch)
    rate = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: schedule(step, total))
    weights = class_weights(lines, temper=args.temper).to(classifier.device)
    classifier.peft.train()
    step, started = 0, time.monotonic()
    alone = [encode(classifier.tokenizer, line, context=False) for line in lines]
    beside = [encode(classifier.tokenizer, line, context=True) for line in lines] if args.context else alone
    for epoch in range(args.epochs):
        examples = [
            (beside[at] if rng.random() >= args.drop else alone[at], line.kind) for at, line in enumerate(lines)
        ]
        for batch in batches(examples, args.batch, lambda example: len(example[0]), rng):
            logits, reading = classifier.logits([tokens for tokens, _ in batch], reading=args.positions)
            target = torch.tensor([KINDS.index(kind) for _, kind in batch], device=classifier.device)
            loss = functional.cross_entropy(
                logits[:, classifier.labels], target, weight=weights, label_smoothing=args.smoothing
            ) + VOCABULARY_WEIGHT * functional.cross_entropy(logits, classifier.labels[target])
            loss = loss + args.reading * reading
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            rate.step()
            step += 1
            if step % 50 == 0 or step == total:
                spent = time.monotonic() - started
                print(f"epoch {epoch + 1} step {step}/{total} loss {loss.item():.3f} {spent:.0f}s", flush=True)
            if args.steps and step >= args.steps:
                return


def schedule(step: int, total: int) -> float:
    """Linear up over the first 6 %, then a cosine to a tenth."""
    warm = max(1, int(total * 0.06))
    if step < warm:
        return (step + 1) / warm
    done = min(1.0, (step - warm) / max(1, total - warm))
    return 0.1 + 0.45 * (1 + math.cos(math.pi * done))


@torch.no_grad()
def read(classifier: Classifier, lines: Sequence[Line], *, batch: int, context: bool) -> list[list[float]]:
    """The log-probs of the six kinds, normalised over the six, for each line."""
    classifier.peft.eval()
    examples = [(at, encode(classifier.tokenizer, line, context=context)) for at, line in enumerate(lines)]
    found: list[list[float]] = [[] for _ in lines]
    for group in batches(examples, batch, lambda example: len(example[1]), None):
        logits, _ = classifier.logits([tokens for _, tokens in group])
        for (at, _), row in zip(group, logits[:, classifier.labels].log_softmax(-1).tolist(), strict=True):
            found[at] = row
    return found


def write_read(lines: Sequence[Line], logprobs: Sequence[list[float]], file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8") as out:
        for line, row in zip(lines, logprobs, strict=True):
            values = [round(value, 4) for value in row]
            out.write(
                json.dumps({"voice": line.voice, "index": line.index, "kind": line.kind, "logprobs": values}) + "\n"
            )


def report(lines: Sequence[Line], logprobs: Sequence[list[float]]) -> None:
    """How often the likeliest kind is right, and precision and recall of complaints and praise at 0.8."""
    best = [KINDS[row.index(max(row))] for row in logprobs]
    right = sum(kind == line.kind for kind, line in zip(best, lines, strict=True))
    print(f"held out: {len(lines)} lines, likeliest kind right {right / len(lines):.3f}")
    for name, kinds in (("complaint", ("complaint", "rule", "fact")), ("praise", ("praise", "mixed"))):
        sure = [sum(math.exp(row[KINDS.index(kind)]) for kind in kinds) >= 0.8 for row in logprobs]
        said = sum(sure)
        hits = sum(flag and line.kind in kinds for flag, line in zip(sure, lines, strict=True))
        there = sum(line.kind in kinds for line in lines)
        print(
            f"  {name}-like at 0.8: precision {hits / max(1, said):.3f} recall {hits / max(1, there):.3f}", flush=True
        )


def one_fold(number: int, folds: int, args: argparse.Namespace) -> None:
    voices = read_voices(args.voices)
    fold = dealt(voices, folds, seed=0)
    inside = [voice for voice in voices if fold[voice] != number]
    if args.only_voices:
        inside = some_voices({voice: voices[voice] for voice in inside}, args.only_voices, seed=0)
    known = {voice: voices[voice] for voice in inside}
    training = [line for lines in known.values() for line in lines] + read_phrases(args.phrases, known)
    held_out = [line for voice in voices if fold[voice] == number for line in voices[voice]]
    print(f"fold {number} of {folds}: {len(training)} lines of {len(inside)} voices, {len(held_out)} held out")
    classifier = Classifier(args.model, rank=args.rank, dropout=args.dropout, device=args.device, seed=args.seed)
    fit(classifier, training, args)
    if args.steps:
        held_out = held_out[: args.steps * args.batch]
    name = f"fold-{number}-of-{folds}"
    for context in (True, False) if args.context else (False,):
        logprobs = read(classifier, held_out, batch=2 * args.batch, context=context)
        print("with the request and the reply" if context else "the message alone")
        report(held_out, logprobs)
        write_read(held_out, logprobs, args.out / f"{name}{'' if context else '-alone'}.jsonl")


def whole(args: argparse.Namespace) -> None:
    voices = read_voices(args.voices)
    lines = [line for each in voices.values() for line in each]
    lines += read_phrases(args.phrases, voices)
    print(f"all voices and phrases: {len(lines)} lines")
    classifier = Classifier(args.model, rank=args.rank, dropout=args.dropout, device=args.device, seed=args.seed)
    fit(classifier, lines, args)
    classifier.save(args.out / "adapter")
    probe = lines[:: max(1, len(lines) // 64)][:64]
    write_read(probe, read(classifier, probe, batch=32, context=True), args.out / "probe.jsonl")
    print(f"wrote {args.out / 'adapter'}, and probe.jsonl: what it says of 64 lines it was trained on")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of the base model (safetensors and tokenizer)")
    parser.add_argument("--voices", type=Path, required=True, help="folder of the voices, one .jsonl each")
    parser.add_argument("--phrases", type=Path, default=Path("none"), help="folder of the phrasebooks [default: none]")
    parser.add_argument("--fold", required=True, help="K/N (held-out fold K from 0), every/N, or all")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--dropout", type=float, default=0.05, help="in the LoRA layers")
    parser.add_argument("--smoothing", type=float, default=0.05, help="of the labels: some are soft")
    parser.add_argument(
        "--temper", type=float, default=0.5, help="0: kinds weigh as often as they are, 1: all the same"
    )
    parser.add_argument("--drop", type=float, default=0.1, help="share of lines trained without request and reply")
    parser.add_argument("--no-context", dest="context", action="store_false", help="the message alone, throughout")
    parser.add_argument("--reading", type=float, default=0.0, help="weight of the loss of the texts' own tokens")
    parser.add_argument("--positions", type=int, default=0, help="tokens of a batch that this loss looks at")
    parser.add_argument("--only-voices", type=int, default=0, help="train on this many voices (0: on all)")
    parser.add_argument("--steps", type=int, default=0, help="stop after so many steps: a trial run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if not (Path(args.model) / "config.json").is_file():
        parser.error(f"--model {args.model}: no config.json there; give the folder of the base model")
    return args


def main() -> None:
    args = arguments()
    if args.fold == "all":
        return whole(args)
    number, _, folds = args.fold.partition("/")
    if not folds.isdigit() or not (number == "every" or (number.isdigit() and int(number) < int(folds))):
        sys.exit(f"--fold {args.fold}: give K/N with K below N, every/N, or all")
    for each in range(int(folds)) if number == "every" else (int(number),):
        one_fold(each, int(folds), args)
    return None


if __name__ == "__main__":
    main()
