"""The generators of the package `reasoning-gym`, with the interpreter as a tool: tasks with their own scorers.

A level is a generator. Each has a fixed number of tasks from a fixed seed; three tenths are held out by hash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from openclaw_rl.envs.actions import ActionForm
from openclaw_rl.envs.curricula import Split, split_of
from openclaw_rl.envs.toolcall.env import ToolCallEnv
from openclaw_rl.envs.toolcall.sources import ToolEpisode
from openclaw_rl.envs.toolcall.tasks_file import FileTask, FileWorld
from openclaw_rl.envs.toolcall.tools_config import INTERPRETER_TOOL, WantedCall
from openclaw_rl.errors import ConfigError

STEPS = 4
SEED = 7
DEFAULT = ("basic_arithmetic", "chain_sum", "gcd", "lcm", "prime_factorization", "count_bits", "letter_counting")
"""generators used if env.levels is empty"""


def reasoning_gym(
    *,
    form: ActionForm,
    examples: int | None,
    levels: Sequence[str],
    per_level: int,
    output_chars: int,
    step_votes: bool,
) -> ToolCallEnv:
    """Create the environment with ``per_level`` tasks per generator."""
    source = GymSource(levels=tuple(levels) or DEFAULT, per_level=per_level)
    return ToolCallEnv(
        name="reasoning-gym",
        source=source,
        form=form,
        examples=examples,
        output_chars=output_chars,
        step_votes=step_votes,
    )


def _package() -> Any:
    try:
        import reasoning_gym as package
    except ImportError as error:
        raise ConfigError(
            f"the package reasoning-gym cannot be loaded: {error}",
            remedy="pip install reasoning-gym, best in an environment of its own for 'openclaw-rl envs serve'",
        ) from error
    return package


class GymSource:
    """See `TaskSource`."""

    def __init__(self, *, levels: Sequence[str], per_level: int) -> None:
        datasets = _package().factory.DATASETS
        for level in levels:
            if level not in datasets:
                raise ConfigError(f"reasoning-gym has no generator {level!r}", remedy="its README lists them")
        self._levels, self._per_level = levels, per_level

    def ids(self, split: Split) -> Sequence[str]:
        count = self._per_level if split == "train" else max(1, self._per_level // 2)
        return tuple(task for level in self._levels for task in self._of(level, split)[:count])

    def _of(self, level: str, split: Split) -> list[str]:
        tasks: dict[str, str] = {}
        for number in range(4 * self._per_level):
            question = _task(level, number).instruction
            if split_of(question) == split:
                tasks.setdefault(question, f"{level}/{number}")
        return list(tasks.values())

    def level(self, task: str) -> str:
        return task.partition("/")[0]

    def _found(self, task: str) -> FileTask:
        level, _, number = task.partition("/")
        if level not in self._levels or not number.isdecimal():
            raise ConfigError(f"no task {task!r} in reasoning-gym", remedy=f"name one as {self._levels[0]}/0")
        return _task(level, int(number))

    def instruction(self, task: str) -> str:
        return self._found(task).instruction

    def gold(self, task: str) -> Sequence[WantedCall | str]:
        gold = self._found(task).gold
        return () if gold is None else (gold,)

    def begin(self, task: str, *, examples: int) -> ToolEpisode:
        definition = self._found(task)
        tool = INTERPRETER_TOOL
        return ToolEpisode(
            instruction=definition.instruction,
            tools=(tool.tool,),
            world=FileWorld(tools={tool.tool.name: tool}, task=definition),
            steps=STEPS,
            answered=True,
            examples=(),
        )


@lru_cache(maxsize=128)
def _generator(level: str) -> Any:
    return _package().create_dataset(level, seed=SEED, size=1 << 16)


@lru_cache(maxsize=65536)
def _task(level: str, number: int) -> FileTask:
    generator = _generator(level)
    entry = generator[number]
    return FileTask(
        id=f"{level}/{number}",
        level=level,
        instruction=entry["question"],
        check=_check(generator, entry),
        gold=str(entry["answer"]) if entry["answer"] is not None else None,
    )


def _check(generator: Any, entry: Any) -> Callable[[str], float]:
    """Return the package's own scorer, without its partial credit for effort."""

    def check(answer: str) -> float:
        try:
            score = float(generator.score_answer(answer=answer, entry=entry))
        except Exception:  # some scorers parse the answer: an answer that cannot be parsed is wrong
            return 0.0
        return 1.0 if score >= 1.0 else 0.0

    return check
