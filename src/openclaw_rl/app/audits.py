"""Audits of the tasks of a run's environment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from openclaw_rl.app.environments import audit_book, build_env
from openclaw_rl.config import Config
from openclaw_rl.config.names import nearest
from openclaw_rl.errors import ConfigError, EnvFailed
from openclaw_rl.ports import SupportsExclusions, SupportsTaskSets

if TYPE_CHECKING:
    from openclaw_rl.envs.audit import TaskAudit


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
