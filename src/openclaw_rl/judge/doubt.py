"""Messages that are probably corrections and are not understood, so that a person can be asked what they meant.

Any judge may say so by `Verdict.doubt`; a request that was perhaps made again is added here. Nothing of it trains: only
the answer does, as explicit feedback.
"""

from __future__ import annotations

from openclaw_rl.judge.behaviour import asks_again
from openclaw_rl.judge.labelled import Label, LabelledRow
from openclaw_rl.ports import Judge
from openclaw_rl.types import Doubt

_PERHAPS_AGAIN = 0.5
"""share of a message's terms that are of the request from which on it is worth a question"""


async def find_doubt(judge: Judge, request: str, reply: str, message: str) -> Doubt | None:
    """What ``message`` may mean where the judge is silent; None where it is sure, or there is nothing to ask."""
    verdict = await judge.judge(exchange(request, reply, message).case())
    if verdict.score is not None:
        return None
    if verdict.doubt is not None:
        return verdict.doubt
    if asks_again(request, reply, message, share=_PERHAPS_AGAIN):
        return Doubt(score=-1.0, why="perhaps the same request again")
    return None


def exchange(request: str, reply: str, message: str) -> LabelledRow:
    """An exchange that nobody has labelled yet."""
    return LabelledRow(
        where="chat",
        request=request,
        reply=reply,
        next=message,
        label="neutral",
        hint=None,
        language="unknown",
        voice="own",
        tags=(),
        role="user",
    )


def label_of(doubt: Doubt, *, meant: bool) -> Label:
    """How the message is labelled once its author has answered."""
    if not meant:
        return "neutral"
    if doubt.score > 0:
        return "praise"
    kinds = {hint.kind for hint in doubt.hints}
    return "rule" if "rule" in kinds else "fact" if "fact" in kinds else "complaint"
