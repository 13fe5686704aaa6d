"""The ledger's rows about a turn: the turn, its outcome, its verdict, and the reason why it may not train."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from openclaw_rl.types.messages import Completion, Json, Message, Prompt, need, need_finite, need_one_of
from openclaw_rl.types.notes import PromptNote

Kind = Literal["main", "side"]
HintKind = Literal["rule", "fact", "complaint"]
Reach = Literal["standing", "wish", "doubtful", "once"]
"""a hint's scope: see `Hint`"""
Source = Literal["explicit", "environment", "deterministic", "judge", "behaviour"]
Ended = Literal["done", "idle", "superseded", "compacted", "side", "evicted", "recorded"]
DropReason = Literal[
    "side turn",
    "opted out",
    "aborted",
    "empty reply",
    "redacted",
    "cut off",
    "stale",
    "late",
    "greedy",
    "not shared",
    "no signal",
    "alike",
    "unjudged",
    "taken back",
    "cannot be trained",
    "unreadable",
    "collect failed",
    "judge failed",
    "environment failed",
]

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: sorts as it counts
_last_id = 0

ENVIRONMENT = "env:"
"""prefix of an environment's user name; the environment's own name follows"""


def environment_of(user: str) -> str | None:
    """Return the environment in a user name, None for a person."""
    return user.removeprefix(ENVIRONMENT) if user.startswith(ENVIRONMENT) else None


def new_id() -> str:
    """Return a time-ordered id with 26 letters: 48 bits of milliseconds, 80 random bits, rising within a process."""
    global _last_id
    value = max(time.time_ns() // 1_000_000 << 80 | int.from_bytes(os.urandom(10), "big"), _last_id + 1)
    _last_id = value
    return "".join(_ALPHABET[value >> shift & 31] for shift in range(125, -1, -5))


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """An answered request. ``session``, ``declared`` and ``done`` are the client's declarations, else None or False.

    ``group`` joins a task's rollouts. ``trainable`` is False if the caller opted out. ``prompt`` is the client's own;
    ``noted`` is the notes text added to it for the model, None without any.
    """

    prompt: Prompt
    completion: Completion
    user: str
    id: str = field(default_factory=new_id)
    session: str | None = None
    group: str | None = None
    client: str = ""
    declared: Kind | None = None
    done: bool = False
    trainable: bool = True
    noted: PromptNote | None = None
    at: float = field(default_factory=time.time)

    @property
    def sent(self) -> Prompt:
        """The prompt as it was sent to the model."""
        return self.prompt if self.noted is None else self.prompt.hinted(self.noted.text)

    def __post_init__(self) -> None:
        need(bool(self.id), "id", "a turn needs an id")
        if self.declared is not None:
            need_one_of(self.declared, Kind, "declared")
        need_finite(self.at, "at")


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """Explicit feedback on a turn: a score in -1 .. 1, a hint, an edit, or an environment's reward."""

    turn: str
    score: float | None = None
    hint: str | None = None
    edit: str | None = None
    source: Literal["explicit", "environment"] = "explicit"
    at: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        need_finite(self.score, "score")
        if self.source == "explicit" and self.score is not None:
            need(-1.0 <= self.score <= 1.0, "score", f"{self.score!r} is not in -1 .. 1")
        need(any(part is not None for part in (self.score, self.hint, self.edit)), "score", "feedback is empty")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The continuation after a turn. ``kind_reason`` explains main or side, ``confidence`` is its certainty.

    ``next_state`` is every message after the reply and before the next one; ``ended`` is the reason why no more
    messages will follow (`openclaw_rl.collect.threads` has the meanings), None if the thread continued.
    ``evidence`` are deterministic marks from matching (``regenerated``, ``repeated_call`` ...).
    """

    turn: str
    session: str
    kind: Kind
    kind_reason: str
    index: int
    confidence: float = 1.0
    parent: str | None = None
    next_state: tuple[Message, ...] = ()
    ended: Ended | None = None
    evidence: tuple[str, ...] = ()
    at: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        need_one_of(self.kind, Kind, "kind")
        need(self.index >= 0, "index", f"{self.index!r} is below 0")
        need(0.0 <= self.confidence <= 1.0, "confidence", f"{self.confidence!r} is not in 0 .. 1")
        need(self.parent != self.turn, "parent", "a turn cannot follow itself")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """A possible improvement to a reply: a rule is distilled, a fact is remembered, a complaint only scores.

    A ``vague`` rule has a direction without a limit ("shorter"). ``reach`` is its scope: standing (for all replies, in
    its user's own words), wish (the user's own, perhaps for all: asked, and standing when repeated), doubtful (perhaps
    another author's words: asked) or once (for the turn at hand). Only a standing rule is distilled.
    """

    text: str
    kind: HintKind = "rule"
    vague: bool = False
    reach: Reach = "standing"

    def __post_init__(self) -> None:
        need_one_of(self.kind, HintKind, "kind")
        need_one_of(self.reach, Reach, "reach")
        need(bool(self.text.strip()), "text", "a hint needs a text")


def rules(hints: Iterable[Hint]) -> tuple[str, ...]:
    """Return the texts of the hints that are rules for all replies."""
    return tuple(hint.text for hint in hints if hint.kind == "rule" and hint.reach == "standing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """A possible meaning of a message that the judge is unsure about: a person can be asked. It never trains."""

    score: float
    hints: tuple[Hint, ...] = ()
    why: str = ""

    def __post_init__(self) -> None:
        need(-1.0 <= self.score <= 1.0 and self.score != 0, "score", f"{self.score!r} is 0 or not in -1 .. 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A turn's judgement. ``score`` None is "no opinion"; 0 is a judged "ambiguous".

    ``doubt``, without a score, is a possible meaning; it is not stored.
    For an environment step, ``score`` is the whole episode's outcome, which all its steps share, and ``step`` is this
    step's own: the mean of its votes, None without any.
    """

    turn: str
    score: float | None
    source: Source
    votes: tuple[int | None, ...] = ()
    hints: tuple[Hint, ...] = ()
    judge: str = ""
    prompt_version: str | None = None
    seconds: float = 0.0
    note: str = ""
    doubt: Doubt | None = None
    step: float | None = None
    at: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        need_finite(self.score, "score")
        need_finite(self.step, "step")
        need_one_of(self.source, Source, "source")
        need(all(vote in (-1, 0, 1, None) for vote in self.votes), "votes", "a vote is +1, -1, 0 or None")

    @property
    def rules(self) -> tuple[str, ...]:
        """The user's rules, which may be distilled, shortest first."""
        return rules(self.hints)

    @property
    def precise(self) -> bool:
        """True if a rule for all replies has a limit, not only a direction."""
        return any(hint.kind == "rule" and hint.reach == "standing" and not hint.vague for hint in self.hints)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedTurn:
    """A turn that may train: the reply, its outcome and its verdict."""

    turn: Turn
    outcome: Outcome
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """A turn that will not train, with the reason. ``stage`` is the loop that decided it."""

    turn: str
    stage: Literal["collect", "judge", "train"]
    reason: DropReason
    detail: str = ""
    at: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableTurn:
    """A turn whose row in the ledger exists but cannot be decoded, with the reason."""

    turn: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnd:
    """A session that its owner declared over."""

    session: str
    user: str
    at: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionReward:
    """An environment's report on a whole session: its outcome in -1 .. 1, or the reason why it ``failed``.

    A failure is not the policy's fault. A later report replaces this one until a turn in the session has trained.
    ``group`` joins the session to its task's rollouts, if its requests named no group.
    """

    session: str
    user: str
    score: float | None = None
    failed: str | None = None
    group: str | None = None
    at: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        need_finite(self.score, "score")
        need((self.score is None) != (self.failed is None), "score", "a reward is a score, or why there is none")
        need(self.score is None or -1.0 <= self.score <= 1.0, "score", f"{self.score!r} is not in -1 .. 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRecord:
    """The contents of an imported record on a turn, so that no part has to be derived.

    ``extra`` keeps the record's own form, so that an export returns it unchanged.
    """

    turn: str
    session: str
    index: int
    kind: Kind
    next_state: tuple[Message, ...] = ()
    trainable: bool = True
    extra: Mapping[str, Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        need_one_of(self.kind, Kind, "kind")
        need(self.index >= 0, "index", f"{self.index!r} is below 0")


# A deleted session, or one to delete.


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """The extent of a session's deletion: its turns, the notes derived from them, and the effects that remain.

    ``trained`` turns were used by steps. ``versions`` have learned from the session, by themselves or through an
    ancestor; ``clean`` is the newest live one before them, None without one. ``at`` is None before the deletion.
    """

    turns: int
    notes: int
    trained: int
    versions: tuple[int, ...]
    clean: int | None = None
    at: float | None = None

    def __post_init__(self) -> None:
        for name in ("turns", "notes", "trained"):
            need(getattr(self, name) >= 0, name, f"{getattr(self, name)!r} is below 0")

    def plain(self) -> dict[str, Any]:
        """Return its numbers for a script, and a sentence on the effects that remain."""
        return {**{name: getattr(self, name) for name in self.__slots__}, "remains": self.remains}

    @property
    def extent(self) -> str:
        """The number of turns and notes, in words.

        >>> Deletion(turns=3, notes=1, trained=0, versions=()).extent
        '3 turns and 1 note that came of them'
        """
        turns = f"{self.turns} turn{'s' * (self.turns != 1)}"
        if not self.notes:
            return turns
        return f"{turns} and {self.notes} note{'s' * (self.notes != 1)} that came of them"

    @property
    def remains(self) -> str:
        """The effects on the weights, in a sentence.

        >>> Deletion(turns=3, notes=0, trained=2, versions=(4, 5, 6, 9), clean=3).remains
        'versions 4 to 6 and 9 were trained on it; weights do not forget by deletion: version 3 is from before it'
        """
        if not self.versions:
            return "nothing was trained on it"
        were = "versions" if len(self.versions) > 1 else "version"
        was = "were" if len(self.versions) > 1 else "was"
        sentence = f"{were} {in_ranges(self.versions)} {was} trained on it; weights do not forget by deletion"
        return sentence if self.clean is None else f"{sentence}: version {self.clean} is from before it"


def in_ranges(numbers: Sequence[int]) -> str:
    """Join ascending numbers in words, with ranges for consecutive ones.

    >>> in_ranges([1, 2, 3, 7, 9, 10])
    '1 to 3, 7, 9 and 10'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [part for run in runs for part in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run))]
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
