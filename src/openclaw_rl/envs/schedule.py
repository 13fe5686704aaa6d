"""Chooses the next task: all tasks a fixed number of times, or endlessly with pauses for those without a signal.

A task is played as a group of episodes with equal starts. A group of equal rewards has no training signal. Tasks of one
level (the part of their name before the slash) have similar difficulty, so a level pauses too.
"""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from openclaw_rl.errors import NothingToPlay
from openclaw_rl.types import new_id

SOLVED = 1.0
LONGEST_REST = 8
"""most turns that a task or a level skips"""
LEVEL_PATIENCE = 2
"""consecutive groups without a signal before a level pauses"""
LATELY = 8
"""newest groups of a level that its success rate covers"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """An episode and its result: ``reward`` is None after a failure, with the reason in ``error``.

    ``refused``: its task is not admitted, so a retry cannot help.
    """

    task: str
    seed: int
    group: str
    reward: float | None = None
    error: str | None = None
    refused: bool = False


class Schedule(Protocol):
    """An order of episodes."""

    def next(self) -> Episode | None:
        """Return the next episode to start, or None at the end."""
        ...

    @property
    def midway(self) -> bool:
        """True if the next episode continues a group; it must not wait, since only complete groups train."""
        ...

    def ended(self, episode: Episode) -> None:
        """Record the result of an episode."""
        ...

    def refuse(self, task: str) -> None:
        """Remove a task; raise NothingToPlay if it was the last."""
        ...

    def success(self) -> Mapping[str, Any]:
        """Return the recent success counts by level."""
        ...


def level_of(task: str) -> str:
    """Return the level of a task.

    >>> level_of("copy-file/3"), level_of("alone")
    ('copy-file', 'alone')
    """
    return task.partition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedGroup:
    """A task's group of episodes: the rewards of those that count."""

    task: str
    rewards: tuple[float, ...]

    @property
    def flat(self) -> bool:
        """True if the episodes carry no signal because their rewards are equal; a single episode is undecided."""
        return len(self.rewards) > 1 and len(set(self.rewards)) == 1


class GroupBook:
    """The played groups in order, stored at ``path`` if it is set, so that a run resumes."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.groups: list[PlayedGroup] = []
        self._torn = False
        if path is not None and path.exists():
            text = path.read_text(encoding="utf-8")
            self._torn = bool(text) and not text.endswith("\n")
            for line in text.splitlines():
                with contextlib.suppress(ValueError, KeyError, TypeError):  # truncated: played again
                    record = json.loads(line)
                    self.groups.append(PlayedGroup(task=record["task"], rewards=tuple(record["rewards"])))

    def add(self, group: PlayedGroup) -> None:
        self.groups.append(group)
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                line = json.dumps({"task": group.task, "rewards": group.rewards})
                file.write("\n" * self._torn + line + "\n")
            self._torn = False

    def success(self) -> dict[str, dict[str, Any]]:
        """Return by level, for its newest groups: the solved episodes and all episodes."""
        by_level: dict[str, list[PlayedGroup]] = defaultdict(list)
        for group in self.groups:
            by_level[level_of(group.task)].append(group)
        return {level: _counted(groups[-LATELY:], len(groups)) for level, groups in by_level.items()}


def _counted(groups: Sequence[PlayedGroup], played: int) -> dict[str, Any]:
    rewards = [reward for group in groups for reward in group.rewards]
    return {"solved": sum(reward == SOLVED for reward in rewards), "of": len(rewards), "groups": played}


class _Groups:
    """The running groups, collected until all their episodes have ended."""

    def __init__(self, book: GroupBook, size: int) -> None:
        self._book, self._size = book, size
        self._waiting: list[Episode] = []
        self._ended: dict[str, list[Episode]] = defaultdict(list)

    @property
    def midway(self) -> bool:
        """True if episodes of a started group wait for their turn."""
        return bool(self._waiting)

    def begin(self, task: str, seed: int) -> None:
        self._waiting = [Episode(task=task, seed=seed, group=f"group-{new_id()}")] * self._size

    def next(self) -> Episode:
        return self._waiting.pop()

    def refuse(self, task: str) -> None:
        """Discard a task's running groups."""
        self._waiting = [episode for episode in self._waiting if episode.task != task]
        gone = [group for group, ended in self._ended.items() if ended[0].task == task]
        for group in gone:
            del self._ended[group]

    def ended(self, episode: Episode) -> PlayedGroup | None:
        """Add an episode; return its group if this completes it, or None if others run or no reward counts."""
        episodes = self._ended[episode.group]
        episodes.append(episode)
        if len(episodes) < self._size:
            return None
        rewards = tuple(member.reward for member in self._ended.pop(episode.group) if member.reward is not None)
        if not rewards:
            return None
        group = PlayedGroup(task=episode.task, rewards=rewards)
        self._book.add(group)
        return group


class Rounds:
    """Plays every task ``rounds`` times, round by round."""

    def __init__(
        self, tasks: Sequence[str], *, group_size: int, rounds: int, seed: int, book: GroupBook | None = None
    ) -> None:
        _refuse_none(tasks)
        self._book = book or GroupBook()
        self._groups = _Groups(self._book, group_size)
        self._left = dict.fromkeys(tasks)
        self._plan = ((task, seed + turn) for turn in range(rounds) for task in tasks)

    def next(self) -> Episode | None:
        if not self.midway:
            due = next(((task, seed) for task, seed in self._plan if task in self._left), None)
            if due is None:
                return None
            self._groups.begin(*due)
        return self._groups.next()

    def refuse(self, task: str) -> None:
        self._groups.refuse(task)
        self._left.pop(task, None)
        _refuse_none(self._left)

    @property
    def midway(self) -> bool:
        return self._groups.midway

    def ended(self, episode: Episode) -> None:
        self._groups.ended(episode)

    def success(self) -> Mapping[str, Any]:
        return self._book.success()


@dataclass(slots=True)
class _Turn:
    """The turn of a task or a level: the smallest ``due`` is next. ``flat`` counts consecutive signal-free groups."""

    due: int = 0
    flat: int = 0

    def rest(self, flat: bool, patience: int) -> None:
        self.flat = self.flat + 1 if flat else 0
        self.due += min(2 ** (self.flat - patience), LONGEST_REST) if self.flat >= patience else 0


@dataclass(slots=True)
class _Level:
    turn: _Turn = field(default_factory=_Turn)
    tasks: dict[str, _Turn] = field(default_factory=dict)


class Curriculum:
    """Plays all tasks endlessly, level by level; those always or never solved skip more and more turns.

    The groups in ``book`` count as played, so that a run continues at its last position.
    """

    def __init__(self, tasks: Sequence[str], *, group_size: int, seed: int, book: GroupBook, resting: bool) -> None:
        """``resting`` False disables the pauses."""
        _refuse_none(tasks)
        self._book, self._seed, self._resting = book, seed, resting
        self._groups = _Groups(book, group_size)
        self._levels: dict[str, _Level] = defaultdict(_Level)
        for task in tasks:
            self._levels[level_of(task)].tasks[task] = _Turn()
        self._played: dict[str, int] = dict.fromkeys(tasks, 0)
        for group in book.groups:
            if group.task in self._played:
                self._take_turn(group.task)
                self._rest(group)

    def next(self) -> Episode | None:
        if not self.midway:
            task = self._due()
            self._groups.begin(task, self._seed + self._played[task])
            self._take_turn(task)
        return self._groups.next()

    @property
    def midway(self) -> bool:
        return self._groups.midway

    def _due(self) -> str:
        level = min(self._levels.values(), key=lambda level: level.turn.due)
        return min(level.tasks, key=lambda task: level.tasks[task].due)

    def _take_turn(self, task: str) -> None:
        level = self._levels[level_of(task)]
        level.turn.due += 1
        level.tasks[task].due += 1
        self._played[task] += 1

    def ended(self, episode: Episode) -> None:
        group = self._groups.ended(episode)
        if group is not None:
            self._rest(group)

    def refuse(self, task: str) -> None:
        self._groups.refuse(task)
        if self._played.pop(task, None) is not None:
            level = level_of(task)
            del self._levels[level].tasks[task]
            if not self._levels[level].tasks:
                del self._levels[level]
        _refuse_none(self._played)

    def _rest(self, group: PlayedGroup) -> None:
        if self._resting:
            level = self._levels[level_of(group.task)]
            level.turn.rest(group.flat, LEVEL_PATIENCE)
            level.tasks[group.task].rest(group.flat, 1)

    def success(self) -> Mapping[str, Any]:
        return self._book.success()


def _refuse_none(tasks: Collection[str]) -> None:
    if not tasks:
        remedy = "'openclaw-rl envs audit' shows why each is refused; else check its settings, or give tasks by name"
        raise NothingToPlay("this environment has no tasks that may train", remedy=remedy)


def success_line(success: Mapping[str, Mapping[str, Any]], *, most: int = 6) -> str:
    """Return the success rate overall and for the most played levels, in one line.

    >>> success_line({"a": {"solved": 3, "of": 8, "groups": 1}, "b": {"solved": 1, "of": 8, "groups": 2}})
    '25% solved (b 12%, a 38%)'
    """
    solved, of = (sum(counts[key] for counts in success.values()) for key in ("solved", "of"))
    if not of:
        return "nothing played yet"
    ranked = islice(sorted(success.items(), key=lambda item: -item[1]["groups"]), most)
    levels = ", ".join(f"{level} {counts['solved'] / max(counts['of'], 1):.0%}" for level, counts in ranked)
    return f"{solved / of:.0%} solved ({levels})"
