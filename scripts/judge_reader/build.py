"""Build the reader from the voices: the n-gram model, the combination with the classifier, and the figures.

    make judge-reader                      everything, some minutes on one core
    make judge-reader ARGS=--quick         the shipped files without the figures of other models and fewer voices

Reads data/voices, data/phrases (learned from, never measured on) and, where it is there, data/reader/classifier.npz:
what the classifier said of every voice that it was not trained on (`train_classifier.py`, then `collect.py`). Writes
ngrams.bin and combination.json beside the reader's code, and data/reader/figures.json. The same lines give the same
files, to the byte.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from fit import Seen, see, train

from openclaw_rl.judge.evaluation import holds
from openclaw_rl.judge.hearing import own_hints
from openclaw_rl.judge.reaction import Reaction, read
from openclaw_rl.judge.reader import combination, ngrams
from openclaw_rl.judge.reader.combination import Belief, Combination, Weights, believe
from openclaw_rl.judge.reader.descent import Array
from openclaw_rl.judge.reader.kinds import BAD, GOOD, KINDS, LanguageGroup, group_of
from openclaw_rl.judge.reader.ngrams import NgramModel
from openclaw_rl.judge.reader.thresholds import Heard, calibrated, estimates
from openclaw_rl.judge.reader.voices import Line, dealt, read_phrases, read_voices, some_voices
from openclaw_rl.judge.text import own_words

ROOT = Path(__file__).parents[2]
FOLDS = 5
NEUTRAL = 0.8
"""the share of messages that are no feedback in real talk, for precision as it would be there"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folds:
    """The voices' lines, the fold of each; all lines, the phrases last, and their features, extracted when needed."""

    lines: Sequence[Line]
    fold: Array
    learned: Sequence[Line]
    seen: Callable[[], Seen]

    @property
    def phrases(self) -> range:
        """The lines of the phrasebooks: every fold learns from them, none is measured on them."""
        return range(len(self.lines), len(self.learned))

    def others(self, number: int) -> list[int]:
        """The lines outside a fold."""
        return [*np.flatnonzero(self.fold != number).tolist(), *self.phrases]


def fold_models(folds: Folds, fit_on: Callable[[int], Sequence[int]], *, context: bool = True) -> list[NgramModel]:
    """A model for each fold, trained on others, as it would ship."""
    found = []
    for number in range(FOLDS):
        found.append(train(folds.seen, folds.learned, fit_on(number), context=context))
        print(f"  fold {number + 1} of {FOLDS}", flush=True)
    return found


def held_out(folds: Folds, models: Sequence[NgramModel]) -> Array:
    """What the model that has not seen it says of each line: log-probs `[N, 6]`."""
    rows = zip(folds.lines, folds.fold.tolist(), strict=True)
    return np.array([models[fold].logprobs(line.request, line.reply, line.next) for line, fold in rows])


def decisions(heard: Heard, folds: Array) -> list[Belief]:
    """What is believed of each line, by weights and thresholds of the other folds' lines."""
    found: dict[int, Belief] = {}
    for fold in range(FOLDS):
        table = calibrated(heard.only(folds != fold))
        for row in np.flatnonzero(folds == fold).tolist():
            weights = table[heard.groups[row]]
            one = heard.only(np.array([row]))
            logprobs = tuple(np.log(estimates(one, weights)[0]))
            found[row] = believe(logprobs, weights.thresholds, rules=int(heard.rules[row]) or None)
    return [found[row] for row in range(len(heard.target))]


def scores(beliefs: Sequence[Belief]) -> Array:
    return np.array([belief.score or 0 for belief in beliefs])


def hint_figures(
    folds: Folds, models: Sequence[NgramModel], beliefs: Sequence[Belief], reactions: Sequence[Reaction]
) -> dict[str, dict[str, float]]:
    """The share of rules that were given with the key in them, of facts likewise, and of rules where none was said."""
    given: list[tuple[Line, list[str], list[str]]] = []
    for line, fold, belief, reaction in zip(folds.lines, folds.fold.tolist(), beliefs, reactions, strict=True):
        own, asked = own_words(line.next), {"request": line.request, "reply": line.reply}
        hints = own_hints(own, belief, reaction, **asked, model=models[fold]) if own else ()
        texts = {kind: [hint.text for hint in hints if hint.kind == kind] for kind in ("rule", "fact")}
        given.append((line, texts["rule"], texts["fact"]))
    return {
        name: _hints([each for each in given if inside(each[0])])
        for name, inside in (
            ("all", lambda line: bool(line.language)),
            ("english", lambda line: line.language == "en"),
            ("others", lambda line: line.language != "en"),
        )
    }


def _hints(given: Sequence[tuple[Line, list[str], list[str]]]) -> dict[str, float]:
    def key(line: Line, texts: Sequence[str]) -> bool:
        return any(line.hint is not None and holds(text, line.hint) for text in texts)

    wanted = [key(line, rules) for line, rules, _ in given if line.kind in ("rule", "mixed")]
    facts = [key(line, stated) for line, _, stated in given if line.kind == "fact"]
    unwanted = [bool(rules) for line, rules, _ in given if line.kind not in ("rule", "mixed")]
    return {
        "rules_with_key": round(sum(wanted) / len(wanted), 3),
        "facts_with_key": round(sum(facts) / len(facts), 3),
        "unwanted_rules": round(sum(unwanted) / len(unwanted), 4),
    }


def figures(lines: Sequence[Line], score: Array) -> dict[str, object]:
    """Precision, recall and precision at a realistic share of neutral messages, in all and by language."""
    languages = sorted({line.language for line in lines})
    groups: dict[str, Array] = {
        "all": np.ones(len(lines), bool),
        "english": np.array([line.language == "en" for line in lines]),
        "others": np.array([line.language != "en" for line in lines]),
        **{language: np.array([line.language == language for line in lines]) for language in languages},
    }
    return {
        name: _figures([line for line, inside in zip(lines, chosen, strict=True) if inside], score[chosen])
        for name, chosen in groups.items()
    }


def _figures(lines: Sequence[Line], score: Array) -> dict[str, object]:
    neutral = np.array([line.kind == "neutral" for line in lines])
    found: dict[str, object] = {"lines": len(lines)}
    share = neutral.mean()
    heavier = NEUTRAL / (1 - NEUTRAL) * (1 - share) / share
    for name, value, kinds in (("bad", -1, BAD), ("good", 1, GOOD)):
        there = np.array([line.kind in kinds for line in lines])
        said = score == value
        right, wrong = int((said & there).sum()), said & ~there
        weighted = float(np.where(neutral, heavier, 1.0)[wrong].sum())
        found[name] = {
            "said": int(said.sum()),
            "precision": round(right / max(1, int(said.sum())), 3),
            "recall": round(right / max(1, int(there.sum())), 3),
            "precision_at_80_neutral": round(right / max(1e-9, right + weighted), 3) if right else 0.0,
        }
    return found


def classifier_logprobs(file: Path, lines: Sequence[Line]) -> Array | None:
    """The classifier's answers to every line, by voices that it had not seen; None without the file."""
    if not file.is_file():
        return None
    data = np.load(file)
    place = {
        (voice, int(index)): at for at, (voice, index) in enumerate(zip(data["voice"], data["index"], strict=True))
    }
    missing = [line for line in lines if (line.voice, line.index) not in place]
    if missing:
        raise SystemExit(
            f"{file} knows nothing of {len(missing)} lines, {missing[0].voice} the first: train the classifier anew"
        )
    found = data["logprobs"].astype(np.float64)[[place[line.voice, line.index] for line in lines]]
    return found - np.log(np.exp(found).sum(1, keepdims=True))


def growth(folds: Folds, voices: dict[str, list[Line]], fold_of: dict[str, int], heard: Heard) -> dict[str, object]:
    """The n-grams' figures when they are trained on few voices."""
    found: dict[str, object] = {}
    for count in (5, 10, 20, 40):

        def some(fold: int, count: int = count) -> list[int]:
            inside = {name: lines for name, lines in voices.items() if fold_of[name] != fold}
            chosen = set(some_voices(inside, count, seed=0))
            return [row for row, line in enumerate(folds.lines) if line.voice in chosen]

        print(f"n-grams of {count} voices")
        answers = held_out(folds, fold_models(folds, some))
        beliefs = decisions(_with(heard, ngrams=answers, classifier=None), folds.fold)
        found[str(count)] = figures(folds.lines, scores(beliefs))
    return found


def _with(heard: Heard, *, ngrams: Array, classifier: Array | None) -> Heard:
    return replace(heard, ngrams=ngrams, classifier=classifier)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--voices", type=Path, default=ROOT / "data" / "voices")
    parser.add_argument("--phrases", type=Path, default=ROOT / "data" / "phrases")
    parser.add_argument("--classifier", type=Path, default=ROOT / "data" / "reader" / "classifier.npz")
    parser.add_argument(
        "--quick", action="store_true", help="no growth with the number of voices, no model without context"
    )
    args = parser.parse_args()
    begun = time.monotonic()
    voices = read_voices(args.voices)
    lines = [line for each in voices.values() for line in each]
    phrases = read_phrases(args.phrases, voices)
    fold_of = dealt(voices, FOLDS, seed=0)
    learned = [*lines, *phrases]
    folds = Folds(
        lines=lines,
        fold=np.array([fold_of[line.voice] for line in lines]),
        learned=learned,
        seen=cache(lambda: see(learned)),
    )
    print(f"{len(lines)} lines of {len(voices)} voices, {len(phrases)} phrases\nn-grams, held out", flush=True)
    models = fold_models(folds, folds.others)
    reactions = [read(line.next, request=line.request, reply=line.reply) for line in lines]
    heard = Heard(
        ngrams=held_out(folds, models),
        classifier=None,
        rules=np.array([reaction.score or 0 for reaction in reactions]),
        target=np.array([KINDS.index(line.kind) for line in lines]),
        groups=np.array([group_of(line.next, request=line.request) for line in lines]),
        voices=np.array([line.voice for line in lines]),
    )
    report: dict[str, object] = {"rules": figures(lines, heard.rules)}

    def measure(name: str, heard: Heard) -> None:
        print(f"{name}: weights and thresholds", flush=True)
        beliefs = decisions(heard, folds.fold)
        report[name] = figures(lines, scores(beliefs))
        report[f"{name}: hints"] = hint_figures(folds, models, beliefs, reactions)

    measure("n-grams", heard)
    classifier = classifier_logprobs(args.classifier, lines)
    both: dict[LanguageGroup, Weights] = {}
    if classifier is not None:
        together = _with(heard, ngrams=heard.ngrams, classifier=classifier)
        measure("classifier", _with(heard, ngrams=np.zeros_like(heard.ngrams), classifier=classifier))
        measure("both", together)
        both = calibrated(together)
    ship(folds, Combination(alone=calibrated(heard), both=both))
    if not args.quick:
        print("n-grams without context, held out")
        blind = held_out(folds, fold_models(folds, folds.others, context=False))
        measure("n-grams without context", _with(heard, ngrams=blind, classifier=None))
        report["growth"] = growth(folds, voices, fold_of, heard)
    out = ROOT / "data" / "reader" / "figures.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")
    print(f"figures in {out.relative_to(ROOT)}; {time.monotonic() - begun:.0f} s")
    for name, table in report.items():
        if "english" in table and "bad" in table["english"]:  # type: ignore[operator,index]
            shown(name, table)  # type: ignore[arg-type]


def ship(folds: Folds, fitted: Combination) -> None:
    """Write what the package ships: the model of all voices, the weights and thresholds of the held-out ones."""
    print("n-grams of all voices", flush=True)
    ngrams.SHIPPED.write_bytes(ngrams.pack(train(folds.seen, folds.learned, range(len(folds.learned)))))
    combination.SHIPPED.write_text(json.dumps(combination.as_json(fitted), indent=1) + "\n")
    print(f"{ngrams.SHIPPED.name}: {ngrams.SHIPPED.stat().st_size:,} bytes")


def shown(name: str, table: dict[str, dict[str, dict[str, float]]]) -> None:
    for group in ("english", "others"):
        sides = [(side, table[group][side]) for side in ("bad", "good")]
        cells = [
            f"{side} {row['precision']:.2f} / {row['recall']:.2f} (80 % neutral: {row['precision_at_80_neutral']:.2f})"
            for side, row in sides
        ]
        print(f"{name:24} {group:8} {'  '.join(cells)}")


if __name__ == "__main__":
    main()
