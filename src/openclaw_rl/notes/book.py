"""The notes book: each user's preferences, their states, and every change with its reason.

A wish that may not apply to all replies is proposed: it is shown, and neither put into a prompt nor taught.

proposed -> in force            by its user, who accepts or repeats it
proposed -> declined            by its user, who meant one reply
in force <-> learning -> learned     by training: taught, then out of the prompt; back if the weights forgot it
in force, learning -> kept           by training: it cannot be taught, and stays a note
any of them, off -> replaced         by a newer note that contradicts it
in force, learning, learned <-> off  by the user
any state -> removed                 by the user, for good
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeAlias

from openclaw_rl.errors import InvalidValue
from openclaw_rl.preferences.comparison import Saying, contradicts, says_again
from openclaw_rl.store import NotesLedger
from openclaw_rl.store.results import GivenRemark
from openclaw_rl.types import (
    LONGEST_NOTE,
    Hint,
    Note,
    NoteAuthor,
    NoteChange,
    NoteKind,
    NoteState,
    Reach,
    environment_of,
)

log = logging.getLogger(__name__)

MOST_IN_FORCE = 100
"""limit for a user's notes in prompts at a time"""
MOST_PROPOSED = 20
"""limit for a user's open questions; further wishes are not asked about"""
_OTHERWISE = "says otherwise"
_WISHED, _DOUBTED = "said once, perhaps for all replies", "perhaps somebody else's words"
ReadRemark: TypeAlias = Callable[[str, str], Hint | None]
"""(explicit comment on a reply, the reply) -> its hint"""

_TAUGHT: frozenset[NoteState] = frozenset({"in force", "learning", "learned", "kept"})
"""the states between which training moves a note; only its user changes the other states"""


class AddedNote(NamedTuple):
    """A new note, or the existing one (``new`` False), and the notes that it replaced."""

    note: Note
    replaced: tuple[Note, ...] = ()
    new: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class NewNote:
    """A note to be made: the fields of `Note` before it has a number and a state.

    ``reach`` is a `Hint`'s: a wish and a doubtful note are proposed.
    """

    user: str
    text: str
    kind: NoteKind = "rule"
    vague: bool = False
    reach: Reach = "standing"
    turn: str | None = None
    by: NoteAuthor
    reason: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", " ".join(self.text.split()))
        if not self.text:
            raise InvalidValue("text", "a note needs a text")
        if len(self.text) > LONGEST_NOTE:
            raise InvalidValue("text", f"{len(self.text)} characters, a note has at most {LONGEST_NOTE}")


class NotesBook:
    """Reads and changes notes. Every method is synchronous and thread-safe, like the ledger."""

    def __init__(self, ledger: NotesLedger) -> None:
        self._ledger = ledger

    # --- reading ---

    def note(self, number: int) -> Note:
        """Return the note with this number; raise NotInLedger if there is none."""
        return self._ledger.note(number)

    def all(self, user: str | None = None) -> list[Note]:
        """Return a user's notes, or all users', in every state but removed; oldest first."""
        return [note for note in self._ledger.notes(user) if note.state != "removed"]

    def in_force(self, user: str) -> list[Note]:
        """Return the notes in a user's prompts: rules before facts, the newest of each first.

        Empty if the user switched notes off.
        """
        if not self._ledger.notes_enabled(user):
            return []
        prompted = [note for note in self._ledger.notes(user) if note.prompted]
        return sorted(prompted, key=lambda note: (note.kind == "fact", -note.number))

    def history(self, number: int) -> list[NoteChange]:
        """Return each change to a note's state, oldest first."""
        return self._ledger.note_changes(number)

    # --- training ---

    def advance(self, number: int, state: NoteState, reason: str) -> bool:
        """Move a note as training requests: to learning, to learned, back in force, or to kept, which is for good.

        Returns False and writes nothing if the user has meanwhile switched the note off, removed or replaced it, or if
        it is in that state already.
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
        """Write why a note in force is not being learned; return True if that was written.

        Nothing is written for a note out of force, or if its newest change has that reason already.
        """

        def work() -> bool:
            changes = self._ledger.note_changes(number)
            if not changes or changes[-1].state != "in force" or changes[-1].reason == reason:
                return False
            self._ledger.insert_change(number, "in force", by="trainer", reason=reason)
            return True

        return self._ledger.atomically(work)

    # --- making and changing ---

    def add(self, given: NewNote) -> AddedNote:
        """Make a note; once it is in force, it replaces the user's notes that it contradicts.

        An earlier note counts as the same if it has the same words, words with the same prompt text, or a limit that
        this one lacks; it is then in force again, if the weights had forgotten it or it was switched off.
        Raises InvalidValue if the user already has the maximum number of notes in force.
        """
        cache = self._read_for([given])
        return self._ledger.atomically(lambda: self._add(given, cache.fresh()))

    def take(self, limit: int, read: ReadRemark) -> list[AddedNote]:
        """Make notes from new verdicts and new explicit comments; return the new ones.

        ``read`` returns a comment's hint, None without one. A hint that cannot become a note is logged and skipped.
        Texts are read and compared before the transaction, which only writes.
        """
        verdicts, remarks = self._ledger.new_hints(limit), self._ledger.new_remarks(limit)
        if not verdicts and not remarks:
            return []  # no file lock for this check, which runs several times a second
        from_verdicts = {
            entry.seq: _notes_of(entry.user, entry.turn, entry.hints, "a correction") for entry in verdicts
        }
        from_comments = {
            entry.seq: _notes_of(entry.user, entry.turn, _read(entry, read), "an explicit comment") for entry in remarks
        }
        cache = self._read_for(
            entry for group in (from_verdicts, from_comments) for notes in group.values() for entry in notes
        )
        return self._ledger.atomically(lambda: self._take(limit, from_verdicts, from_comments, cache.fresh()))

    def accept(self, number: int, *, reason: str = "the user said yes") -> AddedNote:
        """Accept a proposed note for all replies: it is in force and replaces the notes that it contradicts."""
        cache = self._read_for([_as_new(self._ledger.note(number))])

        def work() -> AddedNote:
            now = self._ledger.note(number)
            if now.state not in ("proposed", "declined"):
                raise InvalidValue("number", f"note {number} is {now.state}, only a proposed one can be accepted")
            return self._enforce(now, cache.fresh(), by="user", reason=reason)

        return self._ledger.atomically(work)

    def decline(self, number: int, *, reason: str = "the user said no") -> Note:
        """Decline a proposed note for all replies: it is not asked about again."""

        def work() -> Note:
            now = self._ledger.note(number)
            if now.state != "proposed":
                raise InvalidValue("number", f"note {number} is {now.state}, only a proposed one can be declined")
            self._ledger.insert_change(number, "declined", by="user", reason=reason)
            return self._ledger.note(number)

        return self._ledger.atomically(work)

    def edit(self, number: int, text: str, *, reason: str = "edited") -> AddedNote:
        """Reword a note: a new note replaces it and the notes that it contradicts."""

        def work() -> AddedNote:
            old = self._ledger.note(number)
            if old.state == "removed":
                raise InvalidValue("number", f"note {number} was removed", remedy="add a new one")
            rewording = NewNote(user=old.user, text=text, kind=old.kind, turn=old.turn, by="user", reason=reason)
            return self._insert(rewording, [old], _KnownNotes(self._ledger), why="is its new wording")

        return self._ledger.atomically(work)

    def switch(self, number: int, on: bool, *, reason: str) -> Note:
        """Switch a note off or on for its user; ``on`` also puts a replaced or learned note in force."""
        state: NoteState = "in force" if on else "off"

        def work() -> Note:
            now = self._ledger.note(number).state
            if now == "removed":
                raise InvalidValue("number", f"note {number} was removed", remedy="add a new one")
            if now != state and not (on and now == "learning"):  # for a kept note, training tries again
                if on:
                    _need_room(self._ledger.notes(self._ledger.note(number).user))
                self._ledger.insert_change(number, state, by="user", reason=reason)
            return self._ledger.note(number)

        return self._ledger.atomically(work)

    def remove(self, number: int, *, reason: str) -> Note:
        """Remove a note for good."""

        def work() -> Note:
            if self._ledger.note(number).state != "removed":
                self._ledger.insert_change(number, "removed", by="user", reason=reason)
            return self._ledger.note(number)

        return self._ledger.atomically(work)

    def enabled(self, user: str) -> bool:
        """Check if a user's notes are put into prompts."""
        return self._ledger.notes_enabled(user)

    def enable(self, user: str, enabled: bool, *, reason: str) -> None:
        """Switch all of a user's notes on or off, including future ones."""
        self._ledger.atomically(lambda: self._ledger.insert_switch(user, enabled, reason))

    def _take(
        self,
        limit: int,
        heard: Mapping[int, Sequence[NewNote]],
        comments: Mapping[int, Sequence[NewNote]],
        known: _KnownNotes,
    ) -> list[AddedNote]:
        """Write the notes that were read, if their rows still exist and are still new."""
        verdicts = [entry.seq for entry in self._ledger.new_hints(limit) if entry.seq in heard]
        remarks = [entry.seq for entry in self._ledger.new_remarks(limit) if entry.seq in comments]
        added = list[AddedNote]()
        for candidate in (entry for seq in verdicts for entry in heard[seq]):
            added += self._add_if_room(candidate, known)
        for candidate in (entry for seq in remarks for entry in comments[seq]):
            added += self._add_if_room(candidate, known)
        if verdicts or remarks:
            self._ledger.took(verdict=max(verdicts, default=None), feedback=max(remarks, default=None))
        return [entry for entry in added if entry.new]

    def _add_if_room(self, given: NewNote, known: _KnownNotes) -> list[AddedNote]:
        try:
            return [self._add(given, known)]
        except InvalidValue as error:  # raised before anything was written
            log.warning("notes.not made turn=%s reason=%s", given.turn, error)
            return []

    def _read_for(self, given: Iterable[NewNote]) -> _KnownNotes:
        """Read the notes that new ones are compared with, and parse them outside the transaction that writes."""
        cache = _KnownNotes(self._ledger)
        for candidate in given:
            saying = _saying(candidate)
            for old in cache.of(candidate.user):
                says_again(saying, _saying(old))
                contradicts(saying, _saying(old))
        return cache

    def _add(self, given: NewNote, known: _KnownNotes) -> AddedNote:
        saying, notes = _saying(given), known.of(given.user)
        for old in reversed(notes):
            if says_again(saying, _saying(old)):
                return self._again(old, given, known)
        if given.reach != "standing":
            _need_room(notes, proposed=True)
            return self._insert(given, [], known, why="", state="proposed")
        _need_room(notes)
        return self._insert(given, [old for old in notes if contradicts(saying, _saying(old))], known, why=_OTHERWISE)

    def _again(self, old: Note, given: NewNote, known: _KnownNotes) -> AddedNote:
        """Handle a note that the user repeats; a second verdict on the same turn is no repetition.

        A standing wish puts any note in force again; the user's own wish that may apply to all replies, a proposed or
        learned one; words that may be another author's, none.
        """
        if old.prompted or given.reach == "doubtful" or (old.turn is not None and old.turn == given.turn):
            return AddedNote(old, new=False)
        if given.reach == "wish":
            if old.state not in ("proposed", "learned"):
                return AddedNote(old, new=False)
            if self._ledger.note_changes(old.number)[-1].reason == _DOUBTED:
                self._ledger.insert_change(old.number, "proposed", by=given.by, reason=_WISHED)
                return AddedNote(old, new=False)
        undecided = old.state in ("proposed", "declined")
        added = self._enforce(old, known, by=given.by, reason="the user said it again")
        return added._replace(new=undecided)

    def _enforce(self, note: Note, known: _KnownNotes, *, by: NoteAuthor, reason: str) -> AddedNote:
        """Put a note in force that was in no prompt; it replaces the notes that it contradicts."""
        notes = known.of(note.user)
        _need_room(notes)
        self._ledger.insert_change(note.number, "in force", by=by, reason=reason)
        instead_of = [old for old in notes if old.prompted and contradicts(_saying(note), _saying(old))]
        replaced = self._replace(instead_of, note.number, known, _OTHERWISE, by)
        return AddedNote(known.put(self._ledger.note(note.number)), replaced)

    def _insert(
        self, given: NewNote, instead_of: Iterable[Note], known: _KnownNotes, *, why: str, state: NoteState = "in force"
    ) -> AddedNote:
        reasons: dict[Reach, str] = {"wish": _WISHED, "doubtful": _DOUBTED}
        number = self._ledger.insert_note(
            user=given.user,
            kind=given.kind,
            text=given.text,
            vague=given.vague,
            turn=given.turn,
            by=given.by,
            reason=reasons.get(given.reach, given.reason),
            state=state,
        )
        note = known.put(self._ledger.note(number))
        return AddedNote(note, self._replace(instead_of, number, known, why, given.by))

    def _replace(
        self, notes: Iterable[Note], by_note: int, known: _KnownNotes, why: str, by: NoteAuthor
    ) -> tuple[Note, ...]:
        replaced = []
        for old in notes:
            reason = f"note {by_note} {why}"
            self._ledger.insert_change(old.number, "replaced", by=by, reason=reason, replaced_by=by_note)
            replaced.append(known.put(self._ledger.note(old.number)))
        return tuple(replaced)


class _KnownNotes:
    """Users' notes that count (not removed, not replaced), each user's read once and kept up to date."""

    def __init__(self, ledger: NotesLedger) -> None:
        self._ledger = ledger
        self._read_at = ledger.last_note_change()
        self._notes: dict[str, dict[int, Note]] = {}

    def fresh(self) -> Self:
        """Return this cache inside a transaction; read again if any note changed since."""
        if self._ledger.last_note_change() != self._read_at:
            self._notes.clear()
        return self

    def of(self, user: str) -> list[Note]:
        """Return a user's notes, oldest first."""
        if user not in self._notes:
            self._notes[user] = {note.number: note for note in self._ledger.notes(user) if _counts(note)}
        return list(self._notes[user].values())

    def put(self, note: Note) -> Note:
        """Store and return a note's present state."""
        if (notes := self._notes.get(note.user)) is not None:
            if _counts(note):
                notes[note.number] = note  # an existing note keeps its place, a new one has the highest number
            else:
                notes.pop(note.number, None)
        return note


def _counts(note: Note) -> bool:
    return note.state not in ("removed", "replaced")


def _need_room(notes: Iterable[Note], *, proposed: bool = False) -> None:
    """Raise InvalidValue if a user already has the maximum number of notes."""
    count = sum(note.state == "proposed" if proposed else note.prompted for note in notes)
    if proposed and count >= MOST_PROPOSED:
        raise InvalidValue(
            "text", f"{count} notes wait for an answer, the most there can be", remedy="accept or decline some"
        )
    if not proposed and count >= MOST_IN_FORCE:
        raise InvalidValue(
            "text", f"{count} notes are in force, the most there can be", remedy="remove some or switch them off"
        )


def _notes_of(user: str, turn: str, hints: Iterable[Hint], reason: str) -> list[NewNote]:
    """Return the notes for one turn's hints; an unusable hint is logged and the others are kept."""
    notes = list[NewNote]()
    for hint in hints:
        if hint.kind == "complaint" or hint.reach == "once" or environment_of(user) is not None:
            continue
        try:
            candidate = NewNote(
                user=user,
                text=hint.text,
                kind=hint.kind,
                vague=hint.vague,
                reach=hint.reach,
                turn=turn,
                by="judge",
                reason=reason,
            )
        except InvalidValue as error:
            log.warning("notes.not made turn=%s reason=%s", turn, error)
        else:
            notes.append(candidate)
    return notes


def _read(remark: GivenRemark, read: ReadRemark) -> list[Hint]:
    """Return the hint in an explicit comment, as a list; on a reader error, log it and return none."""
    if not remark.text:
        return []
    try:
        hint = read(remark.text, remark.reply)
    except Exception:  # a comment can be any text; an unreadable one must not stop all notes
        log.warning("notes.not made turn=%s", remark.turn, exc_info=True)
        return []
    return [] if hint is None else [hint]


def _as_new(note: Note) -> NewNote:
    return NewNote(user=note.user, text=note.text, kind=note.kind, vague=note.vague, by="user", reason="")


def _saying(note: Note | NewNote) -> Saying:
    return Saying(note.text, note.kind, note.vague)
