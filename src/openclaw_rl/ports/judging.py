"""The judge, the models that score or hint for it, and the place of a reply in its conversation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

from openclaw_rl.types import Feedback, Kind, Message, Outcome, Prompt, SessionReward, Turn, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A judge's whole view of one turn. ``reward`` is its session's, ``verdict`` the one in force."""

    turn: Turn
    outcome: Outcome
    feedback: tuple[Feedback, ...] = ()
    reward: SessionReward | None = None
    verdict: Verdict | None = None


@runtime_checkable
class Judge(Protocol):
    """Gives a verdict; abstains with ``score`` None; raises JudgeUnavailable if it should be retried later."""

    name: str

    async def judge(self, case: Case) -> Verdict: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A request's place: main or side, and the main turn whose reply it directly follows, None without one."""

    kind: Kind
    before: str | None


class ConversationReader(Protocol):
    """Analysis of a conversation by its text alone."""

    def words(self, text: str) -> str:
        """Return a user's text without the envelopes that clients put around it."""
        ...

    def place(self, request: Turn, known: Sequence[Turn]) -> Placement:
        """Return the place of ``request`` among ``known`` turns, oldest first; its own reply does not count."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierOpinion:
    """A classifier's opinion on an exchange, as probabilities.

    ``positive``: the user was served well rather than badly. ``neutral``: the exchange contains no opinion.
    """

    positive: float
    neutral: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledText:
    """A text in parts, each with its token limit, and its label; ``bare`` is the text without its context."""

    parts: tuple[tuple[str, int], ...]
    bare: tuple[tuple[str, int], ...]
    label: int


@runtime_checkable
class HostedModel(Protocol):
    """A judge's model in its own process."""

    name: str

    @property
    def health(self) -> Mapping[str, Any]:
        """Its state, process and memory use."""
        ...

    async def start(self) -> None:
        """Get ready; raise ModelRefused with the numbers and the remedy."""
        ...

    async def stop(self) -> None:
        """End the process. Safe to call twice."""
        ...


@runtime_checkable
class Classifier(HostedModel, Protocol):
    """A sequence-classification model that reads a request, its reply and the next messages."""

    async def classify(self, *, request: str, reply: str, after: str) -> ClassifierOpinion:
        """Classify an exchange; raise BackendDown while the model is temporarily unavailable."""
        ...


@runtime_checkable
class RatesWords(Protocol):
    """A model that rates words as the continuation of a conversation, in one forward pass, without generating text."""

    @property
    def model(self) -> str:
        """The model's name."""
        ...

    @property
    def context(self) -> int | None:
        """The largest prompt in tokens; None while unknown."""
        ...

    async def count(self, text: str) -> int:
        """Count a text's tokens with the model's own tokenizer."""
        ...

    async def rate(self, messages: Sequence[Message], opening: str, words: Sequence[str]) -> tuple[float, ...]:
        """Return log-probs of ``words`` after the assistant's next message has begun with ``opening``.

        Raises JudgeUnavailable while the model cannot answer, InvalidValue for words that it cannot distinguish.
        """
        ...


Score: TypeAlias = Callable[[Prompt, str, Sequence[Message]], "float | Awaitable[float | None] | None"]
"""A judge in one function: ``(prompt, reply, next_state) -> score``, sync or async; None abstains."""


class RewardModel(Protocol):
    """A published ``get_reward_model(config)``'s result: the probability, 0 .. 1, that a reply was good.

    ``score`` may be async; a sync one is called from worker threads, several at once. It receives plain text.
    """

    def score(self, prompt: str, response: str, next_state: str) -> float | Awaitable[float]: ...
