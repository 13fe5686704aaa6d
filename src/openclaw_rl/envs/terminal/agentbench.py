"""AgentBench's operating-system tasks, from the data of the package `inspect-evals`; none of it is copied here.

A task sets a machine up, asks a question or wants a change, and is checked by a script or by what its author's own
command prints, which is run in a sandbox where no agent has been.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from openclaw_rl.envs.actions import ActionForm
from openclaw_rl.envs.packages import package_folder
from openclaw_rl.envs.sandbox import HOME, SandboxSettings
from openclaw_rl.envs.terminal.checks import FinalState
from openclaw_rl.envs.terminal.env import TerminalEnv
from openclaw_rl.envs.terminal.published import STEPS, PublishedTasks, expected_answer, passes
from openclaw_rl.envs.terminal.tasks import Scorer, TerminalTask

FILES: Mapping[str, str] = {"dev": "agent_bench_os.json", "test": "agent_bench_os_test.json"}
_UNITS = {"B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}


def agentbench_os(
    *,
    sandbox: SandboxSettings,
    form: ActionForm,
    examples: int | None,
    rungs: Sequence[str],
    output_chars: int,
    step_votes: bool,
    folder: Path | None,
) -> TerminalEnv:
    """The environment. ``folder``: where the package was installed, if Python does not find it."""
    data = package_folder("inspect_evals", "inspect-evals", folder) / "agent_bench" / "data"
    source = PublishedTasks("agentbench-os", read_tasks(data, sandbox), rungs=rungs)
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
    """The tasks that this machine can set up: those that want files which are not in the package are left out."""
    found: dict[str, TerminalTask] = {}
    for rung, name in FILES.items():
        for record in json.loads((data / name).read_text(encoding="utf-8")):
            task = _Record(_at_home(record), data / "scripts", settings).task()
            if task is not None:
                found[f"{rung}/{record['id']}"] = task
    return found


def _at_home(value: Any) -> Any:
    """Where the tasks speak of their author's folders, ours."""
    if isinstance(value, dict):
        return {key: _at_home(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_at_home(each) for each in value]
    if not isinstance(value, str):
        return value
    return value.replace("/home/agent", HOME).replace("/usr", HOME).replace("<random-string>", "c0ffee-1")


class _Missing(Exception):
    """A task wants what is not there."""


class _Record:
    """One record of the data, read as a task."""

    def __init__(self, record: Mapping[str, Any], scripts: Path, settings: SandboxSettings) -> None:
        self._record, self._scripts, self._settings = record, scripts, settings
        self._evaluation: Mapping[str, Any] = record["evaluation"]
        self._check = self._evaluation.get("check")
        create = record.get("create")
        self._create: Mapping[str, Any] = create if isinstance(create, dict) else {}

    def task(self) -> TerminalTask | None:
        """The task; None where it wants what is not there."""
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
        """Whether the check is of an answer: a match, or a comparison with what the author's command prints."""
        return self._check is None or (isinstance(self._check, list) and len(self._check) > 1)

    def _steps(self, init: Any) -> list[str]:
        if init is None:
            return []
        if isinstance(init, list):
            return [script for each in init for script in self._steps(each)]
        if isinstance(init, dict) and "user" in init:
            raise _Missing
        return [self._script(init)]

    def _script(self, given: Any) -> str:
        """A script that is given as text, or by the name of a file of the package."""
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
            wanted = str(self._evaluation["match"])
            return _answers(lambda answer: answer.strip() == wanted)
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
        known = self._evaluation.get("match")
        asked = self._made(gold, setup, None)

        async def scored(state: FinalState) -> float:
            if state.answer is None:
                return 0.0
            wanted = str(known) if known is not None else await expected_answer(self._settings, asked)
            return float(same(state.answer.strip(), wanted.strip()))

        return scored


def _answers(right: Callable[[str], bool]) -> Scorer:
    async def scored(state: FinalState) -> float:
        return float(state.answer is not None and right(state.answer))

    return scored


def same_integer(one: str, other: str) -> bool:
    """Equal whole numbers."""
    try:
        return int(one) == int(other)
    except ValueError:
        return False


def same_size(one: str, other: str) -> bool:
    """Equal sizes, with or without a unit.

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
    "check/string-match.py": lambda one, other: one.split("\n") == other.split("\n"),
}
"""how an answer is compared, by the name of the script that the data names for it"""
