"""Builds the parts that make notes and add them to prompts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from openclaw_rl.app.factories import default_sampling
from openclaw_rl.app.judges import hint_limits
from openclaw_rl.config import Config
from openclaw_rl.notes import NotesBook
from openclaw_rl.notes.prompting import NotePrompter
from openclaw_rl.ports import Policy
from openclaw_rl.preferences import checker_of
from openclaw_rl.tasks.everyday import names_subject, training, word_problems
from openclaw_rl.train.loop import RehearsalParts
from openclaw_rl.train.rehearsal.measure import GetPolicy
from openclaw_rl.train.rehearsal.prompts import RehearsalSettings
from openclaw_rl.types import Hint

if TYPE_CHECKING:
    from openclaw_rl.serve.notes import StandingNotes

_AT_ONCE: Final = 256
"""verdicts and inline feedback commands read in one transaction"""


def note_taker(config: Config, book: NotesBook) -> Callable[[], int]:
    """Return a function that makes notes from new feedback and returns their count.

    An inline feedback command is read as the judge reads a hint.
    """
    from openclaw_rl.judge.hints import filter_hints, kind_of

    limits = hint_limits(config)

    def read(text: str, reply: str) -> Hint | None:
        return next(iter(filter_hints([Hint(text=text, kind=kind_of(text))], reply=reply, limits=limits).kept), None)

    return lambda: len(book.take(_AT_ONCE, read))


def standing_notes(config: Config, book: NotesBook, policy: Policy) -> StandingNotes:
    """Return the notes for a server."""
    from openclaw_rl.serve.notes import StandingNotes

    async def count(text: str) -> int:
        return len(await policy.tokenize(text)) - 1  # without the end-of-turn token

    notes = config.notes
    prompter = NotePrompter(book, max_tokens=notes.max_tokens, max_facts=notes.max_facts, count=count)
    return StandingNotes(book=book, prompter=prompter if notes.enabled else None)


# Parts for prompt distillation, from the settings. Independent of the web server, so that experiments can use it alone.

RECKONINGS = 8
"""one in this many shipped prompts is a word problem: a note must hold for these too"""


def rehearsal_settings(config: Config) -> RehearsalSettings:
    """Return the settings for prompt distillation."""
    rehearse = config.train.rehearse
    return RehearsalSettings(
        steps=rehearse.steps,
        seconds=rehearse.seconds,
        batch=rehearse.batch,
        prompts=rehearse.prompts,
        held_back=rehearse.held_back,
        replay=rehearse.replay,
        loss=rehearse.loss,
        reward=rehearse.reward,
        teacher=rehearse.teacher,
        idle=rehearse.idle,
        tolerance=rehearse.tolerance,
        seed=config.run.seed,
        sampling=replace(
            default_sampling(config), temperature=rehearse.temperature, max_tokens=rehearse.tokens, top_p=1.0
        ),
    )


def everyday_prompts() -> list[str]:
    """Return prompts for users with a short history: facts, advice, and a share of word problems."""
    tasks = training()
    return [task.prompt for task in (*tasks, *word_problems(len(tasks) // (RECKONINGS - 1), seed=0))]


def build_rehearsal(
    config: Config, book: NotesBook, policy: GetPolicy, *, busy: Callable[[], bool]
) -> RehearsalParts | None:
    """Return the parts for prompt distillation, None if it is off. ``busy`` returns True while requests run."""
    if not config.train.rehearse.enabled:
        return None
    return RehearsalParts(
        book=book,
        policy=policy,
        checker=checker_of,
        relevant=names_subject,
        everyday=everyday_prompts(),
        busy=busy,
        settings=rehearsal_settings(config),
    )
