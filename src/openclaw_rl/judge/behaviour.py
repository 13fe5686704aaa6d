"""What a user does, rather than says, as weak evidence: they name again what the reply left out. Pure.

It needs no words of any language, only the request and the reply beside the message. Heard where the judge is silent.
"""

from __future__ import annotations

import re
import time
import unicodedata
from dataclasses import replace

from openclaw_rl.judge.evidence import request_of
from openclaw_rl.judge.labelled import Label, LabelledRow
from openclaw_rl.judge.text import user_text
from openclaw_rl.ports import Case, Judge
from openclaw_rl.types import Doubt, Verdict

ASKED_AGAIN = "the user names again what the reply left out"
WEIGHT = 0.5
"""of a score from behaviour: what a person says weighs 1"""

_AGAIN = 0.75  # share of the message's terms that must be of the request
_TAIL = 160  # characters at the end of a reply in which a question waits for an answer
_LONGEST = 2_000  # characters of a message: a longer one brings matter of its own
_WORD = re.compile(r"[^\W_]+")
_UNSPACED = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_LONG_WORDS = re.compile(r"[a-z\u00c0-\u024f\u0370-\u04ff]+")


def asks_again(request: str, reply: str, message: str, *, share: float = _AGAIN) -> bool:
    """Whether the message is made of the request's terms and one of them is not in the reply.

    A reply that ends with a question may be answered so, and a single word may be an order to go on: neither counts.
    """
    if len(message) > _LONGEST or re.search(r"[?？؟]", reply[-_TAIL:]) or _word_count(message) < 2:
        return False
    said, asked = _terms(message), _terms(request)
    repeated = said & asked
    return bool(repeated - _terms(reply)) and len(repeated) >= share * len(said)


def _terms(text: str) -> frozenset[str]:
    """The beginnings of words that carry meaning, numbers, and pairs of signs where words are not parted."""
    found: set[str] = set()
    for word in _WORD.findall(_folded(text)):
        if _UNSPACED.search(word):
            found.update(word[at : at + 2] for at in range(len(word) - 1))
        elif word.isdigit() or len(word) >= (4 if _LONG_WORDS.fullmatch(word) else 3):
            found.add(word[:5])
    return frozenset(found)


def _word_count(text: str) -> int:
    words = _WORD.findall(_folded(text))
    return sum(max(1, len(word) // 2) if _UNSPACED.search(word) else 1 for word in words)


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def conduct(case: Case) -> str | None:
    """What the user does that speaks against the reply, in words for a verdict's note; None where nothing is sure."""
    if case.turn.completion.scored:  # a recorded turn: somebody reports what the user did
        return None
    message = user_text(case.outcome.next_state)
    reply = case.turn.completion.reply.content
    return ASKED_AGAIN if message and reply and asks_again(request_of(case), reply, message) else None


def with_behaviour(case: Case, verdict: Verdict) -> Verdict:
    """The judge's verdict; where it has neither a score nor a hint, what behaviour shows."""
    if verdict.score is not None or verdict.hints or (note := conduct(case)) is None:
        return verdict
    return replace(verdict, score=-WEIGHT, source="behaviour", note=note)


class BehaviourJudge:
    """Behaviour alone, to be measured or used as a judge."""

    name = "behaviour"

    async def judge(self, case: Case) -> Verdict:
        """-0.5 where the user asks again, else no opinion."""
        begun = time.perf_counter()
        silent = Verdict(turn=case.turn.id, score=None, source="behaviour", judge=self.name, note="nothing is sure")
        found = with_behaviour(case, silent)
        return replace(found, seconds=time.perf_counter() - begun)


# Messages that are probably corrections and are not understood, so that a person can be asked what they meant.
#
# Any judge may say so by `Verdict.doubt`; a request that was perhaps made again is added here. Nothing of it trains:
# only the answer does, as explicit feedback.

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
