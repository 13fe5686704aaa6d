"""A sequence-classification model as a judge: the probability p of "served well" becomes the score 2p - 1."""

from __future__ import annotations

import time

from openclaw_rl.errors import BackendDown, BackendError, JudgeUnavailable
from openclaw_rl.judge.evidence import request_of, user_hints
from openclaw_rl.judge.explain import Explanation
from openclaw_rl.judge.hints import HintLimits, filter_hints
from openclaw_rl.judge.text import user_text
from openclaw_rl.ports import Case, Classifier, ClassifierOpinion
from openclaw_rl.types import Verdict


class ClassifierJudge:
    """Asks ``classifier`` about the user's own words; silent without any, or if "neither" is the most probable.

    Hints are the user's own words.
    """

    name = "classifier"

    def __init__(self, classifier: Classifier, *, limits: HintLimits) -> None:
        self._classifier, self._limits = classifier, limits

    @property
    def at_work(self) -> str:
        """Return the scoring model's name."""
        return f"the classifier {self._classifier.name}"

    async def judge(self, case: Case) -> Verdict:
        """Return a verdict with the model's score; raises JudgeUnavailable while it is down."""
        begun = time.perf_counter()
        after = user_text(case.outcome.next_state)
        if not after:
            return self._verdict(case, None, "the user wrote nothing", begun)
        try:
            opinion = await self._classifier.classify(
                request=request_of(case), reply=case.turn.completion.reply.content, after=after
            )
        except BackendDown as error:
            raise JudgeUnavailable(f"the classifier cannot answer: {error.what}", remedy=error.remedy) from error
        except BackendError as error:
            return self._verdict(case, None, f"the classifier failed: {error.what}"[:300], begun)
        return self._verdict(case, score_of(opinion), _note(opinion), begun)

    async def explain(self, case: Case) -> Explanation:
        """Return the probabilities and the resulting verdict."""
        verdict = await self.judge(case)
        return Explanation(judge=self.name, ballots=(verdict.note,), verdict=verdict, note=verdict.note)

    def _verdict(self, case: Case, score: float | None, note: str, begun: float) -> Verdict:
        hints = filter_hints(user_hints(case), reply=case.turn.completion.reply.content, limits=self._limits)
        return Verdict(
            turn=case.turn.id,
            score=score,
            source="judge",
            hints=hints.kept,
            judge=f"{self.name}:{self._classifier.name}",
            seconds=time.perf_counter() - begun,
            note=note,
        )


def score_of(found: ClassifierOpinion) -> float | None:
    """Return 2p - 1, in -1 .. 1; None if "neither" is the most probable."""
    return None if found.neutral > 0.5 else 2 * found.positive - 1


def _note(found: ClassifierOpinion) -> str:
    return f"served well: {found.positive:.3f}, no opinion: {found.neutral:.3f}"
