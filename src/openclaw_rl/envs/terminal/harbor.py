"""Folders in the layout of Harbor and terminal-bench, without Docker: an instruction, an environment, tests.

    FOLDER/NAME/instruction.md            or task.yaml with "instruction"
                environment/setup.sh      or a Dockerfile, of which WORKDIR, ENV, COPY and RUN are carried out
                tests/test.sh             or run-tests.sh, or test_*.py
                solution/solve.sh         or solution.sh

Tests come into the sandbox when the agent is done, so that it cannot edit them. A script of tests may write its score
to ``/logs/verifier/reward.txt``; else the score is the share of tests that pass, else whether the script ends with 0.
Nothing can be fetched: lines that would install something are left out, and what is then missing the audit finds.
"""

from __future__ import annotations

import fnmatch
import inspect
import json
import re
import secrets
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from openclaw_rl.envs.actions import ActionForm
from openclaw_rl.envs.sandbox import HOME, Sandbox, SandboxSettings
from openclaw_rl.envs.terminal import run_inside
from openclaw_rl.envs.terminal.checks import FinalState
from openclaw_rl.envs.terminal.env import TerminalEnv
from openclaw_rl.envs.terminal.published import PublishedTasks
from openclaw_rl.envs.terminal.tasks import Scorer, TerminalTask
from openclaw_rl.errors import ConfigError, EnvFailed

STEPS = 20
REWARD = "/logs/verifier/reward.txt"
LONGEST = 1 << 16
"""bytes of a score's file that are read"""
_FETCHES = re.compile(r"\b(apt|apt-get|apk|dnf|yum|pip3?|uv|npm|curl|wget|git clone|conda|cargo)\b")


def harbor(
    *,
    sandbox: SandboxSettings,
    form: ActionForm,
    examples: int | None,
    rungs: Sequence[str],
    output_chars: int,
    step_votes: bool,
    folder: Path | None,
) -> TerminalEnv:
    """The environment. ``folder`` holds a folder for each task."""
    if folder is None:
        raise ConfigError("env.folder is not set", remedy="name it: --set env.folder=FOLDER")
    tasks = read_tasks(folder.expanduser())
    return TerminalEnv(
        name="harbor",
        source=PublishedTasks("harbor", tasks, rungs=rungs),
        sandbox=sandbox,
        form=form,
        examples=examples,
        output_chars=output_chars,
        step_votes=step_votes,
    )


def read_tasks(folder: Path) -> dict[str, TerminalTask]:
    """The tasks of a folder, by difficulty and name. Raises ConfigError where there is none."""
    found = [(place, told) for place in sorted(folder.iterdir() if folder.is_dir() else ()) if (told := _told(place))]
    if not found:
        raise ConfigError(
            f"env.folder: no task lies in {folder}",
            remedy="each is a folder with instruction.md or task.yaml, and tests",
        )
    return {f"{told.rung}/{place.name}": _task(place, told) for place, told in found}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What a task's author says of it."""

    instruction: str
    rung: str


def _told(place: Path) -> _Told | None:
    if (text := place / "instruction.md").is_file():
        meta = place / "task.toml"
        data: Mapping[str, Any] = tomllib.loads(meta.read_text(encoding="utf-8")) if meta.is_file() else {}
        known: Mapping[str, Any] = data.get("metadata", {})
        return _Told(instruction=text.read_text(encoding="utf-8").strip(), rung=str(known.get("difficulty", "tasks")))
    if (text := place / "task.yaml").is_file():
        data = _yaml(text)
        return _Told(instruction=str(data["instruction"]).strip(), rung=str(data.get("difficulty", "tasks")))
    return None


def _yaml(file: Path) -> Mapping[str, Any]:
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError as error:
        raise ConfigError(f"{file} is YAML, which this Python cannot read", remedy="pip install pyyaml") from error
    found = yaml.safe_load(file.read_text(encoding="utf-8"))
    if not isinstance(found, dict) or "instruction" not in found:
        raise ConfigError(f'{file} has no "instruction"', remedy="see docs/environments.md for the layout")
    return found


def _task(place: Path, told: _Told) -> TerminalTask:
    built = _environment(place)
    solution = next((file for name in ("solution/solve.sh", "solution.sh") if (file := place / name).is_file()), None)
    return TerminalTask(
        instruction=told.instruction,
        gold=(solution.read_text(encoding="utf-8"),) if solution else (),
        placed=built.placed,
        setup=(f"mkdir -p {shlex.quote(built.folder)}", *built.scripts),
        folder=built.folder,
        steps=STEPS,
        scorer=_scorer(place, built),
    )


# --- the environment ---


@dataclass(slots=True)
class _Built:
    """How a task's machine is made: files of its folder by their place there, scripts, and where the agent begins."""

    folder: str = HOME
    placed: dict[str, Path] = field(default_factory=dict)
    scripts: list[str] = field(default_factory=list)
    exports: list[str] = field(default_factory=list)


def _environment(place: Path) -> _Built:
    script = place / "environment" / "setup.sh"
    if script.is_file():
        folder = "/app"
        built = _Built(folder=folder)
        built.placed = {f"{folder}/{file.name}": file for file in script.parent.iterdir() if file.is_file()}
        built.scripts = [f"mkdir -p {folder} && cd {folder} && bash setup.sh && rm setup.sh"]
        return built
    for file in (place / "environment" / "Dockerfile", place / "Dockerfile"):
        if file.is_file():
            return _from_dockerfile(file)
    return _Built()


def _from_dockerfile(file: Path) -> _Built:
    built = _Built(folder="/app")
    for word, rest in _instructions(file.read_text(encoding="utf-8")):
        if word == "WORKDIR":
            built.folder = rest.strip()
            built.scripts.append(f"mkdir -p {shlex.quote(built.folder)}")
        elif word == "ENV":
            built.exports.append(f"export {rest if '=' in rest else rest.replace(' ', '=', 1)}")
        elif word in ("COPY", "ADD"):
            built.placed |= _copied(rest, file.parent, built.folder)
        elif word == "RUN" and not _FETCHES.search(rest):
            lines = [*built.exports, f"mkdir -p {shlex.quote(built.folder)} && cd {shlex.quote(built.folder)}", rest]
            built.scripts.append("\n".join(lines))
    return built


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    """The instructions of a Dockerfile, continued lines joined."""
    joined = re.sub(r"\\\s*\n", " ", "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#")))
    for line in joined.splitlines():
        word, _, rest = line.strip().partition(" ")
        if word:
            yield word.upper(), rest.strip()


def _copied(rest: str, folder: Path, working: str) -> dict[str, Path]:
    words = json.loads(rest) if rest.startswith("[") else [word for word in shlex.split(rest) if word[:2] != "--"]
    *sources, target = words
    target = target if target.startswith("/") else f"{working}/{target.removeprefix('./')}"
    into = target.endswith(("/", "/.")) or len(sources) > 1 or target == f"{working}/."
    placed: dict[str, Path] = {}
    for source in (found for name in sources for found in sorted(folder.glob(name)) or [folder / name]):
        if source.is_dir():
            placed |= {f"{target.rstrip('/.')}/{one.relative_to(source)}": one for one in _files(source)}
        elif source.is_file():
            placed[f"{target.rstrip('/.')}/{source.name}" if into else target] = source
    return placed


def _files(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.rglob("*")) if file.is_file()]


# --- the tests ---


def _scorer(place: Path, built: _Built) -> Scorer:
    tests = {f"/tests/{file.relative_to(place / 'tests')}": file for file in _files(place / "tests")}
    script = next((name for name in ("tests/test.sh", "run-tests.sh") if (place / name).is_file()), None)
    text = (place / script).read_text(encoding="utf-8") if script else ""

    async def scored(state: FinalState) -> float:
        await state.sandbox.run(["rm", "-rf", "/tests", "/logs"])
        for path, file in tests.items():
            await state.sandbox.write(path, file.read_bytes())
        if script and not _FETCHES.search(text):
            return await _by_script(state.sandbox, text, built)
        return await _by_functions(state.sandbox, sorted(path for path in tests if _is_test(path)), built)

    return scored


def _is_test(path: str) -> bool:
    return path.startswith("/tests/") and fnmatch.fnmatch(PurePosixPath(path).name, "test_*.py")


async def _by_script(sandbox: Sandbox, text: str, built: _Built) -> float:
    exports = "\n".join([*built.exports, "export TEST_DIR=/tests", "mkdir -p /logs/verifier"])
    done = await sandbox.run(["bash", "-c", f"{exports}\n{text}"], cwd=built.folder)
    if done.code is None:
        raise EnvFailed(f"the tests were stopped: {done.stopped}")
    try:
        return max(0.0, min(1.0, float((await sandbox.read(REWARD, most=LONGEST)).decode().strip())))
    except (OSError, ValueError):
        return float(done.ok)


async def _by_functions(sandbox: Sandbox, paths: Sequence[str], built: _Built) -> float:
    """The share of the test functions that pass, run by a small runner of our own: nothing need be installed there."""
    if not paths:
        raise EnvFailed("a task has no tests that can be run here")
    runner = inspect.getsource(run_inside)
    place = f"/tests/{secrets.token_hex(8)}"
    done = await sandbox.run(["python3", "-I", "-", place, *paths], stdin=runner.encode(), cwd=built.folder)
    try:
        counted = json.loads(await sandbox.read(place, most=LONGEST))
    except (OSError, ValueError) as error:
        raise EnvFailed(f"the tests could not be run: {(done.output or done.stopped)[-300:]}") from error
    return float(counted["passed"]) / max(int(counted["tests"]), 1)
