"""What became of each correction: what was said, what was understood, what was trained, the answer before and now."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from openclaw_rl.ports import GateDecision
from openclaw_rl.store import LedgerReader
from openclaw_rl.store.browse import WITHIN
from openclaw_rl.store.results import ListedTurn
from openclaw_rl.types import (
    Feedback,
    Hint,
    Note,
    Outcome,
    Rehearsal,
    Turn,
    Verdict,
    VersionState,
    environment_of,
    rehearsing,
    texts,
)

How = Literal["message", "comment", "edit", "thumb"]
AnswersByTurn: TypeAlias = "Mapping[str, tuple[VersionAnswer, ...]]"
DECISIONS = 12
"""how many of the gate's newest decisions are looked through for answers to the same prompt"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedIn:
    """What a correction was trained in: a step of turns, or (``note`` given) the rehearsal of the note it made.

    ``version`` is what the step made, None where it made none; ``ruling`` is the gate's reason, None before it.
    """

    step: int
    note: int | None
    version: int | None
    state: VersionState | None
    ruling: str | None
    rehearsal: Rehearsal | None
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionAnswer:
    """How a version answered the same prompt, and what says so."""

    version: int
    reply: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """One correction, from what was said to what came of it. ``seq`` is its turn's place in the ledger."""

    seq: int
    turn: str
    session: str | None
    user: str
    at: float
    question: str
    before: VersionAnswer
    said: str | None
    how: How
    score: float | None
    judged: bool
    reading: str
    hints: tuple[Hint, ...]
    notes: tuple[Note, ...]
    trained: tuple[TrainedIn, ...]
    dropped: str | None
    after: tuple[VersionAnswer, ...]

    @property
    def understood(self) -> bool:
        """Whether it is known what would have been better; a complaint alone says only that something would."""
        return bool(self.notes) or any(hint.kind != "complaint" for hint in self.hints) or (self.score or 0) > 0

    @property
    def asks(self) -> bool:
        """Whether its author should be asked what was meant."""
        return self.judged and not self.understood and self.how != "edit"

    @property
    def learned(self) -> bool:
        """Whether the weights do by themselves what it asks for."""
        return bool(self.notes) and all(note.state == "learned" for note in self.notes)


def corrections(ledger: LedgerReader, user: str | None, *, limit: int, before: int | None = None) -> list[Correction]:
    """The newest corrections of a user or (None) of everybody, newest first; ``before`` is a place in the ledger."""
    people = [user] if user is not None else [one for one in ledger.users() if environment_of(one) is None]
    within = WITHIN // max(len(people), 1)
    listed = [ledger.corrected(one, before=before, limit=limit, within=within) for one in people]
    newest = list(heapq.merge(*listed, key=lambda found: -found.seq))[:limit]
    answers = _answers(ledger.newest_decisions(DECISIONS)) if newest else {}
    return [_correction(ledger, found, answers) for found in newest]


def unheard(ledger: LedgerReader, user: str, *, limit: int) -> list[Correction]:
    """What a user went on to say after replies and no judge took for feedback, newest first."""
    found = [_correction(ledger, listed, {}) for listed in ledger.unheard(user, limit=limit)]
    return [one for one in found if one.said]


def correction(ledger: LedgerReader, turn: str) -> Correction:
    """What became of one turn, corrected or not; raises NotInLedger."""
    found = ledger.turn(turn)
    listed = ListedTurn(seq=0, id=found.id, user=found.user, at=found.at, session=None)
    return _correction(ledger, listed, _answers(ledger.newest_decisions(DECISIONS)))


def _correction(
    ledger: LedgerReader, listed: ListedTurn, answers: Mapping[str, tuple[VersionAnswer, ...]]
) -> Correction:
    turn, outcome, verdict = ledger.turn(listed.id), ledger.outcome(listed.id), ledger.verdict(listed.id)
    said, how = _said(ledger.feedback(listed.id), outcome)
    notes, drop = tuple(ledger.notes_of_turn(listed.id)), ledger.dropped(listed.id)
    return Correction(
        seq=listed.seq,
        turn=turn.id,
        session=outcome.session if outcome else turn.session,
        user=turn.user,
        at=turn.at,
        question=question(turn),
        before=VersionAnswer(version=turn.completion.version, reply=turn.completion.reply.content, source="then"),
        said=said,
        how=how,
        **_heard(verdict),
        notes=notes,
        trained=_trained(ledger, turn.id, notes),
        dropped=f"{drop.reason}: {drop.detail}".rstrip(": ") if drop else None,
        after=answers.get(turn.id, ()),
    )


def _heard(verdict: Verdict | None) -> dict[str, Any]:
    if verdict is None:
        return {"score": None, "judged": False, "reading": "", "hints": ()}
    return {"score": verdict.score, "judged": True, "reading": verdict.note, "hints": verdict.hints}


def question(turn: Turn) -> str:
    """What the user asked last."""
    return (texts(turn.prompt.messages, "user") or (turn.prompt.messages[-1].content,))[-1]


def _said(feedback: Sequence[Feedback], outcome: Outcome | None) -> tuple[str | None, How]:
    """The correction in its author's own words: said outright first, else the next message."""
    own = [one for one in feedback if one.source == "explicit"]
    for one in reversed(own):
        if one.hint:
            return one.hint, "comment"
        if one.edit:
            return one.edit, "edit"
    messages = texts(outcome.next_state, "user") if outcome else ()
    if messages and not any((one.score or 0) < 0 for one in own):
        return messages[-1], "message"
    return (None, "thumb") if own else (messages[-1] if messages else None, "message")


def _trained(ledger: LedgerReader, turn: str, notes: Sequence[Note]) -> tuple[TrainedIn, ...]:
    """Every step that this turn, or a note of it, was trained in; oldest first."""
    found = []
    if (used := ledger.trained_in(turn)) is not None:
        found.append(_trained_in(ledger, used, None))
    for note in notes:
        found += [_trained_in(ledger, done.step, done) for done in ledger.rehearsals(note.number)]
    return tuple(sorted(found, key=lambda one: one.step))


def _trained_in(ledger: LedgerReader, step: int, rehearsal: Rehearsal | None) -> TrainedIn:
    made = ledger.made_by(step)
    decisions = ledger.gate_decisions(made.number) if made else []
    return TrainedIn(
        step=step,
        note=rehearsal.note if rehearsal else None,
        version=made.number if made else None,
        state=made.state if made else None,
        ruling=decisions[-1].reason if decisions else None,
        rehearsal=rehearsal,
        at=ledger.step(step).at,
    )


def _answers(decisions: Sequence[GateDecision]) -> dict[str, tuple[VersionAnswer, ...]]:
    """By turn, how examined versions answered its prompt again, newest first."""
    found: dict[str, tuple[VersionAnswer, ...]] = {}
    for decision in decisions:
        for example in decision.evidence.get("examples", ()):
            if (turn := example.get("turn")) is not None:
                answer = VersionAnswer(version=decision.version, reply=example["candidate"], source="the gate's replay")
                found[turn] = (*found.get(turn, ()), answer)
    return found


# --- what is in force ---


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningProgress:
    """How learning stands: what is live, whether training is paused and why, what is rehearsed now, what waits."""

    live: int | None
    paused: str | None
    rehearsal: Mapping[str, Any] | None
    steps: int
    training: bool

    @property
    def sentence(self) -> str:
        """The same in a few words."""
        if self.paused is not None:
            return f"Training is paused: {self.paused}"
        if self.rehearsal is not None:
            doing = rehearsing(self.rehearsal["note"], in_prompt=self.rehearsal.get("in_prompt", False))
            return f"{doing.capitalize()}: step {self.rehearsal['step']} of {self.rehearsal['of']}"
        return "Listening" if self.training else "Nothing trains at the moment"


def progress(ledger: LedgerReader) -> LearningProgress:
    """How learning stands now."""
    loops = {health.loop: health for health in ledger.health()}
    train, last = loops.get("train"), ledger.last_step()
    rehearsal = train.detail.get("rehearsal") if train is not None and train.state == "running" else None
    return LearningProgress(
        live=ledger.last_live(),
        paused=ledger.paused(),
        rehearsal=rehearsal,
        steps=last.number if last else 0,
        training=train is not None and train.state in ("running", "starting"),
    )
