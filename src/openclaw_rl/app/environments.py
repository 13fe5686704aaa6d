"""Environments wired to the public API of a server, in a pool of this process or of others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from openclaw_rl import config as settings
from openclaw_rl import plugins
from openclaw_rl.config import Config
from openclaw_rl.errors import ConfigError
from openclaw_rl.ports import Env, Rollout
from openclaw_rl.store import LedgerReader

if TYPE_CHECKING:
    from openclaw_rl.envs.actions import ActionForm
    from openclaw_rl.envs.audit import AuditBook
    from openclaw_rl.envs.episodes import Episodes
    from openclaw_rl.envs.pool.leases import EnvPool, LeasePool
    from openclaw_rl.envs.sandbox import SandboxSettings
    from openclaw_rl.envs.schedule import Episode, Schedule

AUDITS = "envs-audit.jsonl"
"""the file of a run directory with what the audits of tasks found"""
GROUPS = "envs-tasks.jsonl"
"""the file of a run directory with what each task was worth each time it was played"""
SCREENS = "screens"
"""the folder of a run directory with the screenshots of gui, each under the hash of its bytes"""
EVENTS = "envs.jsonl"
"""the file of a run directory with what happened in its pool"""
_NAME_ONE = "name one: --env terminal, toolcall, gui, swe or file.py"


@asynccontextmanager
async def running_episodes(
    config: Config,
    ledger: LedgerReader | None,
    *,
    url: str,
    key: str | None,
    rounds: int | None = None,
    tasks: Sequence[str] | None = None,
    report: Callable[[Episode], None] | None = None,
) -> AsyncIterator[Episodes]:
    """The episodes of ``env.type``, as one more client of ``url``; what is under way is ended at the end.

    ``rounds`` None: for ever, by the curriculum. ``tasks`` and ``report``: see `Episodes`. Without a ledger nothing
    waits for judge and trainer.
    """
    from openclaw_rl.clients.api import ApiClient
    from openclaw_rl.envs.episodes import Episodes, EpisodeSettings
    from openclaw_rl.envs.pool.pooled import PooledEnv

    env = config.env
    assert env.type is not None
    rollout: Rollout = plugins.resolve("rollout", config.train.rollout or "episode")
    async with (
        open_pool(config, events=config.run.dir / EVENTS) as pool,
        ApiClient(url, key=key, agent=f"env:{env.type}") as client,
    ):
        loop = Episodes(
            lambda: PooledEnv(pool),
            client,
            EpisodeSettings(parallel=env.parallel, max_steps=env.max_steps),
            schedule=lambda found: _schedule(config, found, rounds=rounds),
            rollout=rollout,
            behind=lambda: ledger is not None and ledger.backlog() >= env.max_pending,
            tasks=tasks,
            report=report,
            describe=pool.status,
        )
        try:
            yield loop
        finally:
            await loop.stop()


@asynccontextmanager
async def episode_loops(
    config: Config, ledger: LedgerReader | None, *, url: str | None, key: str | None
) -> AsyncIterator[dict[str, Episodes]]:
    """The loop of the episodes by its name; none where there is no server or no environment."""
    if url is None or config.env.type is None:
        yield {}
        return
    async with running_episodes(config, ledger, url=url, key=key) as loop:
        yield {"episodes": loop}


def _schedule(config: Config, tasks: Sequence[str], *, rounds: int | None) -> Schedule:
    """Which task is next: so many rounds of all, else for ever, with tasks rested that teach nothing."""
    from openclaw_rl.envs.schedule import Curriculum, GroupBook, Rounds

    size, seed = config.train.num_rollouts_per_prompt, config.run.seed
    book = GroupBook(config.run.dir / GROUPS)
    if rounds is not None:
        return Rounds(tasks, group_size=size, rounds=rounds, seed=seed, book=book)
    return Curriculum(tasks, group_size=size, seed=seed, book=book, resting=config.env.curriculum)


def episode_patience(config: Config) -> float:
    """Seconds for which a session of an environment may say nothing: its player has then lost its lease.

    A living one says something with every step, which takes no longer than a command and a reply.
    """
    return 2 * config.env.lease_seconds + config.env.sandbox.command_seconds


@asynccontextmanager
async def open_pool(config: Config, *, events: Path | None) -> AsyncIterator[LeasePool]:
    """Where environments come from: the pools of ``env.workers``, else one in a process of its own.

    What an environment does, beginning processes above all, would hold up whoever waits for a reply in this one.
    """
    if config.env.workers:
        from openclaw_rl.envs.pool.remote import RemotePool

        async with RemotePool(config.env.workers, key=workers_key(config)) as remote:
            yield remote
        return
    from openclaw_rl.app.workers import OwnWorker

    async with OwnWorker(config, events=events, build=build_pool) as own:
        yield own


def build_pool(config: Config, *, events: Path | None) -> EnvPool:
    """The pool of this process: as many environments as ``env.parallel``."""
    from openclaw_rl.envs.audit import AuditedEnv
    from openclaw_rl.envs.pool.events import EventLog
    from openclaw_rl.envs.pool.leases import EnvPool

    if config.env.type is None:
        raise ConfigError("no environment is set", remedy=_NAME_ONE)
    book = audit_book(config)
    return EnvPool(
        lambda: AuditedEnv(lambda: build_env(config), book),
        capacity=config.env.parallel,
        ttl=config.env.lease_seconds,
        events=EventLog(events),
    )


def workers_key(config: Config) -> str | None:
    """The key of the workers, from the variable that the settings name."""
    name = config.env.workers_key_env
    return None if name is None else settings.key_in(name)


def audit_book(config: Config) -> AuditBook:
    """What the audits of this run's environments found."""
    from openclaw_rl.envs.audit import AuditBook

    return AuditBook(config.run.dir / AUDITS)


async def play_rounds(
    config: Config,
    *,
    url: str,
    key: str | None,
    rounds: int,
    tasks: Sequence[str] | None,
    report: Callable[[Episode], None],
) -> None:
    """So many rounds of the tasks (None: all that train) against a server that runs; each episode is paid there."""
    playing = running_episodes(config, None, url=url, key=key, rounds=rounds, tasks=tasks, report=report)
    async with playing as loop:
        while await loop.tick():
            pass


def build_env(config: Config, *, sandbox: SandboxSettings | None = None) -> Env:
    """One environment of the kind that ``env.type`` names, in sandboxes made by ``sandbox`` or as the settings say."""
    env = config.env
    if env.type is None:
        raise ConfigError("no environment is set", remedy=_NAME_ONE)
    offered = {
        "max_steps": env.max_steps,
        "form": action_form(config),
        "examples": env.examples,
        "step_votes": env.step_votes,
        "rungs": env.rungs,
        "per_rung": env.per_rung,
        "output_chars": env.output_chars,
        "screenshot_backend": env.screenshot_backend,
        "screenshots": env.screenshots,
        "screens": config.run.dir / SCREENS,
        "pages": env.pages,
        "tools_config": env.tools_config,
        "folder": env.folder,
        "swe_bench_path": env.swe_bench_path,
        "cache_dir": settings.cache_dir(),
        "sandbox": sandbox or build_sandbox_settings(config),
    }
    built: Env = plugins.build("env", env.type, offered=offered, options=env.options)
    return built


def action_form(config: Config) -> ActionForm:
    """How replies act: as the settings say, else as text for the embedded model and where no calls are read."""
    if config.env.form != "auto":
        return config.env.form
    return "text" if config.policy.model == "embedded" or config.policy.tool_format == "none" else "tools"


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
