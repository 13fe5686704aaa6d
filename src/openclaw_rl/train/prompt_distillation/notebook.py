"""Select the next note to distill, record the results, and move notes out of the prompt or back into it."""

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
from openclaw_rl.train.prompt_distillation.prompts import (
    LONGEST,
    PLAIN,
    Checker,
    DistillationSettings,
    Lesson,
    Relevance,
    choose,
    opens,
)
from openclaw_rl.types import Distillation, Note, NoteState, Sample, Turn, Version, environment_of
from openclaw_rl.versions import VersionManager

# Training steps on turns also repeat learned notes, so that further training does not undo them. Pure.
#
# The replies are those of the turns, which were sampled without the note; only the teacher sees it. So nothing is
# sampled, and in a packed tree the policy computes no additional token.


class Said(NamedTuple):
    """Rules that a user's policy has learned: all of them in one line, and the newest note's number."""

    note: int
    rule: str


def beside(samples: Sequence[Sample], learned: Mapping[str, Said], *, share: float) -> list[Sample]:
    """Repeat the user's learned notes on a share of these turns, evenly spread.

    Skipped are replies sampled under a prompt other than their own (another note is in force there) and replies of an
    environment.
    """
    fit = [
        sample for sample in samples if sample.user in learned and sample.logprobs is not None and sample.played is None
    ]
    count = min(len(fit), math.ceil(len(samples) * share))
    chosen = (fit[at * len(fit) // count] for at in range(count))
    return [_repeated(sample, learned[sample.user]) for sample in chosen]


def _repeated(sample: Sample, said: Said) -> Sample:
    return replace(
        sample,
        turn=f"{sample.turn} under note {said.note}",
        score=None,
        advantage=None,
        group=None,
        recalled=None,
        teachers=(sample.prompt.hinted(said.rule),),
        distills=str(said.note),
    )


log = logging.getLogger(__name__)

ROUNDS = 4
"""unsuccessful rounds after which a note stays in the prompt"""
SENTENCES = 12
"""largest number of sentences trained in the prompt: each is replayed with the next, and any user may add one"""
_UNTAUGHT: frozenset[NoteState] = frozenset({"in force", "learning"})
"""states of a note that can still be learned"""
_REACH = 1000
"""number of a user's newest sessions that provide prompts"""


class NotebookLedger(Protocol):
    """Part of the ledger that is read here."""

    def asked(self, user: str, limit: int) -> Sequence[Turn]: ...
    def turn(self, turn: str) -> Turn: ...
    def has_turn(self, turn: str) -> bool: ...
    def distillations(self, note: int | None = None) -> Sequence[Distillation]: ...
    def made_by(self, step: int) -> Version | None: ...
    def gate_decisions(self, version: int) -> Sequence[GateDecision]: ...


class LessonBook:
    """Notes as lessons: ``checker`` maps a rule to its check, ``relevant`` compares a reply with its question, and
    ``everyday`` are the shipped prompts."""

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
        settings: DistillationSettings,
    ) -> None:
        self._ledger, self._book, self._versions = ledger, book, versions
        self._consent, self._checker, self._relevant = consent, checker, relevant
        self._everyday, self._settings = tuple(everyday), settings
        self._in_vain: dict[str, str] = {}  # why training a rule in the prompt failed, since the start

    # --- the next lesson

    def next(self) -> Lesson | None:
        """Return the newest note that may be learned and is not; otherwise one to train in the prompt."""
        notes = self._book.all()
        able = [note for note in notes if _teachable(note) and self._book.enabled(note.user)]
        waits = self._waiting(able, notes)
        for note in reversed(able):
            if note.number not in waits:
                return self.lesson(note)
        return self._to_practise([note for note in notes if note.number in waits or _is_kept(note)])

    def _to_practise(self, stay: Sequence[Note]) -> Lesson | None:
        """Return the newest note that stays in prompts and has not been trained there yet, as a lesson.

        It must be a plain sentence and its prompts are shipped ones, so the lesson contains no user text; without the
        sentence in a prompt nothing changes. So it needs no consent.
        """
        if not stay or not self._settings.reward:  # the reward alone separates good replies from others
            return None
        tried = {*self._practised(), *self._in_vain}
        for note in reversed(stay if len(tried) < SENTENCES else ()):
            rule = put(note)
            if rule in tried or not is_plain(rule) or not self._book.enabled(note.user):
                continue
            if (checker := self._checker(rule)) is not None:
                return self._practice(note.number, note.user, rule, checker)
        return None

    def _practised(self) -> dict[str, Distillation]:
        """Return the last round with the note in the prompt by rule, without those whose version was rolled back."""
        gone = self._versions.ever("rolled back")
        rounds = {}
        for row in self._ledger.distillations():
            if row.practised is not None:
                version = self._ledger.made_by(row.step)
                if version is None or version.number not in gone:
                    rounds[row.practised] = row
        return rounds

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
        """Return the notes that cannot be learned at present, with the reason for each."""
        if not able:
            return {}
        consent = self._consent()
        reasons = {}
        for note in able:
            why = None if consent.allows(note.text, note.user) else consent.detail
            why = why or _opposed(note, notes)
            if why is not None:
                reasons[note.number] = why
        return reasons

    def _given_up(self, note: Note) -> str | None:
        rows = self._since_begun(note)
        if not rows:
            return None
        version = self._ledger.made_by(rows[-1].step)
        if version is not None and version.state == "refused":
            decisions = self._ledger.gate_decisions(version.number)
            why = f" ({decisions[-1].reason})" if decisions else ""
            return f"version {version.number}, which was trained on it, was refused{why}"
        if len(rows) >= ROUNDS and not rows[-1].learned:
            return f"{len(rows)} rounds of prompt distillation did not teach it"
        return None

    def _since_begun(self, note: Note) -> list[Distillation]:
        """Return the note's rounds since it was last learned or enabled by its user: from there its count restarts.

        Rounds with the note in the prompt are not included.
        """
        again = [
            change.at for change in self._book.history(note.number) if change.state == "learned" or change.by == "user"
        ]
        rows = [row for row in self._ledger.distillations(note.number) if row.practised is None]
        return [row for row in rows if row.at > max(again, default=0.0)]

    def lesson(self, note: Note) -> Lesson:
        """Return the note as a lesson; if the base model teaches, its rule repeats the user's learned notes."""
        turn = self._ledger.turn(note.turn) if note.turn and self._ledger.has_turn(note.turn) else None
        past = [row.prompt for row in self._ledger.asked(note.user, _REACH) if _short(row) and opens(row.prompt)]
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
            besides=tuple(row.number for row in before),
        )

    def _before(self, note: Note) -> list[Note]:
        """Return the user's learned notes if the teacher is the base model, which needs them in its prompt."""
        if self._settings.teacher != "base":
            return []
        return [learned for learned in self._learned() if learned.user == note.user and learned.number != note.number]

    def _learned(self) -> list[Note]:
        return [note for note in self._book.all() if note.state == "learned" and note.kind == "rule"]

    def replays(self, lesson: Lesson) -> list[Lesson]:
        """Return lessons that preserve previously learned notes and rules trained in the prompt.

        A note in the prompt is trained together with prompts without a note and with the commonest notes: without them
        the embedded model, trained on "under 30 words", wrote 42 of the requested lists, against 51 before.
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
        """Return samples that repeat the learned notes of these turns' users."""
        rules: dict[str, Said] = {}
        for note in self._learned():  # oldest first: the rule joins all texts under the newest number
            if not self._book.enabled(note.user):
                continue
            before = rules.get(note.user)
            rules[note.user] = Said(note.number, f"{before.rule} {put(note)}" if before else put(note))
        return beside(samples, rules, share=self._settings.replay)

    def estimate(self, steps: int) -> float | None:
        """Return the idle seconds that this many steps may take, by earlier rounds; None before the first."""
        rows = [row.evidence for row in self._ledger.distillations()[-8:] if row.evidence.get("steps")]
        return statistics.median(row["seconds"] / row["steps"] for row in rows) * steps if rows else None

    # --- results

    def begin(self, lesson: Lesson, cost: str) -> None:
        """Mark the note as learning; it stays in the prompt meanwhile."""
        if not lesson.in_prompt:
            self._book.advance(lesson.note, "learning", f"prompt distillation begins: {cost}")

    def give_up(self, lesson: Lesson, why: str) -> None:
        """Keep the note in the prompt for good, or record that training it there failed."""
        if lesson.in_prompt:
            self._in_vain[lesson.rule] = why
            log.info("note %d is not trained in the prompt: %s", lesson.note, why)
        else:
            self._book.advance(lesson.note, "kept", f"it stays a note: {why}")

    def settle(self) -> int:
        """Update notes to their versions' state and explain why others wait; return the number of changes."""
        every, notes = self._ledger.distillations(), self._book.all()
        rows = {row.note: row for row in every if row.practised is None}
        practised = {row.note: row for row in every if row.practised is not None}
        moved = sum(self._settle(note, rows[note.number]) for note in notes if note.number in rows)
        waits = self._waiting([note for note in notes if _teachable(note) and note.state == "in force"], notes)
        rules = {note.number: put(note) for note in notes}
        for number, why in waits.items():
            practice = self._how_kept(rules[number], practised.get(number))
            moved += self._book.explain(number, f"not learned yet: {why}{practice}")
        return moved

    def _how_kept(self, rule: str, row: Distillation | None) -> str:
        """Return the result of training the note in the prompt; empty if it was not tried or is not served."""
        if rule in self._in_vain:
            return f"; not trained in the prompt: {self._in_vain[rule]}"
        version = self._ledger.made_by(row.step) if row is not None else None
        if row is None or version is None or version.number not in self._versions.ever("live"):
            return ""
        first, last = row.evidence["first"], row.evidence["last"]
        compliance = f"{last['met']} of {last['replies']} replies follow it, {first['met']} before"
        return f"; trained in the prompt by version {version.number}: {compliance}"

    def _settle(self, note: Note, row: Distillation) -> bool:
        version = self._ledger.made_by(row.step)
        if version is None or version.state == "candidate":
            return False
        if note.state == "learned":
            gone = version.number in self._versions.ever("rolled back")
            return gone and self._advance(
                note, "in force", f"version {version.number}, which had learned it, was rolled back"
            )
        if note.state not in _UNTAUGHT or not self._since_begun(note):  # its earlier rounds no longer count
            return False
        promoted = version.number in self._versions.ever("live")
        if row.learned and promoted and version.number not in self._versions.ever("rolled back"):
            return self._advance(note, "learned", f"version {version.number} has learned it: {_figures(row.evidence)}")
        why = self._given_up(note)
        return why is not None and self._advance(note, "kept", f"it stays a note: {why}")

    def _advance(self, note: Note, state: Any, reason: str) -> bool:
        return self._book.advance(note.number, state, reason)


def _teachable(note: Note) -> bool:
    """Return True if a note can be trained: facts and rules from environments cannot."""
    return note.kind == "rule" and note.state in _UNTAUGHT and environment_of(note.user) is None


def _is_kept(note: Note) -> bool:
    return note.kind == "rule" and note.state == "kept" and environment_of(note.user) is None


def _opposed(note: Note, notes: Sequence[Note]) -> str | None:
    """Return the reason if another user's rule opposes the note on a shared policy, without quoting that rule."""
    for rival in notes:
        relevant = rival.kind == "rule" and person(rival.user) != person(note.user)
        if relevant and (rival.prompted or rival.state == "learned"):
            aspect = opposes(put(note), put(rival))
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
