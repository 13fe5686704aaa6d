"""Judges that are made of judges: all of them, and those that have something to start or to tell."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from openclaw_rl.judge.explain import Explains, Explanation, explain_plainly
from openclaw_rl.judge.reader.judge import ReaderJudge
from openclaw_rl.judge.reported import Alarm
from openclaw_rl.judge.text import user_text
from openclaw_rl.ports import Case, Judge
from openclaw_rl.types import Verdict


@runtime_checkable
class HasParts(Protocol):
    """A judge that asks others."""

    @property
    def parts(self) -> Sequence[Judge]: ...


@runtime_checkable
class Starts(Protocol):
    """A judge with something to make ready beside the loops, which it does by itself once it is told to begin."""

    def begin(self) -> None:
        """Make ready in the background; goes on trying when it fails."""
        ...

    async def first_try(self) -> None:
        """Wait until it is ready, or has failed for the first time."""
        ...

    async def stop(self) -> None:
        """Give everything back. Safe to call twice."""
        ...


@runtime_checkable
class Reports(Protocol):
    """A judge that has something to say in `status`."""

    def report(self) -> dict[str, Any]: ...

    def alarms(self) -> tuple[Alarm, ...]: ...


@runtime_checkable
class LearnsFromRatings(Protocol):
    """A judge that sets itself by the turns that users rate."""

    async def rated(self, case: Case, score: float) -> None:
        """Count a turn that a user rated; raises JudgeUnavailable as `judge` does."""
        ...


@runtime_checkable
class SaysWho(Protocol):
    """A judge that says in a few words who is at work."""

    @property
    def at_work(self) -> str: ...


@runtime_checkable
class Measures(Protocol):
    """A judge that knows how well it and others hear."""

    def measured(self) -> dict[str, Any] | None: ...


def at_work(judge: Judge) -> str:
    """Who judges, for people to read."""
    return judge.at_work if isinstance(judge, SaysWho) else judge.name


def every(judge: Judge) -> Iterator[Judge]:
    """A judge and all that it asks."""
    yield judge
    if isinstance(judge, HasParts):
        for part in judge.parts:
            yield from every(part)


def starting(judge: Judge) -> tuple[Starts, ...]:
    """All of them that have something to make ready."""
    return tuple(each for each in every(judge) if isinstance(each, Starts))


# Two judges for one verdict: one gives the score, the other the hints.


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


# The `auto` judge, the default: the reader where it is sure, a model for the rest if there is one.


class AutoJudge:
    """Asks ``llm`` only where ``reader`` abstains; without an ``llm`` its abstention stands."""

    name = "auto"

    def __init__(self, *, reader: ReaderJudge, llm: Judge | None = None) -> None:
        self._reader = reader
        self.llm = llm

    @property
    def parts(self) -> tuple[Judge, ...]:
        """The reader, and the model if there is one."""
        return (self._reader, self.llm) if self.llm is not None else (self._reader,)

    @property
    def at_work(self) -> str:
        """Who judges."""
        mine = at_work(self._reader)
        return mine if self.llm is None else f"{mine} where sure, else {at_work(self.llm)}"

    async def judge(self, case: Case) -> Verdict:
        """The reader's verdict if it has a score, the model's otherwise."""
        sure = await self._reader.judge(case)
        if sure.score is not None or self.llm is None or not case.outcome.next_state:
            return sure
        return await self.llm.judge(case)

    async def explain(self, case: Case) -> Explanation:
        """The story of the one that spoke."""
        sure = await self._reader.explain(case)
        silent = sure.verdict is not None and sure.verdict.score is None
        if silent and isinstance(self.llm, Explains):
            return await self.llm.explain(case)
        return sure
