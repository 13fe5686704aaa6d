"""Which note is rehearsed next, what became of those that were, and when one may leave the prompt or must come back."""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from openclaw_rl.notes import NotesBook
from openclaw_rl.ports import GateDecision
from openclaw_rl.preferences.comparison import opposes
from openclaw_rl.preferences.wording import PLAIN_SENTENCES, is_plain, put
from openclaw_rl.train.consent import Consent, person
from openclaw_rl.train.rehearsal.prompts import (
    LONGEST,
    PLAIN,
    Checker,
    Lesson,
    RehearsalSettings,
    Relevance,
    choose,
    opens,
)
from openclaw_rl.types import Note, NoteState, Rehearsal, Sample, Turn, Version, environment_of
from openclaw_rl.versions import VersionManager

# What a step of turns repeats of notes that were learned, so that going on does not undo them. Pure.
#
# The replies are those of the turns themselves, which were sampled without the note; the teacher has it. So nothing has
# to be sampled, and in a packed tree the policy computes no token more.


class Said(NamedTuple):
    """What a user had learned: all their learned rules in a line, and the number of the newest note."""

    note: int
    rule: str


def beside(samples: Sequence[Sample], learned: Mapping[str, Said], *, share: float) -> list[Sample]:
    """A rehearsal of so many of these turns, spread over them, by the user's own learned notes.

    Not of a reply that was sampled under another prompt than its own (some other note is in force there), and not of
    an environment's.
    """
    fit = [one for one in samples if one.user in learned and one.logprobs is not None and one.played is None]
    count = min(len(fit), math.ceil(len(samples) * share))
    chosen = (fit[at * len(fit) // count] for at in range(count))
    return [_repeated(one, learned[one.user]) for one in chosen]


def _repeated(sample: Sample, said: Said) -> Sample:
    return replace(
        sample,
        turn=f"{sample.turn} under note {said.note}",
        score=None,
        advantage=None,
        group=None,
        recalled=None,
        teachers=(sample.prompt.hinted(said.rule),),
        rehearses=str(said.note),
    )


log = logging.getLogger(__name__)

ROUNDS = 4
"""rehearsals of a note, one after another, that may end without its being learned"""
SENTENCES = 12
"""that are practised at most: each is repeated while the next is taught, and whoever has a key can add one"""
_UNTAUGHT: frozenset[NoteState] = frozenset({"in force", "learning"})
"""the states of a note that is still to be learned"""
_REACH = 1000
"""a user's newest sessions whose prompts may be rehearsed"""


class NotebookLedger(Protocol):
    """What is read of the ledger."""

    def asked(self, user: str, limit: int) -> Sequence[Turn]: ...
    def turn(self, turn: str) -> Turn: ...
    def has_turn(self, turn: str) -> bool: ...
    def rehearsals(self, note: int | None = None) -> Sequence[Rehearsal]: ...
    def made_by(self, step: int) -> Version | None: ...
    def gate_decisions(self, version: int) -> Sequence[GateDecision]: ...


class LessonBook:
    """The notes as rehearsal sees them. ``checker`` knows what some rules ask, ``relevant`` whether a reply is about a
    question; ``everyday`` are shipped prompts."""

    def __init__(
        self,
        ledger: NotebookLedger,
        book: NotesBook,
        versions: VersionManager,
        *,
        consent: Callable[[], Consent],
        checker: Callable[[str], Checker | None],
        relevant: Relevance,
        everyday: Sequence[str],
        settings: RehearsalSettings,
    ) -> None:
        self._ledger, self._book, self._versions = ledger, book, versions
        self._consent, self._checker, self._relevant = consent, checker, relevant
        self._everyday, self._settings = tuple(everyday), settings
        self._in_vain: dict[str, str] = {}  # what practising a rule came to nothing by, since the start

    # --- what is next

    def next(self) -> Lesson | None:
        """The newest note that is still to be learned and may be."""
        notes = self._book.all()
        able = [note for note in notes if _teachable(note) and self._book.enabled(note.user)]
        waits = self._waiting(able, notes)
        for note in reversed(able):
            if note.number not in waits:
                return self.lesson(note)
        return self._to_practise([note for note in notes if note.number in waits or _is_kept(note)])

    def _to_practise(self, stay: Sequence[Note]) -> Lesson | None:
        """The newest of these notes, which stay in prompts, that is to be practised there: once each.

        It is a plain sentence and the prompts are shipped ones, so nobody's own words are in it, and without the
        sentence in a prompt nothing changes: it takes nobody's consent.
        """
        if not stay or not self._settings.reward:  # nothing else tells good replies from others
            return None
        done = {*self._practised(), *self._in_vain}
        for note in reversed(stay if len(done) < SENTENCES else ()):
            rule = put(note)
            if rule in done or not is_plain(rule) or not self._book.enabled(note.user):
                continue
            if (checker := self._checker(rule)) is not None:
                return self._practice(note.number, note.user, rule, checker)
        return None

    def _practised(self) -> dict[str, Rehearsal]:
        """What was practised, by rule: the last of each whose version was not rolled back."""
        gone = self._versions.ever("rolled back")
        found = {}
        for row in self._ledger.rehearsals():
            if row.practised is not None:
                version = self._ledger.made_by(row.step)
                if version is None or version.number not in gone:
                    found[row.practised] = row
        return found

    def _practice(self, note: int, user: str, rule: str, checker: Checker | None) -> Lesson:
        prompts = choose(
            (),
            self._everyday,
            count=self._settings.prompts,
            held_back=self._settings.held_back,
            tools=False,
            seed=self._settings.seed,
        )
        return Lesson(
            note=note,
            user=user,
            rule=rule,
            prompts=prompts,
            checker=checker,
            relevant=self._relevant,
            in_prompt=True,
        )

    def _waiting(self, able: Sequence[Note], notes: Sequence[Note]) -> dict[int, str]:
        """Which of the notes that could be rehearsed are not, as things are, and why."""
        if not able:
            return {}
        consent = self._consent()
        found = {}
        for note in able:
            why = None if consent.allows(note.text, note.user) else consent.detail
            why = why or _opposed(note, notes)
            if why is not None:
                found[note.number] = why
        return found

    def _given_up(self, note: Note) -> str | None:
        rows = self._since_begun(note)
        if not rows:
            return None
        version = self._ledger.made_by(rows[-1].step)
        if version is not None and version.state == "refused":
            decisions = self._ledger.gate_decisions(version.number)
            why = f" ({decisions[-1].reason})" if decisions else ""
            return f"version {version.number}, which had rehearsed it, was refused{why}"
        if len(rows) >= ROUNDS and not rows[-1].learned:
            return f"{len(rows)} rehearsals did not teach it"
        return None

    def _since_begun(self, note: Note) -> list[Rehearsal]:
        """The rehearsals of a note since it was learned, or its user switched it on: what came back begins anew.

        What was practised in the prompt is none of them.
        """
        again = [
            change.at for change in self._book.history(note.number) if change.state == "learned" or change.by == "user"
        ]
        rows = [row for row in self._ledger.rehearsals(note.number) if row.practised is None]
        return [row for row in rows if row.at > max(again, default=0.0)]

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
        before = self._before(note)
        return Lesson(
            note=note.number,
            user=note.user,
            rule=" ".join([*map(put, before), put(note)]),
            prompts=prompts,
            checker=self._checker(put(note)),
            relevant=self._relevant,
            besides=tuple(one.number for one in before),
        )

    def _before(self, note: Note) -> list[Note]:
        """What the user's learned notes ask must be said again to a teacher that has learned nothing."""
        if self._settings.teacher != "base":
            return []
        return [one for one in self._learned() if one.user == note.user and one.number != note.number]

    def _learned(self) -> list[Note]:
        return [note for note in self._book.all() if note.state == "learned" and note.kind == "rule"]

    def replays(self, lesson: Lesson) -> list[Lesson]:
        """Of the notes that were learned before, and of what was practised.

        What is practised goes with prompts that have no note, and with those that have one of the commonest: without
        them the embedded model, having practised "under 30 words", wrote 42 lists where it was told to, 51 before.
        """
        learned = [self.lesson(note) for note in self._learned() if note.number != lesson.note]
        rules = {rule: row.note for rule, row in self._practised().items()}
        if lesson.in_prompt:
            rules = dict.fromkeys(("", *PLAIN_SENTENCES), PLAIN) | rules
        return [
            *learned,
            *(
                self._practice(note, lesson.user, rule, self._checker(rule) if rule else None)
                for rule, note in rules.items()
                if rule != lesson.rule
            ),
        ]

    def beside(self, samples: Sequence[Sample]) -> list[Sample]:
        """What a step of these turns repeats of what their users had learned."""
        rules: dict[str, Said] = {}
        for note in self._learned():  # the oldest first: the rule has all of them, under the newest's number
            if not self._book.enabled(note.user):
                continue
            before = rules.get(note.user)
            rules[note.user] = Said(note.number, f"{before.rule} {put(note)}" if before else put(note))
        return beside(samples, rules, share=self._settings.replay)

    def estimate(self, steps: int) -> float | None:
        """Seconds of idle time that so many steps may take, by those of earlier rehearsals; None before the first."""
        rows = [row.evidence for row in self._ledger.rehearsals()[-8:] if row.evidence.get("steps")]
        return statistics.median(row["seconds"] / row["steps"] for row in rows) * steps if rows else None

    # --- what became of it

    def begin(self, lesson: Lesson, cost: str) -> None:
        """From now on it is rehearsed; it stays in the prompt meanwhile."""
        if not lesson.in_prompt:
            self._book.advance(lesson.note, "learning", f"rehearsal begins: {cost}")

    def give_up(self, lesson: Lesson, why: str) -> None:
        """It cannot be taught: from now on it stays in the prompt. What is practised stays there anyway."""
        if lesson.in_prompt:
            self._in_vain[lesson.rule] = why
            log.info("practising note %d in the prompt came to nothing: %s", lesson.note, why)
        else:
            self._book.advance(lesson.note, "kept", f"it stays a note: {why}")

    def settle(self) -> int:
        """Bring notes to where their rehearsals' versions are, and say why others wait; how many changed."""
        every, notes = self._ledger.rehearsals(), self._book.all()
        rows = {row.note: row for row in every if row.practised is None}
        practised = {row.note: row for row in every if row.practised is not None}
        moved = sum(self._settle(note, rows[note.number]) for note in notes if note.number in rows)
        waits = self._waiting([note for note in notes if _teachable(note) and note.state == "in force"], notes)
        rules = {note.number: put(note) for note in notes}
        for number, why in waits.items():
            kept = self._how_kept(rules[number], practised.get(number))
            moved += self._book.explain(number, f"not rehearsed: {why}{kept}")
        return moved

    def _how_kept(self, rule: str, row: Rehearsal | None) -> str:
        """What practising a note in the prompt has come to; empty where it was not tried, or is not served."""
        if rule in self._in_vain:
            return f"; nor practised in the prompt: {self._in_vain[rule]}"
        version = self._ledger.made_by(row.step) if row is not None else None
        if row is None or version is None or version.number not in self._versions.ever("live"):
            return ""
        first, last = row.evidence["first"], row.evidence["last"]
        kept = f"{last['met']} of {last['replies']} replies keep to it, {first['met']} before"
        return f"; practised in the prompt by version {version.number}: {kept}"

    def _settle(self, note: Note, row: Rehearsal) -> bool:
        version = self._ledger.made_by(row.step)
        if version is None or version.state == "candidate":
            return False
        if note.state == "learned":
            gone = version.number in self._versions.ever("rolled back")
            return gone and self._advance(note, "in force", f"version {version.number}, which did it, was rolled back")
        if note.state not in _UNTAUGHT or not self._since_begun(note):  # what it had learned before, it has forgotten
            return False
        promoted = version.number in self._versions.ever("live")
        if row.learned and promoted and version.number not in self._versions.ever("rolled back"):
            return self._advance(note, "learned", f"version {version.number} does it: {_figures(row.evidence)}")
        why = self._given_up(note)
        return why is not None and self._advance(note, "kept", f"it stays a note: {why}")

    def _advance(self, note: Note, state: Any, reason: str) -> bool:
        return self._book.advance(note.number, state, reason)


def _teachable(note: Note) -> bool:
    """Whether a note may be taught at all: a fact is none of the weights' business, nor what an environment says."""
    return note.kind == "rule" and note.state in _UNTAUGHT and environment_of(note.user) is None


def _is_kept(note: Note) -> bool:
    return note.kind == "rule" and note.state == "kept" and environment_of(note.user) is None


def _opposed(note: Note, notes: Sequence[Note]) -> str | None:
    """Why a policy that is shared cannot learn a note: somebody else's says otherwise. Nothing more of it is told."""
    for other in notes:
        others = other.kind == "rule" and person(other.user) != person(note.user)
        if others and (other.prompted or other.state == "learned"):
            aspect = opposes(put(note), put(other))
            if aspect is not None:
                return f"another user of this policy asks for the opposite ({aspect}), and it cannot do both"
    return None


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
