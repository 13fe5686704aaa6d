"""From settings to a judge."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openclaw_rl import config as settings
from openclaw_rl import plugins
from openclaw_rl.app.factories import running_policy
from openclaw_rl.app.judge_models import build_model_judge, measured_endpoint, measured_policy
from openclaw_rl.app.judge_settings import api_key, hint_limits, llm_settings
from openclaw_rl.config import Config
from openclaw_rl.errors import ConfigError
from openclaw_rl.ports import Judge, Policy
from openclaw_rl.types import Json

if TYPE_CHECKING:
    from openclaw_rl.judge.reader.judge import ReaderJudge


def build_judge(config: Config, policy: Policy | None) -> Judge:
    """The judge that ``judge.custom``, ``judge.models`` or ``judge.kind`` names."""
    from openclaw_rl.judge.auto import AutoJudge

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
        default = AutoJudge(reader=build_reader(config, policy), llm=llm)
        if policy is not None and (served or judges_itself(config) or judge.llm.model == "policy"):
            return measured_policy(config, default, policy)
        return default if llm is None else measured_endpoint(config, default, budget=getattr(llm, "tokens", None))
    if judge.kind == "reader":
        return build_reader(config, policy)
    return _named(config, judge.kind, policy)


def judges_itself(config: Config) -> bool:
    """Whether the served model is to judge where its measured precision allows.

    No other judge is named, and it can be told what to do, which the embedded model is too small for.
    """
    judge, policy = config.judge, config.policy
    if hosts_served_model(config):
        return True
    named = judge.custom or judge.models.score or judge.models.hints or judge.llm.model
    return judge.kind == "auto" and not named and policy.model != "embedded" and policy.backend != "fake"


def hosts_served_model(config: Config) -> bool:
    """Whether the model that is to judge is the one that is served: one copy does both."""
    judge, policy = config.judge, config.policy
    named = {judge.models.score, judge.models.hints} - {None}
    alone = judge.kind == "auto" and not judge.custom and policy.backend == "local"
    return alone and named == {policy.model}


def asks_policy(config: Config) -> bool:
    """Whether the judge needs the policy."""
    return config.judge.llm.model == "policy" or judges_itself(config) or _classifies(config)


def _classifies(config: Config) -> bool:
    """Whether the reader's classifier may be asked: an adapter of the policy, where that can run here."""
    judge = config.judge
    reads = judge.kind in ("auto", "reader") and judge.reader.classifier and not judge.custom
    hosted = judge.models.score or judge.models.hints
    return reads and not hosted and config.policy.backend == "local" and importlib.util.find_spec("torch") is not None


def build_reader(config: Config, policy: Policy | None) -> ReaderJudge:
    """The learned reader, with the classifier for the policy's base weights: shipped, or fitted here."""
    from openclaw_rl.judge.reader.classifier import PolicyClassifier, classifier_for
    from openclaw_rl.judge.reader.judge import ReaderJudge

    reader, fitted = config.judge.reader, settings.cache_dir() / "readers"
    asked = None
    if reader.classifier and policy is not None:
        asked = PolicyClassifier(policy, lambda base: classifier_for(base, fitted), seconds=reader.seconds)
    return ReaderJudge(limits=hint_limits(config), classifier=asked)


@contextlib.asynccontextmanager
async def running(judge: Judge, *, wait: bool) -> AsyncIterator[None]:
    """What the judge has to start is started inside; with ``wait``, before that is entered."""
    from openclaw_rl.judge.parts import starting

    begun = starting(judge)
    for each in begun:
        each.begin()
    try:
        for each in begun if wait else ():
            await each.first_try()
        yield
    finally:
        for each in begun:
            await each.stop()


def with_judge(config: Config, name: str | None) -> Config:
    """The settings with another judge: a built-in or installed one by name, else one of the user's own."""
    if name is None:
        return config
    own = ":" in name or name.endswith(".py")
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
    async with running_policy(config) if asks_policy(config) else contextlib.nullcontext() as policy:
        asked = build_judge(config, policy)
        async with running(asked, wait=True):
            found = await evaluate(asked, rows, workers=config.judge.workers, progress=progress)
        classifier = _classifier_base(config, policy)
    return {**found, "classifier": classifier, "skipped": skipped}


def _classifier_base(config: Config, policy: Policy | None) -> str | None:
    """The base weights whose classifier the reader asks; None where the n-grams speak alone."""
    from openclaw_rl.judge.reader.classifier import classifier_for

    if policy is None or not _classifies(config):
        return None
    return policy.base if classifier_for(policy.base, settings.cache_dir() / "readers") else None


def _custom(config: Config, name: str, policy: Policy | None) -> Judge:
    """A judge of the user's own: a class, a function that scores, or a reward model by the published contract."""
    from openclaw_rl.judge.custom import as_judge

    mine = plugins.resolve("judge", name)
    if isinstance(mine, type):
        return _named(config, name, policy)
    if plugins.judge_contract(mine) == "reward model":
        mine = plugins.reward_model(name, mine, reward_model_config(config))
    return as_judge(mine, limits=hint_limits(config), name=name)


def reward_model_config(config: Config) -> dict[str, Any]:
    """What ``get_reward_model`` is called with: the models that are named, the votes, and ``judge.options``."""
    named = {"prm_model_path": "PRM_MODEL_PATH", "judge_model_path": "JUDGE_MODEL_PATH"}
    models = {key: settings.get(config, settings.ENVIRONMENT[name]) for key, name in named.items()}
    llm = config.judge.llm
    return {**models, "votes": llm.votes, "threshold": llm.threshold, **config.judge.options}


def _named(config: Config, name: str, policy: Policy | None) -> Judge:
    judge, llm = config.judge, config.judge.llm
    offered = {
        **judge.model_dump(exclude={"kind", "custom", "reader", "llm", "models", "classifier", "options"}),
        **llm.model_dump(),
        "model": llm.model or "",
        "policy": policy if llm.model == "policy" else None,
        "api_key": api_key(config),
        "limits": hint_limits(config),
        "settings": llm_settings(config, template="self" if llm.model == "policy" else "turn"),
    }
    built: Judge = plugins.build("judge", name, offered=offered, options=judge.options)
    return built
