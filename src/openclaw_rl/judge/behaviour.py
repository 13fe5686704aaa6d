"""Weak evidence from the user's behaviour: they repeat terms that the reply left out. Pure.

It works in any language with only the request, the reply and the message. It counts if the judge is silent.
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
"""weight of a score from behaviour; a person's words weigh 1"""

_AGAIN = 0.75  # share of the message's terms that must occur in the request
_TAIL = 160  # characters at the end of a reply that are searched for an open question
_LONGEST = 2_000  # characters of a message: a longer one adds new text
_WORD = re.compile(r"[^\W_]+")
_UNSPACED = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_LONG_WORDS = re.compile(r"[a-z\u00c0-\u024f\u0370-\u04ff]+")


def asks_again(request: str, reply: str, message: str, *, share: float = _AGAIN) -> bool:
    """Check if the message consists of the request's terms and one is missing in the reply.

    False after a reply that ends with a question, which the message may answer, and for a single word, which may be an
    order to continue.
    """
    if len(message) > _LONGEST or re.search(r"[?？؟]", reply[-_TAIL:]) or _word_count(message) < 2:
        return False
    message_terms, request_terms = _terms(message), _terms(request)
    repeated = message_terms & request_terms
    return bool(repeated - _terms(reply)) and len(repeated) >= share * len(message_terms)


def _terms(text: str) -> frozenset[str]:
    """Return stems of meaningful words, numbers, and character pairs in scripts without spaces."""
    terms: set[str] = set()
    for word in _WORD.findall(_folded(text)):
        if _UNSPACED.search(word):
            terms.update(word[at : at + 2] for at in range(len(word) - 1))
        elif word.isdigit() or len(word) >= (4 if _LONG_WORDS.fullmatch(word) else 3):
            terms.add(word[:5])
    return frozenset(terms)


def _word_count(text: str) -> int:
    words = _WORD.findall(_folded(text))
    return sum(max(1, len(word) // 2) if _UNSPACED.search(word) else 1 for word in words)


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def conduct(case: Case) -> str | None:
    """Return behaviour that contradicts the reply, as text for a verdict's note; None if nothing is sure."""
    if case.turn.completion.scored:  # a recorded turn only describes the user's behaviour
        return None
    message = user_text(case.outcome.next_state)
    reply = case.turn.completion.reply.content
    return ASKED_AGAIN if message and reply and asks_again(request_of(case), reply, message) else None


def with_behaviour(case: Case, verdict: Verdict) -> Verdict:
    """Return the judge's verdict; if it has neither a score nor a hint, the one based on behaviour."""
    if verdict.score is not None or verdict.hints or (note := conduct(case)) is None:
        return verdict
    return replace(verdict, score=-WEIGHT, source="behaviour", note=note)


class BehaviourJudge:
    """Behaviour alone, for measurement or as a judge."""

    name = "behaviour"

    async def judge(self, case: Case) -> Verdict:
        """Return -0.5 if the user asks again, else no opinion."""
        begun = time.perf_counter()
        silent = Verdict(turn=case.turn.id, score=None, source="behaviour", judge=self.name, note="nothing is sure")
        verdict = with_behaviour(case, silent)
        return replace(verdict, seconds=time.perf_counter() - begun)


# Probable corrections that were not understood, so that their author can be asked for the meaning.
#
# Any judge may report one in `Verdict.doubt`; a possibly repeated request is added here. A doubt never trains: only its
# author's answer does, as explicit feedback.

_PERHAPS_AGAIN = 0.5
"""share of a message's terms in the request above which a question is worthwhile"""


async def find_doubt(judge: Judge, request: str, reply: str, message: str) -> Doubt | None:
    """Return the possible meaning of ``message`` if the judge is silent; None if it is sure or nothing is open."""
    verdict = await judge.judge(exchange(request, reply, message).case())
    if verdict.score is not None:
        return None
    if verdict.doubt is not None:
        return verdict.doubt
    if asks_again(request, reply, message, share=_PERHAPS_AGAIN):
        return Doubt(score=-1.0, why="perhaps the same request again")
    return None


def exchange(request: str, reply: str, message: str) -> LabelledRow:
    """Return an exchange without a label yet."""
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
    """Return the message's label after its author's answer."""
    if not meant:
        return "neutral"
    if doubt.score > 0:
        return "praise"
    kinds = {hint.kind for hint in doubt.hints}
    return "rule" if "rule" in kinds else "fact" if "fact" in kinds else "complaint"
