"""Messages between the trainer and its worker processes. Plain values, so that they can be pickled."""

from __future__ import annotations

from dataclasses import dataclass

from openclaw_rl.types import Sample, Version


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """Rank ``number`` of ``count``; ``meeting`` is the address, as a URL, at which they find each other."""

    number: int
    count: int
    meeting: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRequest:
    """One step: train on ``samples`` from ``parent`` and publish into the directory ``target``."""

    samples: tuple[Sample, ...]
    number: int
    parent: Version
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFailure:
    """Why the worker is about to end: what went wrong, the remedy, and whether the model was refused.

    ``outside``: the machine failed it (no room on the disk, say), whatever the batch is.
    """

    what: str
    remedy: str | None = None
    refused: bool = False
    outside: bool = False
