"""For how long what a user said holds: marks each hint of a verdict before it is written. Pure."""

from __future__ import annotations

from dataclasses import replace

from openclaw_rl.judge.evidence import described
from openclaw_rl.judge.text import hands_over, user_text
from openclaw_rl.ports import Case
from openclaw_rl.preferences.standing import reach
from openclaw_rl.types import Hint, Verdict, environment_of, texts


def with_reach(case: Case, verdict: Verdict) -> Verdict:
    """The verdict with the reach of each hint: as far as the user's own message says, whichever judge took it.

    A hint that was sent outright stands, and so do those of environments and of recorded conversations, of which no
    note is made.
    """
    if not verdict.hints or environment_of(case.turn.user) is not None or described(case) is not None:
        return verdict
    outright = {_folded(feedback.hint) for feedback in case.feedback if feedback.source == "explicit" and feedback.hint}
    message = user_text(case.outcome.next_state)
    whole = not any(hands_over(text) for text in texts(case.outcome.next_state, "user"))

    def marked(hint: Hint) -> Hint:
        if _folded(hint.text) in outright:
            return replace(hint, reach="standing")
        return replace(hint, reach=reach(hint.text, hint.kind, message, whole=whole))

    return replace(verdict, hints=tuple(map(marked, verdict.hints)))


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())
