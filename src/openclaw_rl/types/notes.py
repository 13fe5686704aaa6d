"""Standing notes: what a user has asked for, put into the prompt until the weights do it by themselves."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from openclaw_rl.types.messages import need, need_finite, need_one_of

NoteKind = Literal["rule", "fact"]
NoteState = Literal["proposed", "in force", "learning", "learned", "kept", "replaced", "off", "declined", "removed"]
NoteAuthor = Literal["judge", "user", "trainer"]

LONGEST_NOTE = 600
"""characters of a note, and of a hint, which becomes one"""
PROMPTED: frozenset[NoteState] = frozenset({"in force", "learning", "kept"})
"""the states in which a note is in its user's prompts"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A standing hint of one user, in its present state.

    ``turn`` is the turn whose verdict gave it, None where the user wrote it as a note; a ``vague`` one says which way,
    not how far ("shorter"). ``state`` is:
    proposed (in no prompt: its user is asked whether it was meant for all replies), declined (it was not), in force
    (in the prompt), learning (in the prompt, while rehearsal teaches it), learned (the weights do it, so it left the
    prompt), kept (in the prompt for good: it cannot be taught), replaced (by note ``replaced_by``), off (switched off
    by its user), removed (for good).
    """

    number: int
    user: str
    kind: NoteKind
    text: str
    vague: bool = False
    turn: str | None
    state: NoteState
    replaced_by: int | None = None
    at: float

    def __post_init__(self) -> None:
        need(self.number >= 1, "number", f"{self.number!r} is below 1")
        need(bool(self.text.strip()), "text", "a note says something")
        need_one_of(self.kind, NoteKind, "kind")
        need_one_of(self.state, NoteState, "state")
        need((self.state == "replaced") == (self.replaced_by is not None), "replaced_by", "names what replaced a note")
        need_finite(self.at, "at")

    @property
    def prompted(self) -> bool:
        """Whether it is in its user's prompts."""
        return self.state in PROMPTED


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteChange:
    """One change of a note's state: to what, by whom, why and when."""

    note: int
    state: NoteState
    by: NoteAuthor
    reason: str
    replaced_by: int | None
    at: float


def rehearsing(note: int, *, in_prompt: bool) -> str:
    """What a rehearsal does, in a few words."""
    return f"practising note {note} in the prompt" if in_prompt else f"rehearsing note {note}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """One rehearsal of a note, which made the version of a step.

    ``learned`` says that on prompts which were never rehearsed replies without the note do what it asks as often as
    replies with it; ``evidence`` has the figures, as plain JSON.
    """

    note: int
    step: int
    learned: bool
    evidence: Mapping[str, Any]
    at: float = field(default_factory=time.time)

    @property
    def practised(self) -> str | None:
        """The rule that was practised in the prompt, where it stays; None where it was to leave the prompt."""
        return self.evidence.get("practised")

    @property
    def what(self) -> str:
        """In a few words: "rehearsing note 3"."""
        return rehearsing(self.note, in_prompt=self.practised is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptNote:
    """What was put into one prompt: the text as the model got it, and the numbers of the notes that it is made of."""

    text: str
    notes: tuple[int, ...]

    def __post_init__(self) -> None:
        need(bool(self.text.strip()), "text", "a note says something")
