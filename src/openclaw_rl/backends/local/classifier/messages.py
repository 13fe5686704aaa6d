"""Messages between a classifier and its process. Plain values, so that they can be pickled."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierArgs:
    """All that the process needs to start: where the model is, where it runs, what its labels mean.

    ``reads`` is "exchange" or "message"; ``hypothesis`` is for models of inference alone.
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
    """A request, the reply to it and what came after, each as text."""

    request: str
    reply: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierReady:
    """The model is loaded; ``memory`` are the bytes of its weights, ``base`` their identity."""

    name: str
    base: str
    device: str
    dtype: str
    memory: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelFitArgs:
    """How an adapter is fitted to labelled texts; ``words`` are the answers, one for each label.

    ``drop`` is the share of texts read without their context, ``temper`` how much rarer labels weigh (0: all alike).
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
