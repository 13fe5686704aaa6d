"""What is read of a cell's run at its end: general ability, versions, training, notes, tokens beyond the user's own."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Mapping
from typing import Any

from openclaw_rl.app.application import App, ledger_place
from openclaw_rl.config import Config
from openclaw_rl.experiments.sessions import SimulatedTurn
from openclaw_rl.gate.examiner import Quiz, margin, quizzes
from openclaw_rl.ports import Policy
from openclaw_rl.store import LedgerReader
from openclaw_rl.types import Message, Prompt
from openclaw_rl.versions import LiveVersions

_STEPS = 100_000
"""more than a run has"""


async def ability(policy: Policy) -> float:
    """General ability of the live version: the share of small tasks whose right answer it finds the likeliest."""
    room = asyncio.Semaphore(8)

    async def right(quiz: Quiz) -> bool:
        async with room:
            ids = await policy.encode(_asking(quiz.question))
            scores = {}
            for answer in quiz.answers:
                tokens = (await policy.tokenize(answer))[:-1]
                scores[answer] = statistics.fmean((await policy.score(ids, tokens)).logprobs)
            return margin(scores, quiz) > 0

    return statistics.fmean(await asyncio.gather(*map(right, quizzes())))


async def added_tokens(app: App, turn: SimulatedTurn) -> int:
    """Tokens of a session's first prompt beyond what its user typed: a note's, or those of a client's memory."""
    assert app.policy is not None, "every arm serves"
    with LedgerReader(ledger_place(app.config)) as reader:
        sent = len(reader.turn(turn.turn).completion.prompt_tokens)
    return sent - len(await app.policy.encode(_asking(turn.task.prompt)))


def _asking(question: str) -> Prompt:
    return Prompt(messages=(Message(role="user", content=question),))


def training_of(config: Config) -> dict[str, Any]:
    """What became of the versions of a run, how long it trained, and why that was paused, if it was."""
    with LedgerReader(ledger_place(config)) as reader:
        versions = LiveVersions(reader)
        every = sum(version.number > 0 for version in versions.versions())
        refused, back = len(versions.ever("refused")), len(versions.ever("rolled back"))
        counts, paused = reader.counts(), reader.paused()
        seconds = sum(reader.step(number).seconds for number in reader.steps_after(0, _STEPS))
    made = {"promoted": every - refused, "refused": refused, "rolled_back": back}
    trained = {"steps": counts["steps"], "trained": counts["trained"], "training_seconds": round(seconds, 1)}
    return made | trained | {"paused": paused}


def per_correction(training: Mapping[str, Any] | None, corrections: int) -> float | None:
    """Seconds of training for each correction that users gave; None where there was nothing of either."""
    if training is None or not corrections:
        return None
    return round(float(training["training_seconds"]) / corrections, 1)


def prompted_notes(config: Config, user: str) -> int:
    """How many notes of a user are in their prompts."""
    with LedgerReader(ledger_place(config)) as reader:
        return sum(note.prompted for note in reader.notes(user))


def notes_of(config: Config) -> list[dict[str, Any]]:
    """Each note that was made, where it stands and why, and what its distillations measured and took."""
    with LedgerReader(ledger_place(config)) as reader:
        return [
            {
                "user": note.user,
                "text": note.text,
                "state": note.state,
                "reason": reader.note_changes(note.number)[-1].reason,
                "distillations": [dict(row.evidence) for row in reader.distillations(note.number)],
            }
            for note in reader.notes()
        ]
