"""The served model as the judge of its own replies, where it hears better than the judge that needs no model."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from openclaw_rl import files
from openclaw_rl.judge.calibration import Agreement, digest, measure
from openclaw_rl.judge.explain import Explanation, explain_plainly
from openclaw_rl.judge.labelled import LabelledRow
from openclaw_rl.judge.parts import at_work
from openclaw_rl.judge.text import user_text
from openclaw_rl.ports import Case, Judge
from openclaw_rl.types import Verdict

log = logging.getLogger(__name__)

FIRST_PAUSE: Final = 60.0
LONGEST_PAUSE: Final = 3600.0
"""seconds between two measurements where one could not be finished"""
TOLD_EVERY: Final = 12
"""lines between two lines of the log while it is measured"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The agreement of the served model and of the judge that it would take the place of."""

    model: Agreement
    baseline: Agreement

    @property
    def model_leads(self) -> bool:
        """The weaker gives way; where both are as good, the model, which costs more."""
        return self.model.strength > self.baseline.strength


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationPlan:
    """The lines, how many are asked at once, where results are kept, and what tells one model from another.

    ``identity`` is asked when measuring begins: the weights are known once they are loaded.
    """

    rows: Sequence[LabelledRow]
    workers: int
    folder: Path
    identity: Callable[[], str]


class SelfJudge:
    """Asks ``model`` where it was measured to hear better than ``baseline``, and ``baseline`` otherwise.

    Until it is measured ``baseline`` judges. Where the user says nothing ``baseline`` judges too: it reads tools'
    results. A score that ``model`` gives wrongly too often is not heard. ``taster`` is the same model asked for the
    measurement, without a judge's patience.
    """

    name = "self"

    def __init__(
        self,
        *,
        baseline: Judge,
        model: Judge,
        taster: Judge,
        plan: CalibrationPlan,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._baseline, self._model, self._taster, self._plan, self._sleep = baseline, model, taster, plan, sleep
        self._measured: Measured | None = None
        self._asked = 0
        self._trouble: str | None = None
        self._tried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def parts(self) -> tuple[Judge, ...]:
        """The two judges."""
        return (self._baseline, self._model)

    @property
    def at_work(self) -> str:
        """Who judges, and why."""
        baseline, model = at_work(self._baseline), at_work(self._model)
        if self._measured is not None:
            found = self._measured
            first, second = f"the served model: {found.model}", f"{baseline}: {found.baseline}"
            if found.model_leads:
                return f"the served model itself ({model}), which hears better; {first}; {second}"
            return f"{baseline}, which the served model does not better; {second}; {first}"
        if self._trouble is not None:
            return f"{baseline}; the served model could not be measured: {self._trouble}"
        return f"{baseline}, until the served model is measured ({self._asked} of {len(self._plan.rows)} lines)"

    def measured(self) -> dict[str, Any] | None:
        """Both agreements as JSON; None before they are known."""
        if self._measured is None:
            return None
        model, baseline = self._measured.model, self._measured.baseline
        return {"model_leads": self._measured.model_leads, "model": model.plain(), "baseline": baseline.plain()}

    async def judge(self, case: Case) -> Verdict:
        """The verdict of the judge at work; raises JudgeUnavailable as it does."""
        found = self._measured
        if found is None or not found.model_leads or not user_text(case.outcome.next_state):
            return await self._baseline.judge(case)
        verdict = await self._model.judge(case)
        if found.model.heard(verdict.score):
            return verdict
        note = f"not heard, since it says so wrongly too often: {verdict.score:+g}; {verdict.note}"
        return replace(verdict, score=None, hints=(), note=note)

    async def explain(self, case: Case) -> Explanation:
        """The story of the judge at work."""
        leads = self._measured is not None and self._measured.model_leads and user_text(case.outcome.next_state)
        told = await explain_plainly(self._model if leads else self._baseline, case)
        return replace(told, verdict=await self.judge(case)) if leads and told.verdict is not None else told

    # --- measuring

    def begin(self) -> None:
        """Measure in the background."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._measure_until_done())

    async def first_try(self) -> None:
        """Wait until it is measured, or could not be."""
        await self._tried.wait()

    async def stop(self) -> None:
        """End measuring. Safe to call twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _measure_until_done(self) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                self._measured = await self._known_or_measured()
            except Exception as error:  # judging goes on without it, whatever the reason
                self._trouble = getattr(error, "what", None) or f"{type(error).__name__}: {error}"
                log.warning("judge.not_measured reason=%s", self._trouble)
            self._tried.set()
            if self._measured is not None:
                log.info("judge.measured at_work=%s", self.at_work)
                return
            await self._sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _known_or_measured(self) -> Measured:
        plan = self._plan
        key = digest(plan.rows, plan.identity(), at_work(self._model), self._baseline.name)
        file = plan.folder / f"{key}.json"
        if (known := await asyncio.to_thread(_read, file)) is not None:
            return known
        log.info("judge.measures model=%s lines=%d", at_work(self._model), len(plan.rows))
        model = await measure(self._taster, plan.rows, workers=plan.workers, progress=self._progress)
        baseline = await measure(self._baseline, plan.rows, workers=plan.workers, progress=lambda _: None)
        found = Measured(model=model, baseline=baseline)
        await asyncio.to_thread(_write, file, found)
        return found

    def _progress(self, done: int) -> None:
        self._asked = done
        if done % TOLD_EVERY == 0:
            log.info("judge.measures lines=%d of=%d", done, len(self._plan.rows))


def _read(file: Path) -> Measured | None:
    """What was measured before; None where nothing was, or it cannot be read any more."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
        return Measured(model=Agreement.read(value["model"]), baseline=Agreement.read(value["baseline"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(file: Path, found: Measured) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    files.write(file, json.dumps({"model": found.model.plain(), "baseline": found.baseline.plain()}, indent=1))
