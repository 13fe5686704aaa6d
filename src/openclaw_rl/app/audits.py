"""Audits of the tasks of a run's environment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from openclaw_rl.app.environments import audit_book, build_env
from openclaw_rl.config import Config
from openclaw_rl.errors import ConfigError
from openclaw_rl.ports import SupportsTaskSets

if TYPE_CHECKING:
    from openclaw_rl.envs.audit import TaskAudit


async def audit_all(config: Config, *, again: bool, done: Callable[[TaskAudit], None]) -> dict[str, Any]:
    """Audit every task of the environment, those that train and those that are held out; plain JSON.

    ``again``: also those that were audited before.
    """
    from openclaw_rl.envs.audit import audit_task, near_duplicates

    env, book = build_env(config), audit_book(config)
    if not isinstance(env, SupportsTaskSets):
        raise ConfigError(
            f"environment {config.env.type} cannot be audited", remedy="give it held_out, rung, instruction and gold"
        )
    trained, held = list(env.tasks()), list(env.held_out())
    room = asyncio.Semaphore(config.env.parallel)

    async def one(task: str) -> TaskAudit:
        found = None if again else book.find(env, task)
        if found is None:
            async with room:
                found = await audit_task(lambda: build_env(config), task)
            book.add(found)
        done(found)
        return found

    audits = await asyncio.gather(*map(one, (*trained, *held)))
    await env.close()
    faults = {audit.task: audit.fault for audit in audits if audit.fault}
    near = near_duplicates(_texts(env, held), _texts(env, trained))
    return {
        "env": config.env.type,
        "tasks": len(trained),
        "held_out": len(held),
        "admitted": len(audits) - len(faults),
        "without_gold": sum(audit.gold is None for audit in audits),
        "refused": faults,
        "near_duplicates": [[held[mine], trained[other]] for mine, other in near],
    }


def _texts(env: SupportsTaskSets, tasks: Sequence[str]) -> list[str]:
    return [env.instruction(task) for task in tasks]
