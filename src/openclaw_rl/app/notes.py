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
from openclaw_rl.train.loop import DistillationParts
from openclaw_rl.train.prompt_distillation.measure import GetPolicy
from openclaw_rl.train.prompt_distillation.prompts import DistillationSettings
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


def distillation_settings(config: Config) -> DistillationSettings:
    """Return the settings for prompt distillation."""
    section = config.train.prompt_distillation
    return DistillationSettings(
        steps=section.steps,
        seconds=section.seconds,
        batch=section.batch,
        prompts=section.prompts,
        held_back=section.held_back,
        replay=section.replay,
        loss=section.loss,
        reward=section.reward,
        teacher=section.teacher,
        idle=section.idle,
        tolerance=section.tolerance,
        seed=config.run.seed,
        sampling=replace(
            default_sampling(config), temperature=section.temperature, max_tokens=section.tokens, top_p=1.0
        ),
    )


def everyday_prompts() -> list[str]:
    """Return prompts for users with a short history: facts, advice, and a share of word problems."""
    tasks = training()
    return [task.prompt for task in (*tasks, *word_problems(len(tasks) // (RECKONINGS - 1), seed=0))]


def build_distillation(
    config: Config, book: NotesBook, policy: GetPolicy, *, busy: Callable[[], bool]
) -> DistillationParts | None:
    """Return the parts for prompt distillation, None if it is off. ``busy`` returns True while requests run."""
    if not config.train.prompt_distillation.enabled:
        return None
    return DistillationParts(
        book=book,
        policy=policy,
        checker=checker_of,
        relevant=names_subject,
        everyday=everyday_prompts(),
        busy=busy,
        settings=distillation_settings(config),
    )
