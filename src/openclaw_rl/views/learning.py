"""Each correction's effect: its text, its interpretation, its training, the reply before and now."""

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
    Distillation,
    Feedback,
    Hint,
    Note,
    Outcome,
    Turn,
    Verdict,
    VersionState,
    distilling,
    environment_of,
    texts,
)

How = Literal["message", "comment", "edit", "thumb"]
AnswersByTurn: TypeAlias = "Mapping[str, tuple[VersionAnswer, ...]]"
DECISIONS = 12
"""the gate's newest decisions to search for new replies to the same prompt"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedIn:
    """A correction's training: a step on turns, or (with ``note``) the distillation of the note that it made.

    ``version`` is the step's version, None if it made none; ``ruling`` is the gate's reason, None before its decision.
    """

    step: int
    note: int | None
    version: int | None
    state: VersionState | None
    ruling: str | None
    distillation: Distillation | None
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionAnswer:
    """A version's reply to the same prompt, and the source of this reply."""

    version: int
    reply: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """A correction, from its text to its effect. ``seq`` is its turn's place in the ledger."""

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
        """True if a possible improvement is known; a complaint alone contains none."""
        return bool(self.notes) or any(hint.kind != "complaint" for hint in self.hints) or (self.score or 0) > 0

    @property
    def asks(self) -> bool:
        """True if its author should be asked for the meaning."""
        return self.judged and not self.understood and self.how != "edit"

    @property
    def learned(self) -> bool:
        """True if the weights follow it without the prompt."""
        return bool(self.notes) and all(note.state == "learned" for note in self.notes)


def corrections(ledger: LedgerReader, user: str | None, *, limit: int, before: int | None = None) -> list[Correction]:
    """Return the newest corrections by a user or (None) all users, newest first; ``before`` is a ledger place."""
    people = [user] if user is not None else [name for name in ledger.users() if environment_of(name) is None]
    within = WITHIN // max(len(people), 1)
    listed = [ledger.corrected(name, before=before, limit=limit, within=within) for name in people]
    newest = list(heapq.merge(*listed, key=lambda turn: -turn.seq))[:limit]
    answers = _answers(ledger.newest_decisions(DECISIONS)) if newest else {}
    return [_correction(ledger, turn, answers) for turn in newest]


def unheard(ledger: LedgerReader, user: str, *, limit: int) -> list[Correction]:
    """Return a user's messages after replies that no judge took for feedback, newest first."""
    candidates = [_correction(ledger, listed, {}) for listed in ledger.unheard(user, limit=limit)]
    return [candidate for candidate in candidates if candidate.said]


def correction(ledger: LedgerReader, turn: str) -> Correction:
    """Return one turn's correction, corrected or not; raise NotInLedger if the turn is missing."""
    source_turn = ledger.turn(turn)
    listed = ListedTurn(seq=0, id=source_turn.id, user=source_turn.user, at=source_turn.at, session=None)
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
    """Return the user's last message."""
    return (texts(turn.prompt.messages, "user") or (turn.prompt.messages[-1].content,))[-1]


def _said(feedback: Sequence[Feedback], outcome: Outcome | None) -> tuple[str | None, How]:
    """Return the correction in its author's own words: an explicit comment first, else the next message."""
    explicit = [entry for entry in feedback if entry.source == "explicit"]
    for entry in reversed(explicit):
        if entry.hint:
            return entry.hint, "comment"
        if entry.edit:
            return entry.edit, "edit"
    messages = texts(outcome.next_state, "user") if outcome else ()
    if messages and not any((entry.score or 0) < 0 for entry in explicit):
        return messages[-1], "message"
    return (None, "thumb") if explicit else (messages[-1] if messages else None, "message")


def _trained(ledger: LedgerReader, turn: str, notes: Sequence[Note]) -> tuple[TrainedIn, ...]:
    """Return every step that this turn, or a note made from it, was trained in; oldest first."""
    trained = []
    if (used := ledger.trained_in(turn)) is not None:
        trained.append(_trained_in(ledger, used, None))
    for note in notes:
        trained += [
            _trained_in(ledger, distillation.step, distillation) for distillation in ledger.distillations(note.number)
        ]
    return tuple(sorted(trained, key=lambda part: part.step))


def _trained_in(ledger: LedgerReader, step: int, distillation: Distillation | None) -> TrainedIn:
    version = ledger.made_by(step)
    decisions = ledger.gate_decisions(version.number) if version else []
    return TrainedIn(
        step=step,
        note=distillation.note if distillation else None,
        version=version.number if version else None,
        state=version.state if version else None,
        ruling=decisions[-1].reason if decisions else None,
        distillation=distillation,
        at=ledger.step(step).at,
    )


def _answers(decisions: Sequence[GateDecision]) -> dict[str, tuple[VersionAnswer, ...]]:
    """Return examined versions' new replies to a turn's prompt, by turn, newest first."""
    answers: dict[str, tuple[VersionAnswer, ...]] = {}
    for decision in decisions:
        for example in decision.evidence.get("examples", ()):
            if (turn := example.get("turn")) is not None:
                answer = VersionAnswer(version=decision.version, reply=example["candidate"], source="the gate's replay")
                answers[turn] = (*answers.get(turn, ()), answer)
    return answers


# --- in force ---


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningProgress:
    """The state of learning: the live version, a pause and its reason, the current distillation, the steps so far."""

    live: int | None
    paused: str | None
    distillation: Mapping[str, Any] | None
    steps: int
    training: bool

    @property
    def sentence(self) -> str:
        """The state in a few words."""
        if self.paused is not None:
            return f"Training is paused: {self.paused}"
        if self.distillation is not None:
            doing = distilling(self.distillation["note"], in_prompt=self.distillation.get("in_prompt", False))
            return f"{doing.capitalize()}: step {self.distillation['step']} of {self.distillation['of']}"
        return "Waiting for feedback" if self.training else "Nothing trains at the moment"


def progress(ledger: LedgerReader) -> LearningProgress:
    """Return the present state of learning."""
    loops = {health.loop: health for health in ledger.health()}
    train, last = loops.get("train"), ledger.last_step()
    distillation = train.detail.get("distillation") if train is not None and train.state == "running" else None
    return LearningProgress(
        live=ledger.last_live(),
        paused=ledger.paused(),
        distillation=distillation,
        steps=last.number if last else 0,
        training=train is not None and train.state in ("running", "starting"),
    )
