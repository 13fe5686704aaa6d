"""Builds the parts named in the settings: a policy, a trainer, and the rules for each loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from openclaw_rl import config as settings
from openclaw_rl import plugins
from openclaw_rl.app.devices import (
    engine_device,
    engine_gpus,
    engine_memory,
    trainer_device,
    trainer_devices,
    visible_gpus,
)
from openclaw_rl.config import Config
from openclaw_rl.errors import BackendDown, ConfigError
from openclaw_rl.losses.settings import ADVANTAGES, SCORES_ALONE, AdvantageRule
from openclaw_rl.ports import Generate, Policy, ReportsRunner, StepResult, Stream, SupportsSleep, Trainer
from openclaw_rl.store import LedgerReader, TrainLedger
from openclaw_rl.types import Prompt, Sample, Sampling, Version, environment_of
from openclaw_rl.versions import ArtifactStore, FetchedVersions, LiveVersions

if TYPE_CHECKING:
    from openclaw_rl.serve.redact import GenerationRules, InlineFeedbackRules, RecordingRules
    from openclaw_rl.serve.request import RequestLimits
    from openclaw_rl.train.samples import SampleSettings

_LEARNS_FROM: Final = {"opd": (False, True), "distill": (False, True)} | dict.fromkeys(SCORES_ALONE, (True, False))
"""scores and hints, for methods that ignore the weights; as `losses.needs`, which imports torch"""
_HEADER_BYTES: Final = 64 * 2**10
"""limit for a request's header, as in other servers"""
_DEPTH: Final = 64
"""limit for a request's JSON: no client nests deeper, and a parser needs a bound"""
_KEEPALIVE_SECONDS: Final = 10.0
"""interval between comments on a silent stream: proxies close one after 30 to 60"""


def policy_arguments(config: Config, *, serves: bool = False) -> dict[str, Any]:
    """Return the arguments offered to a policy, which accepts those in its signature."""
    policy = config.policy
    return {
        "model": policy.model,
        "cache_dir": settings.cache_dir(),
        "device": engine_device(config, visible=visible_gpus()),
        "dtype": policy.dtype,
        "context": policy.context,
        "max_batch": policy.max_batch,
        "cache_tokens": policy.cache_tokens,
        "chat_template": _template(config),
        "tool_format": None if policy.tool_format == "auto" else policy.tool_format,
        "url": policy.url,
        "launch": policy.launch,
        "key": policy.engine_key.get_secret_value() if policy.engine_key else None,
        "engine_python": str(policy.engine_python) if policy.engine_python else None,
        "engine_flags": policy.engine_flags,
        "memory_share": engine_memory(config, visible=visible_gpus()),
        "gpus": engine_gpus(config, visible=visible_gpus()),
        "lora": config.train.lora.enabled,
        "lora_rank": config.train.lora.rank,
        "turns": config.gpus.turns,
        "follow": not serves,
        **cloud_arguments(config),
    }


def cloud_arguments(config: Config) -> dict[str, Any]:
    """Return the arguments offered to every remote backend."""
    cloud = config.cloud
    return {
        "run_dir": config.run.dir,
        "cloud_key": cloud.tinker_api_key.get_secret_value() if cloud.tinker_api_key else None,
        "cloud_url": cloud.tinker_endpoint,
        "cloud_tokenizer": cloud.tokenizer,
        "cloud_prices": cloud.price_per_million.model_dump(),
        "cloud_budget": cloud.daily_budget,
        "cloud_download": cloud.download,
    }


def build_policy(config: Config, *, serves: bool = False) -> Policy:
    """Build the policy in ``policy.backend``; if this process ``serves``, the run's other processes may share its
    engine."""
    policy = config.policy
    offered = policy_arguments(config, serves=serves)
    built: Policy = plugins.build("policy", policy.backend, offered=offered, options=policy.options)
    return built


def _template(config: Config) -> str | None:
    return str(config.policy.chat_template) if config.policy.chat_template else None


@contextlib.asynccontextmanager
async def running_policy(config: Config) -> AsyncIterator[Policy]:
    """Build and start the policy; stop it on exit."""
    policy = build_policy(config)
    await policy.start()
    try:
        yield policy
    finally:
        await policy.stop()


def trainer_arguments(config: Config) -> dict[str, Any]:
    """Return the arguments offered to a trainer, which accepts those in its signature."""
    train, policy = config.train, config.policy
    return {
        **train.model_dump(
            exclude={"loss", "optim", "lora", "local", "alarms", "prompt_distillation", "options", "backend"}
        ),
        **train.loss.model_dump(exclude={"custom", "config"}),
        **train.optim.model_dump(),
        **train.local.model_dump(),
        "model": policy.model,
        "cache_dir": settings.cache_dir(),
        "dtype": policy.dtype,
        "chat_template": _template(config),
        "max_hints": config.judge.max_hints,
        "seed": config.run.seed,
        "device": trainer_device(config, visible=visible_gpus()),
        "devices": trainer_devices(config, visible=visible_gpus()),
        "loss": train.loss.custom,
        "loss_config": loss_config(config),
        "lr": train.learning_rate,
        "gap_alarm": train.alarms.gap,
        "ess_alarm": train.alarms.ess,
        "norm_alarm": train.alarms.norm,
        "pause_after": train.alarms.pause_after,
        "distillation_loss": train.prompt_distillation.loss,
        "distillation_teacher": train.prompt_distillation.teacher,
        "distillation_lr": train.distillation_rate,
        "distillation_width": train.distillation_width,
        "distillation_decay": train.prompt_distillation.decay,
        "lora": train.lora.enabled,
        "lora_rank": train.lora.rank,
        "lora_alpha": train.lora.alpha,
        "lora_dropout": train.lora.dropout,
        "lora_targets": train.lora.targets,
        **cloud_arguments(config),
    }


def loss_config(config: Config) -> dict[str, Any]:
    """Return the ``config`` for a custom loss.

    It has the loss's settings, three of them again under the names in published losses, and the user's table, which
    overrides both.
    """
    loss = config.train.loss
    return {
        **loss.model_dump(exclude={"custom", "config"}),
        "clip_range": loss.eps_low,
        "clip_range_high": loss.eps_high,
        "kl_coeff": loss.kl_coef,
        **loss.config,
    }


def build_trainer(config: Config) -> Trainer:
    """Build the trainer named by ``train.backend``."""
    train = config.train
    offered = trainer_arguments(config)
    built: Trainer = plugins.build("trainer", train.backend, offered=offered, options=train.options)
    return built


def build_limits(config: Config) -> RequestLimits:
    """Return the limits for one request and one key."""
    from openclaw_rl.serve.request import RequestLimits

    limits = config.serve.limits
    return RequestLimits(
        body_bytes=int(limits.body_mb * 2**20),
        header_bytes=_HEADER_BYTES,
        messages=limits.messages,
        values=max(200_000, 50 * limits.messages),
        depth=_DEPTH,
        streams_per_key=limits.streams_per_key,
        queue_per_key=limits.queue,
        hold_seconds=limits.hold_seconds,
        keepalive_seconds=_KEEPALIVE_SECONDS,
        read_seconds=limits.body_seconds,
        send_seconds=limits.write_seconds,
    )


def build_generation(config: Config, policy: Policy, generate: Generate | None) -> GenerationRules:
    """Return the rules for generating a reply. Clients send their own model names, so any name is accepted."""
    from openclaw_rl.serve.redact import GenerationRules

    return GenerationRules(
        model_name=config.serve.model_name or policy.name,
        any_model=True,
        defaults=default_sampling(config),
        reasoning="tags",
        generate=generate,
    )


def build_recording(config: Config) -> RecordingRules:
    """Return the rules for storing an answered turn."""
    from openclaw_rl.serve.redact import RecordingRules, patterns

    serve = config.serve
    return RecordingRules(
        intercept=serve.intercept,
        redact=patterns if serve.redact else None,
        store_optouts=serve.store_optouts,
        optout_users=serve.no_train_users,
        shared=config.store.url is not None,
    )


def build_inline_feedback(config: Config) -> InlineFeedbackRules:
    """Return the rules for inline feedback commands, and the reader for their conversations."""
    from openclaw_rl.collect.loop import ThreadLookup
    from openclaw_rl.serve.redact import InlineFeedbackRules

    judge = config.judge
    return InlineFeedbackRules(
        enabled=config.serve.inline_feedback, shortest=judge.hint_min, longest=judge.hint_max, reader=ThreadLookup()
    )


def default_sampling(config: Config) -> Sampling:
    """Return the sampling defaults for requests that set none."""
    return Sampling(**config.policy.sampling.model_dump())


def gate_limits(config: Config) -> Any:
    """Return the gate's limits."""
    from openclaw_rl.gate.checks import GateLimits

    return GateLimits(**config.gate.limits.model_dump())


def build_sample_settings(config: Config) -> SampleSettings:
    """Return the settings for the samples made from a turn."""
    from openclaw_rl.train.credit import CreditSettings
    from openclaw_rl.train.samples import SampleSettings

    train = config.train
    score, hints = _learns_from(config)
    rule = ADVANTAGES.get(train.method, AdvantageRule())
    credit = CreditSettings(
        mode=train.credit,
        weight=train.step_weight,
        baseline=rule.baseline,
        scaled=rule.scaled if train.credit_scaled is None else train.credit_scaled,
        overlong=rule.overlong,
    )
    return SampleSettings(
        policy_gradient=score,
        distillation=hints,
        max_lag=train.max_lag,
        max_hints=config.judge.max_hints,
        train_truncated=train.train_truncated or credit.overlong,
        advantage=train.advantage,
        normalize=train.normalize,
        decay=train.baseline_decay,
        remember=train.remember,
        credit=credit,
        grouped=train.num_rollouts_per_prompt > 1,
        share=train.share,
    )


def _learns_from(config: Config) -> tuple[bool, bool]:
    """Return whether scores and hints train. A custom loss receives both; the published contract has no hints."""
    train = config.train
    if train.loss.custom is not None:
        return True, plugins.loss_contract(plugins.resolve("loss", train.loss.custom)) != "published"
    return _LEARNS_FROM.get(train.method, (train.loss.w_rl > 0, train.loss.w_opd > 0))


def build_people(config: Config) -> frozenset[str]:
    """Return the users with a key who share the policy, without environments."""
    return frozenset(user for user in settings.api_keys(config).values() if environment_of(user) is None)


def sharing_note(config: Config) -> str | None:
    """Return one line on what users with a key share; None with fewer than two users."""
    people, share = len(build_people(config)), config.train.share
    if people < 2:
        return None
    rules = {
        "all": "rules of each teach it",
        "none": 'no rules teach it (train.share = "all", or a number, lets them)',
    }.get(share, f"a rule teaches it once {share} of them have given the same")
    return f"{people} people share one policy: scores of each train it, {rules}"


# One GPU for both: the engine sleeps during a training step, and the trainer then releases its memory.


class TurnTakingTrainer:
    """A `Trainer` that runs while the policy sleeps.

    It starts with each step and stops after it, since the engine uses the memory between steps.
    """

    def __init__(self, trainer: Trainer, policy: SupportsSleep) -> None:
        self._trainer, self._policy = trainer, policy

    @property
    def runner(self) -> str | None:
        """Return the description of the computation, with its schedule."""
        runner = self._trainer.runner if isinstance(self._trainer, ReportsRunner) else None
        return f"{runner}, in turns with the engine" if runner else None

    async def start(self) -> None:
        """Do nothing: the engine has the GPU."""

    async def stop(self) -> None:
        """Release all resources. Safe to call twice."""
        await self._trainer.stop()

    async def step(self, samples: Sequence[Sample], *, number: int, parent: Version, target: str) -> StepResult:
        """Run one step; requests that arrive during it wait for its end."""
        async with self._policy.asleep():
            try:
                return await self._trainer.step(samples, number=number, parent=parent, target=target)
            finally:
                await self._trainer.stop()


def trainer_of(config: Config, policy: Policy | None) -> Trainer:
    """Return the trainer for a process; ``policy`` is the one that the process serves, if any."""
    trainer = build_trainer(config)
    if not config.gpus.turns:
        return trainer
    if not isinstance(policy, SupportsSleep):
        raise ConfigError(
            "gpus.turns is on, but this process does not serve: no server would hold requests while the engine sleeps",
            remedy="serve and train in one process, with 'openclaw-rl up', or take gpus.turns out",
        )
    return TurnTakingTrainer(trainer, policy)


# Between the API and the policy: the step that a setting may replace, and the wait for the model to load.


def generate_directly(policy: Policy, prompt: Prompt, sampling: Sampling, *, version: int | None) -> Stream:
    """Generate with the policy, unchanged."""
    return policy.generate(prompt, sampling, version=version)


def when_ready(ready: asyncio.Event, generate: Generate) -> Generate:
    """Wrap ``generate``: until the model is loaded, raise the error for which the API holds a request."""

    async def not_yet() -> Stream:
        raise BackendDown("the model is still being loaded", retry_after=0.2)
        yield  # makes this a stream, so that it fails at the first read

    def waiting(policy: Policy, prompt: Prompt, sampling: Sampling, *, version: int | None) -> Stream:
        return generate(policy, prompt, sampling, version=version) if ready.is_set() else not_yet()

    return waiting


# Versions reach gateways on other machines through the artifact store in store.versions.


def served_versions(config: Config, ledger: LedgerReader) -> LiveVersions:
    """Return the versions for a gateway: at their place, or fetched to the run's directory."""
    if config.store.versions is None:
        return LiveVersions(ledger)
    return FetchedVersions(ledger, ArtifactStore(config.store.versions), config.run.dir / "versions")


def store_artifacts(config: Config, ledger: TrainLedger) -> None:
    """Store every version before it becomes live; store the live one now."""
    if config.store.versions is None:
        return
    store = ArtifactStore(config.store.versions)
    live = LiveVersions(ledger).live()
    if live is not None:
        store.told(live, "live")
    ledger.before_state = store.told
