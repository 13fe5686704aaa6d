"""Messages between a classifier and its process: plain values that can be pickled."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from openclaw_rl.errors import ModelRefused
from openclaw_rl.ports import ClassifierOpinion


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierArgs:
    """Arguments that start the process: the model, its device, and its labels' meaning.

    ``reads`` is "exchange" or "message"; ``hypothesis`` is for inference models alone.
    """

    model: str
    cache_dir: str | Path
    device: str
    dtype: str
    reads: str
    positive: tuple[str, ...]
    neutral: tuple[str, ...]
    hypothesis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifyRequest:
    """A request, its reply and the following message, each as text."""

    request: str
    reply: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierReady:
    """Model loaded; ``memory`` is its weights' size in bytes, ``base`` their identity."""

    name: str
    base: str
    device: str
    dtype: str
    memory: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelFitArgs:
    """Settings for fitting an adapter to labelled texts; ``words`` are the answers, one per label.

    ``drop`` is the share of texts without their context, ``temper`` rarer labels' extra weight (0: all equal).
    """

    model: str
    cache_dir: str | Path
    device: str
    dtype: str
    words: tuple[str, ...]
    rank: int = 16
    epochs: float = 3
    batch: int = 48
    lr: float = 5e-4
    dropout: float = 0.0
    smoothing: float = 0.05
    temper: float = 0.5
    drop: float = 0.1
    seed: int = 0


# The meaning of a classifier's labels: served well, served badly, or no opinion. Pure.

_POSITIVE = frozenset({"positive", "pos", "good", "satisfied", "helpful", "accepted", "yes", "true", "entailment"})
_NEGATIVE = frozenset(
    {"negative", "neg", "bad", "dissatisfied", "unsatisfied", "unhelpful", "rejected", "no", "false"}
    | {"contradiction", "not_entailment"}
)
_NEUTRAL = frozenset({"neutral", "mixed", "none", "other"})
_STARS = re.compile(r"([1-5]) stars?")


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelRoles:
    """Label positions by meaning. ``infers``: the model relates a hypothesis to a premise (NLI)."""

    positive: tuple[int, ...]
    negative: tuple[int, ...]
    neutral: tuple[int, ...]
    infers: bool

    def classification(self, probabilities: Sequence[float]) -> ClassifierOpinion:
        """Return the probability of "served well" against "served badly", and the probability of neither."""
        good, bad, neither = (
            sum(probabilities[at] for at in group) for group in (self.positive, self.negative, self.neutral)
        )
        return ClassifierOpinion(positive=good / (good + bad) if good + bad > 0 else 0.5, neutral=neither)


def label_roles(
    labels: Sequence[str], *, positive: Collection[str] = (), neutral: Collection[str] = (), name: str
) -> LabelRoles:
    """Assign roles from the user's settings, otherwise from the labels' names; raise `ModelRefused` if both are
    unclear."""
    folded = [label.strip().lower() for label in labels]
    named = {label.strip().lower() for label in positive}, {label.strip().lower() for label in neutral}
    unknown = sorted((named[0] | named[1]) - set(folded))
    if unknown:
        raise ModelRefused(
            f"{name} has no label {', '.join(map(repr, unknown))}; it has {_listed(labels)}",
            remedy="name labels as its config.json does in id2label",
        )
    roles = [_given_role(label, *named) if named[0] else _role(label, named[1]) for label in folded]
    if len(labels) == 1:
        roles = ["positive"]  # a single score: higher is better
    result = LabelRoles(
        positive=_at(roles, "positive"),
        negative=_at(roles, "negative"),
        neutral=_at(roles, "neutral"),
        infers=any("entail" in label for label in folded),
    )
    if "" in roles or not result.positive or (len(labels) > 1 and not result.negative):
        raise ModelRefused(
            f"cannot determine which label of {name} means that the user was served well: it has {_listed(labels)}",
            remedy=f"set judge.classifier.positive to that label, such as --set judge.classifier.positive={labels[-1]}",
        )
    return result


def _given_role(label: str, positive: Collection[str], neutral: Collection[str]) -> str:
    if label in positive:
        return "positive"
    return "neutral" if label in neutral or (not neutral and label in _NEUTRAL) else "negative"


def _role(label: str, neutral: Collection[str]) -> str:
    if label in neutral or label in _NEUTRAL:
        return "neutral"
    if stars := _STARS.fullmatch(label):
        return ("negative", "negative", "neutral", "positive", "positive")[int(stars[1]) - 1]
    return "positive" if label in _POSITIVE else "negative" if label in _NEGATIVE else ""


def _at(roles: Sequence[str], role: str) -> tuple[int, ...]:
    return tuple(at for at, item in enumerate(roles) if item == role)


def _listed(labels: Sequence[str]) -> str:
    return ", ".join(labels)
