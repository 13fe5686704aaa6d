"""What a person in a conversation is told of standing notes: which ones are new, and all of them on request."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from openclaw_rl.errors import RequestError

if TYPE_CHECKING:
    from openclaw_rl.clients.api import ApiClient, ServedNote

_LOOK = 0.1
"""seconds between two looks for a new note"""
_PROMPTED = ("in force", "learning", "kept")
"""the states in which a note is in prompts"""


class NewNotes:
    """Knows which notes were there before; a server that has no notes has none to tell of."""

    def __init__(self, client: ApiClient, notice: float) -> None:
        self._client = client
        self._notice = notice
        self._told: dict[int, bool] = {}
        self._known = True

    async def begin(self) -> None:
        """Nothing that is there now is new."""
        await self._new()

    async def lines(self) -> list[str]:
        """What to tell of notes made since; waits a moment for them."""
        found = await self._new()
        for _ in range(round(self._notice / _LOOK)):
            if found or not self._known:
                break
            await asyncio.sleep(_LOOK)
            found = await self._new()
        return found

    async def all(self) -> list[str]:
        """Every note with its state."""
        notes = [note for note in await self._listed() if note.state not in ("replaced", "declined")]
        if not notes:
            return ["no notes yet: tell me how you would like replies, and I keep to it"]
        return [f"{note.number:>4}  {note.state:<9}  {note.text}{_put_as(note)}" for note in notes]

    async def change(self, word: str, number: int) -> None:
        """Switch a note off or on, remove it, or answer whether it was meant for all replies (yes, no, here)."""
        if word == "yes":
            await self._client.accept_note(number)
            return
        if word in ("no", "here"):
            await self._client.decline_note(number, only_here=word == "here")
            return
        if word == "rm":
            await self._client.remove_note(number)
        else:
            await self._client.switch_note(number, word == "on")

    async def _listed(self) -> Sequence[ServedNote]:
        if not self._known:
            return ()
        try:
            return await self._client.notes()
        except RequestError:  # another kind of server, or an older one
            self._known = False
            return ()

    async def _new(self) -> list[str]:
        notes = await self._listed()
        found = [note for note in notes if note.state in _PROMPTED and not self._told.get(note.number)]
        asked = [note for note in notes if note.state == "proposed" and note.number not in self._told]
        replaced = {note.replaced_by: note for note in notes if note.replaced_by is not None}
        self._told |= {note.number: note.state != "proposed" for note in notes}
        told = [_told(note, replaced.get(note.number)) for note in found]
        return told + [_asked(note) for note in asked[-1:]]


def _told(note: ServedNote, old: ServedNote | None) -> str:
    instead = f" (instead of: {old.text})" if old is not None else ""
    return f"noted: {note.text}{_put_as(note)}{instead}"


def _asked(note: ServedNote) -> str:
    choices = f"/notes yes {note.number}, /notes here {note.number} (only here) or /notes no {note.number}"
    return f'did you mean "{note.text}" for all replies? {choices}'


def _put_as(note: ServedNote) -> str:
    return "" if note.put.rstrip(".") == note.text.rstrip(".") else f" (put as: {note.put})"
