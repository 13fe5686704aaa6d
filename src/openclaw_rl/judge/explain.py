"""Explanation of a verdict: the evidence, the exact prompt, the votes."""

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
    """All inputs to a verdict. ``verdict`` None if the judge was unavailable, with the reason in ``note``."""

    judge: str
    evidence: tuple[EvidenceItem, ...] = ()
    prompt: str | None = None
    prompt_version: str | None = None
    ballots: tuple[str, ...] = ()
    verdict: Verdict | None = None
    note: str = ""


@runtime_checkable
class Explains(Protocol):
    """A judge that can explain its verdict."""

    async def explain(self, case: Case) -> Explanation: ...


async def explain(
    case: Case, judge: Judge, *, limits: HintLimits, trusted: Collection[str], behaviour: bool
) -> Explanation:
    """Explain one case. The evidence's verdict applies if it decides; the judge's explanation is included anyway."""
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
    """Return a judge's explanation, or its verdict if it has none; only a note if it is unavailable."""
    try:
        if isinstance(judge, Explains):
            return await judge.explain(case)
        verdict = await judge.judge(case)
    except JudgeUnavailable as error:
        return Explanation(judge=judge.name, note=str(error))
    return Explanation(judge=judge.name, verdict=verdict, note=verdict.note)
