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
