"""The `rules` judge, the embedded default: no model, sure or silent."""

from __future__ import annotations

import time
from dataclasses import replace

from openclaw_rl.judge import tools
from openclaw_rl.judge.evidence import described, user_reaction
from openclaw_rl.judge.explain import Explanation
from openclaw_rl.judge.hints import HintLimits, filter_hints
from openclaw_rl.judge.reaction import Reaction
from openclaw_rl.judge.text import user_text
from openclaw_rl.ports import Case
from openclaw_rl.types import Verdict

VERSION = "rules-1"


class RulesJudge:
    """Reads the user's next message and the tools' results; abstains rather than guess."""

    name = "rules"

    def __init__(self, *, limits: HintLimits) -> None:
        self._limits = limits

    async def judge(self, case: Case) -> Verdict:
        """What the next state says for sure; ``score`` None otherwise."""
        begun = time.perf_counter()
        reaction = reaction_of(case)
        verdict = verdict_of(case, reaction, limits=self._limits, judge=self.name, version=VERSION)
        return replace(verdict, seconds=time.perf_counter() - begun)

    async def explain(self, case: Case) -> Explanation:
        """The rule that spoke."""
        verdict = await self.judge(case)
        ballot = f"{verdict.score!r}: {verdict.note}"
        return Explanation(
            judge=self.name, prompt_version=VERSION, ballots=(ballot,), verdict=verdict, note=verdict.note
        )


def verdict_of(case: Case, reaction: Reaction, *, limits: HintLimits, judge: str, version: str) -> Verdict:
    """A judge's verdict from one reading of a case; it doubts only where it gives no score."""
    reply = case.turn.completion.reply.content
    return Verdict(
        turn=case.turn.id,
        score=reaction.score,
        source="judge",
        votes=(reaction.score,),
        hints=filter_hints(reaction.hints, reply=reply, limits=limits).kept,
        judge=judge,
        prompt_version=version,
        note=reaction.note,
        doubt=reaction.doubt if reaction.score is None else None,
    )


def reaction_of(case: Case) -> Reaction:
    """The user's words first; without any, what the tools' results say."""
    if user_text(case.outcome.next_state) or described(case) is not None:
        return user_reaction(case)
    calls = case.turn.completion.reply.tool_calls
    results = [(each.content, tools.call_of(each, calls)) for each in case.outcome.next_state if each.role == "tool"]
    if not results:
        return Reaction(score=None, note="nothing came after the reply")
    if (why := next(filter(None, (tools.failure(text, call) for text, call in results)), None)) is not None:
        return Reaction(score=-1, note=why)
    reports = [report for text, call in results if (report := tools.reported(text, call)) is not None]
    if not reports:
        return Reaction(score=None, note="the tools' results say nothing for sure")
    return Reaction(score=min(reports), note="tests failed" if min(reports) < 0 else "all tests passed")
