"""Why a turn was judged as it was: the evidence, the exact prompt, the votes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from openclaw_rl.errors import JudgeUnavailable
from openclaw_rl.judge.behaviour import with_behaviour
from openclaw_rl.judge.evidence import EvidenceItem, decide, evidence_items, leaves_words, with_heard
from openclaw_rl.judge.hints import HintLimits
from openclaw_rl.ports import Case, Judge
from openclaw_rl.types import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Everything that was looked at. ``verdict`` None where the judge could not be asked; ``note`` then says why."""

    judge: str
    evidence: tuple[EvidenceItem, ...] = ()
    prompt: str | None = None
    prompt_version: str | None = None
    ballots: tuple[str, ...] = ()
    verdict: Verdict | None = None
    note: str = ""


@runtime_checkable
class Explains(Protocol):
    """A judge that can show how it comes to its verdict."""

    async def explain(self, case: Case) -> Explanation: ...


async def explain(
    case: Case, judge: Judge, *, limits: HintLimits, trusted: Collection[str], behaviour: bool
) -> Explanation:
    """The whole story of one case. The evidence's verdict stands where it decides; the judge is shown all the same."""
    decided = decide(case, trusted=trusted, limits=limits)
    if case.outcome.kind == "side":
        return Explanation(
            judge="evidence", evidence=evidence_items(case), verdict=decided, note="side turns are not judged"
        )
    explanation = await explain_plainly(judge, case)
    if behaviour and explanation.verdict is not None:
        verdict = with_behaviour(case, explanation.verdict)
        if verdict is not explanation.verdict:
            explanation = replace(explanation, verdict=verdict, note=f"{explanation.note}; behaviour: {verdict.note}")
    note = f"decided by evidence; the judge alone: {explanation.note}" if decided else explanation.note
    if decided is not None and explanation.verdict is not None and leaves_words(case, decided):
        decided = with_heard(decided, explanation.verdict)
    return replace(explanation, evidence=evidence_items(case), verdict=decided or explanation.verdict, note=note)


async def explain_plainly(judge: Judge, case: Case) -> Explanation:
    """A judge's own story where it has one, its verdict otherwise; no story where it cannot be asked."""
    try:
        if isinstance(judge, Explains):
            return await judge.explain(case)
        verdict = await judge.judge(case)
    except JudgeUnavailable as error:
        return Explanation(judge=judge.name, note=str(error))
    return Explanation(judge=judge.name, verdict=verdict, note=verdict.note)
