"""Simulated users: seeded and offline. Pure; `sessions` lets them talk to the public API like any client.

    user = SimulatedUser(PREFERENCES["short"], seed=3)
    session = user.session(0)                    the same seed and number always make the same session
    session.opening                              "What is a comet?"
    session.respond(reply)                       a complaint, thanks, or None when the user has left

A user asks one thing a session, complains in other words each time while the preference is not met, at most ``rounds``
times, and thanks when it is; nobody thanks for a degenerate reply, whatever its form.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from openclaw_rl.tasks import everyday
from openclaw_rl.tasks.everyday import Task
from openclaw_rl.tasks.preferences import About, Preference
from openclaw_rl.text import degenerate

WORD_PROBLEMS = 8
"""one in so many tasks is a word problem, for preferences that these can show"""


class SimulatedUser:
    """Has one preference. ``about`` narrows what is asked; ``rounds`` is how often a session complains at most."""

    def __init__(
        self, preference: Preference, *, seed: int = 0, name: str = "u1", rounds: int = 1, about: About | None = None
    ) -> None:
        self.preference, self.seed, self.name, self.rounds = preference, seed, name, rounds
        self._tasks = user_tasks(preference, seed=seed, about=about)

    def session(self, number: int) -> SimulatedSession:
        """Session ``number``: what is asked and how is settled by the seed and the number alone."""
        rng = random.Random(f"{self.preference.name} {self.seed} {self.name} {number}")
        return SimulatedSession(self.preference, self._tasks[number % len(self._tasks)], rng=rng, rounds=self.rounds)


class SimulatedSession:
    """One conversation as its user sees it. ``met`` says whether the last reply met the preference."""

    def __init__(self, preference: Preference, task: Task, *, rng: random.Random, rounds: int) -> None:
        self.preference, self.task, self.rounds = preference, task, rounds
        self.opening = task.prompt
        self.met = False
        self.over = False
        self._rng = rng
        self._complaints: list[str] = []

    def respond(self, reply: str) -> str | None:
        """What the user writes after a reply; None once they have written their last message (``over``)."""
        if self.over:
            return None
        self.met = meets(self.preference, self.task, reply)
        if self.met:
            self.over = True
            return self._rng.choice(self.preference.thanks)
        nonsense = is_degenerate(self.task, reply) or self.preference.empty_form(reply)
        first = self.preference.nonsense if nonsense else self.preference.complaints
        self._complaints.append(self._complaint(first))
        self.over = len(self._complaints) >= self.rounds
        return self._complaints[-1]

    def _complaint(self, first: Sequence[str]) -> str:
        """Any phrasing at first; a repeated complaint is precise, and in other words while there are any."""
        phrasings = self.preference.precise if self._complaints else first
        return self._rng.choice([one for one in phrasings if one not in self._complaints] or phrasings)


def meets(preference: Preference, task: Task, reply: str) -> bool:
    """Whether a reply meets the preference and is not degenerate: the same rule in sessions and on held-out prompts."""
    return preference.met_by(reply) and not is_degenerate(task, reply)


def is_degenerate(task: Task, reply: str) -> bool:
    """Whether a reply to this task is none at all; a bare figure answers a word problem."""
    return degenerate(reply, figure=task.answer is not None) is not None


def user_tasks(
    preference: Preference, *, seed: int, held: bool = False, about: About | None = None
) -> tuple[Task, ...]:
    """What a user with this preference asks, in the seed's order; the held-out half shares nothing with the other."""
    kind = about or preference.about
    written = list((everyday.held_out if held else everyday.training)(kind))
    if preference.word_problems and kind == "everyday":
        written += everyday.word_problems(len(written) // (WORD_PROBLEMS - 1), seed=0, held=held)
    random.Random(f"tasks {seed} {held}").shuffle(written)
    return tuple(written)
