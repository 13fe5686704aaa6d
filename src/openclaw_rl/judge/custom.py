"""A user's own judge: a function ``(prompt, reply, next_state) -> score``, or a reward model by the published contract.

A reward model returns the probability p that a reply was good. Its verdict has the score 2p - 1, so that 1/2 becomes 0,
"ambiguous"; its one vote is the rounded score: +1 above p = 3/4, -1 below 1/4, 0 between.
"""

from __future__ import annotations

import inspect
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import anyio.to_thread

from openclaw_rl.errors import JudgeUnavailable, PluginError
from openclaw_rl.judge import tools
from openclaw_rl.judge.evidence import described, user_hints, user_reaction
from openclaw_rl.judge.explain import Explanation
from openclaw_rl.judge.hints import HintLimits, filter_hints
from openclaw_rl.judge.prompt import spoken
from openclaw_rl.judge.reaction import Reaction
from openclaw_rl.judge.text import user_text
from openclaw_rl.ports import Case, Judge, RewardModel, Score
from openclaw_rl.types import Message, Verdict

log = logging.getLogger(__name__)


class CustomJudge:
    """Calls ``score``; None abstains, and so does an error, with a note. Hints are the user's own words."""

    def __init__(self, score: Score, *, limits: HintLimits, name: str = "custom") -> None:
        self.name = name
        self._limits = limits
        self._score = score

    async def judge(self, case: Case) -> Verdict:
        """Return the function's score as a verdict; it may raise JudgeUnavailable to be asked again later."""
        begun = time.perf_counter()
        score, note = await self._call(case)
        hints = filter_hints(user_hints(case), reply=case.turn.completion.reply.content, limits=self._limits)
        return Verdict(
            turn=case.turn.id,
            score=score,
            votes=self.votes(score),
            source="judge",
            hints=hints.kept,
            judge=self.name,
            seconds=time.perf_counter() - begun,
            note=note,
        )

    def votes(self, score: float | None) -> tuple[int | None, ...]:
        """Return the votes behind a score; a function has none."""
        return ()

    def given(self, case: Case) -> tuple[Any, ...]:
        """Return the function's arguments."""
        return case.turn.prompt, case.turn.completion.reply.content, case.outcome.next_state

    def read(self, value: Any) -> tuple[float | None, str]:
        """Return a value's score and a note."""
        if value is None:
            return None, "abstained"
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return None, f"{self.name} gave {type(value).__name__} {value!r}"[:200] + ", which is no finite number"
        return float(value), ""

    async def _call(self, case: Case) -> tuple[float | None, str]:
        try:
            value = await self._value(case)
        except JudgeUnavailable:
            raise
        except Exception as error:  # a user's code may raise anything; one bad case must not stop the others
            log.warning("judge.custom_failed turn=%s judge=%s", case.turn.id, self.name, exc_info=True)
            return None, f"{self.name} raised {type(error).__name__}"
        return self.read(value)

    async def _value(self, case: Case) -> Any:
        """Call the function, a plain one in a thread, so that a slow one does not block the loops."""
        if inspect.iscoroutinefunction(self._score):
            return await self._score(*self.given(case))
        value = await anyio.to_thread.run_sync(self._score, *self.given(case))
        return await value if inspect.isawaitable(value) else value


class RewardModelJudge(CustomJudge):
    """Asks a reward model for the probability that a reply was good."""

    def __init__(self, model: RewardModel, *, limits: HintLimits, name: str) -> None:
        super().__init__(model.score, limits=limits, name=name)  # type: ignore[arg-type]

    def given(self, case: Case) -> tuple[Any, ...]:
        """Return the conversation, reply and next state as plain text."""
        after = as_text(case.outcome.next_state)
        return as_text(case.turn.prompt.messages), spoken(case.turn.completion.reply), after

    def read(self, value: Any) -> tuple[float | None, str]:
        """Return 2p - 1; a number outside 0 .. 1 is no probability, and abstains."""
        probability, note = super().read(value)
        if probability is None or 0.0 <= probability <= 1.0:
            return (None if probability is None else 2 * probability - 1), note or f"a probability of {probability:.3f}"
        return None, f"{self.name} gave {probability:g}, which is no probability in 0 .. 1"

    async def _value(self, case: Case) -> Any:
        """Return the value; for a tensor with one number, that number."""
        value = await super()._value(case)
        return value.item() if hasattr(value, "item") else value

    def votes(self, score: float | None) -> tuple[int | None, ...]:
        """Return one vote: the rounded score."""
        return () if score is None else (round(score),)


def as_text(messages: Sequence[Message]) -> str:
    """Return a lone message's text, or several messages' texts after their roles."""
    if len(messages) == 1:
        return spoken(messages[0])
    return "\n\n".join(f"{message.role}: {spoken(message)}" for message in messages)


def as_judge(thing: Any, *, limits: HintLimits, name: str) -> Judge:
    """Return a Judge as it is, an instance of a class, or a wrapper; raises PluginError for anything else."""
    if inspect.isclass(thing):
        thing = thing()
    if callable(getattr(thing, "judge", None)) and isinstance(getattr(thing, "name", None), str):
        judge: Judge = thing
        return judge
    if callable(getattr(thing, "score", None)):
        return RewardModelJudge(thing, limits=limits, name=name)
    if callable(thing):
        return CustomJudge(thing, limits=limits, name=name)
    raise PluginError(
        f"{thing!r} is no judge",
        remedy="give a function (prompt, reply, next_state) -> score, or an object with `name` and `async judge(case)`",
    )


# The `rules` judge: no model; it abstains unless sure.

VERSION = "rules-1"


class RulesJudge:
    """Reads the user's next message and the tools' results; abstains rather than guess."""

    name = "rules"

    def __init__(self, *, limits: HintLimits) -> None:
        self._limits = limits

    async def judge(self, case: Case) -> Verdict:
        """Return the verdict on the next state; ``score`` None unless it is sure."""
        begun = time.perf_counter()
        reaction = reaction_of(case)
        verdict = verdict_of(case, reaction, limits=self._limits, judge=self.name, version=VERSION)
        return replace(verdict, seconds=time.perf_counter() - begun)

    async def explain(self, case: Case) -> Explanation:
        """Return the matching rule."""
        verdict = await self.judge(case)
        ballot = f"{verdict.score!r}: {verdict.note}"
        return Explanation(
            judge=self.name, prompt_version=VERSION, ballots=(ballot,), verdict=verdict, note=verdict.note
        )


def verdict_of(case: Case, reaction: Reaction, *, limits: HintLimits, judge: str, version: str) -> Verdict:
    """Return a judge's verdict from a reaction; a doubt counts only without a score."""
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
    """Return the user's reaction; without user words, the reaction in the tools' results."""
    if user_text(case.outcome.next_state) or described(case) is not None:
        return user_reaction(case)
    calls = case.turn.completion.reply.tool_calls
    results = [
        (message.content, tools.call_of(message, calls))
        for message in case.outcome.next_state
        if message.role == "tool"
    ]
    if not results:
        return Reaction(score=None, note="nothing came after the reply")
    if (why := next(filter(None, (tools.failure(text, call) for text, call in results)), None)) is not None:
        return Reaction(score=-1, note=why)
    reports = [report for text, call in results if (report := tools.reported(text, call)) is not None]
    if not reports:
        return Reaction(score=None, note="the tools' results are inconclusive")
    return Reaction(score=min(reports), note="tests failed" if min(reports) < 0 else "all tests passed")
