"""The judge: a case in, a verdict out; the models that score or hint for it; the place of a reply in its talk."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

from openclaw_rl.types import Feedback, Kind, Message, Outcome, Prompt, SessionReward, Turn, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """All that a judge may see of one turn. ``reward`` is its session's, ``verdict`` the one that is in force."""

    turn: Turn
    outcome: Outcome
    feedback: tuple[Feedback, ...] = ()
    reward: SessionReward | None = None
    verdict: Verdict | None = None


@runtime_checkable
class Judge(Protocol):
    """Gives a verdict; abstains with ``score`` None; raises JudgeUnavailable when it should be tried again later."""

    name: str

    async def judge(self, case: Case) -> Verdict: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a request stands: main or side, and the main turn whose reply it directly follows, None without one."""

    kind: Kind
    before: str | None


class ConversationReader(Protocol):
    """What can be told of a conversation by its text alone."""

    def words(self, text: str) -> str:
        """A user's text without the envelopes that clients put around it."""
        ...

    def place(self, request: Turn, known: Sequence[Turn]) -> Placement:
        """Where ``request`` stands among turns that are known, oldest first; its own reply does not count."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierOpinion:
    """What a classifier makes of an exchange, as probabilities.

    ``positive``: that the user was served well rather than badly. ``neutral``: that nothing is said of it.
    """

    positive: float
    neutral: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledText:
    """A text in parts, each with the most tokens it may have, and its label; ``bare`` is it without its context."""

    parts: tuple[tuple[str, int], ...]
    bare: tuple[tuple[str, int], ...]
    label: int


@runtime_checkable
class HostedModel(Protocol):
    """A judge's model in a process of its own."""

    name: str

    @property
    def health(self) -> Mapping[str, Any]:
        """Its state, its process, the memory that it takes."""
        ...

    async def start(self) -> None:
        """Make ready; raises ModelRefused with the numbers and the remedy."""
        ...

    async def stop(self) -> None:
        """End the process. Safe to call twice."""
        ...


@runtime_checkable
class Classifier(HostedModel, Protocol):
    """A sequence-classification model that reads a request, the reply to it and what came after."""

    async def classify(self, *, request: str, reply: str, after: str) -> ClassifierOpinion:
        """Raises BackendDown while it cannot answer for now."""
        ...


@runtime_checkable
class RatesWords(Protocol):
    """A model that rates words as the continuation of a conversation, in one forward pass, without writing any text."""

    @property
    def model(self) -> str:
        """The name of the model."""
        ...

    @property
    def context(self) -> int | None:
        """The most tokens of a prompt; None while that is not known."""
        ...

    async def count(self, text: str) -> int:
        """The tokens of a text, in the model's own."""
        ...

    async def rate(self, messages: Sequence[Message], opening: str, words: Sequence[str]) -> tuple[float, ...]:
        """Log-probs of ``words`` where the assistant's next message has begun with ``opening``.

        Raises JudgeUnavailable while the model cannot answer, InvalidValue for words that it cannot tell apart.
        """
        ...


Score: TypeAlias = Callable[[Prompt, str, Sequence[Message]], "float | Awaitable[float | None] | None"]
"""A judge in one function: ``(prompt, reply, next_state) -> score``, sync or async; None abstains."""


class RewardModel(Protocol):
    """What a published ``get_reward_model(config)`` gives: the probability, 0 .. 1, that a reply was good.

    ``score`` may be async; a plain one is called from worker threads, several at once. It takes plain text.
    """

    def score(self, prompt: str, response: str, next_state: str) -> float | Awaitable[float]: ...
