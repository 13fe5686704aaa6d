"""Build the reader from the voices: the n-gram model, the combination with the classifier, and the figures.

    make feedback-classifier      some minutes on one core

Reads data/voices, data/phrases (learned from, never measured on) and, if it is there,
data/feedback_classifier/classifier.npz: what the classifier said of every voice that it was not trained on
(`train_classifier.py`, then `collect.py`). Writes ngrams.bin and combination.json beside the classifier's code, and
data/feedback_classifier/figures.json. The same lines give the same files, to the byte.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from fit import Seen, see, train

from openclaw_rl.judge.base_rate import SIGNS, at_base_rate
from openclaw_rl.judge.channel import CHANNELS, Channel
from openclaw_rl.judge.classification import own_hints
from openclaw_rl.judge.evaluation import holds
from openclaw_rl.judge.feedback_classifier import combination, ngrams
from openclaw_rl.judge.feedback_classifier.combination import (
    BAD,
    GOOD,
    KINDS,
    Belief,
    Combination,
    Place,
    Weights,
    believe,
    group_of,
)
from openclaw_rl.judge.feedback_classifier.ngrams import NgramModel
from openclaw_rl.judge.feedback_classifier.thresholds import (
    Array,
    Heard,
    Line,
    calibrated,
    dealt,
    estimates,
    read_phrases,
    read_voices,
    rules_score,
    silenced,
)
from openclaw_rl.judge.reaction import Reaction, read
from openclaw_rl.judge.text import hands_over, own_words
from openclaw_rl.preferences.standing import reach
from openclaw_rl.types import Json

ROOT = Path(__file__).parents[2]
FOLDS = 5
TRUTH = dict.fromkeys(BAD, -1) | dict.fromkeys(GOOD, 1)
"""what a line says of the reply; a rule says nothing"""


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


def fold_models(folds: Folds) -> list[NgramModel]:
    """A model for each fold, trained on others, as it would ship."""
    found = []
    for number in range(FOLDS):
        found.append(train(folds.seen, folds.learned, folds.others(number)))
        print(f"  fold {number + 1} of {FOLDS}", flush=True)
    return found


def held_out(folds: Folds, models: Sequence[NgramModel]) -> Array:
    """What the model that has not seen it says of each line: log-probs `[N, 6]`."""
    rows = zip(folds.lines, folds.fold.tolist(), strict=True)
    return np.array([models[fold].logprobs(line.request, line.reply, line.next) for line, fold in rows])


def places(heard: Heard) -> list[Place]:
    """Where each line belongs; all but the voices of real rates are chats."""
    rows = zip(heard.groups.tolist(), heard.channels.tolist(), strict=True)
    return [(group, channel or "chat") for group, channel in rows]


def decisions(heard: Heard, folds: Array) -> list[Belief]:
    """What is believed of each line, by weights and thresholds of the other folds' lines."""
    found: dict[int, Belief] = {}
    where = places(heard)
    for fold in range(FOLDS):
        for place, weights in calibrated(heard.only(folds != fold)).items():
            here = np.flatnonzero((folds == fold) & np.array([each == place for each in where]))
            logprobs = np.log(estimates(heard.only(here), weights)).tolist()
            for row, one in zip(here.tolist(), logprobs, strict=True):
                found[row] = believe(one, weights.thresholds, rules=int(heard.rules[row]) or None)
    return [found[row] for row in range(len(heard.target))]


def scores(beliefs: Sequence[Belief]) -> Array:
    return np.array([belief.score or 0 for belief in beliefs])


def heard_of(beliefs: Sequence[Belief], table: Mapping[Place, Weights], heard: Heard) -> Array:
    """The scores, without those of a place and sign that is silent."""
    limits = [table[place].thresholds for place in places(heard)]
    bad = np.array([limit.bad is not None or limit.bad_with_rules is not None for limit in limits])
    good = np.array([limit.good is not None or limit.good_with_rules is not None for limit in limits])
    score = scores(beliefs)
    found: Array = np.where(((score < 0) & bad) | ((score > 0) & good), score, 0)
    return found


def rule_figures(
    folds: Folds, models: Sequence[NgramModel], beliefs: Sequence[Belief], reactions: Sequence[Reaction]
) -> dict[str, dict[str, Json]]:
    """Of lines at real rates and of the others: rules given with the key in them, rules where none was said, and
    which of either would stand at once."""
    counts: dict[str, Counter[str]] = {"real": Counter(), "written": Counter()}
    for line, fold, belief, reaction in zip(folds.lines, folds.fold.tolist(), beliefs, reactions, strict=True):
        own, asked = own_words(line.next), {"request": line.request, "reply": line.reply}
        hints = own_hints(own, belief, reaction, **asked, model=models[fold]) if own else ()
        rules = [hint for hint in hints if hint.kind == "rule"]
        stand = any(reach(hint.text, hint.kind, own, whole=not hands_over(line.next)) == "standing" for hint in rules)
        count = counts["written" if line.channel is None else "real"]
        wanted = line.kind in ("rule", "mixed")
        keyed = any(line.hint is not None and holds(hint.text, line.hint) for hint in rules)
        count.update(
            {
                "rules": wanted,
                "with_key": wanted and keyed,
                "standing": wanted and keyed and stand,
                "others": not wanted,
                "unwanted": not wanted and bool(rules),
                "unwanted_standing": not wanted and stand,
            }
        )
    return {name: dict(count) for name, count in counts.items()}


def figures(lines: Sequence[Line], heard: Heard, score: Array) -> dict[str, Json]:
    """What is heard of lines at real rates, by channel and group of languages, and of the others by language."""
    found: dict[str, Json] = {}

    def add(name: str, chosen: Array, channel: Channel) -> None:
        pairs = [(TRUTH.get(lines[row].kind, 0), float(score[row])) for row in np.flatnonzero(chosen).tolist()]
        if pairs:
            alarms = {what: at_base_rate(pairs, channel=channel, sign=sign).plain() for sign, what in SIGNS.items()}
            found[name] = {"lines": len(pairs), **alarms}

    for channel in CHANNELS:
        inside = heard.channels == channel
        add(f"real {channel}", inside, channel)
        for group in ("english", "latin"):
            add(f"real {channel} {group}", inside & (heard.groups == group), channel)
    written = heard.channels == ""
    add("written", written, "chat")
    for language in sorted({line.language for line in lines}):
        add(f"written {language}", written & np.array([line.language == language for line in lines]), "chat")
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--voices", type=Path, default=ROOT / "data" / "voices")
    parser.add_argument("--phrases", type=Path, default=ROOT / "data" / "phrases")
    parser.add_argument("--classifier", type=Path, default=ROOT / "data" / "feedback_classifier" / "classifier.npz")
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
    models = fold_models(folds)
    reactions = [read(line.next, request=line.request, reply=line.reply) for line in lines]
    heard = Heard(
        ngrams=held_out(folds, models),
        classifier=None,
        rules=np.array([rules_score(line) for line in lines]),
        target=np.array([KINDS.index(line.kind) for line in lines]),
        groups=np.array([group_of(line.next, request=line.request) for line in lines]),
        voices=np.array([line.voice for line in lines]),
        channels=np.array([line.channel or "" for line in lines]),
    )
    report: dict[str, dict[str, Json]] = {"rules": figures(lines, heard, heard.rules)}

    def measured(name: str, heard: Heard) -> dict[Place, Weights]:
        print(f"{name}: weights and thresholds", flush=True)
        beliefs = decisions(heard, folds.fold)
        table = silenced(calibrated(heard), heard, scores(beliefs))
        report[name] = figures(lines, heard, heard_of(beliefs, table, heard))
        report[f"{name}: rules"] = rule_figures(folds, models, beliefs, reactions)
        return table

    alone, both = measured("n-grams", heard), {}
    classifier = classifier_logprobs(args.classifier, lines)
    if classifier is not None:
        measured("classifier", replace(heard, ngrams=np.zeros_like(heard.ngrams), classifier=classifier))
        both = measured("both", replace(heard, classifier=classifier))
    ship(folds, Combination(alone=alone, both=both))
    out = ROOT / "data" / "feedback_classifier" / "figures.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")
    print(f"figures in {out.relative_to(ROOT)}; {time.monotonic() - begun:.0f} s")
    for name, table in report.items():
        shown(name, table)


def ship(folds: Folds, fitted: Combination) -> None:
    """Write what the package ships: the model of all voices, the weights and thresholds of the held-out ones."""
    print("n-grams of all voices", flush=True)
    ngrams.SHIPPED.write_bytes(ngrams.pack(train(folds.seen, folds.learned, range(len(folds.learned)))))
    combination.SHIPPED.write_text(json.dumps(combination.as_json(fitted), indent=1) + "\n")
    print(f"{ngrams.SHIPPED.name}: {ngrams.SHIPPED.stat().st_size:,} bytes")


def shown(name: str, table: Mapping[str, Json]) -> None:
    for place, row in table.items():
        if not isinstance(row, dict):
            continue
        cells = [f"{side} {_share(row[side])}" for side in SIGNS.values() if side in row]
        print(f"{name:24} {place:22} {'  '.join(cells) or row}")


def _share(one: Any) -> str:
    told = "silent" if one["precision"] is None else f"{one['precision']:.2f} ({one['low']:.2f}-{one['high']:.2f})"
    return f"{told} / {one['recall']:.2f}"


if __name__ == "__main__":
    main()
