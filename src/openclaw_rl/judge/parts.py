"""Composite judges, and the protocols for judges with parts, background work or reports."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from openclaw_rl.judge.explain import Explains, Explanation, explain_plainly
from openclaw_rl.judge.feedback_classifier.judge import FeedbackClassifierJudge
from openclaw_rl.judge.reported import Alarm
from openclaw_rl.judge.text import user_text
from openclaw_rl.ports import Case, Judge
from openclaw_rl.types import Verdict


@runtime_checkable
class HasParts(Protocol):
    """A judge that calls other judges."""

    @property
    def parts(self) -> Sequence[Judge]: ...


@runtime_checkable
class Starts(Protocol):
    """A judge with background preparation beside the loops, which starts with `begin`."""

    def begin(self) -> None:
        """Start preparing in the background; failures are retried."""
        ...

    async def first_try(self) -> None:
        """Wait until preparation has succeeded or failed for the first time."""
        ...

    async def stop(self) -> None:
        """Release all resources. Safe to call twice."""
        ...


@runtime_checkable
class Reports(Protocol):
    """A judge with entries for `status`."""

    def report(self) -> dict[str, Any]: ...

    def alarms(self) -> tuple[Alarm, ...]: ...


@runtime_checkable
class LearnsFromRatings(Protocol):
    """A judge that calibrates itself on turns that users rate."""

    async def rated(self, case: Case, score: float) -> None:
        """Count a turn that a user rated; raises JudgeUnavailable as `judge` does."""
        ...


@runtime_checkable
class SaysWho(Protocol):
    """A judge that names its active part in a few words."""

    @property
    def at_work(self) -> str: ...


@runtime_checkable
class Measures(Protocol):
    """A judge that reports its measured precision."""

    def measured(self) -> dict[str, Any] | None: ...


def at_work(judge: Judge) -> str:
    """Return the active judge's name, for people to read."""
    return judge.at_work if isinstance(judge, SaysWho) else judge.name


def every(judge: Judge) -> Iterator[Judge]:
    """Yield a judge and, recursively, every judge that it calls."""
    yield judge
    if isinstance(judge, HasParts):
        for part in judge.parts:
            yield from every(part)


def starting(judge: Judge) -> tuple[Starts, ...]:
    """Return all parts with background preparation."""
    return tuple(part for part in every(judge) if isinstance(part, Starts))


# Two judges for one verdict: one provides the score, the other the hints.


class PairJudge:
    """Combines ``scorer``'s score with hints from ``hinter``, which is asked only if the user wrote something."""

    name = "pair"

    def __init__(self, *, scorer: Judge, hinter: Judge) -> None:
        self.scorer, self.hinter = scorer, hinter

    @property
    def parts(self) -> tuple[Judge, ...]:
        """Return both judges."""
        return (self.scorer, self.hinter)

    @property
    def at_work(self) -> str:
        """Return both judges' names with their duties."""
        return f"scores: {at_work(self.scorer)}; hints: {at_work(self.hinter)}"

    async def judge(self, case: Case) -> Verdict:
        """Ask both judges at once; raises JudgeUnavailable if either does."""
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
        """Return the scorer's explanation with the hinter's ballots appended, and the joint verdict."""
        scored, hinted = [await explain_plainly(part, case) for part in self.parts]
        verdict = scored.verdict
        if verdict is not None and hinted.verdict is not None:
            verdict = replace(verdict, hints=hinted.verdict.hints)
        return replace(scored, judge=self.name, ballots=(*scored.ballots, *hinted.ballots), verdict=verdict)


# The `auto` judge, the default: the feedback classifier if it is sure, else a model if one is configured.


class AutoJudge:
    """Asks ``llm`` only if ``classifier`` abstains; without an ``llm`` the abstention is final."""

    name = "auto"

    def __init__(self, *, classifier: FeedbackClassifierJudge, llm: Judge | None = None) -> None:
        self._classifier = classifier
        self.llm = llm

    @property
    def parts(self) -> tuple[Judge, ...]:
        """Return the feedback classifier, and the model if there is one."""
        return (self._classifier, self.llm) if self.llm is not None else (self._classifier,)

    @property
    def at_work(self) -> str:
        """Return the names of the judges in use."""
        classifier = at_work(self._classifier)
        return classifier if self.llm is None else f"{classifier} where sure, else {at_work(self.llm)}"

    async def judge(self, case: Case) -> Verdict:
        """Return the feedback classifier's verdict if it has a score, else the model's."""
        sure = await self._classifier.judge(case)
        if sure.score is not None or self.llm is None or not case.outcome.next_state:
            return sure
        return await self.llm.judge(case)

    async def explain(self, case: Case) -> Explanation:
        """Return the explanation of the judge that decided."""
        sure = await self._classifier.explain(case)
        silent = sure.verdict is not None and sure.verdict.score is None
        if silent and isinstance(self.llm, Explains):
            return await self.llm.explain(case)
        return sure
