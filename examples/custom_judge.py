"""A judge of your own in one function: a reply is good when the next message does not ask for less.

    openclaw-rl up --custom-rm-path examples/custom_judge.py:score

The function may be ``async``. It returns a score from -1 to 1, or None for "no opinion".
"""

from __future__ import annotations

from collections.abc import Sequence

from openclaw_rl.types import Message, Prompt, texts

COMPLAINTS = ("too long", "shorter", "brief")
THANKS = ("thanks", "thank you", "perfect")


def score(prompt: Prompt, reply: str, next_state: Sequence[Message]) -> float | None:
    """+1 for thanks, -1 for "too long", None otherwise."""
    said = " ".join(texts(next_state, "user")).lower()
    if any(word in said for word in COMPLAINTS):
        return -1.0
    if any(word in said for word in THANKS):
        return 1.0
    return None
