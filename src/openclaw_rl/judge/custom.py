"""A user's own function as a judge: ``(prompt, reply, next_state) -> score``, sync or async."""

from __future__ import annotations

import inspect
import logging
import math
import time
from typing import Any

import anyio.to_thread

from openclaw_rl.errors import JudgeUnavailable, PluginError
from openclaw_rl.judge.evidence import user_hints
from openclaw_rl.judge.hints import HintLimits, filter_hints
from openclaw_rl.ports import Case, Judge, Score
from openclaw_rl.types import Verdict

log = logging.getLogger(__name__)


class CustomJudge:
    """Calls ``score``; None abstains, and so does an error, with a note. Hints are the user's own words."""

    def __init__(self, score: Score, *, limits: HintLimits, name: str = "custom") -> None:
        self.name = name
        self._limits = limits
        self._score = score

    async def judge(self, case: Case) -> Verdict:
        """The function's score. It may raise JudgeUnavailable to be asked again later."""
        begun = time.perf_counter()
        score, note = await self._call(case)
        hints = filter_hints(user_hints(case), reply=case.turn.completion.reply.content, limits=self._limits)
        return Verdict(
            turn=case.turn.id,
            score=score,
            source="judge",
            hints=hints.kept,
            judge=self.name,
            seconds=time.perf_counter() - begun,
            note=note,
        )

    async def _call(self, case: Case) -> tuple[float | None, str]:
        try:
            value = await self._value(case)
        except JudgeUnavailable:
            raise
        except Exception as error:  # a user's code may raise anything; one bad case must not stop the others
            log.warning("judge.custom_failed turn=%s judge=%s", case.turn.id, self.name, exc_info=True)
            return None, f"{self.name} raised {type(error).__name__}"
        if value is None:
            return None, "abstained"
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return None, f"{self.name} gave {type(value).__name__} {value!r}"[:200] + ", which is no finite number"
        return float(value), ""

    async def _value(self, case: Case) -> Any:
        """A plain function runs in a thread, so that a slow one holds up nobody."""
        arguments = (case.turn.prompt, case.turn.completion.reply.content, case.outcome.next_state)
        if inspect.iscoroutinefunction(self._score):
            return await self._score(*arguments)
        value = await anyio.to_thread.run_sync(self._score, *arguments)
        return await value if inspect.isawaitable(value) else value


def as_judge(thing: Any, *, limits: HintLimits, name: str) -> Judge:
    """A Judge as it is, a class of one built, a function wrapped; anything else is refused with what is missing."""
    if inspect.isclass(thing):
        thing = thing()
    if callable(getattr(thing, "judge", None)) and isinstance(getattr(thing, "name", None), str):
        judge: Judge = thing
        return judge
    if callable(thing):
        return CustomJudge(thing, limits=limits, name=name)
    raise PluginError(
        f"{thing!r} is no judge",
        remedy="give a function (prompt, reply, next_state) -> score, or an object with `name` and `async judge(case)`",
    )
