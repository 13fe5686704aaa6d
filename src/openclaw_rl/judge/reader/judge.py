"""The `reader` judge, the default: learned models read the user's words, the rules the tools' results."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from openclaw_rl.judge.evidence import heard_reaction, reply_of, user_hearing, written
from openclaw_rl.judge.explain import Explanation
from openclaw_rl.judge.hearing import Hearing, reasons
from openclaw_rl.judge.hints import HintLimits
from openclaw_rl.judge.reaction import Reaction
from openclaw_rl.judge.reader.classifier import KindClassifier
from openclaw_rl.judge.reader.kinds import KINDS, KindLogprobs
from openclaw_rl.judge.rules import reaction_of, verdict_of
from openclaw_rl.ports import Case
from openclaw_rl.types import Verdict

VERSION = "reader-1"


def read_case(case: Case) -> Reaction:
    """What a case says by n-grams and rules alone, at once."""
    hearing = user_hearing(case)
    return reaction_of(case) if hearing is None else heard_reaction(case, hearing)


class ReaderJudge:
    """Reads the user's next message beside the request and the reply; abstains rather than guess.

    ``classifier`` is asked where there is one; where it cannot answer the n-grams speak alone.
    """

    name = "reader"

    def __init__(self, *, limits: HintLimits, classifier: KindClassifier | None = None) -> None:
        self._limits, self._classifier = limits, classifier

    @property
    def at_work(self) -> str:
        """Who reads."""
        return "reader (n-grams and classifier)" if self._classifier is not None else "reader (n-grams)"

    async def judge(self, case: Case) -> Verdict:
        """What the next state says for sure; ``score`` None otherwise."""
        begun = time.perf_counter()
        hearing = await self._hear(case)
        return self._verdict(case, hearing, seconds=time.perf_counter() - begun)

    async def explain(self, case: Case) -> Explanation:
        """What each voice said, and the n-grams that weighed most."""
        hearing = await self._hear(case)
        verdict = self._verdict(case, hearing, seconds=0.0)
        lines = (f"rules: {verdict.score!r}: {verdict.note}",) if hearing is None else _told(hearing, case)
        return Explanation(judge=self.name, prompt_version=VERSION, ballots=lines, verdict=verdict, note=verdict.note)

    async def _hear(self, case: Case) -> Hearing | None:
        """None where the user wrote nothing: tools' results are left to the rules."""
        exchange, asked = written(case), self._classifier
        if exchange is None or asked is None:
            return user_hearing(case)
        said = await asked.read(exchange.request, reply_of(case), exchange.message)
        return user_hearing(case, classifier=said, combination=asked.combination)

    def _verdict(self, case: Case, hearing: Hearing | None, *, seconds: float) -> Verdict:
        reaction: Reaction = reaction_of(case) if hearing is None else heard_reaction(case, hearing)
        verdict = verdict_of(case, reaction, limits=self._limits, judge=self.name, version=VERSION)
        return replace(verdict, seconds=seconds)


def _told(hearing: Hearing, case: Case) -> tuple[str, ...]:
    exchange = written(case)
    weighed = () if exchange is None else reasons(hearing, *exchange, reply=reply_of(case))
    said = hearing.classifier
    return (
        f"together: {_shares(hearing.estimate)} ({hearing.group})",
        f"n-grams: {_shares(hearing.ngrams)}",
        "classifier: silent" if said is None else f"classifier: {_shares(said)}",
        f"rules: {hearing.rules.score!r}: {hearing.rules.note}",
        "weighed most: " + ", ".join(f"{reason.feature!r} {reason.weight:+.2f}" for reason in weighed),
    )


def _shares(logprobs: KindLogprobs) -> str:
    """The kinds with five percent or more, likeliest first."""
    shares = sorted(((math.exp(value), kind) for kind, value in zip(KINDS, logprobs, strict=True)), reverse=True)
    return ", ".join(f"{kind} {share:.2f}" for share, kind in shares if share >= 0.05)
