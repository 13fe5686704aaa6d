"""Environments wired to the public API of the server in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from openclaw_rl import plugins
from openclaw_rl.config import Config
from openclaw_rl.ports import Env, Rollout
from openclaw_rl.store import LedgerReader

if TYPE_CHECKING:
    from openclaw_rl.envs.episodes import Episodes
    from openclaw_rl.envs.sandbox import SandboxSettings


@asynccontextmanager
async def running_episodes(
    config: Config, ledger: LedgerReader, *, url: str, key: str | None
) -> AsyncIterator[Episodes]:
    """The episodes of ``env.type``, as one more client of ``url``; what is under way is ended at the end."""
    from openclaw_rl.clients.api import ApiClient
    from openclaw_rl.envs.episodes import Episodes, EpisodeSettings

    env, train = config.env, config.train
    assert env.type is not None
    rollout: Rollout = plugins.resolve("rollout", train.rollout or "episode")
    async with ApiClient(url, key=key, agent=f"env:{env.type}") as client:
        loop = Episodes(
            lambda: build_env(config),
            client,
            EpisodeSettings(
                parallel=env.parallel,
                group_size=train.num_rollouts_per_prompt,
                max_steps=env.max_steps,
                seed=config.run.seed,
            ),
            rollout=rollout,
            behind=lambda: ledger.backlog() >= env.max_pending,
        )
        try:
            yield loop
        finally:
            await loop.stop()


def build_env(config: Config) -> Env:
    """One environment of the kind that ``env.type`` names."""
    env = config.env
    offered = {
        "max_steps": env.max_steps,
        "screenshot_backend": env.screenshot_backend,
        "tools_config": env.tools_config,
        "swe_bench_path": env.swe_bench_path,
        "sandbox": build_sandbox_settings(config),
    }
    built: Env = plugins.build("env", env.type or "", offered=offered, options=env.options)
    return built


def build_sandbox_settings(config: Config) -> SandboxSettings:
    """How the sandboxes of environments are made; an environment may ask for several users or more folders."""
    from openclaw_rl.envs.sandbox import SandboxLimits, SandboxSettings

    sandbox = config.env.sandbox
    return SandboxSettings(
        driver=sandbox.driver,
        root=sandbox.root,
        limits=SandboxLimits(
            seconds=sandbox.command_seconds,
            cpu=sandbox.cpu_seconds,
            memory=sandbox.memory_mb << 20,
            processes=sandbox.processes,
            disk=sandbox.disk_mb << 20,
            output=sandbox.output_kb << 10,
        ),
    )
