"""An environment of your own: guess a number between 1 and 100 with "higher" or "lower" as answers.

    openclaw-rl up --set env.type=examples/custom_env.py:GuessTheNumber --num-rollouts-per-prompt 4

An environment is a client whose reply is the next state: it gives the first prompt, then answers each reply with the
next messages, a reward from -1 to 1 where there is one, and whether the episode is over.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from openclaw_rl.ports import Observation
from openclaw_rl.types import Message, Prompt


def _user(text: str) -> Message:
    return Message(role="user", content=text)


class GuessTheNumber:
    """Rewards a right guess with 1; a reply without a number costs 1 and ends the episode."""

    name = "guess"

    def __init__(self) -> None:
        self._secret = 0

    def tasks(self) -> Sequence[str]:
        """The ids of its tasks: the highest number there is."""
        return ("10", "100")

    async def reset(self, task: str, *, seed: int) -> Prompt:
        """Think of a number. The same task and seed give the same one."""
        self._secret = random.Random(f"{task}/{seed}").randint(1, int(task))
        return Prompt(messages=(_user(f"Guess my number between 1 and {task}. Answer with a number only."),))

    async def step(self, reply: Message) -> Observation:
        """Compare the first number of the reply."""
        found = re.search(r"\d{1,9}", reply.content)
        if found is None:
            return Observation(messages=(_user("That is no number."),), reward=-1.0, done=True)
        guess = int(found[0])
        if guess == self._secret:
            return Observation(messages=(_user("Right!"),), reward=1.0, done=True)
        return Observation(messages=(_user("Higher." if guess < self._secret else "Lower."),))

    async def close(self) -> None:
        """Nothing to clean up."""
