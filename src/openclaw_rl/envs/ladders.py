"""Ladders: generated tasks in rungs from easy to hard, seeded, as many as wanted, split into train and held-out.

A task is named ``RUNG/NUMBER`` and is the same on every machine. Its split is a hash of its instruction: what is held
out is asked in no task that trains, however many are generated.
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
"""numbers looked through for each task that is wanted, before a rung is taken to have no more"""

_WORDS = """
acorn anchor apple arrow badge banjo barley basket beacon birch blanket boat bottle branch bread bridge brook bucket
button cabin candle canyon carpet castle cedar chalk cherry circle cliff clock clover coin comet copper coral corner
cotton cradle crane creek crown daisy desert dragon drum eagle ember engine falcon feather fern field flute forest
fossil fountain fox galaxy garden ginger glacier goose granite grape hammer harbor hazel helmet hill honey horse
island ivory jacket jasmine jungle kettle kite ladder lake lantern laurel lemon lily linen lion magnet maple marble
meadow melon mint mirror moon moss mountain needle nest oak oasis ocean olive onion orange orchid otter owl paddle
palace panda paper peach pearl pebble pepper piano pigeon pine planet plum pocket pond poppy prairie pumpkin quartz
rabbit raven ribbon river robin rocket rose saddle salmon sand school shadow shell silver spoon spruce squirrel star
stone sugar summer sunset swan table tiger timber tower trumpet tulip tunnel turtle valley velvet violet walnut
water wheel willow window winter wolf zebra
"""
WORDS = tuple(_WORDS.split())
"""plain names for files, folders and contents"""


class LadderTask(Protocol):
    """What a ladder needs to know of a task."""

    @property
    def instruction(self) -> str: ...


T = TypeVar("T", bound=LadderTask)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ladder(Generic[T]):
    """The rungs of an environment, from easy to hard: each makes a task of its random numbers."""

    name: str
    rungs: Mapping[str, Callable[[random.Random], T]]

    def task(self, task: str) -> T:
        """The task of this id. Raises ConfigError where there is none."""
        rung, _, number = task.partition("/")
        if rung not in self.rungs or not number.isdecimal():
            raise ConfigError(f"no task {task!r} in {self.name}", remedy=f"name one as {next(iter(self.rungs))}/0")
        return self.rungs[rung](random.Random(f"{self.name}/{rung}/{number}"))

    def ids(self, split: Split, *, rungs: Sequence[str], per_rung: int) -> tuple[str, ...]:
        """``per_rung`` tasks of each rung (of all, where ``rungs`` is empty), rungs in turn; no instruction twice."""
        for rung in rungs:
            if rung not in self.rungs:
                raise ConfigError(f"no rung {rung!r} in {self.name}", remedy=f"known: {', '.join(self.rungs)}")
        lists = [_of_rung(self, rung, split, per_rung) for rung in (rungs or self.rungs)]
        return tuple(each for each in chain.from_iterable(zip_longest(*lists)) if each is not None)

    def examples(self, task: str, count: int) -> tuple[T, ...]:
        """Other tasks of the same rung, none of them held out: what a prompt may show solved."""
        own, rung = self.task(task).instruction, task.partition("/")[0]
        found = (self.task(each) for each in _of_rung(self, rung, "train", count + 1))
        return tuple(islice((each for each in found if each.instruction != own), count))


@lru_cache(maxsize=1024)
def _of_rung(ladder: Ladder[T], rung: str, split: Split, count: int) -> tuple[str, ...]:
    return tuple(islice(_distinct(ladder, rung, split, SEARCHED * max(count, 10)), count))


def _distinct(ladder: Ladder[T], rung: str, split: Split, most: int) -> Iterator[str]:
    seen: set[str] = set()
    for number in range(most):
        instruction = ladder.task(f"{rung}/{number}").instruction
        if instruction not in seen and split_of(instruction) == split:
            seen.add(instruction)
            yield f"{rung}/{number}"


def split_of(instruction: str) -> Split:
    """Where a task belongs, by what it asks: equal words, whatever their case and spaces, fall on one side."""
    words = " ".join(instruction.casefold().split())
    place = int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "big") % 10
    return "held-out" if place < HELD_OUT_OF_TEN else "train"


# Task sets that others publish as packages: only where they lie is asked, their code is not imported for it.


def package_folder(package: str, distribution: str, folder: Path | None) -> Path:
    """Where a package lies: below ``folder`` where one is given, else where Python finds it.

    Raises ConfigError with the line that installs it, without what it would pull in.
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


# What environments share whose tasks come from a source.

TEXT_EXAMPLES = 2
"""solved tasks in a prompt of the text form: a model that calls no tools does little without"""


class TaskSet(Protocol):
    """A set of tasks, split into those that train and those that are held out."""

    def ids(self, split: Split) -> Sequence[str]: ...

    def rung(self, task: str) -> str: ...

    def instruction(self, task: str) -> str: ...


S = TypeVar("S", bound=TaskSet)


class SourcedEnv(Generic[S]):
    """The part of an `Env` that says which tasks there are. Its ``_examples`` of them are shown solved in a prompt."""

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

    def rung(self, task: str) -> str:
        return self._source.rung(task)

    def instruction(self, task: str) -> str:
        return self._source.instruction(task)
