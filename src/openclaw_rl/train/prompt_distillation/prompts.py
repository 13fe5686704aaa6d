"""Choose prompts for a distillation: the user's past ones, and everyday ones while these are few. Pure.

A hash of its own text decides whether a prompt is held out, so it is held out in every round: the prompts that decide
on a note are never trained on, for any user.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from openclaw_rl.types import Message, Prompt, Sampling, texts

LONGEST = 2048
"""largest prompt, in tokens: longer ones cost too much to train on"""
_ONE_IN = 4
"""one in this many prompts is held out"""
_IN_DOUBT = 2
"""additional held-out prompts for a doubtful result, as a multiple of the usual number"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillationPrompts:
    """Prompts of one note: ``distilled`` train, ``own`` of them are the user's, ``held_back`` are only measured.

    ``in_doubt`` are held out too, and used if ``held_back`` are too few to decide.
    """

    distilled: tuple[Prompt, ...]
    held_back: tuple[Prompt, ...]
    own: int
    in_doubt: tuple[Prompt, ...] = ()


def is_held_back(question: str) -> bool:
    """Return True if the hash of the user's last message holds the prompt out."""
    return hashlib.sha256(b"held back from rehearsal " + question.encode()).digest()[0] % _ONE_IN == 0


def choose(
    own: Iterable[Prompt], everyday: Sequence[str], *, count: int, held_back: int, tools: bool, seed: int
) -> DistillationPrompts:
    """Return ``count`` different training prompts and ``held_back`` held-out ones: the user's, then everyday ones.

    ``own`` is ordered newest first; ``seed`` shuffles ``everyday``. With ``tools`` False, prompts that offer tools are
    skipped.
    """
    user_prompts = list(_different(prompt for prompt in own if tools or not prompt.tools))
    shipped = [Prompt(messages=(Message(role="user", content=text),)) for text in everyday]
    random.Random(f"rehearsal {seed}").shuffle(shipped)
    every = list(_different([*user_prompts, *shipped]))
    back = [prompt for prompt in every if is_held_back(question(prompt))]
    trained = [prompt for prompt in every if not is_held_back(question(prompt))][:count]
    user_questions = {question(prompt) for prompt in user_prompts}
    return DistillationPrompts(
        distilled=tuple(trained),
        held_back=tuple(back[:held_back]),
        in_doubt=tuple(back[held_back : (1 + _IN_DOUBT) * held_back]),
        own=sum(question(prompt) in user_questions for prompt in trained),
    )


def question(prompt: Prompt) -> str:
    """Return the user's last message."""
    return (texts(prompt.messages, "user") or ("",))[-1].strip()


def opens(prompt: Prompt) -> bool:
    """Return True if the prompt starts a conversation, so that no earlier turn shows how the user wants replies."""
    return sum(message.role == "user" for message in prompt.messages) == 1 and not any(
        message.role in ("assistant", "tool") for message in prompt.messages
    )


def _different(prompts: Iterable[Prompt]) -> Iterator[Prompt]:
    questions: set[str] = set()
    for prompt in prompts:
        if question(prompt) and question(prompt) not in questions:
            questions.add(question(prompt))
            yield prompt


class PromptCycle:
    """Endless cycle through prompts, shuffled anew each round."""

    def __init__(self, prompts: Sequence[Prompt], *, seed: int) -> None:
        self._prompts, self._random = list(prompts), random.Random(f"order {seed}")
        self._left: list[Prompt] = []

    def take(self, count: int) -> list[Prompt]:
        """Return the next ``count`` prompts; no prompt repeats within a round."""
        taken = []
        for _ in range(count):
            if not self._left:
                self._left = self._random.sample(self._prompts, len(self._prompts))
            taken.append(self._left.pop())
        return taken

    def drop(self, prompt: Prompt) -> None:
        """Remove a prompt that cannot be answered from later rounds, unless it is the last."""
        if len(self._prompts) > 1 and prompt in self._prompts:
            self._prompts.remove(prompt)


# Training target of a round: a lesson and the settings.

PLAIN = 0
"""note number of no user; its lesson keeps replies unchanged"""
Relevance: TypeAlias = Callable[[str, str], bool]
"""takes a question and a reply: is the reply about the question?"""


class Checker(Protocol):
    """Check of a reply against the note; ``cut`` is True if the reply reached its token limit."""

    def __call__(self, reply: str, /, *, cut: bool = False) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillationSettings:
    """Settings of the same names under ``train.prompt_distillation``; ``sampling`` is used for the round's replies."""

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
    """Training task of one note: the rule in the teacher's prompt, and the user's prompts to train it on.

    ``besides`` are learned notes that the rule repeats. ``in_prompt`` trains with the note in the prompt: the policy
    gets the rule as well and learns to follow it there. Without a rule the policy is trained to stay as it was.
    """

    note: int
    user: str
    rule: str
    prompts: DistillationPrompts
    checker: Checker | None
    relevant: Relevance
    besides: tuple[int, ...] = ()
    in_prompt: bool = False

    def asked(self, prompt: Prompt) -> Prompt:
        """Return the policy's prompt."""
        return self.taught(prompt) if self.in_prompt else prompt

    def taught(self, prompt: Prompt) -> Prompt:
        """Return the teacher's prompt."""
        return prompt.hinted(self.rule) if self.rule else prompt
