"""Whether a judge keeps its port's promises."""

from __future__ import annotations

import asyncio
from typing import Any

from openclaw_rl.app.judge_settings import hint_limits
from openclaw_rl.config import load
from openclaw_rl.judge.custom import as_judge
from openclaw_rl.ports import Case
from openclaw_rl.testing.checks.promises import Promises
from openclaw_rl.testing.rows import make_case, make_message
from openclaw_rl.types import Verdict


def cases() -> list[Case]:
    """Cases that a judge meets: praise, a correction, a failed tool, silence, another language, a very long text."""
    state = [
        (make_message("user", "Thanks, that's perfect!"),),
        (make_message("user", "Too long. Please keep it under 30 words."),),
        (make_message("tool", "Traceback (most recent call last): ValueError", tool_call_id="c"),),
        (),
        (make_message("user", "太长了，请简短一点。"),),
        (make_message("user", "and then " * 20_000),),
    ]
    return [*(make_case(*messages) for messages in state), make_case(reply="")]


def check_judge(judge: Any) -> None:
    """A judge, or a function ``(prompt, reply, next_state) -> score``.

    It gives a `Verdict` of the case's own turn, also for many cases at once. Its score is None or in -1 .. 1.

    >>> from openclaw_rl.testing import FakeJudge
    >>> check_judge(FakeJudge(1.0))
    >>> check_judge(lambda prompt, reply, next_state: 7)
    Traceback (most recent call last):
    AssertionError: judge '<lambda>' breaks what openclaw_rl.ports.Judge promises:
    - a score is 7.0, which is not in -1 .. 1
    """
    judge = as_judge(judge, limits=hint_limits(load(environ={}).config), name=getattr(judge, "__name__", "custom"))
    promises = Promises("judge", judge)
    promises.report(_judge_keeps(promises, judge))


async def _judge_keeps(promises: Promises, judge: Any) -> None:
    tried = cases()
    verdicts = await asyncio.gather(*(promises.tried("judge(case)", judge.judge(case)) for case in tried))
    for case, verdict in zip(tried, verdicts, strict=True):
        if not isinstance(verdict, Verdict):
            promises.hold(verdict is None, f"judge(case) gives {type(verdict).__name__}, not a Verdict")
            continue
        promises.hold(verdict.turn == case.turn.id, "a verdict names another turn than the one it was given")
        fine = verdict.score is None or -1.0 <= verdict.score <= 1.0
        promises.hold(fine, f"a score is {verdict.score}, which is not in -1 .. 1")
        wrong = verdict.score is None and (" raised " in verdict.note or "no finite number" in verdict.note)
        promises.hold(not wrong, f"the function fails: {verdict.note}")
