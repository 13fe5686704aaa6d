"""Standing notes: a correction applies from the next turn on, in the prompt, until the weights follow it without."""

from __future__ import annotations

from openclaw_rl.notes.book import AddedNote, NewNote, NotesBook

__all__ = ["AddedNote", "NewNote", "NotesBook"]
