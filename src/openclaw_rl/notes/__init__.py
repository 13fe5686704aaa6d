"""Standing notes: a correction holds from the next turn on, in the prompt, until the weights do it by themselves."""

from __future__ import annotations

from openclaw_rl.notes.book import AddedNote, NewNote, NotesBook

__all__ = ["AddedNote", "NewNote", "NotesBook"]
