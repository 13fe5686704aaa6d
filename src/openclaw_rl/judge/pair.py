"""Two judges for one verdict: one gives the score, the other the hints."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from openclaw_rl.judge.explain import Explanation, explain_plainly
from openclaw_rl.judge.parts import at_work
from openclaw_rl.judge.text import user_text
from openclaw_rl.ports import Case, Judge
from openclaw_rl.types import Verdict


class PairJudge:
    """The score of ``scorer`` with the hints of ``hinter``, who is asked only where the user has said something."""

    name = "pair"

    def __init__(self, *, scorer: Judge, hinter: Judge) -> None:
        self.scorer, self.hinter = scorer, hinter

    @property
    def parts(self) -> tuple[Judge, ...]:
        """The two."""
        return (self.scorer, self.hinter)

    @property
    def at_work(self) -> str:
        """Who does what."""
        return f"scores: {at_work(self.scorer)}; hints: {at_work(self.hinter)}"

    async def judge(self, case: Case) -> Verdict:
        """Both are asked at once; raises JudgeUnavailable where either is."""
        if not user_text(case.outcome.next_state):
            return await self.scorer.judge(case)
        scored, hinted = await asyncio.gather(self.scorer.judge(case), self.hinter.judge(case))
        return replace(
            scored,
            hints=hinted.hints,
            judge=f"{scored.judge}+{hinted.judge}",
            seconds=max(scored.seconds, hinted.seconds),
            note="; ".join(filter(None, (scored.note, f"hints of {hinted.judge}"))),
        )

    async def explain(self, case: Case) -> Explanation:
        """The scorer's story with the hinter's ballots after its own, and the verdict of both."""
        scored, hinted = [await explain_plainly(each, case) for each in self.parts]
        verdict = scored.verdict
        if verdict is not None and hinted.verdict is not None:
            verdict = replace(verdict, hints=hinted.verdict.hints)
        return replace(scored, judge=self.name, ballots=(*scored.ballots, *hinted.ballots), verdict=verdict)
