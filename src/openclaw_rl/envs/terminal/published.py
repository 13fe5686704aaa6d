"""What task sets of others need beside a ladder: a split by hash, and gold commands run in a sandbox of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from openclaw_rl.envs.ladders import Split, split_of
from openclaw_rl.envs.sandbox import Sandbox, SandboxSettings
from openclaw_rl.envs.terminal.machine import TerminalMachine
from openclaw_rl.envs.terminal.tasks import TerminalTask
from openclaw_rl.errors import ConfigError

STEPS = 8
"""replies for a task that does not say how many"""


class PublishedTasks:
    """See `TerminalSource`. Tasks by id, ``RUNG/NAME``; no prompt shows one of them solved."""

    def __init__(self, name: str, tasks: Mapping[str, TerminalTask], *, rungs: Sequence[str]) -> None:
        known = {task.partition("/")[0] for task in tasks}
        for rung in rungs:
            if rung not in known:
                raise ConfigError(f"no rung {rung!r} in {name}", remedy=f"known: {', '.join(sorted(known))}")
        self._name, self._tasks = name, tasks
        self._chosen = [task for task in tasks if not rungs or task.partition("/")[0] in rungs]

    def ids(self, split: Split) -> Sequence[str]:
        return tuple(task for task in self._chosen if split_of(self._tasks[task].instruction) == split)

    def rung(self, task: str) -> str:
        return task.partition("/")[0]

    def instruction(self, task: str) -> str:
        return self.task(task).instruction

    def task(self, task: str) -> TerminalTask:
        if task not in self._tasks:
            raise ConfigError(f"no task {task!r} in {self._name}", remedy="'openclaw-rl envs list --tasks' shows them")
        return self._tasks[task]

    def examples(self, task: str, count: int) -> Sequence[TerminalTask]:
        return ()


class GoldRun:
    """A task's gold commands in a sandbox of their own, where no agent has been: what they print and leave behind."""

    def __init__(self, machine: TerminalMachine) -> None:
        self._machine = machine

    @classmethod
    async def of(cls, settings: SandboxSettings, task: TerminalTask) -> GoldRun:
        """Run them, and seal what they leave."""
        machine = await TerminalMachine.begin(settings, task, shown=1)
        try:
            for command in task.gold:
                await machine.command(command)
            await machine.seal()
        except BaseException:
            await machine.close()
            raise
        return cls(machine)

    @property
    def printed(self) -> str:
        return self._machine.printed

    @property
    def sandbox(self) -> Sandbox:
        return self._machine.state().sandbox

    async def close(self) -> None:
        await self._machine.close()


async def expected_answer(settings: SandboxSettings, task: TerminalTask) -> str:
    """What the gold commands print."""
    run = await GoldRun.of(settings, task)
    try:
        return run.printed
    finally:
        await run.close()


async def passes(sandbox: Sandbox, script: str, folder: str) -> bool:
    """Whether a script of the task's author ends with 0, in its time: an agent can make files that have no end."""
    return (await sandbox.run(["bash", "-c", script], cwd=folder)).ok
