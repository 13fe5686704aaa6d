"""From settings to the rules by which judges and their loop work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from openclaw_rl import config as settings
from openclaw_rl.config import Config
from openclaw_rl.types import Sampling

if TYPE_CHECKING:
    from openclaw_rl.judge.hints import HintLimits
    from openclaw_rl.judge.llm import LlmSettings
    from openclaw_rl.judge.loop import JudgeLoopSettings
    from openclaw_rl.judge.voters import EndpointSettings

_HEALTH_WINDOW: Final = 50
"""verdicts looked at for collapse, starvation and drift: enough to tell a collapse from chance"""


def api_key(config: Config) -> str | None:
    """The key of the judge's endpoint, from the variable that the settings name."""
    name = config.judge.llm.api_key_env
    return settings.environment(name) if name else None


def hint_limits(config: Config) -> HintLimits:
    """What makes a hint worth keeping."""
    from openclaw_rl.judge.hints import HintLimits

    judge = config.judge
    return HintLimits(shortest=judge.hint_min, longest=judge.hint_max, most=judge.max_hints)


def llm_settings(config: Config, *, template: str = "turn") -> LlmSettings:
    """How the llm judge asks, counts and waits; ``template`` names the prompt about a user's words."""
    from openclaw_rl.judge.llm import LlmSettings
    from openclaw_rl.judge.prompt import PromptSettings
    from openclaw_rl.judge.votes import VoteRule

    llm = config.judge.llm
    return LlmSettings(
        endpoint=_endpoint(config),
        sampling=Sampling(temperature=llm.temperature, max_tokens=llm.max_tokens),
        rule=VoteRule(votes=llm.votes, threshold=llm.threshold, quorum=llm.quorum),
        prompts=PromptSettings(
            folder=llm.prompts_dir, template=template, budget=llm.evidence_tokens, window=llm.history
        ),
        hints=hint_limits(config),
        workers=config.judge.workers,
        deadline=llm.deadline,
        breaker_failures=llm.breaker_failures,
        breaker_seconds=llm.breaker_seconds,
        daily_tokens=llm.daily_tokens,
    )


def _endpoint(config: Config) -> EndpointSettings | None:
    llm = config.judge.llm
    return endpoint_at(config, llm.base_url, llm.model) if llm.base_url and llm.model else None


def endpoint_at(config: Config, address: str, model: str) -> EndpointSettings:
    """A judge's model at an address; ``model`` empty is the first that it lists."""
    from openclaw_rl.judge.voters import EndpointSettings

    llm = config.judge.llm
    return EndpointSettings(
        base_url=address, model=model, api_key=api_key(config), timeout=llm.deadline, retries=llm.retries
    )


def judge_loop_settings(config: Config) -> JudgeLoopSettings:
    """How the judge's loop works; it is always compared with users."""
    from openclaw_rl.judge.loop import JudgeLoopSettings

    judge = config.judge
    return JudgeLoopSettings(
        workers=judge.workers,
        trusted=frozenset(judge.trusted_envs),
        hints=hint_limits(config),
        behaviour=judge.behaviour,
        step_votes=_votes_on_steps(config) if judge.step_votes is None else judge.step_votes,
        calibrate=True,
        window=_HEALTH_WINDOW,
        longest_pause=min(30.0, judge.llm.breaker_seconds),
    )


def _votes_on_steps(config: Config) -> bool:
    """Whether the judge is one whose votes on steps are worth having: a model or a plugin, not a reader of people."""
    judge = config.judge
    return judge.custom is not None or judge.kind == "llm" or bool(judge.llm.base_url)
