"""The output of `notes`, as plain JSON and in lines."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from openclaw_rl.preferences.wording import put
from openclaw_rl.store import LedgerReader
from openclaw_rl.types import Note, NoteChange, Turn
from openclaw_rl.views.lineage import age

View = dict[str, Any]


def one(ledger: LedgerReader, number: int) -> View:
    """Return a note, each change to its state, and the correction that produced it."""
    note = ledger.note(number)
    correction = None
    if note.turn is not None and (outcome := ledger.outcome(note.turn)) is not None:
        correction = next((message.content for message in reversed(outcome.next_state) if message.role == "user"), None)
    return {**shown(note), "said": correction, "history": [asdict(change) for change in ledger.note_changes(number)]}


def shown(note: Note) -> View:
    """Return a note in its present state, with its wording for a prompt."""
    return {**asdict(note), "put": put(note)}


def by_state(ledger: LedgerReader) -> dict[str, int]:
    """Count the notes in each state."""
    return dict(Counter(note.state for note in ledger.notes()))


def put_in(turn: Turn) -> View | None:
    """Return the notes text in a turn's prompt."""
    return None if turn.noted is None else {"text": turn.noted.text, "notes": list(turn.noted.notes)}


# --- the same in lines ---


def put_as(note: Note) -> str:
    """Return a note's wording for a prompt, if it differs from the note's own text."""
    return "" if put(note).rstrip(".") == note.text.rstrip(".") else f"   (put as: {put(note)})"


def lines(
    notes: Sequence[Note], last: Mapping[int, NoteChange] | None = None, *, now: float | None = None
) -> Iterator[str]:
    """Yield a table, rules first; ``last`` is each note's last change, whose reason may explain why it stays a note."""
    if not notes:
        yield "no notes; a correction in a conversation makes one, and so does 'openclaw-rl notes add TEXT'"
        return
    users = len({note.user for note in notes}) > 1
    for note in sorted(notes, key=lambda note: (note.kind == "fact", note.number)):
        state = f"replaced by {note.replaced_by}" if note.replaced_by is not None else note.state
        whose = f"{note.user:<10}  " if users else ""
        yield (
            f"{note.number:>4}  {state:<14}  {note.kind:<4}  {whose}{note.text}{put_as(note)}"
            f"   ({'by hand' if note.turn is None else f'turn {note.turn}'}, {age((now or time.time()) - note.at)})"
        )
        if note.state == "proposed":
            yield (
                f"{'':>6}did you mean this for all replies? 'openclaw-rl notes accept {note.number}', or"
                f" 'decline {note.number}' ('--only-here')"
            )
        change = (last or {}).get(note.number)
        if change is not None and change.by == "trainer" and change.state in ("in force", "kept"):
            yield f"{'':>6}{change.reason}"


def one_lines(view: View) -> Iterator[str]:
    """Yield one note's history."""
    yield f"note {view['number']} of {view['user']} ({view['kind']}): {view['text']}"
    if view["put"].rstrip(".") != view["text"].rstrip("."):
        yield f"  put into prompts as  {view['put']}"
    if view["said"]:
        yield f"  the user wrote  {' '.join(view['said'].split())[:200]}   (after turn {view['turn']})"
    for change in view["history"]:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(change["at"]))
        yield f"  {at}  {change['state']}, by the {change['by']}: {change['reason']}"
