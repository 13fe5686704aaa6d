"""Which note is rehearsed next, what became of those that were, and when one may leave the prompt or must come back."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from openclaw_rl.notes import NotesBook
from openclaw_rl.notes.wording import put
from openclaw_rl.train.consent import Consent
from openclaw_rl.train.rehearsal.measure import Checker
from openclaw_rl.train.rehearsal.prompts import LONGEST, choose, opens
from openclaw_rl.train.rehearsal.round import Lesson, RehearsalSettings
from openclaw_rl.types import Note, Rehearsal, Turn, Version, environment_of
from openclaw_rl.versions import VersionManager

ROUNDS = 4
"""rehearsals of a note, one after another, that may end without its being learned"""
_REACH = 1000
"""a user's newest sessions whose prompts may be rehearsed"""


class NotebookLedger(Protocol):
    """What is read of the ledger."""

    def asked(self, user: str, limit: int) -> Sequence[Turn]: ...
    def turn(self, turn: str) -> Turn: ...
    def has_turn(self, turn: str) -> bool: ...
    def rehearsals(self, note: int | None = None) -> Sequence[Rehearsal]: ...
    def made_by(self, step: int) -> Version | None: ...


class LessonBook:
    """The notes as rehearsal sees them. ``checker`` knows what some rules ask; ``everyday`` are shipped prompts."""

    def __init__(
        self,
        ledger: NotebookLedger,
        book: NotesBook,
        versions: VersionManager,
        *,
        consent: Callable[[], Consent],
        checker: Callable[[str], Checker | None],
        everyday: Sequence[str],
        settings: RehearsalSettings,
    ) -> None:
        self._ledger, self._book, self._versions = ledger, book, versions
        self._consent, self._checker = consent, checker
        self._everyday, self._settings = tuple(everyday), settings

    # --- what is next

    def next(self) -> Lesson | None:
        """The newest note that is still to be learned and may be."""
        for note in reversed(self._book.all()):
            if note.prompted and self.refusal(note) is None:
                return self.lesson(note)
        return None

    def refusal(self, note: Note) -> str | None:
        """Why a note is not rehearsed and stays a note; None for one that is."""
        if note.kind != "rule":
            return "it is a fact, which stays a note"
        if environment_of(note.user) is not None:
            return "it is of an environment"
        if not self._book.enabled(note.user):
            return "its user switched notes off"
        consent = self._consent()
        if not consent.allows(note.text, note.user):
            return consent.detail
        return self._given_up(note)

    def _given_up(self, note: Note) -> str | None:
        rows = self._since_learned(note)
        if not rows:
            return None
        version = self._ledger.made_by(rows[-1].step)
        if version is not None and version.state == "refused":
            return f"version {version.number}, which had rehearsed it, was refused"
        if len(rows) >= ROUNDS and not rows[-1].learned:
            return f"{len(rows)} rehearsals did not teach it"
        return None

    def _since_learned(self, note: Note) -> list[Rehearsal]:
        """The rehearsals of a note since it was last learned: one that came back begins anew."""
        learned = [change.at for change in self._book.history(note.number) if change.state == "learned"]
        return [row for row in self._ledger.rehearsals(note.number) if row.at > max(learned, default=0.0)]

    def lesson(self, note: Note) -> Lesson:
        """What a note teaches, with everything else that its user had learned into the weights before it."""
        turn = self._ledger.turn(note.turn) if note.turn and self._ledger.has_turn(note.turn) else None
        past = [one.prompt for one in self._ledger.asked(note.user, _REACH) if _short(one) and opens(one.prompt)]
        prompts = choose(
            past,
            self._everyday,
            count=self._settings.prompts,
            held_back=self._settings.held_back,
            tools=turn is not None and bool(turn.prompt.tools),
            seed=self._settings.seed,
        )
        return Lesson(
            note=note.number,
            user=note.user,
            rule=self._rule(note),
            prompts=prompts,
            checker=self._checker(put(note)),
        )

    def _rule(self, note: Note) -> str:
        """The note as it is served; behind what the user's learned notes ask, for a teacher that learned nothing."""
        before = [put(one) for one in self._learned() if one.user == note.user and one.number != note.number]
        return " ".join([*(before if self._settings.teacher == "base" else ()), put(note)])

    def _learned(self) -> list[Note]:
        return [note for note in self._book.all() if note.state == "learned" and note.kind == "rule"]

    def replays(self, lesson: Lesson) -> list[Lesson]:
        """Of the notes that were learned before."""
        return [self.lesson(note) for note in self._learned() if note.number != lesson.note]

    def estimate(self, steps: int) -> float | None:
        """Seconds of idle time that so many steps may take, by those of earlier rehearsals; None before the first."""
        rows = [row.evidence for row in self._ledger.rehearsals()[-8:] if row.evidence.get("steps")]
        return statistics.median(row["seconds"] / row["steps"] for row in rows) * steps if rows else None

    # --- what became of it

    def begin(self, note: int, cost: str) -> None:
        """From now on it is rehearsed; it stays in the prompt meanwhile."""
        self._book.advance(note, "learning", f"rehearsal begins: {cost}")

    def settle(self) -> int:
        """Bring notes to where their rehearsals' versions are; how many changed. Read from the ledger alone."""
        rows = {row.note: row for row in self._ledger.rehearsals()}
        return sum(self._settle(note, rows[note.number]) for note in self._book.all() if note.number in rows)

    def _settle(self, note: Note, row: Rehearsal) -> bool:
        version = self._ledger.made_by(row.step)
        if version is None or version.state == "candidate":
            return False
        if note.state == "learned":
            gone = version.number in self._versions.ever("rolled back")
            return gone and self._advance(note, "in force", f"version {version.number}, which did it, was rolled back")
        if note.state != "learning":
            return False
        promoted = version.number in self._versions.ever("live")
        if row.learned and promoted and version.number not in self._versions.ever("rolled back"):
            return self._advance(note, "learned", f"version {version.number} does it: {_figures(row.evidence)}")
        why = self._given_up(note)
        return why is not None and self._advance(note, "in force", f"it stays a note: {why}")

    def _advance(self, note: Note, state: Any, reason: str) -> bool:
        return self._book.advance(note.number, state, reason)


def _short(turn: Turn) -> bool:
    return len(turn.completion.prompt_tokens) <= LONGEST


def _figures(evidence: Any) -> str:
    last, prompted, first = evidence.get("last", {}), evidence.get("with_note", {}), evidence.get("first", {})
    kl = f"KL {first.get('kl')} to {last.get('kl')} nats a token"
    if last.get("met") is None or prompted.get("met") is None:
        return kl
    return (
        f"{last['met']} of {last['replies']} replies without it do what it asks,"
        f" {prompted['met']} of {prompted['replies']} with it ({first['met']} before); {kl}"
    )
