"""What the ledger's queries give, where no noun of `openclaw_rl.types` fits: rows with named, typed fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from openclaw_rl.types import Hint, Outcome, SessionEnd, Source, Turn, UnreadableTurn, VersionState

LoopState = Literal["starting", "running", "failing", "stopped"]


class ReadTurn(NamedTuple):
    """A turn with its place in the ledger."""

    seq: int
    turn: Turn | UnreadableTurn


class SettledTurn(NamedTuple):
    """A turn that has an outcome, with its place in the ledger."""

    seq: int
    turn: Turn
    outcome: Outcome


class ReadEnding(NamedTuple):
    """A session's end with its place in the ledger."""

    seq: int
    ending: SessionEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredTurn:
    """One judged main turn, as the live monitor sees it: version, user, score, and the rules that the user gave.

    ``noted`` are the standing notes that were in its prompt.
    """

    turn: str
    version: int
    user: str
    score: float
    rules: tuple[str, ...] = ()
    noted: tuple[int, ...] = ()


class VerdictScore(NamedTuple):
    """The score of one verdict, whose turn it is, and where it came from."""

    user: str
    score: float | None
    source: Source


class SessionKey(NamedTuple):
    """A session is known by its name and its user: another user's of the same name is another session."""

    session: str
    user: str


class ListedTurn(NamedTuple):
    """A turn in a list, with its place in the ledger; ``session`` None where it was not asked for."""

    seq: int
    id: str
    user: str
    at: float
    session: str | None


class SaidTurn(NamedTuple):
    """A turn that was searched, and what stands there around the words; None where it does not say them."""

    turn: ListedTurn
    said: str | None


class SessionTally(NamedTuple):
    """Of some turns, how many are well and badly received, have trained, were dropped."""

    good: int
    bad: int
    trained: int
    dropped: int


class Reception(NamedTuple):
    """Of ``scored`` replies of a version, how many were well and badly received."""

    good: int
    bad: int
    scored: int


class StepFigures(NamedTuple):
    """What one step measured; ``skipped`` says why it made no version."""

    number: int
    metrics: Mapping[str, float]
    seconds: float
    skipped: str | None
    at: float


class ScoreMark(NamedTuple):
    """One verdict as a point of a curve: its score and votes, the version, the bytes of the reply's tokens."""

    at: float
    score: float
    votes: Sequence[int | None]
    version: int
    size: int


class TaskTally(NamedTuple):
    """Of the ``episodes`` of one task, how many were won, failed through no fault of the policy's; the mean outcome."""

    user: str
    task: str
    episodes: int
    won: int
    mean: float | None
    failed: int
    at: float


class VersionWins(NamedTuple):
    """Of the ``episodes`` that a version played of one environment's tasks, how many were won."""

    user: str
    task: str
    version: int
    episodes: int
    won: int


class EpisodeLine(NamedTuple):
    """One episode: its session, what it was paid or why it failed, who played it, in how many steps."""

    session: str
    user: str
    task: str
    score: float | None
    failed: str | None
    version: int | None
    steps: int
    at: float


class UserRules(NamedTuple):
    """The rules of one verdict, and the user who gave them."""

    user: str
    rules: tuple[str, ...]


class GivenHints(NamedTuple):
    """The hints of one verdict with its place in the ledger, and the user of its turn."""

    seq: int
    turn: str
    user: str
    hints: tuple[Hint, ...]


class GivenRemark(NamedTuple):
    """What a person said outright of a reply, with its place in the ledger; ``text`` None: nothing to take."""

    seq: int
    turn: str
    user: str
    reply: str
    text: str | None


class StateChange(NamedTuple):
    """One change of a version's state."""

    state: VersionState
    reason: str
    at: float


class LiveSince(NamedTuple):
    """A version that became live, and when."""

    version: int
    at: float


class FailedVersion(NamedTuple):
    """A version that was refused or rolled back."""

    version: int
    state: VersionState


class BadRate(NamedTuple):
    """Of ``scored`` replies of a version, how many have a score below 0."""

    bad: int
    scored: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopHealth:
    """The newest report of a loop."""

    loop: str
    pid: int
    host: str
    state: LoopState
    at: float
    moved: int
    failures: int
    error: str
    detail: Mapping[str, Any]

    @property
    def role(self) -> str:
        """The loop's name without the number that one of several gateways has."""
        return self.loop.partition(" ")[0]
