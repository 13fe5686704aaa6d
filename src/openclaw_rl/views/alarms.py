"""Is there anything to learn from? Pure."""

from __future__ import annotations

from collections.abc import Mapping

AFTER = 20
"""answered turns from which on "none of them trains" is no accident"""

REMEDIES = {
    "side": "mark talk with the header X-Turn-Type: main, or do not use the '-side' model for it",
    "idle": "send the whole history with each request, or a session id (X-Session-Id)",
    "superseded": "send the whole history with each request: the replies were not found in later requests",
    "opted out": "remove x-openclaw-rl-train: off from the requests or the key",
}


def starving(*, answered: int, trainable: int, reasons: Mapping[str, int], after: int = AFTER) -> str | None:
    """The alarm when many turns were answered and none may train; None while learning has something to eat.

    ``reasons`` counts turns that do not train by why; the most frequent comes first, with its remedy if one is known.
    Turns that still wait for what comes next belong in none of the counts.
    """
    if trainable > 0 or answered < after:
        return None
    ranked = sorted(((count, why) for why, count in reasons.items() if count > 0), key=lambda item: (-item[0], item[1]))
    because = ", ".join(f"{count} {why}" for count, why in ranked) or "no reason was recorded"
    remedy = next((text for word, text in REMEDIES.items() if ranked and word in ranked[0][1]), None)
    return f"{answered} turns answered, none trainable, because: {because}" + (f"; {remedy}" if remedy else "")
