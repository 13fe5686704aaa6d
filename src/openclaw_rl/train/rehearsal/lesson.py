"""What is rehearsed, and how: a lesson and the settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from openclaw_rl.train.rehearsal.prompts import RehearsalPrompts
from openclaw_rl.types import Prompt, Sampling

PLAIN = 0
"""in a note's place: nobody's, so that replies stay as they are"""
Relevance: TypeAlias = Callable[[str, str], bool]
"""of a question and a reply: is the reply about it?"""


class Checker(Protocol):
    """Of a reply: does it do what the note asks? ``cut`` says that it reached its limit of tokens."""

    def __call__(self, reply: str, /, *, cut: bool = False) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalSettings:
    """The settings of the same names under ``train.rehearse``; ``sampling`` is how replies are sampled."""

    steps: int
    seconds: float | None
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

    ``besides`` are learned notes that the rule repeats. One ``in_prompt`` is practised: the policy gets the rule as
    well, and what it learns is to keep to it there. Without a rule the policy is held to what it was.
    """

    note: int
    user: str
    rule: str
    prompts: RehearsalPrompts
    checker: Checker | None
    relevant: Relevance
    besides: tuple[int, ...] = ()
    in_prompt: bool = False

    def asked(self, prompt: Prompt) -> Prompt:
        """What the policy gets."""
        return self.taught(prompt) if self.in_prompt else prompt

    def taught(self, prompt: Prompt) -> Prompt:
        """What the teacher gets."""
        return prompt.hinted(self.rule) if self.rule else prompt
