"""Environments connected to a server's public API, in this process's pool or in remote pools."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openclaw_rl import config as settings
from openclaw_rl import plugins
from openclaw_rl.app.factories import default_sampling
from openclaw_rl.config import Config
from openclaw_rl.config.names import nearest
from openclaw_rl.errors import ConfigError, EnvFailed
from openclaw_rl.formats.parts import Assembly
from openclaw_rl.formats.tools import tool_call_reader
from openclaw_rl.gate.examiner import answer
from openclaw_rl.ports import Env, Policy, Rollout, SupportsExclusions, SupportsTaskSets
from openclaw_rl.store import LedgerReader
from openclaw_rl.types import Message, Prompt, Sampling, Version

if TYPE_CHECKING:
    from openclaw_rl.envs.actions import ActionForm
    from openclaw_rl.envs.audit import AuditBook, TaskAudit
    from openclaw_rl.envs.episodes import Episodes
    from openclaw_rl.envs.pool.leases import EnvPool, LeasePool
    from openclaw_rl.envs.sandbox import SandboxSettings
    from openclaw_rl.envs.schedule import Episode, Schedule

AUDITS = "envs-audit.jsonl"
"""the file in a run directory with the task audits' results"""
GROUPS = "envs-tasks.jsonl"
"""the file in a run directory with each task's outcome for each time it was played"""
SCREENS = "screens"
"""the folder in a run directory with gui's screenshots, each named by the hash of its bytes"""
EVENTS = "envs.jsonl"
"""the file in a run directory with its pool's events"""
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
    """Run the episodes of ``env.type`` as a client of ``url``; end running ones on exit.

    ``rounds`` None: without limit, by the curriculum. ``tasks`` and ``report``: see `Episodes`. Without a ledger the
    episodes do not wait for judge and trainer.
    """
    from openclaw_rl.clients.api import ApiClient
    from openclaw_rl.envs.episodes import Episodes, EpisodeSettings
    from openclaw_rl.envs.pool.remote import PooledEnv

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
            schedule=lambda names: _schedule(config, names, rounds=rounds),
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
    """Return the episode loop by its name; empty without a server or an environment."""
    if url is None or config.env.type is None:
        yield {}
        return
    async with running_episodes(config, ledger, url=url, key=key) as loop:
        yield {"episodes": loop}


def _schedule(config: Config, tasks: Sequence[str], *, rounds: int | None) -> Schedule:
    """Return the task order: a number of rounds over all tasks, else unlimited with uninformative tasks paused."""
    from openclaw_rl.envs.schedule import Curriculum, GroupBook, Rounds

    size, seed = config.train.num_rollouts_per_prompt, config.run.seed
    book = GroupBook(config.run.dir / GROUPS)
    if rounds is not None:
        return Rounds(tasks, group_size=size, rounds=rounds, seed=seed, book=book)
    return Curriculum(tasks, group_size=size, seed=seed, book=book, resting=config.env.curriculum)


def episode_patience(config: Config) -> float:
    """Return the seconds of silence after which an environment's session has lost its player and its lease.

    An active player sends a request with every step, which takes at most a command and a reply.
    """
    return 2 * config.env.lease_seconds + config.env.sandbox.command_seconds


@asynccontextmanager
async def open_pool(config: Config, *, events: Path | None) -> AsyncIterator[LeasePool]:
    """Open the environment pool: the pools in ``env.workers``, else one in a child process.

    An environment's work, above all starting processes, would delay replies in this process.
    """
    if config.env.workers:
        from openclaw_rl.envs.pool.remote import RemotePool

        async with RemotePool(config.env.workers, key=workers_key(config)) as remote:
            yield remote
        return
    from openclaw_rl.app.workers import OwnWorker

    async with OwnWorker(config, events=events, build=build_pool) as worker:
        yield worker


def build_pool(config: Config, *, events: Path | None) -> EnvPool:
    """Return this process's pool, with ``env.parallel`` environments."""
    from openclaw_rl.envs.audit import AuditedEnv
    from openclaw_rl.envs.pool.leases import EnvPool, EventLog

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
    """Return the workers' key from the environment variable in the settings."""
    name = config.env.workers_key_env
    return None if name is None else settings.key_in(name)


def audit_book(config: Config) -> AuditBook:
    """Return the results of this run's task audits."""
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
    """Play rounds over the tasks (None: all that train) against a running server, which receives each reward."""
    playing = running_episodes(config, None, url=url, key=key, rounds=rounds, tasks=tasks, report=report)
    async with playing as loop:
        while await loop.tick():
            pass


def build_env(config: Config, *, sandbox: SandboxSettings | None = None) -> Env:
    """Build one environment of type ``env.type``, with sandboxes from ``sandbox`` or from the settings."""
    env = config.env
    if env.type is None:
        raise ConfigError("no environment is set", remedy=_NAME_ONE)
    offered = {
        "max_steps": env.max_steps,
        "form": action_form(config),
        "examples": env.examples,
        "step_votes": env.step_votes,
        "levels": env.levels,
        "per_level": env.per_level,
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
    """Return the action form in the settings; else text for the embedded model and without tool calls."""
    if config.env.form != "auto":
        return config.env.form
    return "text" if config.policy.model == "embedded" or config.policy.tool_format == "none" else "tools"


def build_sandbox_settings(config: Config) -> SandboxSettings:
    """Return the environments' sandbox settings; an environment may add users or folders."""
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


# Task audits for a run's environment.


async def audit_all(
    config: Config,
    *,
    again: bool,
    done: Callable[[TaskAudit], None],
    count: int | None = None,
    levels: Sequence[str] = (),
) -> dict[str, Any]:
    """Audit the environment's training and held-out tasks; return plain JSON.

    ``again``: repeat earlier audits too. ``count``: so many training and held-out tasks per level, None for all.
    ``levels``: only these, all if empty.
    """
    from openclaw_rl.envs.audit import audit_task, near_duplicates

    env, book = build_env(config), audit_book(config)
    if not isinstance(env, SupportsTaskSets):
        raise ConfigError(
            f"environment {config.env.type} cannot be audited", remedy="give it held_out, level, instruction and gold"
        )
    chosen = _of_levels({env.level(task) for task in (*env.tasks(), *env.held_out())}, levels)
    trained, held_out = (_of_each(env, tasks, chosen, count) for tasks in (env.tasks(), env.held_out()))
    room = asyncio.Semaphore(config.env.parallel)

    faults: dict[str, str] = {}

    async def one(task: str) -> TaskAudit | None:
        audit = None if again else book.find(env, task)
        if audit is None:
            async with room:
                audit = await tried(task)
            if audit is not None:
                book.add(audit)
        if audit is not None:
            faults.update({task: audit.fault} if audit.fault else {})
            done(audit)
        return audit

    async def tried(task: str) -> TaskAudit | None:
        """Return None if the task cannot be played here; that is not stored, since a requirement may be missing."""
        try:
            return await audit_task(lambda: build_env(config), task)
        except EnvFailed as error:
            faults[task] = f"it cannot be played here: {error.what}"
            return None

    tasks = (*trained, *held_out)
    audits = [audit for audit in await asyncio.gather(*map(one, tasks)) if audit is not None]
    await env.close()
    near = near_duplicates(_texts(env, held_out), _texts(env, trained))
    return {
        "env": config.env.type,
        "tasks": len(trained),
        "held_out": len(held_out),
        "admitted": len(tasks) - len(faults),
        "without_gold": sum(audit.gold is None for audit in audits),
        "refused": faults,
        "excluded": dict(env.excluded()) if isinstance(env, SupportsExclusions) else {},
        "near_duplicates": [[held_out[a], trained[b]] for a, b in near],
    }


def _of_levels(known: set[str], levels: Sequence[str]) -> set[str]:
    """Return the levels to audit, all known ones if ``levels`` is empty. Raises ConfigError for an unknown one."""
    for level in levels:
        if level not in known:
            near = f"did you mean {nearest(level, known)}? " if known else ""
            raise ConfigError(f"no level {level!r} in this environment", remedy=f"{near}'envs list' names them all")
    return set(levels) or known


def _of_each(env: SupportsTaskSets, tasks: Sequence[str], levels: set[str], count: int | None) -> list[str]:
    """Return the first ``count`` tasks in each of these levels, in task order."""
    by_level: dict[str, list[str]] = {}
    for task in tasks:
        by_level.setdefault(env.level(task), []).append(task)
    selected = {task for level in levels for task in by_level.get(level, ())[:count]}
    return [task for task in tasks if task in selected]


def _texts(env: SupportsTaskSets, tasks: Sequence[str]) -> list[str]:
    return [env.instruction(task) for task in tasks]


# Held-out tasks of the training environment, played by the versions that the gate compares.

AT_ONCE = 16
"""concurrent episodes in an examination, unless env.parallel allows fewer"""
KEPT = 4
"""versions whose results are stored, the live one among them"""


class HeldOutTasks:
    """The same tasks for every version, spread over the levels, sampled greedily. See `PlaysTasks`."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.tasks = _chosen(config)
        self._sampling = replace(default_sampling(config), temperature=0.0, seed=config.run.seed)
        self._solved: dict[str, Mapping[str, bool]] = {}

    async def solved(self, policy: Policy, version: Version) -> Mapping[str, bool]:
        weights = version.adapter or "base"
        if weights not in self._solved:
            self._solved[weights] = await self._played(policy, version)
            for old in list(self._solved)[:-KEPT]:
                del self._solved[old]
        return self._solved[weights]

    async def _played(self, policy: Policy, version: Version) -> Mapping[str, bool]:
        from openclaw_rl.envs.evaluation import play_each

        async def ask(prompt: Prompt, sampling: Sampling) -> Message:
            completion = await answer(policy, prompt, sampling, version=version.number)
            return read_reply(completion.reply.content, policy.tool_format if prompt.tools else "none")

        played = await play_each(
            ask,
            lambda: build_env(self._config),
            self.tasks,
            seeds=(self._config.run.seed,),
            sampling=self._sampling,
            max_steps=self._config.env.max_steps,
            parallel=min(AT_ONCE, self._config.env.parallel),
        )
        return {episode.task: episode.solved for episode in played if episode.outcome is not None}


def held_out_tasks(config: Config) -> HeldOutTasks | None:
    """Return the gate's tasks; None without an environment or held-out tasks."""
    if config.env.type is None or not config.gate.tasks:
        return None
    return HeldOutTasks(config) if isinstance(build_env(config), SupportsTaskSets) else None


def _chosen(config: Config) -> list[tuple[str, str]]:
    """Return ``gate.tasks`` tasks, from each level in turn, the same for every version."""
    env = build_env(config)
    assert isinstance(env, SupportsTaskSets)
    by_level: dict[str, list[str]] = {}
    for task in env.held_out():
        by_level.setdefault(env.level(task), []).append(task)
    for tasks in by_level.values():
        random.Random(config.run.seed).shuffle(tasks)
    ranked = sorted((place, level, task) for level, tasks in by_level.items() for place, task in enumerate(tasks))
    return [(task, level) for _, level, task in ranked[: config.gate.tasks]]


def read_reply(raw: str, tool_format: str) -> Message:
    """Return a raw reply as the API would."""
    reader, assembly = tool_call_reader(tool_format), Assembly()
    for part in (*reader.feed(raw), *reader.end(cut=False)):
        assembly.add(part)
    return assembly.message()
