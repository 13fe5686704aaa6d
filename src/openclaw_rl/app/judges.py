"""Builds the judge from the settings."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from openclaw_rl import config as settings
from openclaw_rl import plugins
from openclaw_rl.app.devices import judge_device, visible_gpus
from openclaw_rl.app.factories import running_policy
from openclaw_rl.config import Config
from openclaw_rl.errors import ConfigError, ModelRefused
from openclaw_rl.judge.behaviour import exchange, find_doubt, label_of
from openclaw_rl.ports import Judge, Policy, RatesWords
from openclaw_rl.types import Doubt, Json, Sampling

if TYPE_CHECKING:
    from openclaw_rl.judge.availability import TokenBudget
    from openclaw_rl.judge.feedback_classifier.judge import FeedbackClassifierJudge
    from openclaw_rl.judge.hints import HintLimits
    from openclaw_rl.judge.hosted import HostedParts
    from openclaw_rl.judge.llm import LlmSettings
    from openclaw_rl.judge.loop import JudgeLoopSettings
    from openclaw_rl.judge.measured import MeasuredJudge
    from openclaw_rl.judge.voters import EndpointSettings


# Settings for the judges and their loop.

_HEALTH_WINDOW: Final = 50
"""verdicts examined for collapse, starvation and drift: enough to tell a collapse from chance"""


def api_key(config: Config) -> str | None:
    """Return the key for the judge's endpoint, from the environment variable in the settings."""
    name = config.judge.llm.api_key_env
    return settings.environment(name) if name else None


def hint_limits(config: Config) -> HintLimits:
    """Return the limits for a usable hint."""
    from openclaw_rl.judge.hints import HintLimits

    judge = config.judge
    return HintLimits(shortest=judge.hint_min, longest=judge.hint_max, most=judge.max_hints)


def llm_settings(config: Config, *, template: str = "turn") -> LlmSettings:
    """Return the llm judge's settings; ``template`` names the prompt about a user's words."""
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
    """Return the endpoint of a judge model at an address; an empty ``model`` selects the first that it lists."""
    from openclaw_rl.judge.voters import EndpointSettings

    llm = config.judge.llm
    return EndpointSettings(
        base_url=address, model=model, api_key=api_key(config), timeout=llm.deadline, retries=llm.retries
    )


def judge_loop_settings(config: Config) -> JudgeLoopSettings:
    """Return the judge loop's settings; comparison with users is always on."""
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
    """Return True if the judge's step votes are useful: a model or a plugin, not the feedback classifier."""
    judge = config.judge
    return judge.custom is not None or judge.kind == "llm" or bool(judge.llm.base_url)


# Judge models hosted here, or reached at an address.

_CLASSIFIER: Final = "openclaw_rl.backends.local.classifier.client:local_classifier"
_IS_CLASSIFIER: Final = "openclaw_rl.backends.hf.finding:is_classifier"
_PROCESS: Final = "openclaw-judge"
"""the name of a hosted model's process in `ps`"""
RATED: Final = "judge_rated.json"
"""in the run's directory: the odds for turns that users rated, by which thresholds are recalibrated; no text"""


def build_model_judge(config: Config) -> Judge | None:
    """Return the judge for ``judge.models``, None if none is named. One model for both duties runs once."""
    from openclaw_rl.judge.parts import PairJudge

    models, visible = config.judge.models, visible_gpus()
    if models.score is None or models.hints is None or models.score == models.hints:
        place = models.score or models.hints
        return _judge_at(config, place, "scores and hints", judge_device(config, 0, visible=visible)) if place else None
    return PairJudge(
        scorer=_judge_at(config, models.score, "scores", judge_device(config, 0, visible=visible)),
        hinter=_judge_at(config, models.hints, "hints", judge_device(config, 1, visible=visible)),
    )


def is_address(place: str) -> bool:
    """Return True if a model is reached over HTTP, not hosted here."""
    return place.startswith(("http://", "https://"))


def _judge_at(config: Config, place: str, duty: str, device: str) -> Judge:
    from openclaw_rl.judge.hosted import HostedJudge
    from openclaw_rl.judge.llm import LlmJudge

    if is_address(place):
        endpoint = endpoint_at(config, place, config.judge.llm.model or "")
        return LlmJudge(settings=replace(llm_settings(config), endpoint=endpoint))
    return HostedJudge(place, duty, _builder(config, place, duty, device))


def _builder(config: Config, place: str, duty: str, device: str) -> Callable[[], HostedParts]:
    """Return a function that builds the model and its judge; the kind of model is determined at the build."""

    def build() -> HostedParts:
        if plugins.load("judge", _IS_CLASSIFIER)(place):
            return _classifier(config, place, duty, device)
        return _chat_model(config, place, duty, device)

    return build


def _chat_model(config: Config, place: str, duty: str, device: str) -> HostedParts:
    """Build a separate engine for a model that judges in one pass, or votes where that is not precise."""
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
    """Return a judge by ``policy``'s base model in one pass, or ``baseline`` where that is not precise."""
    from openclaw_rl.judge.raters import PolicyRater

    return _measured(config, baseline, PolicyRater(policy), identity=lambda: policy.base, workers=1)


def measured_endpoint(config: Config, baseline: Judge, *, budget: TokenBudget | None) -> Judge:
    """Return a judge by ``judge.llm``'s model in one pass, or ``baseline`` without precision or log-probs."""
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
    """Build a classification model; it generates no text, so it cannot give hints."""
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


def build_judge(config: Config, policy: Policy | None) -> Judge:
    """Build the judge named by ``judge.custom``, ``judge.models`` or ``judge.kind``."""
    from openclaw_rl.judge.parts import AutoJudge

    judge = config.judge
    if judge.custom:
        return _custom(config, judge.custom, policy)
    served = policy is not None and hosts_served_model(config)
    hosted = None if served or judge.kind not in ("auto", "llm") else build_model_judge(config)
    if hosted is not None:
        return hosted
    if judge.kind == "auto":
        asks_model = judge.llm.model == "policy" or (judge.llm.base_url and judge.llm.model)
        llm = _named(config, "llm", policy) if asks_model else None
        default = AutoJudge(classifier=build_feedback_classifier(config, policy), llm=llm)
        if policy is not None and (served or judges_itself(config) or judge.llm.model == "policy"):
            return measured_policy(config, default, policy)
        return default if llm is None else measured_endpoint(config, default, budget=getattr(llm, "tokens", None))
    if judge.kind == "feedback-classifier":
        return build_feedback_classifier(config, policy)
    return _named(config, judge.kind, policy)


def judges_itself(config: Config) -> bool:
    """Return True if the served model judges where its measured precision allows.

    No other judge is named, and the model follows instructions, for which the embedded model is too small.
    """
    judge, policy = config.judge, config.policy
    if hosts_served_model(config):
        return True
    named = judge.custom or judge.models.score or judge.models.hints or judge.llm.model
    return judge.kind == "auto" and not named and policy.model != "embedded" and policy.backend != "fake"


def hosts_served_model(config: Config) -> bool:
    """Return True if the judge model is the served model: one copy does both."""
    judge, policy = config.judge, config.policy
    named = {judge.models.score, judge.models.hints} - {None}
    unnamed = judge.kind == "auto" and not judge.custom and policy.backend == "local"
    return unnamed and named == {policy.model}


def asks_policy(config: Config) -> bool:
    """Return True if the judge needs the policy."""
    return config.judge.llm.model == "policy" or judges_itself(config) or _classifies(config)


def _classifies(config: Config) -> bool:
    """Return True if the feedback classifier may be used: an adapter on the policy, if it can run here."""
    judge = config.judge
    reads = judge.kind in ("auto", "feedback-classifier") and judge.feedback_classifier.classifier and not judge.custom
    hosted = judge.models.score or judge.models.hints
    return reads and not hosted and config.policy.backend == "local" and importlib.util.find_spec("torch") is not None


def build_feedback_classifier(config: Config, policy: Policy | None) -> FeedbackClassifierJudge:
    """Return the feedback classifier for the policy's base weights: shipped, or fitted here."""
    from openclaw_rl.judge.feedback_classifier.judge import FeedbackClassifierJudge, PolicyClassifier, classifier_for

    section, fitted = config.judge.feedback_classifier, settings.cache_dir() / "readers"
    classifier = None
    if section.classifier and policy is not None:
        classifier = PolicyClassifier(policy, lambda base: classifier_for(base, fitted), seconds=section.seconds)
    return FeedbackClassifierJudge(limits=hint_limits(config), classifier=classifier)


@contextlib.asynccontextmanager
async def running(judge: Judge, *, wait: bool) -> AsyncIterator[None]:
    """Start the judge's parts while the context is open; with ``wait``, before it is entered."""
    from openclaw_rl.judge.parts import starting

    begun = starting(judge)
    for part in begun:
        part.begin()
    try:
        for part in begun if wait else ():
            await part.first_try()
        yield
    finally:
        for part in begun:
            await part.stop()


def with_judge(config: Config, name: str | None) -> Config:
    """Return the settings with another judge: a built-in or installed one by name, else the user's own."""
    if name is None:
        return config
    custom = ":" in name or name.endswith(".py")
    judge = config.judge.model_copy(update={"custom": name} if custom else {"kind": name, "custom": None})
    return config.model_copy(update={"judge": judge})


async def evaluate_judge(
    config: Config, path: Path, *, judge: str | None, progress: Callable[[int], None]
) -> dict[str, Json]:
    """Measure a judge on the labelled exchanges in a file or folder; nothing is written."""
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
    async with running_policy(config) if asks_policy(config) else contextlib.nullcontext() as policy:
        instance = build_judge(config, policy)
        async with running(instance, wait=True):
            report = await evaluate(instance, rows, workers=config.judge.workers, progress=progress)
        classifier = _classifier_base(config, policy)
    return {**report, "classifier": classifier, "skipped": skipped}


def _classifier_base(config: Config, policy: Policy | None) -> str | None:
    """Return the base weights for the classifier; None if the n-grams judge alone."""
    from openclaw_rl.judge.feedback_classifier.judge import classifier_for

    if policy is None or not _classifies(config):
        return None
    return policy.base if classifier_for(policy.base, settings.cache_dir() / "readers") else None


def _custom(config: Config, name: str, policy: Policy | None) -> Judge:
    """Return the user's judge: a class, a scoring function, or a reward model by the published contract."""
    from openclaw_rl.judge.custom import as_judge

    judge = plugins.resolve("judge", name)
    if isinstance(judge, type):
        return _named(config, name, policy)
    if plugins.judge_contract(judge) == "reward model":
        judge = plugins.reward_model(name, judge, reward_model_config(config))
    return as_judge(judge, limits=hint_limits(config), name=name)


def reward_model_config(config: Config) -> dict[str, Any]:
    """Return the ``config`` for ``get_reward_model``: the named models, the votes, and ``judge.options``."""
    named = {"prm_model_path": "PRM_MODEL_PATH", "judge_model_path": "JUDGE_MODEL_PATH"}
    models = {key: settings.get(config, settings.ENVIRONMENT[name]) for key, name in named.items()}
    llm = config.judge.llm
    return {**models, "votes": llm.votes, "threshold": llm.threshold, **config.judge.options}


def _named(config: Config, name: str, policy: Policy | None) -> Judge:
    judge, llm = config.judge, config.judge.llm
    offered = {
        **judge.model_dump(exclude={"kind", "custom", "feedback_classifier", "llm", "models", "classifier", "options"}),
        **llm.model_dump(),
        "model": llm.model or "",
        "policy": policy if llm.model == "policy" else None,
        "api_key": api_key(config),
        "limits": hint_limits(config),
        "settings": llm_settings(config, template="self" if llm.model == "policy" else "turn"),
    }
    built: Judge = plugins.build("judge", name, offered=offered, options=judge.options)
    return built


# Questions to a user about an unclear message: the judge's doubt in, the user's labelled line out.

OWN_LINES = "own_lines.jsonl"
"""in the run's directory: the users' answers as labelled exchanges; the file stays on this machine"""


class LocalAsker:
    """Reads messages on this machine and stores the answers in a file for its owner alone."""

    def __init__(self, judge: Judge, path: Path) -> None:
        self._judge = judge
        self._path = path

    async def doubt(self, request: str, reply: str, message: str) -> Doubt | None:
        """Return the doubt about ``message``'s opinion on ``reply``, None without a question."""
        return await find_doubt(self._judge, request, reply, message)

    def keep(self, request: str, reply: str, message: str, doubt: Doubt, *, meant: bool) -> None:
        """Add the exchange with its answer to the user's own lines."""
        hint = doubt.hints[0].text if meant and doubt.hints else None
        row = replace(exchange(request, reply, message), label=label_of(doubt, meant=meant), hint=hint)
        line = {
            "request": row.request,
            "reply": row.reply,
            "next": row.next,
            "kind": row.label,
            "hint": row.hint,
            "tags": ["asked"],
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, "a", encoding="utf-8", opener=_private) as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def build_asker(config: Config) -> LocalAsker | None:
    """Return the asker, None if it is off. Models are excluded: a question must not wait for one."""
    if not config.judge.ask_in_doubt:
        return None
    judge = config.judge
    light = {"llm": type(judge.llm)(), "models": type(judge.models)()}
    reduced = config.model_copy(update={"judge": judge.model_copy(update=light)})
    if judge.kind == "llm" and judge.custom is None:
        reduced = with_judge(reduced, "rules")
    return LocalAsker(build_judge(reduced, None), config.run.dir / OWN_LINES)
