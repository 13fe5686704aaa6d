"""Folders in the layout of Harbor and terminal-bench: an instruction, an environment, tests.

    FOLDER/NAME/instruction.md            or task.yaml with "instruction"
                environment/setup.sh      or a Dockerfile
                tests/test.sh             or run-tests.sh, or test_*.py
                solution/solve.sh         or solution.sh

Tests enter the sandbox after the agent has finished, so that it cannot edit them, and pay as Harbor does: the score
that their script writes to ``/logs/verifier``, else all or nothing. With podman or docker the Dockerfile builds the
machine. With bubblewrap this machine's programs replace it: a task that needs others is refused with a list of them.
"""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from openclaw_rl.envs.actions import ActionForm
from openclaw_rl.envs.play.programs import AgentTask
from openclaw_rl.envs.sandbox import SandboxSettings
from openclaw_rl.envs.terminal.env import TerminalEnv
from openclaw_rl.envs.terminal.installs import CARRIED, Built, build_image, machine_of, on_this_machine, provide
from openclaw_rl.envs.terminal.published import PublishedTasks
from openclaw_rl.envs.terminal.tasks import FinalState, Scorer, TerminalTask
from openclaw_rl.envs.terminal.verifying import TaskTests
from openclaw_rl.errors import ConfigError
from openclaw_rl.types import Prompt

STEPS = 20


class HarborEnv(TerminalEnv):
    """See `TerminalEnv`. With a container driver, each task runs in its Dockerfile's image."""

    def __init__(self, folder: Folder, *, sandbox: SandboxSettings, levels: Sequence[str], **settings: Any) -> None:
        source = PublishedTasks("harbor", folder.tasks, levels=levels)
        super().__init__(name="harbor", source=source, sandbox=sandbox, **settings)
        self._folder, self._plain = folder, sandbox

    def excluded(self) -> Mapping[str, str]:
        """Return the tasks that cannot run here, with the reason."""
        return self._folder.refused

    async def reset(self, task: str, *, seed: int) -> Prompt:
        await self._choose_image(task)
        return await super().reset(task, seed=seed)

    async def hand_over(self, task: str, *, seed: int) -> AgentTask:
        await self._choose_image(task)
        return await super().hand_over(task, seed=seed)

    async def _choose_image(self, task: str) -> None:
        file = self._folder.images.get(task)
        image = await build_image(self._plain.driver, file) if file is not None else self._plain.root
        self._settings = replace(self._plain, root=image)


def harbor(
    *,
    sandbox: SandboxSettings,
    form: ActionForm,
    examples: int | None,
    levels: Sequence[str],
    output_chars: int,
    step_votes: bool,
    folder: Path | None,
    cache_dir: Path,
    partial: bool = False,
) -> HarborEnv:
    """Create the environment. ``folder`` has one folder per task; ``partial`` pays the share of passing tests."""
    if folder is None:
        raise ConfigError("env.folder is not set", remedy="name it: --set env.folder=FOLDER")
    read = read_folder(folder.expanduser(), sandbox, cache=cache_dir / "harbor", shares=partial)
    return HarborEnv(
        read,
        sandbox=replace(sandbox, binds=tuple(dict.fromkeys((*sandbox.binds, str(read.site))))),
        levels=levels,
        form=form,
        examples=examples,
        output_chars=output_chars,
        step_votes=step_votes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """Tasks by difficulty and name, refused folders with the reason, and Dockerfiles for a container driver.

    ``site`` contains the pytest that runs the tests.
    """

    tasks: Mapping[str, TerminalTask]
    refused: Mapping[str, str]
    images: Mapping[str, Path]
    site: Path


def read_folder(folder: Path, sandbox: SandboxSettings, *, cache: Path, shares: bool) -> Folder:
    """Read a folder of tasks; raise ConfigError if it has no tasks, or none that can run here."""
    places = [place for place in sorted(folder.iterdir() if folder.is_dir() else ()) if _told(place)]
    if not places:
        raise ConfigError(
            f"env.folder: no task lies in {folder}",
            remedy="each is a folder with instruction.md or task.yaml, and tests",
        )
    contained = sandbox.driver != "bubblewrap"
    has_system = on_this_machine(None if contained else sandbox.root)
    read = {place: _read(place, contained, has_system, shares=shares) for place in places}
    refused = {place.name: entry.refused for place, entry in read.items() if entry.refused}
    if len(refused) == len(read):
        raise ConfigError(
            f"env.folder: none of the {len(read)} tasks in {folder} can run here: {next(iter(refused.values()))}",
            remedy="'--set env.sandbox.driver=podman' builds their images; 'envs audit' names each reason",
        )
    good = {place: entry for place, entry in read.items() if not entry.refused}
    packages = {name for entry in good.values() for name in entry.tests.packages if name not in CARRIED}
    site = provide(sorted(packages), cache)
    return Folder(
        tasks={entry.name: _task(place, entry, site) for place, entry in good.items()},
        refused=refused,
        images={entry.name: entry.machine.file for entry in good.values() if entry.imaged and entry.machine.file},
        site=site,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """A task's folder. ``imaged``: its machine is a container image; ``refused`` is the reason it cannot run here."""

    name: str
    told: _Told
    machine: Built
    tests: TaskTests
    imaged: bool
    refused: str


def _read(place: Path, contained: bool, has_system: Callable[[str], bool], *, shares: bool) -> _Read:
    told = _told(place)
    assert told is not None
    machine = machine_of(place, has_system=has_system)
    tests = TaskTests.of(place, machine, shares=shares)
    imaged = contained and machine.file is not None
    reasons = [*([] if imaged else machine.refused), tests.lacking(has_system=has_system)]
    return _Read(
        name=f"{told.level}/{place.name}",
        told=told,
        machine=machine,
        tests=tests,
        imaged=imaged,
        refused="; ".join(filter(None, reasons)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """The author's description of a task."""

    instruction: str
    level: str


def _told(place: Path) -> _Told | None:
    if (text := place / "instruction.md").is_file():
        meta = place / "task.toml"
        data: Mapping[str, Any] = tomllib.loads(meta.read_text(encoding="utf-8")) if meta.is_file() else {}
        metadata: Mapping[str, Any] = data.get("metadata", {})
        return _Told(
            instruction=text.read_text(encoding="utf-8").strip(), level=str(metadata.get("difficulty", "tasks"))
        )
    if (text := place / "task.yaml").is_file():
        data = _yaml(text)
        return _Told(instruction=str(data["instruction"]).strip(), level=str(data.get("difficulty", "tasks")))
    return None


def _yaml(file: Path) -> Mapping[str, Any]:
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError as error:
        raise ConfigError(f"{file} is YAML, which this Python cannot read", remedy="pip install pyyaml") from error
    data = yaml.safe_load(file.read_text(encoding="utf-8"))
    if not isinstance(data, dict) or "instruction" not in data:
        raise ConfigError(f'{file} has no "instruction"', remedy="see docs/environments.md for the layout")
    return data


def _task(place: Path, read: _Read, site: Path) -> TerminalTask:
    solution = next((file for name in ("solution/solve.sh", "solution.sh") if (file := place / name).is_file()), None)
    built = read.machine
    return TerminalTask(
        instruction=read.told.instruction,
        gold=(solution.read_text(encoding="utf-8"),) if solution else (),
        placed={} if read.imaged else built.placed,
        setup=(f"mkdir -p {shlex.quote(built.folder)}", *(() if read.imaged else built.scripts)),
        folder=built.folder,
        steps=STEPS,
        scorer=_scorer(read.tests, site),
    )


def _scorer(tests: TaskTests, site: Path) -> Scorer:
    async def scored(state: FinalState) -> float:
        return await tests.score(state.sandbox, site=site)

    return scored
