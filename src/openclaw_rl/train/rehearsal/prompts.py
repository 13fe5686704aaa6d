"""What a rehearsal asks: prompts of the user's own past, and everyday ones while these are few. Pure.

A prompt is held back by its own text alone, so it is so in every rehearsal: what a note's end is decided on was never
rehearsed, by whomever.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from openclaw_rl.types import Message, Prompt, Sampling, texts

LONGEST = 2048
"""prompt tokens beyond which a prompt is too costly to rehearse"""
_ONE_IN = 4
"""of the prompts so many are held back"""
_IN_DOUBT = 2
"""times as many as usual are asked in doubt"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalPrompts:
    """``rehearsed`` are asked in turn, ``held_back`` never; ``own`` of the first are the user's own.

    ``in_doubt`` are held back too, and asked where the others are too few to tell.
    """

    rehearsed: tuple[Prompt, ...]
    held_back: tuple[Prompt, ...]
    own: int
    in_doubt: tuple[Prompt, ...] = ()


def is_held_back(question: str) -> bool:
    """The fixed rule: it looks at the user's last message alone."""
    return hashlib.sha256(b"held back from rehearsal " + question.encode()).digest()[0] % _ONE_IN == 0


def choose(
    own: Iterable[Prompt], everyday: Sequence[str], *, count: int, held_back: int, tools: bool, seed: int
) -> RehearsalPrompts:
    """So many different prompts, and so many that are held back; own ones first, everyday ones in the seed's order.

    ``own`` come newest first. With ``tools`` False those that offer tools are passed by.
    """
    mine = list(_different(one for one in own if tools or not one.tools))
    shipped = [Prompt(messages=(Message(role="user", content=text),)) for text in everyday]
    random.Random(f"rehearsal {seed}").shuffle(shipped)
    every = list(_different([*mine, *shipped]))
    back = [one for one in every if is_held_back(question(one))]
    kept = [one for one in every if not is_held_back(question(one))][:count]
    asked = {question(one) for one in mine}
    return RehearsalPrompts(
        rehearsed=tuple(kept),
        held_back=tuple(back[:held_back]),
        in_doubt=tuple(back[held_back : (1 + _IN_DOUBT) * held_back]),
        own=sum(question(one) in asked for one in kept),
    )


def question(prompt: Prompt) -> str:
    """The user's last message."""
    return (texts(prompt.messages, "user") or ("",))[-1].strip()


def opens(prompt: Prompt) -> bool:
    """Whether a conversation begins with it: nothing in it says already how the user wants replies."""
    return sum(one.role == "user" for one in prompt.messages) == 1 and not any(
        one.role in ("assistant", "tool") for one in prompt.messages
    )


def _different(prompts: Iterable[Prompt]) -> Iterator[Prompt]:
    seen: set[str] = set()
    for one in prompts:
        if question(one) and question(one) not in seen:
            seen.add(question(one))
            yield one


class PromptCycle:
    """Goes through prompts in an order of its own, again and again, a new order each time round."""

    def __init__(self, prompts: Sequence[Prompt], *, seed: int) -> None:
        self._prompts, self._random = list(prompts), random.Random(f"order {seed}")
        self._left: list[Prompt] = []

    def take(self, count: int) -> list[Prompt]:
        """The next so many; no prompt comes twice before all have come."""
        found = []
        for _ in range(count):
            if not self._left:
                self._left = self._random.sample(self._prompts, len(self._prompts))
            found.append(self._left.pop())
        return found

    def drop(self, prompt: Prompt) -> None:
        """It cannot be answered: never again, unless it is the last one left."""
        if len(self._prompts) > 1 and prompt in self._prompts:
            self._prompts.remove(prompt)


# What is rehearsed, and how: a lesson and the settings.

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
