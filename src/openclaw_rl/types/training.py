"""Training's products: samples, steps, versions; and the commands that change them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, Self

from openclaw_rl.types.messages import (
    Logprobs,
    Prompt,
    Tokens,
    need,
    need_finite,
    need_logprobs,
    need_one_of,
    need_tokens,
)
from openclaw_rl.types.turns import JudgedTurn, UnreadableTurn

FIRST_DRAFT = 1_000_000_000
"""first number of the drafts: weights during prompt distillation, which are in no ledger"""
VersionState = Literal["candidate", "live", "refused", "rolled back", "deleted"]
VersionOrigin = Literal["trained", "rollback", "checkpoint"]
Command = Literal["rollback", "pause", "resume", "pin version", "unpin version", "pin turn", "unpin turn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedStep:
    """A turn's place in an environment: its episode, its task, its index, the outcome and the step's votes.

    ``task`` is shared with other episodes (None: played alone), ``index`` is the turn's position in the episode,
    ``outcome`` the episode's, ``vote`` the step's own, None without any.
    ``tokens`` is the reply's length, ``room`` the longest that it could have been, None without a limit.
    """

    episode: str
    task: str | None
    index: int
    outcome: float
    vote: float | None
    tokens: int = 0
    room: int | None = None


class GroupKey(NamedTuple):
    """A group's key, its name and its user: another user's group with the same name is a different group."""

    user: str
    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupProgress:
    """A group's progress: its ``plays`` so far, its unsettled turns, and the time of its newest reply.

    ``unjudged`` are the unsettled turns without a verdict. ``closed``: it has trained, or was dropped as a group.
    ``steps`` are those with an outcome, by turn: waiting, trained, or unable to train.
    """

    plays: int
    unsettled: int
    unjudged: Sequence[str]
    closed: bool
    newest_at: float
    steps: Mapping[str, PlayedStep]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingTurns:
    """Turns that wait to be trained, with all of their groups, read at one moment."""

    turns: Sequence[JudgedTurn | UnreadableTurn]
    groups: Mapping[GroupKey, GroupProgress]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A turn prepared for a training step. Built, never stored.

    ``mask[r]`` False keeps reply token r out of every loss. ``score`` is the verdict's, None where it may not train;
    ``advantage`` is the policy-gradient term's, None without a signal. ``teachers`` are the hinted prompts, one per
    hint, shortest hint first; the reply under them is the same.
    ``recalled`` is the same user's earlier turn that the hints are from, None if they are from this turn.
    ``urgency`` (0 .. 1) is how much is left to learn from this user's rules; in prompt distillation, how far a step
    goes.
    ``prompt_tokens`` and ``logprobs`` are None if the reply was sampled under another prompt than ``prompt`` (one with
    a standing note): the trainer renders the prompt as it renders a teacher's, and takes its own weights for the
    behaviour policy.
    ``played`` is its place in an environment, None for a user's turn.
    ``distills`` is the note that this reply was sampled for (prompt distillation); its one teacher has the note. None
    for a turn. Its ``advantage`` compares it with other replies in its step.
    """

    turn: str
    user: str
    prompt: Prompt
    prompt_tokens: Tokens | None
    reply_tokens: Tokens
    logprobs: Logprobs | None
    mask: tuple[bool, ...]
    advantage: float | None
    teachers: tuple[Prompt, ...]
    temperature: float
    version: int
    score: float | None = None
    group: str | None = None
    played: PlayedStep | None = None
    recalled: str | None = None
    urgency: float = 1.0
    distills: str | None = None

    def __post_init__(self) -> None:
        need_tokens(self.reply_tokens, "reply_tokens")
        need(len(self.reply_tokens) > 0, "reply_tokens", "a reply has at least one token")
        if self.prompt_tokens is not None:
            need_tokens(self.prompt_tokens, "prompt_tokens")
            need(len(self.prompt_tokens) > 0, "prompt_tokens", "a prompt has at least one token")
        if self.logprobs is not None:
            need(self.prompt_tokens is not None, "logprobs", "need the prompt tokens that they were recorded under")
            need_logprobs(self.logprobs, len(self.reply_tokens), "logprobs")
        need(
            len(self.mask) == len(self.reply_tokens),
            "mask",
            f"{len(self.mask)} for {len(self.reply_tokens)} reply tokens",
        )
        need_finite(self.advantage, "advantage")
        need_finite(self.score, "score")
        need(self.advantage is not None or bool(self.teachers), "advantage", "a sample without any signal")
        if self.distills is not None:
            need(len(self.teachers) == 1, "teachers", "prompt distillation has one")
        need(self.temperature >= 0.0, "temperature", f"{self.temperature!r} is below 0")


class Baseline(NamedTuple):
    """The moving average of a user's scores, starting at 0, and the weight of real scores in it: 0 before the first."""

    mean: float = 0.0
    share: float = 0.0

    @classmethod
    def read(cls, written: float | Sequence[float]) -> Self:
        """Read from JSON; a value written without its share counts as all scores."""
        return cls(written, 1.0) if isinstance(written, int | float) else cls(*written)

    def after(self, score: float, *, decay: float) -> Self:
        """Return the average after one more score."""
        return type(self)(decay * self.mean + (1 - decay) * score, decay * self.share + 1 - decay)

    @property
    def satisfaction(self) -> float:
        """The user's recent mean score, -1 .. 1; -1 before the first score."""
        return self.mean / self.share if self.share > 0 else -1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An optimiser step, or the decision to take none (``skipped`` has the reason).

    ``baselines`` are those after it. ``parts`` has each turn's part in the step: its advantage, its hint count, its
    lag, and the turn that its hints were recalled from.
    """

    number: int
    turns: tuple[str, ...]
    metrics: Mapping[str, float]
    seconds: float
    skipped: str | None = None
    baselines: Mapping[str, Baseline] = field(default_factory=dict)
    parts: Mapping[str, Mapping[str, float | str]] = field(default_factory=dict)
    at: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        need(self.number >= 1, "number", f"{self.number!r} is below 1")
        need(len(set(self.turns)) == len(self.turns), "turns", "a turn trains once")


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A policy by number. 0 is the base model; every other has a parent.

    An adapter is never changed in place; it is an absolute path, or an address.

    ``origin`` is its source: a step in this run (or the base model), a rollback (``request`` is the number of a user's
    request for it, if there was one), or a copy of another run's checkpoint (``source``).
    """

    number: int
    parent: int | None
    base: str
    adapter: str | None = None
    step: int | None = None
    state: VersionState = "candidate"
    note: str = ""
    origin: VersionOrigin = "trained"
    source: str | None = None
    request: int | None = None
    at: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        need(self.number >= 0, "number", f"{self.number!r} is below 0")
        need_one_of(self.state, VersionState, "state")
        need_one_of(self.origin, VersionOrigin, "origin")
        need(
            self.adapter is None or Path(self.adapter).is_absolute() or "://" in self.adapter,
            "adapter",
            f"{self.adapter!r} is relative: from another directory it would lead elsewhere",
        )
        if self.number == 0:
            need(self.parent is None and self.adapter is None, "parent", "version 0 is the base model")
        else:
            need(self.parent is not None, "parent", f"version {self.number} needs a parent")
            need(0 <= (self.parent or 0) < self.number, "parent", f"{self.parent!r} is not below {self.number}")

    @property
    def draft(self) -> bool:
        """True for weights during prompt distillation, which are in no ledger."""
        return self.number >= FIRST_DRAFT


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRequest:
    """A user's request to a run.

    ``version`` is the rollback target or the version to pin; ``turn`` likewise.
    """

    seq: int
    command: Command
    version: int | None
    turn: str | None
    reason: str
    at: float
