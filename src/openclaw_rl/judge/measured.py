"""A one-pass judge that is measured before use, and again by this deployment's user ratings.

The model rates labelled lines shipped with the package, in the background, once for these weights and this prompt. They
set the thresholds at real conversations' base rate. Turns that users rate explicitly are further lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any, Final

import anyio

from openclaw_rl import files
from openclaw_rl.errors import BackendError, JudgeUnavailable, RequestError
from openclaw_rl.judge.base_rate import BaseRates, Decision, Odds, RatedLine
from openclaw_rl.judge.channel import Channel
from openclaw_rl.judge.evidence import described
from openclaw_rl.judge.explain import Explanation, explain_plainly
from openclaw_rl.judge.hints import HintLimits
from openclaw_rl.judge.labelled import LabelledRow, read_lines
from openclaw_rl.judge.one_pass import OnePass, OnePassJudge
from openclaw_rl.judge.parts import at_work
from openclaw_rl.judge.raters import NoLogprobs
from openclaw_rl.ports import Case, Judge
from openclaw_rl.types import Verdict

log = logging.getLogger(__name__)

FIRST_PAUSE: Final = 60.0
LONGEST_PAUSE: Final = 3600.0
"""seconds between two attempts to measure"""
LOGGED_EVERY: Final = 24
"""lines between two log entries"""
MOST_RATED: Final = 2_000
"""maximum rated turns; the newest are kept"""


def shipped_rows() -> tuple[LabelledRow, ...]:
    """Return the labelled lines shipped with the package."""
    text = resources.files("openclaw_rl.judge").joinpath("base_rate.jsonl").read_text(encoding="utf-8")
    rows = read_lines(text.splitlines(), name="base_rate.jsonl", voice="")
    return tuple(row for row in rows if isinstance(row, LabelledRow))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurePlan:
    """The lines, the number rated at once, the folder for results, and the model's identity.

    ``identity`` is read when measuring begins: the weights are known once they are loaded. ``rated`` is the file for
    turns rated by this deployment's users, None to forget them with the process.
    """

    rows: Sequence[LabelledRow]
    workers: int
    folder: Path
    identity: Callable[[], str]
    rated: Path | None


class MeasuredJudge:
    """``model`` in one pass if it was measured to be precise at the base rate, and ``baseline`` otherwise.

    ``baseline`` judges until the model is measured, if no threshold reaches its precision or the model has no
    log-probs, if the user wrote nothing, and in recorded conversations.
    """

    name = "measured"

    def __init__(
        self,
        *,
        baseline: Judge,
        asks: OnePass,
        plan: MeasurePlan,
        limits: HintLimits,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._baseline, self._plan, self._sleep = baseline, plan, sleep
        self._model = OnePassJudge(asks, self, limits=limits)
        self._lines: tuple[RatedLine, ...] | None = None
        self._rated: tuple[RatedLine, ...] = ()
        self._rates = BaseRates.silent()
        self._done = 0
        self._trouble: str | None = None
        self._tried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def parts(self) -> tuple[Judge, ...]:
        """Return the baseline judge and the model's judge."""
        return (self._baseline, self._model)

    @property
    def at_work(self) -> str:
        """Return the active judge's name with its precision."""
        baseline, model = at_work(self._baseline), at_work(self._model)
        if self._lines is not None:
            return f"{model}: {self._rates}" if self._rates.heard else f"{baseline}; {model} is {self._rates}"
        if self._trouble is not None:
            return f"{baseline}; {model} could not be measured: {self._trouble}"
        return f"{baseline}, until {model} is measured ({self._done} of {len(self._plan.rows)} lines)"

    def measured(self) -> dict[str, Any] | None:
        """Return the thresholds and this deployment's agreement with users as JSON; None before the measurement."""
        if self._lines is None:
            return None
        return {"model": at_work(self._model), "heard": self._rates.heard, **self._rates.plain()}

    def decide(self, odds: Odds, channel: Channel) -> Decision:
        """Return the score for these odds by the current thresholds."""
        return self._rates.decide(odds, channel)

    async def judge(self, case: Case) -> Verdict:
        """Return the active judge's verdict; raises JudgeUnavailable as it does."""
        return await (self._model if self._asks_model(case) else self._baseline).judge(case)

    async def explain(self, case: Case) -> Explanation:
        """Return the active judge's explanation."""
        return await explain_plainly(self._model if self._asks_model(case) else self._baseline, case)

    async def rated(self, case: Case, score: float) -> None:
        """Add a turn that a user rated explicitly to this deployment's lines."""
        if not score or not self._asks_model(case):
            return
        rated = await self._model.read(case)
        line = RatedLine(channel=rated.channel, truth=1 if score > 0 else -1, odds=rated.odds, own=rated.own)
        self._rated = (*self._rated, line)[-MOST_RATED:]
        self._set()
        if self._plan.rated is not None:
            await asyncio.to_thread(_write, self._plan.rated, self._rated)

    def _asks_model(self, case: Case) -> bool:
        user_wrote = any(message.role == "user" and message.content.strip() for message in case.outcome.next_state)
        return self._rates.heard and user_wrote and described(case) is None

    # --- measuring

    def begin(self) -> None:
        """Start measuring in the background."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._measure_until_done())

    async def first_try(self) -> None:
        """Wait until the measurement has finished, or failed once."""
        await self._tried.wait()

    async def stop(self) -> None:
        """Stop measuring. Safe to call twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _measure_until_done(self) -> None:
        pause = FIRST_PAUSE
        while self._lines is None:
            try:
                rated: tuple[RatedLine, ...] | None = await asyncio.to_thread(_read, self._plan.rated)
                self._rated = rated or ()
                self._lines = await self._known_or_measured()
                self._set()
                log.info("judge.measured at_work=%s", self.at_work)
            except Exception as error:  # judging continues without it after any error
                self._trouble = getattr(error, "what", None) or f"{type(error).__name__}: {error}"
                log.warning("judge.not_measured reason=%s", self._trouble)
                if isinstance(error, NoLogprobs):
                    self._tried.set()
                    return
            self._tried.set()
            if self._lines is None:
                await self._sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    def _set(self) -> None:
        self._rates = BaseRates.of(self._lines or (), self._rated)

    async def _known_or_measured(self) -> tuple[RatedLine, ...]:
        plan, asks = self._plan, self._model.asks
        texts = [[row.request, row.reply, row.next, row.label, row.channel] for row in plan.rows]
        parts = json.dumps([plan.identity(), asks.rater.model, asks.examples.version, texts])
        file = plan.folder / f"{sha256(parts.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}.json"
        if (stored := await asyncio.to_thread(_read, file)) is not None:
            return stored
        log.info("judge.measuring model=%s lines=%d", asks.rater.model, len(plan.rows))
        lines = await rate_rows(self._model, plan.rows, workers=plan.workers, progress=self._progress)
        await asyncio.to_thread(_write, file, lines)
        return lines

    def _progress(self, done: int) -> None:
        self._done = done
        if done % LOGGED_EVERY == 0:
            log.info("judge.measuring lines=%d of=%d", done, len(self._plan.rows))


async def rate_rows(
    judge: OnePassJudge, rows: Sequence[LabelledRow], *, workers: int, progress: Callable[[int], None]
) -> tuple[RatedLine, ...]:
    """Return the odds of every row; raises JudgeUnavailable if the model cannot rate them."""
    lines: list[RatedLine] = []
    waiting = iter(rows)

    async def work() -> None:
        for row in waiting:
            try:
                rated = await judge.read(row.case())
            except (BackendError, RequestError) as error:
                raise JudgeUnavailable(f"a line could not be rated: {error.what}", remedy=error.remedy) from error
            channel = row.channel or rated.channel
            lines.append(RatedLine(channel=channel, truth=row.score or 0, odds=rated.odds, own=rated.own))
            progress(len(lines))

    try:
        async with anyio.create_task_group() as group:
            for _ in range(max(1, workers)):
                group.start_soon(work)
    except ExceptionGroup as errors:
        first: Exception = errors
        while isinstance(first, ExceptionGroup):
            first = first.exceptions[0]
        raise first from None
    return tuple(lines)


def _read(file: Path | None) -> tuple[RatedLine, ...] | None:
    """Return the stored lines; None without any, or if they cannot be read."""
    try:
        stored = json.loads(file.read_text(encoding="utf-8")) if file is not None else None
        return None if stored is None else tuple(map(_line, stored))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _line(kept: dict[str, Any]) -> RatedLine:
    own_odds = kept["own"]
    return RatedLine(**{**kept, "odds": Odds(**kept["odds"]), "own": None if own_odds is None else Odds(**own_odds)})


def _write(file: Path, lines: Sequence[RatedLine]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    files.write(file, json.dumps([asdict(line) for line in lines]))
