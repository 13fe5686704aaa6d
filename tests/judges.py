"""Judges as the app builds them from settings, with a scripted endpoint and a clock of the test's own."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Protocol

import httpx2

from openclaw_rl.app.judges import judge_loop_settings, llm_settings
from openclaw_rl.config import Config
from openclaw_rl.judge import AutoJudge, CustomJudge, JudgeLoop, LlmJudge, RulesJudge
from openclaw_rl.judge.feedback_classifier.judge import FeedbackClassifierJudge, KindClassifier
from openclaw_rl.judge.hints import HintLimits
from openclaw_rl.judge.llm import LlmSettings
from openclaw_rl.judge.voters import EndpointVoter
from openclaw_rl.ports import Judge, Score

LIMITS = HintLimits(shortest=11, longest=600, most=3)


class Time(Protocol):
    """A clock that can be slept on."""

    def __call__(self) -> float: ...

    def sleep(self, seconds: float) -> Awaitable[None]: ...


def settings(**given: Any) -> LlmSettings:
    """The settings of an llm judge from ``judge.workers`` and the settings ``judge.llm.*``."""
    judge = {"workers": given.pop("workers", 4)}
    llm = {"base_url": "http://judge/v1", "model": "m", "retries": 2, **given}
    return llm_settings(Config.model_validate({"judge": {**judge, "llm": llm}}))


def llm_judge(
    script: Callable[[httpx2.Request], Any], clock: Time | None = None, *, patience: float = 600.0, **given: Any
) -> LlmJudge:
    """An llm judge whose endpoint is ``script``; ``api_key`` and settings ``judge.llm.*`` as given."""
    key = given.pop("api_key", None)
    made = settings(**given)
    assert made.endpoint is not None
    times: dict[str, Any] = {"clock": clock, "wall": clock} if clock else {}
    sleeps: dict[str, Any] = {"sleep": clock.sleep} if clock else {}
    endpoint = replace(made.endpoint, api_key=key)
    transport = httpx2.MockTransport(script)
    voter = EndpointVoter(endpoint, made.sampling, rng=random.Random(1), transport=transport, **sleeps)
    return LlmJudge(settings=made, voter=voter, patience=patience, **times)


def rules_judge() -> RulesJudge:
    return RulesJudge(limits=LIMITS)


def reader_judge(classifier: KindClassifier | None = None) -> FeedbackClassifierJudge:
    return FeedbackClassifierJudge(limits=LIMITS, classifier=classifier)


def auto_judge(llm: Judge | None = None) -> AutoJudge:
    return AutoJudge(classifier=reader_judge(), llm=llm)


def custom_judge(score: Score) -> CustomJudge:
    return CustomJudge(score, limits=LIMITS)


def judge_loop(ledger: Any, judge: Judge, *, batch: int = 32, **given: Any) -> JudgeLoop:
    """The loop with the app's own settings, or others by name; clocks as given."""
    clocks = {name: given.pop(name) for name in ("clock", "wall", "sleep") if name in given}
    made = replace(judge_loop_settings(Config()), **given)
    return JudgeLoop(ledger, judge, made, batch=batch, **clocks)
