"""The book of notes: what each user has asked for, in which state it is, and every change with its reason.

A wish that may not be meant for all replies is proposed: it is shown, and neither put into a prompt nor taught.

proposed -> in force            by its user, who says yes or says it again
proposed -> declined            by its user, who meant one reply
in force <-> learning -> learned     by training: taught, then out of the prompt; back where it was forgotten
in force, learning -> kept           by training: it cannot be taught, and stays a note
any of them, off -> replaced         by a newer note that says otherwise
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
"""notes of one user that may be in prompts at a time"""
MOST_PROPOSED = 20
"""open questions of one user; further wishes are not asked about"""
_OTHERWISE = "says otherwise"
_WISHED, _DOUBTED = "said once, perhaps for all replies", "perhaps somebody else's words"
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
    """A note that is to be made: what `Note` has, before it has a number and a state.

    ``reach`` as of a `Hint`: a wish and a doubtful one are proposed.
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
            raise InvalidValue("text", "a note says something")
        if len(self.text) > LONGEST_NOTE:
            raise InvalidValue("text", f"{len(self.text)} characters, a note has at most {LONGEST_NOTE}")


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
        """Make a note; the user's notes that it contradicts are replaced by it once it is in force.

        Where the user has said it in the same words, in others that are put into a prompt alike, or with a measure that
        this one lacks, that note is it: in force again, if the weights had forgotten it or it was switched off.
        Raises InvalidValue where the user has as many notes in force as there may be.
        """
        known = self._read_for([given])
        return self._ledger.atomically(lambda: self._add(given, known.fresh()))

    def take(self, limit: int, read: ReadRemark) -> list[AddedNote]:
        """Make notes of what people said since, as verdicts heard it and as it was said outright; those that are new.

        ``read`` gives the hint that a text said outright is, None where it is none. A hint of which no note can be made
        is logged and passed by. Texts are read and compared before the transaction, which only writes.
        """
        verdicts, remarks = self._ledger.new_hints(limit), self._ledger.new_remarks(limit)
        if not verdicts and not remarks:
            return []  # without a lock on the file: this is looked for several times a second
        heard = {one.seq: _notes_of(one.user, one.turn, one.hints, "a correction") for one in verdicts}
        outright = {one.seq: _notes_of(one.user, one.turn, _read(one, read), "said outright") for one in remarks}
        known = self._read_for(one for found in (heard, outright) for notes in found.values() for one in notes)
        return self._ledger.atomically(lambda: self._take(limit, heard, outright, known.fresh()))

    def accept(self, number: int, *, reason: str = "the user said yes") -> AddedNote:
        """The user means a proposed note for all replies: it is in force, and replaces what it contradicts."""
        known = self._read_for([_as_new(self._ledger.note(number))])

        def work() -> AddedNote:
            now = self._ledger.note(number)
            if now.state not in ("proposed", "declined"):
                raise InvalidValue("number", f"note {number} is {now.state}, only a proposed one can be accepted")
            return self._enforce(now, known.fresh(), by="user", reason=reason)

        return self._ledger.atomically(work)

    def decline(self, number: int, *, reason: str = "the user said no") -> Note:
        """The user does not mean a proposed note for all replies: it is asked about no more."""

        def work() -> Note:
            now = self._ledger.note(number)
            if now.state != "proposed":
                raise InvalidValue("number", f"note {number} is {now.state}, only a proposed one can be declined")
            self._ledger.insert_change(number, "declined", by="user", reason=reason)
            return self._ledger.note(number)

        return self._ledger.atomically(work)

    def edit(self, number: int, text: str, *, reason: str = "edited") -> AddedNote:
        """The note in other words: a new one, which replaces it and what it contradicts."""

        def work() -> AddedNote:
            old = self._ledger.note(number)
            if old.state == "removed":
                raise InvalidValue("number", f"note {number} was removed", remedy="add a new one")
            given = NewNote(user=old.user, text=text, kind=old.kind, turn=old.turn, by="user", reason=reason)
            return self._insert(given, [old], _KnownNotes(self._ledger), why="is its new wording")

        return self._ledger.atomically(work)

    def switch(self, number: int, on: bool, *, reason: str) -> Note:
        """The user switches a note off, or on again; one that was replaced or learned is put in force by ``on``."""
        state: NoteState = "in force" if on else "off"

        def work() -> Note:
            now = self._ledger.note(number).state
            if now == "removed":
                raise InvalidValue("number", f"note {number} was removed", remedy="add a new one")
            if now != state and not (on and now == "learning"):  # a kept one is tried again
                if on:
                    _need_room(self._ledger.notes(self._ledger.note(number).user))
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

    def _take(
        self,
        limit: int,
        heard: Mapping[int, Sequence[NewNote]],
        outright: Mapping[int, Sequence[NewNote]],
        known: _KnownNotes,
    ) -> list[AddedNote]:
        """Write the notes that were read, of the rows that are still there and that nobody took meanwhile."""
        verdicts = [one.seq for one in self._ledger.new_hints(limit) if one.seq in heard]
        remarks = [one.seq for one in self._ledger.new_remarks(limit) if one.seq in outright]
        added = list[AddedNote]()
        for given in (one for seq in verdicts for one in heard[seq]):
            added += self._add_if_room(given, known)
        for given in (one for seq in remarks for one in outright[seq]):
            added += self._add_if_room(given, known)
        if verdicts or remarks:
            self._ledger.took(verdict=max(verdicts, default=None), feedback=max(remarks, default=None))
        return [one for one in added if one.new]

    def _add_if_room(self, given: NewNote, known: _KnownNotes) -> list[AddedNote]:
        try:
            return [self._add(given, known)]
        except InvalidValue as error:  # before it wrote anything
            log.warning("notes.not made turn=%s reason=%s", given.turn, error)
            return []

    def _read_for(self, given: Iterable[NewNote]) -> _KnownNotes:
        """The notes that new ones are compared with, read and parsed outside of the transaction that makes them."""
        known = _KnownNotes(self._ledger)
        for one in given:
            saying = _saying(one)
            for old in known.of(one.user):
                says_again(saying, _saying(old))
                contradicts(saying, _saying(old))
        return known

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
        """The user says again what a note says already. A turn says it once: its verdict may be written twice.

        A standing wish puts any note in force again; one of the user's own that may be for all replies, a proposed or
        learned one; words that may be somebody else's, none.
        """
        if old.prompted or given.reach == "doubtful" or (old.turn is not None and old.turn == given.turn):
            return AddedNote(old, new=False)
        if given.reach == "wish":
            if old.state not in ("proposed", "learned"):
                return AddedNote(old, new=False)
            if self._ledger.note_changes(old.number)[-1].reason == _DOUBTED:
                self._ledger.insert_change(old.number, "proposed", by=given.by, reason=_WISHED)
                return AddedNote(old, new=False)
        asked = old.state in ("proposed", "declined")
        added = self._enforce(old, known, by=given.by, reason="the user said it again")
        return added._replace(new=asked)

    def _enforce(self, note: Note, known: _KnownNotes, *, by: NoteAuthor, reason: str) -> AddedNote:
        """Put a note in force that was in no prompt; those that it contradicts are replaced by it."""
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
    """The notes of some users that count (not removed, not replaced), each user's read once and kept up to date."""

    def __init__(self, ledger: NotesLedger) -> None:
        self._ledger = ledger
        self._read_at = ledger.last_note_change()
        self._notes: dict[str, dict[int, Note]] = {}

    def fresh(self) -> Self:
        """The same inside a transaction: read again if any note changed since."""
        if self._ledger.last_note_change() != self._read_at:
            self._notes.clear()
        return self

    def of(self, user: str) -> list[Note]:
        """A user's notes, oldest first."""
        if user not in self._notes:
            self._notes[user] = {note.number: note for note in self._ledger.notes(user) if _counts(note)}
        return list(self._notes[user].values())

    def put(self, note: Note) -> Note:
        """Take a note as it is now; the same note."""
        if (notes := self._notes.get(note.user)) is not None:
            if _counts(note):
                notes[note.number] = note  # one that is there keeps its place, a new one has the highest number
            else:
                notes.pop(note.number, None)
        return note


def _counts(note: Note) -> bool:
    return note.state not in ("removed", "replaced")


def _need_room(notes: Iterable[Note], *, proposed: bool = False) -> None:
    """Raise InvalidValue where a user has as many notes as there may be."""
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
    """The notes that hints of one turn are; a hint that can be none is logged and costs no other."""
    notes = list[NewNote]()
    for hint in hints:
        if hint.kind == "complaint" or hint.reach == "once" or environment_of(user) is not None:
            continue
        try:
            given = NewNote(
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
            notes.append(given)
    return notes


def _read(remark: GivenRemark, read: ReadRemark) -> list[Hint]:
    """The hint that a remark is, as a list; a text that trips its reader is logged and is none."""
    if not remark.text:
        return []
    try:
        hint = read(remark.text, remark.reply)
    except Exception:  # any text may be said outright; one that cannot be read must not end all notes
        log.warning("notes.not made turn=%s", remark.turn, exc_info=True)
        return []
    return [] if hint is None else [hint]


def _as_new(note: Note) -> NewNote:
    return NewNote(user=note.user, text=note.text, kind=note.kind, vague=note.vague, by="user", reason="")


def _saying(note: Note | NewNote) -> Saying:
    return Saying(note.text, note.kind, note.vague)
