"""Fit the reader's classifier to another base model, and keep it where that model's reader looks for it."""

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
    from openclaw_rl.judge.reader.thresholds import Heard, Line

_FIT: Final = "openclaw_rl.backends.local.classifier.model:fit_labels"
_ARGS: Final = "openclaw_rl.backends.local.classifier.messages:LabelFitArgs"
_HELD_OUT: Final = 7
"""one voice of so many is held out: thresholds are set on what the classifier was not fitted to"""


def voices_folder(given: Path | None) -> Path:
    """``given``, or data/voices of the source this package runs from; raises ConfigError without either."""
    found = given or Path(__file__).parents[3] / "data" / "voices"
    if not found.is_dir():
        raise ConfigError(
            f"there are no labelled lines at {found}",
            remedy="name the folder data/voices of the project's source with --voices",
        )
    return found


def fit_reader(
    config: Config, *, voices: Path | None, epochs: float, progress: Callable[[str], None]
) -> dict[str, Json]:
    """Fit, set thresholds on held-out voices, keep; what it hears of them, by group of languages."""
    from openclaw_rl.judge.reader.combination import KINDS, Combination, as_json, shipped_combination
    from openclaw_rl.judge.reader.judge import fitted_folder, labelled
    from openclaw_rl.judge.reader.thresholds import calibrated, dealt, read_phrases, read_voices

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
    heard = _heard(held_out, logprobs)
    fitted = Combination(alone=shipped_combination().alone, both=calibrated(heard))
    about = {"base": base, "combination": as_json(fitted)}
    (begun / "reader.json").write_text(json.dumps(about, indent=1) + "\n")
    kept = fitted_folder(readers, base)
    shutil.rmtree(kept, ignore_errors=True)
    begun.rename(kept)
    return {"base": base, "folder": str(kept), "learned": len(learned), "groups": _figures(heard, fitted)}


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
    found: tuple[str, list[list[float]]] = fit(
        args, texts=learned, held_out=held_out, folder=folder, progress=more["progress"]
    )
    return found


def _heard(lines: Sequence[Line], logprobs: Sequence[Sequence[float]]) -> Heard:
    """The classifier's answers beside the rules'. The n-grams know these voices: they have no say in this."""
    import numpy as np

    from openclaw_rl.judge.reader.combination import KINDS, group_of
    from openclaw_rl.judge.reader.thresholds import Heard, rules_score

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
    """Precision and recall of either score in each group, in chats, at the thresholds that these same lines set."""
    import numpy as np

    from openclaw_rl.judge.reader.combination import BAD, GOOD, GROUPS, KINDS, believe
    from openclaw_rl.judge.reader.thresholds import estimates

    kinds = np.array(KINDS)[heard.target]
    found: dict[str, Json] = {}
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
        for name, value, wanted in (("bad", -1, BAD), ("good", 1, GOOD)):
            there, said = np.isin(kinds[chosen], wanted), scores == value
            right = int((there & said).sum())
            row[name] = {
                "precision": round(right / int(said.sum()), 3) if said.any() else None,
                "recall": round(right / int(there.sum()), 3) if there.any() else None,
            }
        found[group] = row
    return found
