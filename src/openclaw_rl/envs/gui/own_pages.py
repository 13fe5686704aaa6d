"""Tasks on a user's own pages: JSONL with one task per line, each with a check for the page's final state.

    {"address": "shop.html", "instruction": "Put two apples into the cart.", "check": "cart.apples === 2"}
    {"address": "http://localhost:3000/", "instruction": "Log in as Ana.", "check": "checks.py:logged_in",
     "gold": ["type \\"Name\\" \\"Ana\\"", "click \\"Log in\\""]}

An address is a file beside this one, or a server's. ``check`` is JavaScript, run on the page with ``answer`` (the text
that the agent passed to `done`, or null), or a Python function, called with the page and the task. Either returns true,
false or a score from 0 to 1. ``gold`` is a list of actions that solve it, for the audit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from openclaw_rl.envs.curricula import Split, split_of
from openclaw_rl.envs.gui.chromium import origin_of
from openclaw_rl.envs.gui.commands import written_actions
from openclaw_rl.envs.gui.page import GuiPage
from openclaw_rl.envs.gui.screen import Screen
from openclaw_rl.envs.gui.tasks import Move, TaskState
from openclaw_rl.envs.toolcall.tools_config import load_function
from openclaw_rl.errors import ConfigError, EnvFailed

REMEDY: Final = "see docs/environments.md and examples/gui"
STEPS: Final = 20
_SEEN: Final = """({address: location.href, title: document.title, text: document.body ? document.body.innerText : "",
  html: document.documentElement.outerHTML})"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTask:
    """One task from a file."""

    id: str
    level: str
    address: str
    instruction: str
    check: str | Callable[..., Any]
    gold: tuple[Move, ...]
    steps: int
    row: Mapping[str, Any]


class OwnPages:
    """The `PageSource` for a user's own pages."""

    size: tuple[int, int] = (1024, 768)
    forgetful = False

    def __init__(self, path: Path, *, levels: Sequence[str]) -> None:
        self._path, self._levels = path, tuple(levels)
        self._tasks = read_tasks(path)
        self.folders: tuple[Path, ...] = (path.resolve().parent,)
        addresses = [task.address for task in self._tasks.values()]
        extra = [url for task in self._tasks.values() for url in task.row.get("origins", ())]
        self.origins = frozenset(origin_of(url) for url in (*addresses, *extra) if url.startswith("http"))

    def ids(self, split: Split) -> Sequence[str]:
        tasks = [task for task in self._tasks.values() if not self._levels or task.level in self._levels]
        return [task.id for task in tasks if split_of(task.instruction) == split]

    def _task(self, task: str) -> OwnTask:
        if task not in self._tasks:
            raise ConfigError(f"no task {task!r} in {self._path}", remedy="'openclaw-rl envs list' shows them")
        return self._tasks[task]

    def level(self, task: str) -> str:
        return self._task(task).level

    def instruction(self, task: str) -> str:
        return self._task(task).instruction

    def examples(self, task: str, count: int) -> Sequence[str]:
        """Return none: they would reveal solutions to other tasks."""
        return ()

    def excluded(self) -> Mapping[str, str]:
        return {}

    def gold(self, task: str) -> Sequence[Move]:
        return self._task(task).gold

    async def begin(self, page: GuiPage, task: str) -> OwnBegun:
        own_task = self._task(task)
        await page.open(own_task.address)
        return OwnBegun(task=own_task)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnBegun:
    """The `BegunTask` for a user's own page."""

    task: OwnTask
    ignored: str = ""

    @property
    def instruction(self) -> str:
        return self.task.instruction

    @property
    def steps(self) -> int:
        return self.task.steps

    async def state(self, page: GuiPage, answer: str | None) -> TaskState:
        """Return the state; the task is over as soon as the check is fully met."""
        score = await self._score(page, answer)
        return TaskState(over=score == 1, worth=2 * score - 1)

    async def _score(self, page: GuiPage, answer: str | None) -> float:
        check = self.task.check
        if isinstance(check, str):
            result = await page.run(f"((answer) => ({check}))({json.dumps(answer)})")
        else:
            page_state = {**await page.run(_SEEN), "answer": answer}
            try:
                result = check(page_state, dict(self.task.row))
            except Exception as error:  # the check is user code; its failure must not count against the policy
                raise EnvFailed(f"the check of {self.task.id} fails with {type(error).__name__}: {error}") from error
        if not isinstance(result, bool | int | float) or not 0 <= result <= 1:
            raise EnvFailed(
                f"the check of {self.task.id} gives {result!r}, which is neither true, false nor from 0 to 1"
            )
        return float(result)

    def solve(self, screen: Screen, made: int) -> Move | None:
        return self.task.gold[made] if made < len(self.task.gold) else None


def read_tasks(path: Path) -> Mapping[str, OwnTask]:
    """Return a file's tasks by id; raise ConfigError with the file and line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"the tasks {path} cannot be read: {error}", remedy=REMEDY) from error
    rows = [_task(line, path, number) for number, line in enumerate(lines, start=1) if line.strip()]
    tasks = {task.id: task for task in rows}
    if not tasks or len(tasks) < len(rows):
        fault = "two tasks have the same id" if tasks else "it contains no task"
        raise ConfigError(f"{path}: {fault}", remedy=REMEDY)
    return tasks


def _task(line: str, path: Path, number: int) -> OwnTask:
    where = f"{path}:{number}"
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where} is no JSON: {error}", remedy=REMEDY) from error
    lacking = [key for key in ("address", "instruction", "check") if not isinstance(row, dict) or not row.get(key)]
    if lacking:
        raise ConfigError(f"{where} lacks {', '.join(lacking)}", remedy=REMEDY)
    return OwnTask(
        id=str(row.get("id", f"{path.stem}/{number}")),
        level=str(row.get("level", row.get("rung", path.stem))),
        address=_address(str(row["address"]), path, where),
        instruction=str(row["instruction"]),
        check=_check(str(row["check"]), path, where),
        gold=tuple(_move(str(action), where) for action in row.get("gold", ())),
        steps=int(row.get("steps", STEPS)),
        row=row,
    )


def _address(given: str, path: Path, where: str) -> str:
    if given.startswith(("http://", "https://")):
        return given
    file = path.resolve().parent / given
    if not file.is_file():
        raise ConfigError(
            f"{where}: there is no page {file}", remedy="give a file beside the tasks, or an http address"
        )
    return file.as_uri()


def _check(given: str, path: Path, where: str) -> str | Callable[..., Any]:
    file, _, name = given.partition(":")
    if file.endswith(".py") and name.isidentifier():
        return load_function(path.parent / file, name, where)
    return given


def _move(line: str, where: str) -> Move:
    actions = written_actions(line)
    if len(actions) != 1 or actions[0].fault:
        raise ConfigError(f"{where}: {line!r} is no action", remedy=REMEDY)
    return Move(tool=actions[0].tool, arguments=actions[0].arguments)
