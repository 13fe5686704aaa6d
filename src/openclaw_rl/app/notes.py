"""From settings to the parts that make notes and put them into prompts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from openclaw_rl.app.judge_settings import hint_limits
from openclaw_rl.config import Config
from openclaw_rl.notes import NotesBook
from openclaw_rl.notes.prompting import NotePrompter
from openclaw_rl.ports import Policy
from openclaw_rl.types import Hint

if TYPE_CHECKING:
    from openclaw_rl.serve.notes import StandingNotes

_AT_ONCE: Final = 256
"""verdicts and remarks that are looked through in one transaction"""


def note_taker(config: Config, book: NotesBook) -> Callable[[], int]:
    """Makes notes of what was said since; how many there are new. A remark is read as the judge reads a hint."""
    from openclaw_rl.judge.hints import filter_hints, kind_of

    limits = hint_limits(config)

    def read(text: str, reply: str) -> Hint | None:
        return next(iter(filter_hints([Hint(text=text, kind=kind_of(text))], reply=reply, limits=limits).kept), None)

    return lambda: len(book.take(_AT_ONCE, read))


def standing_notes(config: Config, book: NotesBook, policy: Policy) -> StandingNotes:
    """The notes as a server has them."""
    from openclaw_rl.serve.notes import StandingNotes

    async def count(text: str) -> int:
        return len(await policy.tokenize(text)) - 1  # less the end of a turn

    notes = config.notes
    prompter = NotePrompter(book, max_tokens=notes.max_tokens, max_facts=notes.max_facts, count=count)
    return StandingNotes(book=book, prompter=prompter if notes.enabled else None)
