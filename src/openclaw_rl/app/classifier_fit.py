"""Fits the feedback classifier to another base model and stores it in that model's place."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from openclaw_rl import config as settings
from openclaw_rl import plugins
from openclaw_rl.config import Config
from openclaw_rl.errors import ConfigError
from openclaw_rl.ports import LabelledText
from openclaw_rl.types import Json

if TYPE_CHECKING:
    from openclaw_rl.judge.feedback_classifier.thresholds import Heard, Line

_FIT: Final = "openclaw_rl.backends.local.classifier.model:fit_labels"
_ARGS: Final = "openclaw_rl.backends.local.classifier.messages:LabelFitArgs"
_HELD_OUT: Final = 7
"""one annotator persona in this many is held out: thresholds are set on messages outside the fit"""


def voices_folder(given: Path | None) -> Path:
    """Return ``given``, or data/voices in this package's source checkout; raises ConfigError if neither exists."""
    folder = given or Path(__file__).parents[3] / "data" / "voices"
    if not folder.is_dir():
        raise ConfigError(
            f"there are no labelled lines at {folder}",
            remedy="name the folder data/voices of the project's source with --voices",
        )
    return folder


def fit_feedback_classifier(
    config: Config, *, voices: Path | None, epochs: float, progress: Callable[[str], None]
) -> dict[str, Json]:
    """Fit the classifier, set thresholds on held-out personas, and store it; return its accuracy by language group."""
    from openclaw_rl.judge.feedback_classifier.combination import KINDS, Combination, as_json, shipped_combination
    from openclaw_rl.judge.feedback_classifier.judge import fitted_folder, labelled
    from openclaw_rl.judge.feedback_classifier.thresholds import calibrated, dealt, read_phrases, read_voices

    folder = voices_folder(voices)
    spoken = read_voices(folder)
    fold = dealt(spoken, _HELD_OUT, seed=0)
    inside = {name: lines for name, lines in spoken.items() if fold[name]}
    learned = [line for lines in inside.values() for line in lines] + read_phrases(folder.parent / "phrases", inside)
    held_out = [line for name, lines in spoken.items() if not fold[name] for line in lines]
    if not learned or not held_out:
        raise ConfigError(f"{folder} has too few voices: {len(spoken)}", remedy=f"it needs {_HELD_OUT} or more")
    progress(f"{len(learned):,} labelled messages to learn, {len(held_out):,} of other people to measure on")

    def texts(lines: Sequence[Line]) -> list[LabelledText]:
        return [labelled(line.request, line.reply, line.next, line.kind) for line in lines]

    readers = settings.cache_dir() / "readers"
    begun = readers / "fitting"
    shutil.rmtree(begun, ignore_errors=True)
    base, logprobs = _fit(config, texts(learned), texts(held_out), begun, words=KINDS, epochs=epochs, progress=progress)
    scores = _heard(held_out, logprobs)
    fitted = Combination(alone=shipped_combination().alone, both=calibrated(scores))
    about = {"base": base, "combination": as_json(fitted)}
    (begun / "reader.json").write_text(json.dumps(about, indent=1) + "\n")
    target = fitted_folder(readers, base)
    shutil.rmtree(target, ignore_errors=True)
    begun.rename(target)
    return {"base": base, "folder": str(target), "learned": len(learned), "groups": _figures(scores, fitted)}


def _fit(
    config: Config, learned: list[LabelledText], held_out: list[LabelledText], folder: Path, **more: Any
) -> tuple[str, list[list[float]]]:
    policy = config.policy
    args = plugins.load("judge", _ARGS)(
        model=policy.model,
        cache_dir=settings.cache_dir(),
        device=policy.device,
        dtype=policy.dtype,
        words=tuple(more["words"]),
        epochs=more["epochs"],
    )
    fit = plugins.load("judge", _FIT)
    result: tuple[str, list[list[float]]] = fit(
        args, texts=learned, held_out=held_out, folder=folder, progress=more["progress"]
    )
    return result


def _heard(lines: Sequence[Line], logprobs: Sequence[Sequence[float]]) -> Heard:
    """Combine the classifier's answers with the rules'. The n-grams were fitted on these personas and are excluded."""
    import numpy as np

    from openclaw_rl.judge.feedback_classifier.combination import KINDS, group_of
    from openclaw_rl.judge.feedback_classifier.thresholds import Heard, rules_score

    return Heard(
        ngrams=np.zeros((len(lines), len(KINDS))),
        classifier=np.array(logprobs),
        rules=np.array([rules_score(line) for line in lines]),
        target=np.array([KINDS.index(line.kind) for line in lines]),
        groups=np.array([group_of(line.next, request=line.request) for line in lines]),
        voices=np.array([line.voice for line in lines]),
        channels=np.array([line.channel or "" for line in lines]),
    )


def _figures(heard: Heard, fitted: Any) -> dict[str, Json]:
    """Return precision and recall for each score in each group, in chats, at the thresholds set on these same lines."""
    import numpy as np

    from openclaw_rl.judge.feedback_classifier.combination import BAD, GOOD, GROUPS, KINDS, believe
    from openclaw_rl.judge.feedback_classifier.thresholds import estimates

    kinds = np.array(KINDS)[heard.target]
    groups: dict[str, Json] = {}
    for group in GROUPS:
        chosen = np.flatnonzero(heard.groups == group)
        if not len(chosen):
            continue
        weights, here = fitted.both[group, "chat"], heard.only(chosen)
        scores = np.array(
            [
                believe(tuple(row), weights.thresholds, rules=int(rules) or None).score or 0
                for row, rules in zip(np.log(estimates(here, weights)), here.rules, strict=True)
            ]
        )
        row: dict[str, Json] = {"messages": len(chosen)}
        for name, value, kinds_wanted in (("bad", -1, BAD), ("good", 1, GOOD)):
            actual, predicted = np.isin(kinds[chosen], kinds_wanted), scores == value
            right = int((actual & predicted).sum())
            row[name] = {
                "precision": round(right / int(predicted.sum()), 3) if predicted.any() else None,
                "recall": round(right / int(actual.sum()), 3) if actual.any() else None,
            }
        groups[group] = row
    return groups
