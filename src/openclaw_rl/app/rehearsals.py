"""What rehearsal is made of, from the settings. Needs no web server, so that an experiment can use it alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from openclaw_rl.app.factories import default_sampling
from openclaw_rl.config import Config
from openclaw_rl.notes import NotesBook
from openclaw_rl.preferences import checker_of
from openclaw_rl.tasks.everyday import names_subject, training, word_problems
from openclaw_rl.train.loop import RehearsalParts
from openclaw_rl.train.rehearsal.lesson import RehearsalSettings
from openclaw_rl.train.rehearsal.replies import GetPolicy

RECKONINGS = 8
"""one in so many shipped prompts is a word problem: what is asked for must hold there too"""


def rehearsal_settings(config: Config) -> RehearsalSettings:
    """How notes are rehearsed."""
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
    """What is rehearsed on while a user has asked too little: facts, advice, and one reckoning in so many."""
    asked = training()
    return [task.prompt for task in (*asked, *word_problems(len(asked) // (RECKONINGS - 1), seed=0))]


def build_rehearsal(
    config: Config, book: NotesBook, policy: GetPolicy, *, busy: Callable[[], bool]
) -> RehearsalParts | None:
    """The parts of rehearsal, None where it is switched off. ``busy`` says whether requests are under way."""
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
