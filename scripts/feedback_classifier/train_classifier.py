"""Train the reader's classifier: a LoRA adapter that reads (request, reply, next) and names the kind of message.

    python train_classifier.py --model FOLDER --fold 0/5 --out OUT        one fold: held-out log-probs
    python train_classifier.py --model FOLDER --fold every/5 --out OUT    all five folds in turn
    python train_classifier.py --model FOLDER --fold all --out OUT        the adapter to ship

A fold K/N trains on the voices outside fold K and writes `fold-K-of-N.jsonl`: per line its voice, index, kind and the
log-probs of the six kinds. `all` trains on every voice and writes `adapter/`, an ordinary LoRA folder in float16.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from openclaw_rl.backends.local.classifier.messages import LabelFitArgs
from openclaw_rl.backends.local.classifier.model import LabelAdapter
from openclaw_rl.judge.feedback_classifier.combination import BAD, GOOD, KINDS
from openclaw_rl.judge.feedback_classifier.judge import labelled
from openclaw_rl.judge.feedback_classifier.thresholds import Line, dealt, read_phrases, read_voices, some_voices
from openclaw_rl.ports import LabelledText

DATA = Path(__file__).parents[2] / "data"


def texts(lines: Sequence[Line], *, context: bool) -> list[LabelledText]:
    """As the classifier reads them; without ``context`` the message alone."""
    found = [labelled(line.request, line.reply, line.next, line.kind) for line in lines]
    return found if context else [replace(text, parts=text.bare) for text in found]


def write_read(lines: Sequence[Line], logprobs: Sequence[list[float]], file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8") as out:
        for line, row in zip(lines, logprobs, strict=True):
            values = [round(value, 4) for value in row]
            found = {"voice": line.voice, "index": line.index, "kind": line.kind, "logprobs": values}
            out.write(json.dumps(found) + "\n")


def report(lines: Sequence[Line], logprobs: Sequence[list[float]]) -> None:
    """How often the likeliest kind is right, and precision and recall of complaints and praise at 0.8."""
    best = [KINDS[row.index(max(row))] for row in logprobs]
    right = sum(kind == line.kind for kind, line in zip(best, lines, strict=True))
    print(f"held out: {len(lines)} lines, likeliest kind right {right / len(lines):.3f}")
    for name, kinds in (("complaint", BAD), ("praise", GOOD)):
        sure = [sum(math.exp(row[KINDS.index(kind)]) for kind in kinds) >= 0.8 for row in logprobs]
        hits = sum(flag and line.kind in kinds for flag, line in zip(sure, lines, strict=True))
        there = sum(line.kind in kinds for line in lines)
        precision, recall = hits / max(1, sum(sure)), hits / max(1, there)
        print(f"  {name}-like at 0.8: precision {precision:.3f} recall {recall:.3f}", flush=True)


def learned_of(voices: Mapping[str, Sequence[Line]], given: argparse.Namespace) -> list[Line]:
    """What is read, as often as it is read: voices of real rates most often, every other phrase once."""
    spoken = [line for lines in voices.values() for line in lines]
    learned = [line for line in spoken for _ in range(given.epochs if line.channel is None else given.real)]
    return learned + ([] if given.only_voices else read_phrases(given.phrases, voices)[::2])


def one_fold(number: int, folds: int, given: argparse.Namespace) -> None:
    voices = read_voices(given.voices)
    fold = dealt(voices, folds, seed=0)
    inside = [voice for voice in voices if fold[voice] != number]
    if given.only_voices:
        inside = some_voices({voice: voices[voice] for voice in inside}, given.only_voices, seed=0)
    known = {voice: voices[voice] for voice in inside}
    learned = learned_of(known, given)
    held_out = [line for voice in voices if fold[voice] == number for line in voices[voice]]
    print(f"fold {number} of {folds}: {len(learned)} lines of {len(inside)} voices, {len(held_out)} held out")
    adapter = LabelAdapter(arguments_of(given), show)
    adapter.fit(texts(learned, context=given.context))
    name = f"fold-{number}-of-{folds}"
    for context in (True, False) if given.context else (False,):
        logprobs = adapter.read(texts(held_out, context=context))
        print("with the request and the reply" if context else "the message alone")
        report(held_out, logprobs)
        write_read(held_out, logprobs, given.out / f"{name}{'' if context else '-alone'}.jsonl")


def whole(given: argparse.Namespace) -> None:
    voices = read_voices(given.voices)
    lines = learned_of(voices, given)
    print(f"all voices and phrases: {len(lines)} lines")
    adapter = LabelAdapter(arguments_of(given), show)
    adapter.fit(texts(lines, context=True))
    adapter.save(given.out / "adapter")
    probe = lines[:: max(1, len(lines) // 64)][:64]
    write_read(probe, adapter.read(texts(probe, context=True)), given.out / "probe.jsonl")
    print(f"wrote {given.out / 'adapter'}, and probe.jsonl: what it says of 64 lines it was trained on")


def show(text: str) -> None:
    print(text, flush=True)


def arguments_of(given: argparse.Namespace) -> LabelFitArgs:
    named = {name: getattr(given, name) for name in ("rank", "batch", "lr", "seed")}
    place = {"cache_dir": given.out, "device": given.device, "dtype": given.dtype}
    return LabelFitArgs(model=given.model, words=KINDS, epochs=1, **place, **named)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="the base model: embedded, or a folder")
    parser.add_argument("--voices", type=Path, default=DATA / "voices", help="folder of the voices, one .jsonl each")
    parser.add_argument("--phrases", type=Path, default=DATA / "phrases", help="folder of the phrasebooks")
    parser.add_argument("--fold", required=True, help="K/N (held-out fold K from 0), every/N, or all")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=2, help="times a voice's line is read; of phrases half, once")
    parser.add_argument("--real", type=int, default=6, help="times a line of a voice at real rates is read")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=6e-4)
    parser.add_argument("--no-context", dest="context", action="store_false", help="the message alone, throughout")
    parser.add_argument("--only-voices", type=int, default=0, help="train on this many voices (0: on all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto", help="of the base weights; bfloat16 takes half the memory")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    if given.fold == "all":
        return whole(given)
    number, _, folds = given.fold.partition("/")
    if not folds.isdigit() or not (number == "every" or (number.isdigit() and int(number) < int(folds))):
        sys.exit(f"--fold {given.fold}: give K/N with K below N, every/N, or all")
    for each in range(int(folds)) if number == "every" else (int(number),):
        one_fold(each, int(folds), given)
    return None


if __name__ == "__main__":
    main()
