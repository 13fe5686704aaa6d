"""Reads a user's own tasks: JSONL, one task per line, each with a check for the answer.

    {"id": "mass-1", "prompt": "How many kg are 10 lb?", "check": "number", "answer": 4.536, "tolerance": 0.01}
    {"prompt": "Who sells the most?", "check": "exact", "answer": "Ana", "level": "lookup"}
    {"prompt": "Write the date.", "check": "regex", "answer": "\\\\d{4}-\\\\d\\\\d-\\\\d\\\\d", "gold": "2024-05-01"}
    {"prompt": "Sort these.", "check": "checks.py:is_sorted", "answer": [3, 1, 2], "gold": "1 2 3"}

A function receives the answer's text and the task, and returns True, False or a score from 0 to 1. ``gold`` is an
answer that passes; exact and number tasks have one by default.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from openclaw_rl.envs.curricula import split_of
from openclaw_rl.envs.toolcall.tools_config import REMEDY, OwnTool, load_function
from openclaw_rl.errors import ConfigError, EnvFailed

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?")
Check = Callable[[str], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTask:
    """A task from a file. ``check`` scores an answer from 0 to 1; ``gold`` is an answer that passes, if known."""

    id: str
    level: str
    instruction: str
    check: Check
    gold: str | None


@lru_cache(maxsize=8)
def read_tasks(path: Path) -> Mapping[str, FileTask]:
    """Return a file's tasks by id; raise ConfigError with the file and line of an invalid one."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"the tasks {path} cannot be read: {error}", remedy=REMEDY) from error
    tasks = [_task(line, path, number) for number, line in enumerate(lines, start=1) if line.strip()]
    by_id = {task.id: task for task in tasks}
    if len(by_id) < len(tasks):
        raise ConfigError(f"{path}: two tasks have the same id", remedy="give each its own, or none")
    if not by_id:
        raise ConfigError(f"{path} has no task", remedy=REMEDY)
    return by_id


def _task(line: str, path: Path, number: int) -> FileTask:
    where = f"{path}:{number}"
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where} is no JSON: {error}", remedy=REMEDY) from error
    if not isinstance(row, dict) or not isinstance(row.get("prompt"), str) or not isinstance(row.get("check"), str):
        raise ConfigError(f'{where} lacks "prompt" or "check"', remedy=REMEDY)
    if row["check"] in ("exact", "number", "regex") and "answer" not in row:
        raise ConfigError(f'{where} lacks "answer"', remedy=REMEDY)
    default_gold = str(row["answer"]) if row["check"] in ("exact", "number") else None
    return FileTask(
        id=str(row.get("id", f"{path.stem}/{number}")),
        level=str(row.get("level", row.get("rung", path.stem))),
        instruction=row["prompt"],
        check=_check(row, path.parent, where),
        gold=str(row["gold"]) if "gold" in row else default_gold,
    )


def _check(row: Mapping[str, Any], folder: Path, where: str) -> Check:
    kind, answer = row["check"], row.get("answer")
    if kind == "exact":
        return lambda text: float(_plain(text) == _plain(str(answer)))
    if kind == "number":
        return _number_check(answer, row.get("tolerance", 1e-6), where)
    if kind == "regex":
        try:
            pattern = re.compile(str(answer))
        except re.error as error:
            raise ConfigError(f"{where}: {answer!r} is no regular expression: {error}") from error
        return lambda text: float(pattern.fullmatch(text.strip()) is not None)
    file, _, name = kind.partition(":")
    if not file.endswith(".py") or not name:
        raise ConfigError(f"{where}: no check {kind!r}", remedy="known: exact, number, regex, or file.py:function")
    return _function_check(load_function(folder / file, name, where), row, where)


def _number_check(answer: Any, tolerance: Any, where: str) -> Check:
    if not isinstance(answer, int | float) or not isinstance(tolerance, int | float):
        raise ConfigError(f"{where}: answer and tolerance of a number are numbers", remedy=REMEDY)

    def check(text: str) -> float:
        numbers = _NUMBER.findall(text)  # the last number is the answer; earlier ones led to it
        return float(
            bool(numbers) and math.isclose(float(numbers[-1].replace(",", "")), answer, rel_tol=0, abs_tol=tolerance)
        )

    return check


def _function_check(function: Callable[..., Any], row: Mapping[str, Any], where: str) -> Check:
    def check(text: str) -> float:
        try:
            score = float(function(text, dict(row)))
        except Exception as error:  # the user's code may raise anything; its task then fails, not the program
            raise EnvFailed(f"{where}: the check fails with {type(error).__name__}: {error}") from error
        if not 0 <= score <= 1:
            raise EnvFailed(f"{where}: the check returned {score}, which is not from 0 to 1")
        return score

    return check


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).strip(" .")


def ids(tasks: Mapping[str, FileTask], split: str, levels: Sequence[str]) -> tuple[str, ...]:
    """Return the task ids in a split, of these levels, or of all if ``levels`` is empty."""
    return tuple(
        task.id
        for task in tasks.values()
        if split_of(task.instruction) == split and (not levels or task.level in levels)
    )


@dataclass(slots=True, kw_only=True)
class FileWorld:
    """An episode of a file's task: the user's tools, and the answer at the end."""

    tools: Mapping[str, OwnTool]
    task: FileTask

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        try:
            return await self.tools[name].carry_out(arguments)
        except (ConnectionError, TimeoutError) as error:
            raise EnvFailed(f"tool {name} failed: {error or type(error).__name__}") from error
        except EnvFailed:
            raise
        except Exception as error:  # a function reports invalid arguments by an exception
            return f"error: {type(error).__name__}: {error}"

    async def score(self, answer: str | None) -> float:
        return 0.0 if answer is None else self.task.check(answer)

    async def close(self) -> None:
        """Do nothing."""
