"""A judge with a model hosted here in a process of its own: started beside the loops, retried on failure."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from openclaw_rl.errors import JudgeUnavailable, OpenClawError
from openclaw_rl.judge.explain import Explanation, explain_plainly
from openclaw_rl.judge.parts import at_work, starting
from openclaw_rl.judge.reported import Alarm
from openclaw_rl.ports import Case, HostedModel, Judge
from openclaw_rl.types import Verdict

log = logging.getLogger(__name__)

FIRST_PAUSE: Final = 10.0
LONGEST_PAUSE: Final = 300.0
"""seconds between two attempts to start a model"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedParts:
    """A model and the judge that calls it."""

    model: HostedModel
    judge: Judge


class HostedJudge:
    """Delegates to the judge that ``build`` returns, once its model runs. Until then it is unavailable, and cases wait.

    ``duty`` names the model's purpose in one word: scores, hints. A failed start is retried after growing pauses, with
    no effect on the loops.
    """

    def __init__(
        self,
        place: str,
        duty: str,
        build: Callable[[], HostedParts],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.name = "model"
        self._place, self._duty, self._build, self._sleep = place, duty, build, sleep
        self._hosted: HostedParts | None = None
        self._trouble: OpenClawError | None = None
        self._tried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def parts(self) -> tuple[Judge, ...]:
        """Return the judge that calls the model, while it runs."""
        return (self._hosted.judge,) if self._hosted else ()

    @property
    def at_work(self) -> str:
        """Return the hosted model's name and state."""
        if self._hosted is None:
            return f"{self._place}, which {'cannot be started' if self._trouble else 'is being loaded'}"
        return f"{at_work(self._hosted.judge)}, hosted here"

    def begin(self) -> None:
        """Start the model in the background."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._start_until_ready())

    async def first_try(self) -> None:
        """Wait until the model runs or its start has failed."""
        await self._tried.wait()

    async def stop(self) -> None:
        """Stop the model's process. Safe to call twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        hosted, self._hosted = self._hosted, None
        if hosted is not None:
            for part in starting(hosted.judge):
                await part.stop()
            await hosted.model.stop()

    async def judge(self, case: Case) -> Verdict:
        """Return the hosted model's verdict; raises JudgeUnavailable until it runs."""
        return await self._judge().judge(case)

    async def explain(self, case: Case) -> Explanation:
        """Return the explanation of the judge that calls the model."""
        return await explain_plainly(self._judge(), case)

    def report(self) -> dict[str, Any]:
        """Return the model's entry for `status`."""
        state = "failed" if self._trouble else "starting"
        health = dict(self._hosted.model.health) if self._hosted else {"state": state}
        entries = {name: health.get(name) for name in ("state", "device", "memory", "pid", "restarts")}
        return {"model": self._place, "duty": self._duty, **entries}

    def alarms(self) -> tuple[Alarm, ...]:
        """Return an alarm if the model cannot be started."""
        if self._trouble is None:
            return ()
        remedy = self._trouble.remedy or "see the log"
        return (Alarm(name="judge model", what=self._why(), remedy=f"{remedy}; turns wait, serving continues"),)

    def _why(self) -> str:
        return f"the judge model {self._place} cannot be started: {self._trouble.what if self._trouble else ''}"

    def _judge(self) -> Judge:
        if self._hosted is not None:
            return self._hosted.judge
        if self._trouble is not None:
            raise JudgeUnavailable(self._why(), remedy=self._trouble.remedy)
        raise JudgeUnavailable(f"the judge model {self._place} is being loaded")

    async def _start_until_ready(self) -> None:
        pause = FIRST_PAUSE
        while not await self._started():
            await self._sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _started(self) -> bool:
        hosted: HostedParts | None = None
        try:
            hosted = await asyncio.to_thread(self._build)  # it may look a model up
            await hosted.model.start()
        except BaseException as error:
            if hosted is not None:
                await asyncio.shield(hosted.model.stop())
            if not isinstance(error, Exception):
                raise
            self._failed(error)
            return False
        self._hosted, self._trouble = hosted, None
        for part in starting(hosted.judge):
            part.begin()
        log.info("judge.model_ready model=%s duty=%s", self._place, self._duty)
        self._tried.set()
        return True

    def _failed(self, error: Exception) -> None:
        if not isinstance(error, OpenClawError):  # a library's error must not end the loops
            error = OpenClawError(f"{type(error).__name__}: {error}")
        log.error("judge.model_failed model=%s error=%s", self._place, error)
        self._trouble = error
        self._tried.set()
