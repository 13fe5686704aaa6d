"""From settings to the parts that they name: a policy, a trainer, a judge, and the rules each loop works by."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from openclaw_rl import config as settings
from openclaw_rl import plugins
from openclaw_rl.config import Config
from openclaw_rl.ports import Judge, Policy, Trainer
from openclaw_rl.types import Sampling, environment_of

# Scores and hints, for methods where weights have no say; as `train.losses.needs`, which wants torch.
_LEARNS_FROM = {"binary": (True, False), "opd": (False, True), "distill": (False, True)}


def build_policy(config: Config) -> Policy:
    """The policy that ``policy.backend`` names."""
    policy = config.policy
    offered = {
        "model": policy.model,
        "cache_dir": settings.cache_dir(),
        "device": policy.device,
        "dtype": policy.dtype,
        "context": policy.context,
        "max_batch": policy.max_batch,
        "cache_tokens": policy.cache_tokens,
        "chat_template": str(policy.chat_template) if policy.chat_template else None,
        "tool_format": None if policy.tool_format == "auto" else policy.tool_format,
    }
    built: Policy = plugins.build("policy", policy.backend, offered=offered, options=policy.options)
    return built


@contextlib.asynccontextmanager
async def running_policy(config: Config) -> AsyncIterator[Policy]:
    """The same, started, for as long as it is needed."""
    policy = build_policy(config)
    await policy.start()
    try:
        yield policy
    finally:
        await policy.stop()


def build_trainer(config: Config) -> Trainer:
    """The trainer that ``train.backend`` names."""
    train, policy = config.train, config.policy
    offered = train.model_dump(exclude={"lora", "options", "backend"}) | {
        "model": policy.model,
        "cache_dir": settings.cache_dir(),
        "dtype": policy.dtype,
        "chat_template": policy.chat_template,
        "max_hints": config.judge.max_hints,
        "seed": config.run.seed,
        "lora": train.lora.enabled,
        "lora_rank": train.lora.rank,
        "lora_alpha": train.lora.alpha,
        "lora_dropout": train.lora.dropout,
        "lora_targets": train.lora.targets,
    }
    built: Trainer = plugins.build("trainer", train.backend, offered=offered, options=train.options)
    return built


def build_limits(config: Config) -> Any:
    """What one request and one key may take."""
    from openclaw_rl.serve.limits import RequestLimits

    serve = config.serve
    return RequestLimits(
        body_bytes=int(serve.max_body_mb * 2**20),
        header_bytes=serve.max_header_kb * 2**10,
        messages=serve.max_messages,
        values=max(200_000, 50 * serve.max_messages),
        depth=serve.max_depth,
        streams_per_key=serve.max_streams_per_key,
        queue_per_key=serve.max_queue,
        hold_seconds=serve.hold_seconds,
        keepalive_seconds=serve.keepalive_seconds,
        read_seconds=serve.body_seconds,
        send_seconds=serve.write_seconds,
    )


def default_sampling(config: Config) -> Sampling:
    """How replies are drawn where a request does not say."""
    policy = config.policy
    return Sampling(
        temperature=policy.temperature,
        top_p=policy.top_p,
        max_tokens=policy.max_tokens,
        dry_multiplier=policy.dry_multiplier,
    )


def build_judge(config: Config, policy: Policy | None) -> Judge:
    """The judge that ``judge.custom`` or ``judge.kind`` names."""
    from openclaw_rl.judge.auto import AutoJudge
    from openclaw_rl.judge.custom import as_judge

    judge = config.judge
    if judge.custom:
        mine = plugins.resolve("judge", judge.custom)
        return (
            _named_judge(config, judge.custom, policy) if isinstance(mine, type) else as_judge(mine, name=judge.custom)
        )
    if judge.kind == "auto":
        asks_model = judge.model == "policy" or (judge.base_url and judge.model)
        return AutoJudge(llm=_named_judge(config, "llm", policy) if asks_model else None)
    return _named_judge(config, judge.kind, policy)


def _named_judge(config: Config, name: str, policy: Policy | None) -> Judge:
    judge = config.judge
    offered = judge.model_dump(exclude={"kind", "custom", "options", "model"}) | {
        "model": judge.model or "",
        "policy": policy if judge.model == "policy" else None,
        "api_key": settings.environment(judge.api_key_env) if judge.api_key_env else None,
        "limits": hint_limits(config),
    }
    built: Judge = plugins.build("judge", name, offered=offered, options=judge.options)
    return built


def hint_limits(config: Config) -> Any:
    """What makes a hint worth keeping."""
    from openclaw_rl.judge.hints import Limits

    judge = config.judge
    return Limits(shortest=judge.hint_min, longest=judge.hint_max, most=judge.max_hints)


def build_rules(config: Config) -> Any:
    """What a turn may teach, from the settings."""
    from openclaw_rl.train.samples import Rules

    train = config.train
    scalar, distil = _LEARNS_FROM.get(train.method, (train.w_rl > 0, train.w_opd > 0))
    return Rules(
        scalar=scalar or train.loss is not None,  # a loss of the user's own is given everything
        distil=distil or train.loss is not None,
        max_lag=train.max_lag,
        max_hints=config.judge.max_hints,
        train_truncated=train.train_truncated,
        advantage=train.advantage,
        normalize=train.normalize,
        decay=train.baseline_decay,
        remember=train.remember,
        share=train.share,
    )


def build_people(config: Config) -> frozenset[str]:
    """The users who have a key and share the policy; environments are none."""
    return frozenset(user for user in settings.api_keys(config).values() if environment_of(user) is None)


def sharing_note(config: Config) -> str | None:
    """What the people who have a key share, in one line; None where there is nobody to share with."""
    people, share = len(build_people(config)), config.train.share
    if people < 2:
        return None
    rules = {
        "all": "rules of each teach it",
        "none": 'rules of nobody teach it (train.share = "all", or a number, lets them)',
    }.get(share, f"a rule teaches it once {share} of them have given the same")
    return f"{people} people share one policy: scores of each train it, {rules}"
