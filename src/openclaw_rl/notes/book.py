"""The book of notes: what each user has asked for, in which state it is, and every change with its reason.

in force <-> learning -> learned     by training: taught, then out of the prompt; back where it was forgotten
any of them, off -> replaced         by a newer note that says otherwise
in force, learning, learned <-> off  by the user
any state -> removed                 by the user, for good
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from openclaw_rl.errors import InvalidValue
from openclaw_rl.store import NotesLedger
from openclaw_rl.types import Note, NoteAuthor, NoteChange, NoteKind, NoteState

_TAUGHT: frozenset[NoteState] = frozenset({"in force", "learning", "learned"})
"""the states between which training moves a note; out of the others only its user takes it"""


class AddedNote(NamedTuple):
    """A note that was made, or that was there already (``new`` False), and the notes that it replaced."""

    note: Note
    replaced: tuple[Note, ...] = ()
    new: bool = True


class NotesBook:
    """Reads and changes notes. Every method is synchronous and thread-safe, as the ledger is."""

    def __init__(self, ledger: NotesLedger) -> None:
        self._ledger = ledger

    # --- reading ---

    def note(self, number: int) -> Note:
        """A note by its number; NotInLedger where there is none."""
        return self._ledger.note(number)

    def all(self, user: str | None = None) -> list[Note]:
        """The notes of a user, or of everybody, in every state but removed; oldest first."""
        return [note for note in self._ledger.notes(user) if note.state != "removed"]

    def in_force(self, user: str) -> list[Note]:
        """The notes that are in a user's prompts: rules before facts, the newest of each first.

        Empty where the user switched notes off.
        """
        if not self._ledger.notes_enabled(user):
            return []
        found = [note for note in self._ledger.notes(user) if note.prompted]
        return sorted(found, key=lambda note: (note.kind == "fact", -note.number))

    def history(self, number: int) -> list[NoteChange]:
        """Each change of a note's state, oldest first."""
        return self._ledger.note_changes(number)

    # --- training ---

    def advance(self, number: int, state: NoteState, reason: str) -> bool:
        """Training moves a note: to learning, to learned, or back in force.

        False, and nothing is written, where the user has switched it off, removed or replaced it meanwhile, or where it
        is in that state already.
        """
        if state not in _TAUGHT:
            raise InvalidValue("state", f"training cannot make a note {state!r}, only {', '.join(sorted(_TAUGHT))}")

        def work() -> bool:
            now = self._ledger.note(number).state
            if now not in _TAUGHT or now == state:
                return False
            self._ledger.insert_change(number, state, by="trainer", reason=reason)
            return True

        return self._ledger.atomically(work)

    # --- making and changing ---

    def add(
        self, user: str, text: str, *, kind: NoteKind = "rule", turn: str | None = None, by: NoteAuthor, reason: str
    ) -> AddedNote:
        """Make a note of a user, in force at once; the user's notes that it contradicts are replaced by it."""
        return self._ledger.atomically(
            lambda: self._added(user, text, kind=kind, turn=turn, by=by, reason=reason, instead_of=())
        )

    def edit(self, number: int, text: str, *, reason: str = "edited") -> AddedNote:
        """The note in other words: a new one, which replaces it."""

        def work() -> AddedNote:
            old = self._ledger.note(number)
            if old.state == "removed":
                raise InvalidValue("number", f"note {number} was removed", remedy="add a new one")
            return self._added(
                old.user, text, kind=old.kind, turn=old.turn, by="user", reason=reason, instead_of=(old,)
            )

        return self._ledger.atomically(work)

    def switch(self, number: int, on: bool, *, reason: str) -> Note:
        """The user switches a note off, or on again; one that was replaced or learned is put in force by ``on``."""
        state: NoteState = "in force" if on else "off"

        def work() -> Note:
            now = self._ledger.note(number).state
            if now == "removed":
                raise InvalidValue("number", f"note {number} was removed", remedy="add a new one")
            if now != state and not (on and now == "learning"):
                self._ledger.insert_change(number, state, by="user", reason=reason)
            return self._ledger.note(number)

        return self._ledger.atomically(work)

    def remove(self, number: int, *, reason: str) -> Note:
        """The user takes a note away for good."""

        def work() -> Note:
            if self._ledger.note(number).state != "removed":
                self._ledger.insert_change(number, "removed", by="user", reason=reason)
            return self._ledger.note(number)

        return self._ledger.atomically(work)

    def enabled(self, user: str) -> bool:
        """Whether a user has notes put into prompts."""
        return self._ledger.notes_enabled(user)

    def enable(self, user: str, enabled: bool, *, reason: str) -> None:
        """Switch all notes of a user on or off, those that will be made too."""
        self._ledger.atomically(lambda: self._ledger.insert_switch(user, enabled, reason))

    def _added(
        self,
        user: str,
        text: str,
        *,
        kind: NoteKind,
        turn: str | None,
        by: NoteAuthor,
        reason: str,
        instead_of: Iterable[Note],
    ) -> AddedNote:
        text = " ".join(text.split())
        if not text:
            raise InvalidValue("text", "a note says something")
        number = self._ledger.insert_note(user=user, kind=kind, text=text, turn=turn, by=by, reason=reason)
        replaced = []
        for old in instead_of:
            why = reason if by == "user" else f"note {number} says otherwise"
            self._ledger.insert_change(old.number, "replaced", by=by, reason=why, replaced_by=number)
            replaced.append(self._ledger.note(old.number))
        return AddedNote(self._ledger.note(number), tuple(replaced))
