"""Third-party task sets: a split by hash, and gold commands run in a separate sandbox."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from openclaw_rl.envs.actions import ActionForm
from openclaw_rl.envs.curricula import Split, package_folder, split_of
from openclaw_rl.envs.sandbox import HOME, Sandbox, SandboxSettings
from openclaw_rl.envs.terminal.env import TerminalEnv
from openclaw_rl.envs.terminal.machine import TerminalMachine
from openclaw_rl.envs.terminal.tasks import FinalState, Scorer, TerminalTask
from openclaw_rl.errors import ConfigError, EnvFailed

STEPS = 8
"""most replies for a task that sets no limit"""


class PublishedTasks:
    """See `TerminalSource`. Tasks by id, ``LEVEL/NAME``; prompts show none of them solved."""

    def __init__(self, name: str, tasks: Mapping[str, TerminalTask], *, levels: Sequence[str]) -> None:
        known = {task.partition("/")[0] for task in tasks}
        for level in levels:
            if level not in known:
                raise ConfigError(f"no level {level!r} in {name}", remedy=f"known: {', '.join(sorted(known))}")
        self._name, self._tasks = name, tasks
        self._chosen = [task for task in tasks if not levels or task.partition("/")[0] in levels]

    def ids(self, split: Split) -> Sequence[str]:
        return tuple(task for task in self._chosen if split_of(self._tasks[task].instruction) == split)

    def level(self, task: str) -> str:
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
    """A run of a task's gold commands in a separate sandbox, untouched by the agent: their output and final state."""

    def __init__(self, machine: TerminalMachine) -> None:
        self._machine = machine

    @classmethod
    async def of(cls, settings: SandboxSettings, task: TerminalTask) -> GoldRun:
        """Run the gold commands, then seal the sandbox."""
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
    """Return the last gold command's output."""
    run = await GoldRun.of(settings, task)
    try:
        return run.printed
    finally:
        await run.close()


async def passes(sandbox: Sandbox, script: str, folder: str) -> bool:
    """Return True if the author's script exits with 0 in time; files from the agent may make it run forever."""
    return (await sandbox.run(["bash", "-c", script], cwd=folder)).ok


# AgentBench's operating-system tasks, from the data of the package `inspect-evals`; none of it is copied here.
#
# A task sets up a machine, asks a question or requests a change, and is checked by a script or by the output of its
# author's own command, which runs in a sandbox without an agent.

FILES: Mapping[str, str] = {"dev": "agent_bench_os.json", "test": "agent_bench_os_test.json"}
_UNITS = {"B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}


def agentbench_os(
    *,
    sandbox: SandboxSettings,
    form: ActionForm,
    examples: int | None,
    levels: Sequence[str],
    output_chars: int,
    step_votes: bool,
    folder: Path | None,
) -> TerminalEnv:
    """Create the environment. ``folder`` is the package's location if Python does not find it."""
    data = package_folder("inspect_evals", "inspect-evals", folder) / "agent_bench" / "data"
    source = PublishedTasks("agentbench-os", read_tasks(data, sandbox), levels=levels)
    return TerminalEnv(
        name="agentbench-os",
        source=source,
        sandbox=sandbox,
        form=form,
        examples=examples,
        output_chars=output_chars,
        step_votes=step_votes,
    )


def read_tasks(data: Path, settings: SandboxSettings) -> dict[str, TerminalTask]:
    """Read the tasks that this machine can set up; skip those that need files absent from the package."""
    tasks: dict[str, TerminalTask] = {}
    for level, name in FILES.items():
        for record in json.loads((data / name).read_text(encoding="utf-8")):
            task = _Record(_at_home(record), data / "scripts", settings).task()
            if task is not None:
                tasks[f"{level}/{record['id']}"] = task
    return tasks


def _at_home(value: Any) -> Any:
    """Replace the author's folders in a task with ours."""
    if isinstance(value, dict):
        return {key: _at_home(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_at_home(item) for item in value]
    if not isinstance(value, str):
        return value
    return value.replace("/home/agent", HOME).replace("/usr", HOME).replace("<random-string>", "c0ffee-1")


class _Missing(Exception):
    """A task needs a missing file or user."""


class _Record:
    """A parser for one record of the data."""

    def __init__(self, record: Mapping[str, Any], scripts: Path, settings: SandboxSettings) -> None:
        self._record, self._scripts, self._settings = record, scripts, settings
        self._evaluation: Mapping[str, Any] = record["evaluation"]
        self._check = self._evaluation.get("check")
        create = record.get("create")
        self._create: Mapping[str, Any] = create if isinstance(create, dict) else {}

    def task(self) -> TerminalTask | None:
        """Return the task, or None if it needs a missing file or user."""
        try:
            setup = tuple(self._steps(self._create.get("init")))
            gold = self._gold()
            scorer = self._scorer(gold, setup)
        except _Missing:
            return None
        return self._made(gold, setup, scorer)

    def _made(self, gold: tuple[str, ...], setup: tuple[str, ...], scorer: Scorer | None) -> TerminalTask:
        at_start = bool(self._create.get("init_at_start"))
        start = [*(setup if at_start else ()), *filter(None, [self._record.get("start")])]
        return TerminalTask(
            instruction=self._record["description"],
            gold=gold,
            steps=STEPS,
            setup=() if at_start else setup,
            start=tuple(start),
            answered=self._answered,
            scorer=scorer,
        )

    @property
    def _answered(self) -> bool:
        """True if the check concerns an answer: a match, or a comparison with the output of the author's command."""
        return self._check is None or (isinstance(self._check, list) and len(self._check) > 1)

    def _steps(self, init: Any) -> list[str]:
        if init is None:
            return []
        if isinstance(init, list):
            return [script for step in init for script in self._steps(step)]
        if isinstance(init, dict) and "user" in init:
            raise _Missing
        return [self._script(init)]

    def _script(self, given: Any) -> str:
        """Return a script given as text, or by the name of a file in the package."""
        if isinstance(given, str):
            return given
        if "code" in given:
            return str(given["code"])
        file = self._scripts / str(given.get("file"))
        if not file.is_file():
            raise _Missing
        return str(_at_home(file.read_text(encoding="utf-8")))

    def _gold(self) -> tuple[str, ...]:
        example = self._evaluation.get("example") or self._record.get("example")
        if example is not None:
            return (self._script(example),)
        return (f"printf %s {json.dumps(str(self._evaluation['match']))}",) if "match" in self._evaluation else ()

    def _scorer(self, gold: tuple[str, ...], setup: tuple[str, ...]) -> Scorer:
        if self._check is None:
            expected = str(self._evaluation["match"])
            return _answers(lambda answer: answer.strip() == expected)
        if self._answered:
            return self._compared(gold, setup)
        script = self._script(self._check[0] if isinstance(self._check, list) else self._check)

        async def scored(state: FinalState) -> float:
            return float(await passes(state.sandbox, script, HOME))

        return scored

    def _compared(self, gold: tuple[str, ...], setup: tuple[str, ...]) -> Scorer:
        same = COMPARISONS.get(str(self._check[1].get("file")))
        if same is None:
            raise _Missing
        match = self._evaluation.get("match")
        task = self._made(gold, setup, None)

        async def scored(state: FinalState) -> float:
            if state.answer is None:
                return 0.0
            expected = str(match) if match is not None else await expected_answer(self._settings, task)
            return float(same(state.answer.strip(), expected.strip()))

        return scored


def _answers(right: Callable[[str], bool]) -> Scorer:
    async def scored(state: FinalState) -> float:
        return float(state.answer is not None and right(state.answer))

    return scored


def same_integer(one: str, other: str) -> bool:
    """Return True if both are equal whole numbers."""
    try:
        return int(one) == int(other)
    except ValueError:
        return False


def same_size(one: str, other: str) -> bool:
    """Return True if both are equal sizes, with or without a unit.

    >>> same_size("2K", "2048"), same_size("1.5M", "1536KB"), same_size("much", "1")
    (True, True, False)
    """
    try:
        return _bytes(one) == _bytes(other)
    except ValueError:
        return False


def _bytes(text: str) -> float:
    text = text.strip().removesuffix("yte").removesuffix("B") or "0"
    return float(text[:-1]) * _UNITS[text[-1]] if text[-1] in _UNITS else float(text)


COMPARISONS: Mapping[str, Callable[[str, str], bool]] = {
    "check/integer-match.py": same_integer,
    "check/size-match.py": same_size,
    "check/string-match.py": lambda answer, expected: answer.split("\n") == expected.split("\n"),
}
"""comparison functions by the name of the data's comparison script"""


# InterCode's bash tasks, from the package `intercode-bench`; none of it is copied here.
#
# A task is solved if the folder is in the state that the author's command leaves, and the last command printed the same
# lines.

DIGEST = (
    "cd /testbed && find . -mindepth 1 -printf '%y %p %l\\n' | sort"
    " && find . -type f -print0 | sort -z | xargs -0 -r md5sum; ls / | sort"
)
"""lists the folder's content, and the names beside it"""


def intercode_bash(
    *,
    sandbox: SandboxSettings,
    form: ActionForm,
    examples: int | None,
    levels: Sequence[str],
    output_chars: int,
    step_votes: bool,
    folder: Path | None,
) -> TerminalEnv:
    """Create the environment. ``folder`` is the package's location if Python does not find it."""
    assets = package_folder("intercode", "intercode-bench", folder) / "assets"
    return TerminalEnv(
        name="intercode-bash",
        source=PublishedTasks("intercode-bash", read_intercode_tasks(assets, sandbox), levels=levels),
        sandbox=sandbox,
        form=form,
        examples=examples,
        output_chars=output_chars,
        step_votes=step_votes,
    )


def read_intercode_tasks(assets: Path, settings: SandboxSettings) -> dict[str, TerminalTask]:
    """Read the tasks, each on a machine that the package's script sets up."""
    setup = (assets / "docker" / "setup_fs.sh").read_text(encoding="utf-8")
    rows = json.loads((assets / "datasets" / "bash_queries.json").read_text(encoding="utf-8"))
    return {f"bash/{number}": _task(row["query"], row["gold"], setup, settings) for number, row in enumerate(rows)}


def _task(query: str, gold: str, setup: str, settings: SandboxSettings) -> TerminalTask:
    plain = TerminalTask(instruction=query, gold=(gold,), steps=STEPS, setup=(setup,), folder="/")
    return replace(plain, scorer=_scorer(plain, settings), by_output=True)


def _scorer(task: TerminalTask, settings: SandboxSettings) -> Scorer:
    async def scored(state: FinalState) -> float:
        gold = await GoldRun.of(settings, task)
        try:
            expected = await _digest(gold.sandbox)
            if expected is None:
                raise EnvFailed("the folder that the gold commands leave could not be read in time")
            return float(await _digest(state.sandbox) == expected and _lines(gold.printed) == _lines(state.printed))
        finally:
            await gold.close()

    return scored


async def _digest(sandbox: Sandbox) -> str | None:
    """Return the folder's digest, or None if it cannot be read in time."""
    result = await sandbox.run(["bash", "-c", DIGEST])
    return result.output if result.code is not None else None


def _lines(printed: str) -> list[str]:
    """Return the lines in a canonical order, since folder listings have none."""
    return sorted(line.rstrip() for line in printed.strip().splitlines())
