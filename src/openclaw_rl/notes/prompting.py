"""Choice of the notes for a prompt: as many as fit, in plain words (`wording`), after the user's last message."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence

from openclaw_rl.errors import OpenClawError
from openclaw_rl.notes.book import NotesBook
from openclaw_rl.preferences.wording import put
from openclaw_rl.text import words
from openclaw_rl.types import Note, Prompt, PromptNote, environment_of, texts

log = logging.getLogger(__name__)

CountTokens = Callable[[str], Awaitable[int]]

_KEPT = 4096  # limit for remembered note lengths, in notes
_OWN = frozenset("i i'm i've my mine me we our ours us we're".split())  # noqa: SIM905 (a list of words)
_SHORT = 4  # minimum letters in a word that counts as a fact's subject


class NotePrompter:
    """Puts notes into prompts: at most ``max_tokens`` in all, and ``max_facts`` facts."""

    def __init__(self, book: NotesBook, *, max_tokens: int, max_facts: int, count: CountTokens) -> None:
        self._book = book
        self._max_tokens, self._max_facts = max_tokens, max_facts
        self._count = count
        self._lengths: OrderedDict[str, int] = OrderedDict()

    async def note_for(self, user: str, prompt: Prompt) -> PromptNote | None:
        """Return the notes text for a user's prompt, None without notes; a failure leaves the prompt as it is."""
        messages = texts(prompt.messages, "user")
        if environment_of(user) is not None or not messages:
            return None
        try:
            notes = await asyncio.to_thread(self._book.in_force, user)
            chosen = await self._fitting(choose(notes, request=messages[-1], max_facts=self._max_facts))
        except OpenClawError as error:
            log.warning("no notes in the prompt user=%s: %s", user, type(error).__name__)
            return None
        return compose(chosen)

    async def _fitting(self, notes: Sequence[Note]) -> list[Note]:
        """Return the notes that fit into the token budget together, in order."""
        fitting, budget = list[Note](), self._max_tokens
        for note in notes:
            tokens = await self._length(put(note))
            if tokens <= budget:
                fitting.append(note)
                budget -= tokens
        return fitting

    async def _length(self, text: str) -> int:
        if text not in self._lengths:
            self._lengths[text] = await self._count(text)
            if len(self._lengths) > _KEPT:
                self._lengths.popitem(last=False)
        return self._lengths[text]


def choose(notes: Sequence[Note], *, request: str, max_facts: int) -> list[Note]:
    """Return all rules, then the newest facts about the user or about the subject of the request."""
    rules = [note for note in notes if note.kind == "rule"]
    subject = _matter(request)
    facts = [note for note in notes if note.kind == "fact" and (_is_own(note.text) or _matter(note.text) & subject)]
    return [*rules, *facts[:max_facts]]


def compose(notes: Sequence[Note]) -> PromptNote | None:
    """Join facts, then rules, which end the message; each in the order in which it was first given.

    There is no heading: the embedded model follows the notes best without one (docs/notes.md). None for no notes.
    """
    if not notes:
        return None
    ordered = sorted(notes, key=lambda note: (note.kind == "rule", note.number))
    joined = " ".join(dict.fromkeys(map(put, ordered)))
    return PromptNote(text=joined, notes=tuple(note.number for note in ordered))


def _is_own(text: str) -> bool:
    return any(word in _OWN for word in words(text.casefold().replace("’", "'")))


def _matter(text: str) -> set[str]:
    """Return the words for a text's subject; a name with a dot is one word."""
    return {word for word in words(text.casefold()) if len(word) >= _SHORT or not word.isascii()}
