"""Results of the ledger's queries that have no type in `openclaw_rl.types`: rows with named, typed fields."""

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
    """A judged main turn in the live monitor's view: version, user, score, and the user's rules.

    ``noted`` are the standing notes in its prompt.
    """

    turn: str
    version: int
    user: str
    score: float
    rules: tuple[str, ...] = ()
    noted: tuple[int, ...] = ()


class VerdictScore(NamedTuple):
    """A verdict's score, its turn's user, and its source."""

    user: str
    score: float | None
    source: Source


class SessionKey(NamedTuple):
    """A session's key, its name and its user: another user's session with the same name is a different session."""

    session: str
    user: str


class ListedTurn(NamedTuple):
    """A turn in a list, with its place in the ledger; ``session`` is None if the query does not read it."""

    seq: int
    id: str
    user: str
    at: float
    session: str | None


class SaidTurn(NamedTuple):
    """A searched turn, and the text around the words in it; None without a match."""

    turn: ListedTurn
    said: str | None


class SessionTally(NamedTuple):
    """Counts for some turns: well and badly received, trained, dropped."""

    good: int
    bad: int
    trained: int
    dropped: int


class Reception(NamedTuple):
    """Counts for a version's ``scored`` replies: well and badly received."""

    good: int
    bad: int
    scored: int


class StepFigures(NamedTuple):
    """A step's measurements; ``skipped`` is the reason why it made no version."""

    number: int
    metrics: Mapping[str, float]
    seconds: float
    skipped: str | None
    at: float


class ScoreMark(NamedTuple):
    """A verdict as a point on a curve: its score and votes, the version, the bytes of the reply's tokens."""

    at: float
    score: float
    votes: Sequence[int | None]
    version: int
    size: int


class TaskTally(NamedTuple):
    """Counts for a task's ``episodes``: won, and failed through no fault of the policy's; the mean outcome."""

    user: str
    task: str
    episodes: int
    won: int
    mean: float | None
    failed: int
    at: float


class VersionWins(NamedTuple):
    """Counts for a version's ``episodes`` on an environment's task: played and won."""

    user: str
    task: str
    version: int
    episodes: int
    won: int


class EpisodeLine(NamedTuple):
    """An episode: its session, its reward or failure, the version that played it, its step count."""

    session: str
    user: str
    task: str
    score: float | None
    failed: str | None
    version: int | None
    steps: int
    at: float


class UserRules(NamedTuple):
    """The rules in a verdict, and the user who gave them."""

    user: str
    rules: tuple[str, ...]


class GivenHints(NamedTuple):
    """The hints in a verdict with its place in the ledger, and its turn's user."""

    seq: int
    turn: str
    user: str
    hints: tuple[Hint, ...]


class GivenRemark(NamedTuple):
    """An explicit comment on a reply, with its place in the ledger; ``text`` None: nothing to make a note from."""

    seq: int
    turn: str
    user: str
    reply: str
    text: str | None


class StateChange(NamedTuple):
    """A change to a version's state."""

    state: VersionState
    reason: str
    at: float


class LiveSince(NamedTuple):
    """A version that became live, and the time."""

    version: int
    at: float


class FailedVersion(NamedTuple):
    """A version that was refused or rolled back."""

    version: int
    state: VersionState


class BadRate(NamedTuple):
    """Counts for a version's ``scored`` replies: those with a score below 0."""

    bad: int
    scored: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopHealth:
    """A loop's newest report."""

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
        """The loop's name without the number that each further gateway has."""
        return self.loop.partition(" ")[0]
