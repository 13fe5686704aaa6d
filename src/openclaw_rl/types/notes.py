"""Standing notes: a user's preferences, put into the prompt until the weights follow them without it."""

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
"""longest note in characters, and longest hint, since a hint becomes a note"""
PROMPTED: frozenset[NoteState] = frozenset({"in force", "learning", "kept"})
"""the states in which a note is in its user's prompts"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A user's standing note in its present state.

    ``turn`` is the turn whose verdict produced it, None if the user wrote it as a note; a ``vague`` note has a
    direction without a limit ("shorter"). ``state`` is: proposed (in no prompt: its user is asked if it applies to all
    replies), declined (it does not), in force (in the prompt), learning (in the prompt, during prompt distillation),
    learned (the weights follow it, so it left the prompt), kept (in the prompt for good: it cannot be taught), replaced
    (by note ``replaced_by``), off (switched off by its user), removed (for good).
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
        need(bool(self.text.strip()), "text", "a note needs a text")
        need_one_of(self.kind, NoteKind, "kind")
        need_one_of(self.state, NoteState, "state")
        need((self.state == "replaced") == (self.replaced_by is not None), "replaced_by", "names what replaced a note")
        need_finite(self.at, "at")

    @property
    def prompted(self) -> bool:
        """True if the note is in its user's prompts."""
        return self.state in PROMPTED


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteChange:
    """A change to a note's state, with its author, reason and time."""

    note: int
    state: NoteState
    by: NoteAuthor
    reason: str
    replaced_by: int | None
    at: float


def distilling(note: int, *, in_prompt: bool) -> str:
    """Describe a prompt distillation in a few words."""
    return f"training with note {note} in the prompt" if in_prompt else f"distilling note {note}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Distillation:
    """One prompt distillation of a note, which made the step's version.

    ``learned`` is True if, on held-out prompts, replies without the note follow it as often as replies with it;
    ``evidence`` has the figures, as plain JSON.
    """

    note: int
    step: int
    learned: bool
    evidence: Mapping[str, Any]
    at: float = field(default_factory=time.time)

    @property
    def practised(self) -> str | None:
        """The rule that was trained with the note in the prompt, where it stays; None if it was to leave the prompt."""
        return self.evidence.get("practised")

    @property
    def what(self) -> str:
        """A description in a few words: "distilling note 3"."""
        return distilling(self.note, in_prompt=self.practised is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptNote:
    """The notes text put into one prompt, exactly as the model received it, and the numbers of its notes."""

    text: str
    notes: tuple[int, ...]

    def __post_init__(self) -> None:
        need(bool(self.text.strip()), "text", "a note needs a text")
