"""From settings to a judge and the rules its loop works by."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from openclaw_rl import config as settings
from openclaw_rl import plugins
from openclaw_rl.app.factories import running_policy
from openclaw_rl.config import Config
from openclaw_rl.errors import ConfigError
from openclaw_rl.ports import Judge, Policy
from openclaw_rl.types import Json, Sampling

if TYPE_CHECKING:
    from openclaw_rl.judge.hints import HintLimits
    from openclaw_rl.judge.llm import LlmSettings
    from openclaw_rl.judge.loop import JudgeLoopSettings
    from openclaw_rl.judge.voters import EndpointSettings

_HEALTH_WINDOW: Final = 50
"""verdicts looked at for collapse, starvation and drift: enough to tell a collapse from chance"""


def build_judge(config: Config, policy: Policy | None) -> Judge:
    """The judge that ``judge.custom`` or ``judge.kind`` names."""
    from openclaw_rl.judge.auto import AutoJudge
    from openclaw_rl.judge.custom import as_judge
    from openclaw_rl.judge.rules import RulesJudge

    judge = config.judge
    if judge.custom:
        mine = plugins.resolve("judge", judge.custom)
        if isinstance(mine, type):
            return _named(config, judge.custom, policy)
        return as_judge(mine, limits=hint_limits(config), name=judge.custom)
    if judge.kind == "auto":
        asks_model = judge.llm.model == "policy" or (judge.llm.base_url and judge.llm.model)
        llm = _named(config, "llm", policy) if asks_model else None
        return AutoJudge(rules=RulesJudge(limits=hint_limits(config)), llm=llm)
    return _named(config, judge.kind, policy)


def with_judge(config: Config, name: str | None) -> Config:
    """The settings with another judge: a built-in or installed one by name, else one of the user's own."""
    if name is None:
        return config
    own = ":" in name
    judge = config.judge.model_copy(update={"custom": name} if own else {"kind": name, "custom": None})
    return config.model_copy(update={"judge": judge})


async def evaluate_judge(
    config: Config, path: Path, *, judge: str | None, progress: Callable[[int], None]
) -> dict[str, Json]:
    """How well a judge reads the labelled exchanges of a file or folder; nothing is written."""
    from openclaw_rl.judge.evaluation import evaluate
    from openclaw_rl.judge.labelled import LabelledRow, read_files

    config = with_judge(config, judge)
    read = await asyncio.to_thread(lambda: list(read_files(path)))
    rows = [row for row in read if isinstance(row, LabelledRow)]
    skipped = [{"where": row.where, "why": row.why} for row in read if not isinstance(row, LabelledRow)]
    if not rows:
        why = f": {skipped[0]['where']}: {skipped[0]['why']}" if skipped else ""
        raise ConfigError(
            f"{path} holds no labelled exchange{why}", remedy="each line is JSON: request, reply, next, kind"
        )
    asks_policy = config.judge.llm.model == "policy"
    async with running_policy(config) if asks_policy else contextlib.nullcontext() as policy:
        found = await evaluate(build_judge(config, policy), rows, workers=config.judge.workers, progress=progress)
    return {**found, "skipped": skipped}


def _named(config: Config, name: str, policy: Policy | None) -> Judge:
    judge, llm = config.judge, config.judge.llm
    offered = {
        **judge.model_dump(exclude={"kind", "custom", "llm", "options"}),
        **llm.model_dump(),
        "model": llm.model or "",
        "policy": policy if llm.model == "policy" else None,
        "api_key": _api_key(config),
        "limits": hint_limits(config),
        "settings": llm_settings(config),
    }
    built: Judge = plugins.build("judge", name, offered=offered, options=judge.options)
    return built


def _api_key(config: Config) -> str | None:
    name = config.judge.llm.api_key_env
    return settings.environment(name) if name else None


def hint_limits(config: Config) -> HintLimits:
    """What makes a hint worth keeping."""
    from openclaw_rl.judge.hints import HintLimits

    judge = config.judge
    return HintLimits(shortest=judge.hint_min, longest=judge.hint_max, most=judge.max_hints)


def llm_settings(config: Config) -> LlmSettings:
    """How the llm judge asks, counts and waits."""
    from openclaw_rl.judge.llm import LlmSettings
    from openclaw_rl.judge.prompt import PromptSettings
    from openclaw_rl.judge.votes import VoteRule

    llm = config.judge.llm
    return LlmSettings(
        endpoint=_endpoint(config),
        sampling=Sampling(temperature=llm.temperature, max_tokens=llm.max_tokens),
        rule=VoteRule(votes=llm.votes, threshold=llm.threshold, quorum=llm.quorum),
        prompts=PromptSettings(folder=llm.prompts_dir, budget=llm.evidence_tokens, window=llm.history),
        hints=hint_limits(config),
        workers=config.judge.workers,
        deadline=llm.deadline,
        breaker_failures=llm.breaker_failures,
        breaker_seconds=llm.breaker_seconds,
        daily_tokens=llm.daily_tokens,
    )


def _endpoint(config: Config) -> EndpointSettings | None:
    from openclaw_rl.judge.voters import EndpointSettings

    llm = config.judge.llm
    if not llm.base_url or not llm.model:
        return None
    return EndpointSettings(
        base_url=llm.base_url, model=llm.model, api_key=_api_key(config), timeout=llm.deadline, retries=llm.retries
    )


def judge_loop_settings(config: Config) -> JudgeLoopSettings:
    """How the judge's loop works; a step's reward stands alone, and the judge is always compared with users."""
    from openclaw_rl.judge.loop import JudgeLoopSettings

    judge = config.judge
    return JudgeLoopSettings(
        workers=judge.workers,
        trusted=frozenset(judge.trusted_envs),
        hints=hint_limits(config),
        step_votes=False,
        calibrate=True,
        window=_HEALTH_WINDOW,
        longest_pause=min(30.0, judge.llm.breaker_seconds),
    )
