"""What training makes: samples, steps, versions; and the commands that change them."""

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
"""numbers from here on are drafts: weights of a rehearsal under way, which are in no ledger"""
VersionState = Literal["candidate", "live", "refused", "rolled back", "deleted"]
VersionOrigin = Literal["trained", "rollback", "checkpoint"]
Command = Literal["rollback", "pause", "resume", "pin version", "unpin version", "pin turn", "unpin turn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedStep:
    """Where a turn stands in an environment: the episode, the task that it shares with others (None: played alone),
    its place in the episode, the episode's outcome, and the step's own votes, None without any.

    ``tokens`` is the length of its reply, ``room`` how long it could have become, None where nothing limited it.
    """

    episode: str
    task: str | None
    index: int
    outcome: float
    vote: float | None
    tokens: int = 0
    room: int | None = None


class GroupKey(NamedTuple):
    """A group is known by its name and its user: another user's of the same name is another group."""

    user: str
    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupProgress:
    """How far a group is: its ``plays`` so far, the turns of them that are not settled, when the newest was answered.

    ``unjudged`` are those of the unsettled turns that lack a verdict. ``closed``: it has trained, or was dropped as a
    group. ``steps`` are those with an outcome, by turn, whether they wait, have trained or cannot train.
    """

    plays: int
    unsettled: int
    unjudged: Sequence[str]
    closed: bool
    newest_at: float
    steps: Mapping[str, PlayedStep]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingTurns:
    """Turns that wait to be trained, with every group that one of them belongs to, all of one moment."""

    turns: Sequence[JudgedTurn | UnreadableTurn]
    groups: Mapping[GroupKey, GroupProgress]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One turn made ready for a training step. Built, never stored.

    ``mask[r]`` False keeps reply token r out of every loss. ``score`` is the verdict's, None where it may not train;
    ``advantage`` is that of the policy-gradient term, None
    where it has no signal. ``teachers`` are the hinted prompts, one per hint, shortest hint first; the reply under them
    is the same.
    ``recalled`` is the earlier turn of the same user that the hints are of, None where they are of this one.
    ``urgency`` (0 .. 1) is how much there is left to learn from this user's rules; in a rehearsal, how far a step goes.
    ``prompt_tokens`` and ``logprobs`` are None where the reply was sampled under another prompt than ``prompt`` (a
    standing note was in it): the trainer renders the prompt as it renders a teacher's, and takes its own weights for
    the behaviour policy.
    ``played`` is its place in an environment, None for a turn of a person's.
    ``rehearses`` is the note that this reply was sampled for; its one teacher has the note. None for a turn. Its
    ``advantage`` says how much better it is than other replies of its step.
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
    rehearses: str | None = None

    def __post_init__(self) -> None:
        need_tokens(self.reply_tokens, "reply_tokens")
        need(len(self.reply_tokens) > 0, "reply_tokens", "a reply has at least one token")
        if self.prompt_tokens is not None:
            need_tokens(self.prompt_tokens, "prompt_tokens")
            need(len(self.prompt_tokens) > 0, "prompt_tokens", "a prompt has at least one token")
        if self.logprobs is not None:
            need(self.prompt_tokens is not None, "logprobs", "were recorded under a prompt that is not given")
            need_logprobs(self.logprobs, len(self.reply_tokens), "logprobs")
        need(
            len(self.mask) == len(self.reply_tokens),
            "mask",
            f"{len(self.mask)} for {len(self.reply_tokens)} reply tokens",
        )
        need_finite(self.advantage, "advantage")
        need_finite(self.score, "score")
        need(self.advantage is not None or bool(self.teachers), "advantage", "a sample without any signal")
        if self.rehearses is not None:
            need(len(self.teachers) == 1, "teachers", "a rehearsal has one")
        need(self.temperature >= 0.0, "temperature", f"{self.temperature!r} is below 0")


class Baseline(NamedTuple):
    """The moving average of a user's scores, which begins at 0, and how much of it is scores: 0 before the first."""

    mean: float = 0.0
    share: float = 0.0

    @classmethod
    def read(cls, written: float | Sequence[float]) -> Self:
        """From JSON; what was written without its share is taken as all scores."""
        return cls(written, 1.0) if isinstance(written, int | float) else cls(*written)

    def after(self, score: float, *, decay: float) -> Self:
        """With one score more."""
        return type(self)(decay * self.mean + (1 - decay) * score, decay * self.share + 1 - decay)

    @property
    def satisfaction(self) -> float:
        """The user's mean score of late, -1 .. 1; -1 where nothing is known yet."""
        return self.mean / self.share if self.share > 0 else -1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One optimiser step, or the decision to take none (``skipped`` says why); ``baselines`` are those after it.

    ``parts`` says, by turn, with what it took part: its advantage, how many hints taught, its lag, and
    the turn that these hints were recalled from.
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

    ``origin`` says how it came to be: of a step of this run (or the base model), by a rollback (``request`` is the
    number of a person's request for it, if it was one), or as a copy of another run's checkpoint (``source``).
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
        """Whether these are weights of a rehearsal under way, which are in no ledger."""
        return self.number >= FIRST_DRAFT


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRequest:
    """What a person requests of a run. ``version`` is what to roll back to, or what is pinned; ``turn`` likewise."""

    seq: int
    command: Command
    version: int | None
    turn: str | None
    reason: str
    at: float
