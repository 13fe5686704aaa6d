"""What is rehearsed, and how: a lesson and the settings."""

from __future__ import annotations

from dataclasses import dataclass

from openclaw_rl.train.rehearsal.measure import Checker, Relevance
from openclaw_rl.train.rehearsal.prompts import RehearsalPrompts
from openclaw_rl.types import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalSettings:
    """The settings of the same names under ``train.rehearse``; ``sampling`` is how replies are sampled."""

    steps: int
    batch: int
    prompts: int
    held_back: int
    replay: float
    loss: str
    reward: float
    teacher: str
    idle: float
    tolerance: float
    seed: int
    sampling: Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What a note teaches: the rule as the teacher gets it, on these prompts of its user.

    ``besides`` are learned notes that the rule repeats.
    """

    note: int
    user: str
    rule: str
    prompts: RehearsalPrompts
    checker: Checker | None
    relevant: Relevance
    besides: tuple[int, ...] = ()
