"""MiniWoB++: pages in the package `miniwob`, opened where it is installed; no part of it is copied here.

A task is a page and a seed, `click-button/7`. Pages are held out by family (`click-tab-2-hard` follows `click-tab`),
and training pages have held-out seeds. A page without a scripted solution has no tasks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Final

from openclaw_rl.envs.curricula import Split, split_of
from openclaw_rl.envs.gui.page import GuiPage
from openclaw_rl.envs.gui.screen import Screen
from openclaw_rl.envs.gui.solutions import EXCLUDED, SOLUTIONS, View
from openclaw_rl.envs.gui.tasks import Move, TaskState
from openclaw_rl.errors import ConfigError, EnvFailed

STEPS: Final = 20
FIRST_EXAMPLE: Final = 1_000_000
"""the first seed that is in no split: prompts show these tasks solved"""
FURNITURE: Final = "#query, #reward-display, #click-canvas, #sync-task-cover"
"""the elements around every page, which display its own rewards and are hidden from the agent"""
_VARIANT: Final = re.compile(
    r"-(?:\d|all|delete|dynamic|easy|forward|grid|hard|important|large|layouts|medium|nl|nodelay|noscroll|orderings"
    r"|popup|reply|soft|some|star|transfer|turk)(?=-|$)"
)
_BEGIN: Final = """(() => {{
  core.EPISODE_MAX_TIME = 2000000000;
  document.head.append(Object.assign(document.createElement("style"),
    {{textContent: "#reward-display, #click-canvas {{ display: none !important }}"}}));
  Math.seedrandom({seed!r});
  core.startEpisode();
  core.startEpisodeReal();
  return core.getUtterance();
}})()"""
_STATE: Final = "({over: WOB_DONE_GLOBAL, worth: WOB_RAW_REWARD_GLOBAL})"


def family(page: str) -> str:
    """Return the page's name without the words that mark a variant.

    >>> family("click-tab-2-hard"), family("click-button")
    ('click-tab', 'click-button')
    """
    return _VARIANT.sub("", page)


class MiniwobPages:
    """The `PageSource` for MiniWoB++."""

    size: tuple[int, int] = (160, 210)
    origins: frozenset[str] = frozenset()
    forgetful = True

    def __init__(self, folder: Path, *, levels: Sequence[str], per_level: int) -> None:
        """``folder`` contains the package's pages; ``per_level`` seeds per page train, half as many are held out."""
        self.folders: tuple[Path, ...] = (folder,)
        self._pages = folder / "miniwob"
        self._per_level = per_level
        self._levels = tuple(levels) or tuple(page for page in SOLUTIONS if (self._pages / f"{page}.html").exists())
        for page in self._levels:
            if page not in SOLUTIONS or not (self._pages / f"{page}.html").exists():
                names = ", ".join(SOLUTIONS)
                reason = EXCLUDED.get(page, "it is no page of MiniWoB++")
                raise ConfigError(f"no tasks on page {page!r}: {reason}", remedy=f"known: {names}")

    def ids(self, split: Split) -> Sequence[str]:
        lists = [self._seeds(page, split) for page in self._levels]
        return [task for task in chain.from_iterable(zip_longest(*lists)) if task is not None]

    def _seeds(self, page: str, split: Split) -> list[str]:
        """Return a training page's seeds in the split; a held-out page has all its seeds in the held-out split."""
        numbers = range(20 * self._per_level + 20)
        if page_split(page) == "held-out":
            return [] if split == "train" else [f"{page}/{number}" for number in numbers[: self._held_out()]]
        tasks = (f"{page}/{number}" for number in numbers if split_of(f"{page}/{number}") == split)
        return list(islice(tasks, self._per_level if split == "train" else self._held_out()))

    def _held_out(self) -> int:
        return max(1, self._per_level // 2)

    def level(self, task: str) -> str:
        return task.partition("/")[0]

    def instruction(self, task: str) -> str:
        page, number = self._parts(task)
        return f"{page} with seed {number}"

    def examples(self, task: str, count: int) -> Sequence[str]:
        return [f"{self.level(task)}/{FIRST_EXAMPLE + number}" for number in range(count)]

    def excluded(self) -> Mapping[str, str]:
        pages = (path.stem for path in sorted(self._pages.glob("*.html")))
        return {page: EXCLUDED.get(page, "no scripted solution") for page in pages if page not in SOLUTIONS}

    def gold(self, task: str) -> Sequence[Move]:
        return ()

    def _parts(self, task: str) -> tuple[str, int]:
        page, _, number = task.partition("/")
        if page not in SOLUTIONS or not number.isdecimal():
            raise ConfigError(f"no task {task!r} in MiniWoB++", remedy="name one as click-button/0")
        return page, int(number)

    async def begin(self, page: GuiPage, task: str) -> MiniwobTask:
        name, number = self._parts(task)
        await page.open((self._pages / f"{name}.html").as_uri())
        utterance = await page.run(_BEGIN.format(seed=str(number)))
        if not isinstance(utterance, str):
            raise EnvFailed(f"the page {name} does not state its task")
        return MiniwobTask(page=name, instruction=utterance)


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniwobTask:
    """The `BegunTask` for MiniWoB++."""

    page: str
    instruction: str
    ignored: str = FURNITURE
    steps: int = STEPS

    async def state(self, page: GuiPage, answer: str | None) -> TaskState:
        """Return the page's own reward, without its discount for time; -1 until it has ended."""
        status = await page.run(_STATE)
        over = bool(status["over"])
        return TaskState(over=over, worth=max(-1.0, min(1.0, float(status["worth"]))) if over else -1.0)

    def solve(self, screen: Screen, made: int) -> Move | None:
        return SOLUTIONS[self.page](View(asked=self.instruction, screen=screen, made=made))


def page_split(page: str) -> Split:
    """Return the split for a page's family; a held-out page is held out with all its seeds."""
    return split_of(family(page))
