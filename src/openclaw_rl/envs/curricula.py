"""Curricula: any number of seeded, generated tasks, in levels from easy to hard, split into train and held-out.

A task is named ``LEVEL/NUMBER`` and is the same on every machine. Its split is a hash of its instruction: no held-out
instruction occurs in training, however many tasks are generated.
"""

from __future__ import annotations

import hashlib
import importlib.util
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Generic, Literal, Protocol, TypeVar

from openclaw_rl.envs.actions import ActionForm
from openclaw_rl.errors import ConfigError

Split = Literal["train", "held-out"]

HELD_OUT_OF_TEN = 3
"""tenths of all instructions that are held out"""
SEARCHED = 40
"""task numbers tried per requested task before a level counts as exhausted"""

_WORDS = """
acorn anchor apple arrow badge banjo barley basket beacon birch blanket boat bottle branch bread bridge brook bucket
button cabin candle canyon carpet castle cedar chalk cherry circle cliff clock clover coin comet copper coral corner
cotton cradle crane creek crown daisy desert dragon drum eagle ember engine falcon feather fern field flute forest
fossil fountain fox galaxy garden ginger glacier goose granite grape hammer harbor hazel helmet hill honey horse
island ivory jacket jasmine jungle kettle kite curriculum lake lantern laurel lemon lily linen lion magnet maple marble
meadow melon mint mirror moon moss mountain needle nest oak oasis ocean olive onion orange orchid otter owl paddle
palace panda paper peach pearl pebble pepper piano pigeon pine planet plum pocket pond poppy prairie pumpkin quartz
rabbit raven ribbon river robin rocket rose saddle salmon sand school shadow shell silver spoon spruce squirrel star
stone sugar summer sunset swan table tiger timber tower trumpet tulip tunnel turtle valley velvet violet walnut
water wheel willow window winter wolf zebra
"""
WORDS = tuple(_WORDS.split())
"""plain names for files, folders and contents"""


class CurriculumTask(Protocol):
    """The attributes that a curriculum reads from a task."""

    @property
    def instruction(self) -> str: ...


T = TypeVar("T", bound=CurriculumTask)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskCurriculum(Generic[T]):
    """The levels of an environment, from easy to hard: functions that generate a task from random numbers."""

    name: str
    levels: Mapping[str, Callable[[random.Random], T]]

    def task(self, task: str) -> T:
        """Return the task with this id; raise ConfigError if it does not exist."""
        level, _, number = task.partition("/")
        if level not in self.levels or not number.isdecimal():
            raise ConfigError(f"no task {task!r} in {self.name}", remedy=f"name one as {next(iter(self.levels))}/0")
        return self.levels[level](random.Random(f"{self.name}/{level}/{number}"))

    def ids(self, split: Split, *, levels: Sequence[str], per_level: int) -> tuple[str, ...]:
        """Return ``per_level`` ids per level (all levels if ``levels`` is empty), levels in turn, no instruction
        repeated.
        """
        for level in levels:
            if level not in self.levels:
                raise ConfigError(f"no level {level!r} in {self.name}", remedy=f"known: {', '.join(self.levels)}")
        lists = [_of_level(self, level, split, per_level) for level in (levels or self.levels)]
        return tuple(task for task in chain.from_iterable(zip_longest(*lists)) if task is not None)

    def examples(self, task: str, count: int) -> tuple[T, ...]:
        """Return other training tasks of the same level, which a prompt may show solved."""
        instruction, level = self.task(task).instruction, task.partition("/")[0]
        candidates = (self.task(candidate) for candidate in _of_level(self, level, "train", count + 1))
        return tuple(islice((candidate for candidate in candidates if candidate.instruction != instruction), count))


@lru_cache(maxsize=1024)
def _of_level(curriculum: TaskCurriculum[T], level: str, split: Split, count: int) -> tuple[str, ...]:
    return tuple(islice(_distinct(curriculum, level, split, SEARCHED * max(count, 10)), count))


def _distinct(curriculum: TaskCurriculum[T], level: str, split: Split, most: int) -> Iterator[str]:
    instructions: set[str] = set()
    for number in range(most):
        instruction = curriculum.task(f"{level}/{number}").instruction
        if instruction not in instructions and split_of(instruction) == split:
            instructions.add(instruction)
            yield f"{level}/{number}"


def split_of(instruction: str) -> Split:
    """Return the split of a task by its instruction, ignoring case and spacing."""
    words = " ".join(instruction.casefold().split())
    place = int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "big") % 10
    return "held-out" if place < HELD_OUT_OF_TEN else "train"


# Third-party task sets in packages: only the package's folder is located, its code is not imported.


def package_folder(package: str, distribution: str, folder: Path | None) -> Path:
    """Return a package's folder: below ``folder`` if it is set, else the one Python finds.

    Raises ConfigError with an install command that leaves out the package's dependencies.
    """
    if folder is not None:
        place = folder.expanduser() / package
        if not place.is_dir():
            raise ConfigError(
                f"env.folder: there is no {place}",
                remedy=f"pip install --no-deps --target {folder} {distribution}",
            )
        return place
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            f"these tasks are in the package {distribution}, which is not installed",
            remedy=f"pip install --no-deps --target FOLDER {distribution}, and --set env.folder=FOLDER",
        )
    return Path(next(iter(spec.submodule_search_locations)))


# Shared parts of environments with a task source.

TEXT_EXAMPLES = 2
"""solved tasks in a text-form prompt, which models without tool calls need"""


class TaskSet(Protocol):
    """A set of tasks, split into training and held-out ones."""

    def ids(self, split: Split) -> Sequence[str]: ...

    def level(self, task: str) -> str: ...

    def instruction(self, task: str) -> str: ...


S = TypeVar("S", bound=TaskSet)


class SourcedEnv(Generic[S]):
    """The task-listing part of an `Env`; prompts show ``_examples`` solved tasks."""

    def __init__(self, *, name: str, source: S, form: ActionForm, examples: int | None) -> None:
        """``examples`` None: two in the text form, else none."""
        self.name = name
        self._source = source
        self._form = form
        self._examples = TEXT_EXAMPLES * (form == "text") if examples is None else examples

    def tasks(self) -> Sequence[str]:
        return self._source.ids("train")

    def held_out(self) -> Sequence[str]:
        return self._source.ids("held-out")

    def level(self, task: str) -> str:
        return self._source.level(task)

    def instruction(self, task: str) -> str:
        return self._source.instruction(task)
