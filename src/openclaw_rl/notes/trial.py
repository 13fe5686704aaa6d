"""The trial of a note: do its user's reactions show that replies comply with it? Pure.

    record_of(note, turns)                                            TrialRecord(turns=6, complaints=3, praised=0)
    decide(TrialRecord(turns=6, complaints=3, praised=0))             "not working"

Each judged turn with the note in its prompt counts. A complaint of the same kind (the user asks for the same thing
again) counts against the note, every other turn for it: a user who is content seldom writes so. The chance of such a
complaint has the prior Beta(1, 4); the decision is made where the posterior puts nine tenths on one side of a fifth.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

from openclaw_rl.preferences.comparison import Saying, says_again, says_same
from openclaw_rl.preferences.wording import put
from openclaw_rl.types import Note

Decision: TypeAlias = Literal["too early", "working", "not working"]

TOLERATED: Final = 0.2
"""chance of a complaint of the same kind, per turn, up to which a note works"""
SURE: Final = 0.87
"""posterior probability from which on the decision is made"""
_PRIOR: Final = (1, 4)
"""complaints and quiet turns before the first turn"""


class NotedTurn(Protocol):
    """A judged turn of a user: the notes in its prompt, its score, and the rules in the user's next message."""

    @property
    def noted(self) -> tuple[int, ...]: ...
    @property
    def score(self) -> float | None: ...
    @property
    def rules(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """Judged turns with one note in the prompt, how many drew a complaint of its kind, and how many praise."""

    turns: int = 0
    complaints: int = 0
    praised: int = 0


def record_of(note: Note, turns: Iterable[NotedTurn]) -> TrialRecord:
    """The record of a note over its user's judged turns."""
    with_note = [turn for turn in turns if note.number in turn.noted]
    return TrialRecord(
        turns=len(with_note),
        complaints=sum(_asks_again(note, turn) for turn in with_note),
        praised=sum(turn.score is not None and turn.score > 0 for turn in with_note),
    )


def decide(record: TrialRecord) -> Decision:
    """The decision that a record allows."""
    tolerable = _beta_below(TOLERATED, _PRIOR[0] + record.complaints, _PRIOR[1] + record.turns - record.complaints)
    if tolerable >= SURE:
        return "working"
    return "not working" if 1 - tolerable >= SURE else "too early"


def describe(record: TrialRecord) -> str:
    """The record in a few words, for a person."""
    if not record.turns:
        return "no turn yet"
    turns = f"{record.turns} turn{'s' if record.turns > 1 else ''}"
    if not record.complaints:
        return f"not asked for again in {turns}"
    return f"asked for again after {record.complaints} of {turns}"


def _asks_again(note: Note, turn: NotedTurn) -> bool:
    """Check if the user's next message asks for what the note asks for."""
    own = Saying(note.text, note.kind, note.vague)
    return any(says_again(Saying(rule, "rule"), own) or says_same(rule, put(note)) for rule in turn.rules)


def _beta_below(limit: float, successes: int, failures: int) -> float:
    """The probability that a Beta(successes, failures) variable is below a limit, for whole parameters."""
    trials = successes + failures - 1
    return sum(
        math.comb(trials, count) * limit**count * (1 - limit) ** (trials - count)
        for count in range(successes, trials + 1)
    )
