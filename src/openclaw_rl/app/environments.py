"""Environments wired to the public API of a server, in a pool of this process or of others."""

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


# Audits of the tasks of a run's environment.


async def audit_all(
    config: Config,
    *,
    again: bool,
    done: Callable[[TaskAudit], None],
    count: int | None = None,
    levels: Sequence[str] = (),
) -> dict[str, Any]:
    """Audit the tasks of the environment, those that train and those that are held out; plain JSON.

    ``again``: also those that were audited before. ``count``: so many that train and so many held out of each level,
    None for all. ``levels``: of these alone, all where none is named.
    """
    from openclaw_rl.envs.audit import audit_task, near_duplicates

    env, book = build_env(config), audit_book(config)
    if not isinstance(env, SupportsTaskSets):
        raise ConfigError(
            f"environment {config.env.type} cannot be audited", remedy="give it held_out, rung, instruction and gold"
        )
    chosen = _of_levels({env.rung(task) for task in (*env.tasks(), *env.held_out())}, levels)
    trained, held = (_of_each(env, tasks, chosen, count) for tasks in (env.tasks(), env.held_out()))
    room = asyncio.Semaphore(config.env.parallel)

    faults: dict[str, str] = {}

    async def one(task: str) -> TaskAudit | None:
        found = None if again else book.find(env, task)
        if found is None:
            async with room:
                found = await tried(task)
            if found is not None:
                book.add(found)
        if found is not None:
            faults.update({task: found.fault} if found.fault else {})
            done(found)
        return found

    async def tried(task: str) -> TaskAudit | None:
        """None where it cannot be played here; that is not kept, since it may be for want of something."""
        try:
            return await audit_task(lambda: build_env(config), task)
        except EnvFailed as error:
            faults[task] = f"it cannot be played here: {error.what}"
            return None

    tasks = (*trained, *held)
    audits = [audit for audit in await asyncio.gather(*map(one, tasks)) if audit is not None]
    await env.close()
    near = near_duplicates(_texts(env, held), _texts(env, trained))
    return {
        "env": config.env.type,
        "tasks": len(trained),
        "held_out": len(held),
        "admitted": len(tasks) - len(faults),
        "without_gold": sum(audit.gold is None for audit in audits),
        "refused": faults,
        "excluded": dict(env.excluded()) if isinstance(env, SupportsExclusions) else {},
        "near_duplicates": [[held[mine], trained[other]] for mine, other in near],
    }


def _of_levels(known: set[str], levels: Sequence[str]) -> set[str]:
    """The levels to audit: all that are known where none is named. Raises ConfigError for one that no task has."""
    for level in levels:
        if level not in known:
            near = f"did you mean {nearest(level, known)}? " if known else ""
            raise ConfigError(f"no level {level!r} in this environment", remedy=f"{near}'envs list' names them all")
    return set(levels) or known


def _of_each(env: SupportsTaskSets, tasks: Sequence[str], levels: set[str], count: int | None) -> list[str]:
    """The first ``count`` tasks of each of these levels, in the order of the tasks."""
    by_level: dict[str, list[str]] = {}
    for task in tasks:
        by_level.setdefault(env.rung(task), []).append(task)
    kept = {task for level in levels for task in by_level.get(level, ())[:count]}
    return [task for task in tasks if task in kept]


def _texts(env: SupportsTaskSets, tasks: Sequence[str]) -> list[str]:
    return [env.instruction(task) for task in tasks]


# Held-out tasks of the environment that trains, played by the versions that the gate compares.

AT_ONCE = 16
"""episodes of an examination at once, unless env.parallel allows fewer"""
KEPT = 4
"""versions whose results are kept, the live one among them"""


class HeldOutTasks:
    """See `PlaysTasks`: the same tasks for every version, spread over the rungs, sampled greedily."""

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
            done = await answer(policy, prompt, sampling, version=version.number)
            return read_reply(done.reply.content, policy.tool_format if prompt.tools else "none")

        played = await play_each(
            ask,
            lambda: build_env(self._config),
            self.tasks,
            seeds=(self._config.run.seed,),
            sampling=self._sampling,
            max_steps=self._config.env.max_steps,
            parallel=min(AT_ONCE, self._config.env.parallel),
        )
        return {one.task: one.solved for one in played if one.outcome is not None}


def held_out_tasks(config: Config) -> HeldOutTasks | None:
    """The tasks that the gate has played; None where no environment trains or it holds no tasks out."""
    if config.env.type is None or not config.gate.tasks:
        return None
    return HeldOutTasks(config) if isinstance(build_env(config), SupportsTaskSets) else None


def _chosen(config: Config) -> list[tuple[str, str]]:
    """So many tasks, of each rung in turn, the same for every version."""
    env = build_env(config)
    assert isinstance(env, SupportsTaskSets)
    by_rung: dict[str, list[str]] = {}
    for task in env.held_out():
        by_rung.setdefault(env.rung(task), []).append(task)
    for tasks in by_rung.values():
        random.Random(config.run.seed).shuffle(tasks)
    ranked = sorted((place, rung, task) for rung, tasks in by_rung.items() for place, task in enumerate(tasks))
    return [(task, rung) for _, rung, task in ranked[: config.gate.tasks]]


def read_reply(raw: str, tool_format: str) -> Message:
    """A raw reply as the API would give it out."""
    found, whole = tool_call_reader(tool_format), Assembly()
    for part in (*found.feed(raw), *found.end(cut=False)):
        whole.add(part)
    return whole.message()
