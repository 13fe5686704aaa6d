"""From settings to the judge models that are hosted here, or answer at an address of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from openclaw_rl import config as settings
from openclaw_rl import plugins
from openclaw_rl.app.devices import judge_device, visible_gpus
from openclaw_rl.app.judge_settings import endpoint_at, hint_limits, llm_settings
from openclaw_rl.config import Config
from openclaw_rl.errors import ModelRefused
from openclaw_rl.ports import Judge, Policy, RatesWords

if TYPE_CHECKING:
    from openclaw_rl.judge.availability import TokenBudget
    from openclaw_rl.judge.hosted import HostedParts
    from openclaw_rl.judge.measured import MeasuredJudge

_CLASSIFIER: Final = "openclaw_rl.backends.local.classifier.client:local_classifier"
_IS_CLASSIFIER: Final = "openclaw_rl.backends.hf.kinds:is_classifier"
_PROCESS: Final = "openclaw-judge"
"""the name of a hosted model's process, as `ps` shows it"""
RATED: Final = "judge_rated.json"
"""in the run's directory: the odds of turns that users rated, by which thresholds are set anew; no text"""


def build_model_judge(config: Config) -> Judge | None:
    """The judge of ``judge.models``, None where none is named. One model for both duties runs once."""
    from openclaw_rl.judge.pair import PairJudge

    models, visible = config.judge.models, visible_gpus()
    if models.score is None or models.hints is None or models.score == models.hints:
        place = models.score or models.hints
        return _judge_at(config, place, "scores and hints", judge_device(config, 0, visible=visible)) if place else None
    return PairJudge(
        scorer=_judge_at(config, models.score, "scores", judge_device(config, 0, visible=visible)),
        hinter=_judge_at(config, models.hints, "hints", judge_device(config, 1, visible=visible)),
    )


def is_address(place: str) -> bool:
    """Whether a model is asked over HTTP, not hosted here."""
    return place.startswith(("http://", "https://"))


def _judge_at(config: Config, place: str, duty: str, device: str) -> Judge:
    from openclaw_rl.judge.hosted import HostedJudge
    from openclaw_rl.judge.llm import LlmJudge

    if is_address(place):
        endpoint = endpoint_at(config, place, config.judge.llm.model or "")
        return LlmJudge(settings=replace(llm_settings(config), endpoint=endpoint))
    return HostedJudge(place, duty, _builder(config, place, duty, device))


def _builder(config: Config, place: str, duty: str, device: str) -> Callable[[], HostedParts]:
    """How to build the model and its judge. What kind of model it is shows only once it is looked up."""

    def build() -> HostedParts:
        if plugins.load("judge", _IS_CLASSIFIER)(place):
            return _classifier(config, place, duty, device)
        return _chat_model(config, place, duty, device)

    return build


def _chat_model(config: Config, place: str, duty: str, device: str) -> HostedParts:
    """An engine of its own for a model that judges in one pass, or votes where it is not precise so."""
    from openclaw_rl.judge.hosted import HostedParts
    from openclaw_rl.judge.llm import LlmJudge

    offered = {
        **_common(config, place, device),
        "context": config.judge.models.context,
        "max_batch": config.judge.workers,
        "cache_tokens": None,
        "chat_template": None,
        "tool_format": None,
        "process": _PROCESS,
    }
    model: Any = plugins.build("policy", "local", offered=offered, options={})
    votes = LlmJudge(settings=llm_settings(config), policy=model)
    return HostedParts(model=model, judge=votes if duty == "hints" else measured_policy(config, votes, model))


def measured_policy(config: Config, baseline: Judge, policy: Policy) -> MeasuredJudge:
    """The base model of ``policy`` in one pass, and ``baseline`` where it is not precise."""
    from openclaw_rl.judge.raters import PolicyRater

    return _measured(config, baseline, PolicyRater(policy), identity=lambda: policy.base, workers=1)


def measured_endpoint(config: Config, baseline: Judge, *, budget: TokenBudget | None) -> Judge:
    """The model of ``judge.llm`` in one pass, and ``baseline`` where it is not precise or gives no log-probs."""
    from openclaw_rl.judge.raters import EndpointRater

    llm = config.judge.llm
    if not llm.base_url or not llm.model:
        return baseline
    endpoint = endpoint_at(config, llm.base_url, llm.model)
    address = endpoint.base_url
    return _measured(
        config, baseline, EndpointRater(endpoint, budget=budget), identity=lambda: address, workers=config.judge.workers
    )


def _measured(
    config: Config, baseline: Judge, rater: RatesWords, *, identity: Callable[[], str], workers: int
) -> MeasuredJudge:
    from openclaw_rl.judge.measured import MeasuredJudge, MeasurePlan, shipped_rows
    from openclaw_rl.judge.one_pass import OnePass

    plan = MeasurePlan(
        rows=shipped_rows(),
        workers=workers,
        folder=settings.cache_dir() / "judges",
        identity=identity,
        rated=config.run.dir / RATED,
    )
    return MeasuredJudge(baseline=baseline, asks=OnePass(rater), plan=plan, limits=hint_limits(config))


def _classifier(config: Config, place: str, duty: str, device: str) -> HostedParts:
    """A model that tells classes apart; it writes nothing, so it cannot give hints."""
    from openclaw_rl.judge.classifier import ClassifierJudge
    from openclaw_rl.judge.hosted import HostedParts

    if duty == "hints":
        raise ModelRefused(
            f"{place} classifies texts and writes none, so it gives no hints",
            remedy="name it as judge.models.score (PRM_MODEL_PATH), and a chat model, or none, as judge.models.hints",
        )
    how = config.judge.classifier
    model = plugins.load("judge", _CLASSIFIER)(**_common(config, place, device), **how.model_dump())
    return HostedParts(model=model, judge=ClassifierJudge(model, limits=hint_limits(config)))


def _common(config: Config, place: str, device: str) -> dict[str, Any]:
    return {"model": place, "cache_dir": settings.cache_dir(), "device": device, "dtype": config.judge.models.dtype}
