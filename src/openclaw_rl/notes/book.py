"""The book of notes: what each user has asked for, in which state it is, and every change with its reason.

in force <-> learning -> learned     by training: taught, then out of the prompt; back where it was forgotten
in force, learning -> kept           by training: it cannot be taught, and stays a note
any of them, off -> replaced         by a newer note that says otherwise
in force, learning, learned <-> off  by the user
any state -> removed                 by the user, for good
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from openclaw_rl.errors import InvalidValue
from openclaw_rl.preferences.comparison import Saying, contradicts, says_again
from openclaw_rl.store import NotesLedger
from openclaw_rl.types import Hint, Note, NoteAuthor, NoteChange, NoteKind, NoteState, environment_of

LONGEST = 600
"""characters of a note: as long as a hint may be"""
ReadRemark: TypeAlias = Callable[[str, str], Hint | None]
"""(what was said outright of a reply, the reply) -> the hint that it is"""

_TAUGHT: frozenset[NoteState] = frozenset({"in force", "learning", "learned", "kept"})
"""the states between which training moves a note; out of the others only its user takes it"""


class AddedNote(NamedTuple):
    """A note that was made, or that was there already (``new`` False), and the notes that it replaced."""

    note: Note
    replaced: tuple[Note, ...] = ()
    new: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class NewNote:
    """A note that is to be made: what `Note` has, before it has a number and a state."""

    user: str
    text: str
    kind: NoteKind = "rule"
    vague: bool = False
    turn: str | None = None
    by: NoteAuthor
    reason: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", " ".join(self.text.split()))
        if not self.text:
            raise InvalidValue("text", "a note says something")
        if len(self.text) > LONGEST:
            raise InvalidValue("text", f"{len(self.text)} characters, a note has at most {LONGEST}")


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
        """Training moves a note: to learning, to learned, back in force, or to kept, which is for good.

        False, and nothing is written, where the user has switched it off, removed or replaced it meanwhile, or where it
        is in that state already.
        """
        if state not in _TAUGHT:
            raise InvalidValue("state", f"training cannot make a note {state!r}, only {', '.join(sorted(_TAUGHT))}")

        def work() -> bool:
            if not self._ledger.note_changes(number):  # it was deleted with its session
                return False
            now = self._ledger.note(number).state
            if now not in _TAUGHT or now == state:
                return False
            self._ledger.insert_change(number, state, by="trainer", reason=reason)
            return True

        return self._ledger.atomically(work)

    def explain(self, number: int, reason: str) -> bool:
        """Write why a note in force is not being learned; False, and nothing is written, where that stands there."""

        def work() -> bool:
            changes = self._ledger.note_changes(number)
            if not changes or changes[-1].state != "in force" or changes[-1].reason == reason:
                return False
            self._ledger.insert_change(number, "in force", by="trainer", reason=reason)
            return True

        return self._ledger.atomically(work)

    # --- making and changing ---

    def add(self, given: NewNote) -> AddedNote:
        """Make a note, in force at once; the user's notes that it contradicts are replaced by it.

        Where the user has said it in the same words, in others that are put into a prompt alike, or with a measure that
        this one lacks, that note is it: in force again, if the weights had forgotten it or it was switched off.
        """
        return self._ledger.atomically(lambda: self._add(given))

    def take(self, limit: int, read: ReadRemark) -> list[AddedNote]:
        """Make notes of what people said since, as verdicts heard it and as it was said outright; those that are new.

        ``read`` gives the hint that a text said outright is, None where it is none.
        """
        if not (self._ledger.new_hints(1) or self._ledger.new_remarks(1)):
            return []  # without a lock on the file: this is looked for several times a second
        return self._ledger.atomically(lambda: self._take(limit, read))

    def edit(self, number: int, text: str, *, reason: str = "edited") -> AddedNote:
        """The note in other words: a new one, which replaces it and what it contradicts."""

        def work() -> AddedNote:
            old = self._ledger.note(number)
            if old.state == "removed":
                raise InvalidValue("number", f"note {number} was removed", remedy="add a new one")
            given = NewNote(user=old.user, text=text, kind=old.kind, turn=old.turn, by="user", reason=reason)
            return self._insert(given, [old], why="is its new wording")

        return self._ledger.atomically(work)

    def switch(self, number: int, on: bool, *, reason: str) -> Note:
        """The user switches a note off, or on again; one that was replaced or learned is put in force by ``on``."""
        state: NoteState = "in force" if on else "off"

        def work() -> Note:
            now = self._ledger.note(number).state
            if now == "removed":
                raise InvalidValue("number", f"note {number} was removed", remedy="add a new one")
            if now != state and not (on and now == "learning"):  # a kept one is tried again
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

    def _take(self, limit: int, read: ReadRemark) -> list[AddedNote]:
        verdicts, remarks = self._ledger.new_hints(limit), self._ledger.new_remarks(limit)
        given = [(found.user, found.turn, hint, "a correction") for found in verdicts for hint in found.hints]
        for remark in remarks:
            hint = read(remark.text, remark.reply) if remark.text else None
            if hint is not None:
                given.append((remark.user, remark.turn, hint, "said outright"))
        made = [
            self._add(
                NewNote(
                    user=user, text=hint.text, kind=hint.kind, vague=hint.vague, turn=turn, by="judge", reason=reason
                )
            )
            for user, turn, hint, reason in given
            if hint.kind != "complaint" and environment_of(user) is None
        ]
        if verdicts or remarks:
            self._ledger.took(
                verdict=verdicts[-1].seq if verdicts else None, feedback=remarks[-1].seq if remarks else None
            )
        return [added for added in made if added.new]

    def _add(self, given: NewNote) -> AddedNote:
        saying = Saying(given.text, given.kind, given.vague)
        known = [note for note in self._ledger.notes(given.user) if note.state not in ("removed", "replaced")]
        for old in reversed(known):
            if says_again(saying, _saying(old)):
                return AddedNote(self._again(old, given), new=False)
        instead_of = [old for old in known if contradicts(saying, _saying(old))]
        return self._insert(given, instead_of, why="says otherwise")

    def _again(self, old: Note, given: NewNote) -> Note:
        """The user says again what a note says already. A turn says it once: its verdict may be written twice."""
        if old.prompted or (old.turn is not None and old.turn == given.turn):
            return old
        self._ledger.insert_change(old.number, "in force", by=given.by, reason="the user said it again")
        return self._ledger.note(old.number)

    def _insert(self, given: NewNote, instead_of: Iterable[Note], *, why: str) -> AddedNote:
        number = self._ledger.insert_note(
            user=given.user,
            kind=given.kind,
            text=given.text,
            vague=given.vague,
            turn=given.turn,
            by=given.by,
            reason=given.reason,
        )
        replaced = []
        for old in instead_of:
            reason = f"note {number} {why}"
            self._ledger.insert_change(old.number, "replaced", by=given.by, reason=reason, replaced_by=number)
            replaced.append(self._ledger.note(old.number))
        return AddedNote(self._ledger.note(number), tuple(replaced))


def _saying(note: Note) -> Saying:
    return Saying(note.text, note.kind, note.vague)
