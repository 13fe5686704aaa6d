"""Which task is played next: every task so many times, or for ever with tasks rested that teach nothing.

A task is played as a group of episodes with equal starts. A group whose rewards are all alike teaches nothing. Tasks of
one rung (what stands before the slash of their name) are about as hard as each other, so that a rung rests too.
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
"""turns of others that a task or a rung sits out at most"""
RUNG_PATIENCE = 2
"""groups of a rung in a row that may teach nothing before it rests"""
LATELY = 8
"""newest groups of a rung that its success is told of"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One episode and how it went: ``reward`` is None when it failed, ``error`` says why.

    ``refused``: its task is not admitted, so that no other try changes anything.
    """

    task: str
    seed: int
    group: str
    reward: float | None = None
    error: str | None = None
    refused: bool = False


class Schedule(Protocol):
    """What is played in which order."""

    def next(self) -> Episode | None:
        """The next episode to begin; None when there is none any more."""
        ...

    @property
    def midway(self) -> bool:
        """Whether the next episode is of a group that has begun: only whole groups train, so that it shall not wait."""
        ...

    def ended(self, episode: Episode) -> None:
        """How an episode went."""
        ...

    def refuse(self, task: str) -> None:
        """Play a task no more. Raises NothingToPlay where no other is left."""
        ...

    def success(self) -> Mapping[str, Any]:
        """How often tasks were solved lately, by rung."""
        ...


def rung_of(task: str) -> str:
    """What a task is counted with.

    >>> rung_of("copy-file/3"), rung_of("alone")
    ('copy-file', 'alone')
    """
    return task.partition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedGroup:
    """A task played several times: what each episode that counts was paid."""

    task: str
    rewards: tuple[float, ...]

    @property
    def flat(self) -> bool:
        """Whether its episodes teach nothing, being worth the same; one alone says nothing of that."""
        return len(self.rewards) > 1 and len(set(self.rewards)) == 1


class GroupBook:
    """The groups that were played, in order. With a ``path`` they are kept there, so that a run resumes."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.groups: list[PlayedGroup] = []
        self._torn = False
        if path is not None and path.exists():
            kept = path.read_text(encoding="utf-8")
            self._torn = bool(kept) and not kept.endswith("\n")
            for line in kept.splitlines():
                with contextlib.suppress(ValueError, KeyError, TypeError):  # a line that was cut off: played anew
                    found = json.loads(line)
                    self.groups.append(PlayedGroup(task=found["task"], rewards=tuple(found["rewards"])))

    def add(self, group: PlayedGroup) -> None:
        self.groups.append(group)
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                line = json.dumps({"task": group.task, "rewards": group.rewards})
                file.write("\n" * self._torn + line + "\n")
            self._torn = False

    def success(self) -> dict[str, dict[str, Any]]:
        """By rung, of its newest groups: episodes that were solved, and how many there were."""
        by_rung: dict[str, list[PlayedGroup]] = defaultdict(list)
        for group in self.groups:
            by_rung[rung_of(group.task)].append(group)
        return {rung: _counted(groups[-LATELY:], len(groups)) for rung, groups in by_rung.items()}


def _counted(groups: Sequence[PlayedGroup], played: int) -> dict[str, Any]:
    rewards = [reward for group in groups for reward in group.rewards]
    return {"solved": sum(reward == SOLVED for reward in rewards), "of": len(rewards), "groups": played}


class _Groups:
    """The groups under way, gathered until all episodes of each have ended."""

    def __init__(self, book: GroupBook, size: int) -> None:
        self._book, self._size = book, size
        self._waiting: list[Episode] = []
        self._ended: dict[str, list[Episode]] = defaultdict(list)

    @property
    def midway(self) -> bool:
        """Whether episodes of a group that has begun wait for their turn."""
        return bool(self._waiting)

    def begin(self, task: str, seed: int) -> None:
        self._waiting = [Episode(task=task, seed=seed, group=f"group-{new_id()}")] * self._size

    def next(self) -> Episode:
        return self._waiting.pop()

    def refuse(self, task: str) -> None:
        """Forget the groups of a task that are under way."""
        self._waiting = [episode for episode in self._waiting if episode.task != task]
        gone = [group for group, ended in self._ended.items() if ended[0].task == task]
        for group in gone:
            del self._ended[group]

    def ended(self, episode: Episode) -> PlayedGroup | None:
        """The group that this episode was the last of; None while others run, or where none counts."""
        found = self._ended[episode.group]
        found.append(episode)
        if len(found) < self._size:
            return None
        rewards = tuple(one.reward for one in self._ended.pop(episode.group) if one.reward is not None)
        if not rewards:
            return None
        whole = PlayedGroup(task=episode.task, rewards=rewards)
        self._book.add(whole)
        return whole


class Rounds:
    """Every task ``rounds`` times, round by round."""

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
    """When a task or a rung is due: the least is next. ``flat`` groups in a row taught nothing."""

    due: int = 0
    flat: int = 0

    def rest(self, flat: bool, patience: int) -> None:
        self.flat = self.flat + 1 if flat else 0
        self.due += min(2 ** (self.flat - patience), LONGEST_REST) if self.flat >= patience else 0


@dataclass(slots=True)
class _Rung:
    turn: _Turn = field(default_factory=_Turn)
    tasks: dict[str, _Turn] = field(default_factory=dict)


class Curriculum:
    """All tasks for ever, rung by rung; those that are always or never solved sit out ever more turns of the others.

    What ``book`` holds of these tasks is taken up, so that a run goes on where it stopped.
    """

    def __init__(self, tasks: Sequence[str], *, group_size: int, seed: int, book: GroupBook, resting: bool) -> None:
        """``resting`` False: every task has its turn, whatever it teaches."""
        _refuse_none(tasks)
        self._book, self._seed, self._resting = book, seed, resting
        self._groups = _Groups(book, group_size)
        self._rungs: dict[str, _Rung] = defaultdict(_Rung)
        for task in tasks:
            self._rungs[rung_of(task)].tasks[task] = _Turn()
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
        rung = min(self._rungs.values(), key=lambda rung: rung.turn.due)
        return min(rung.tasks, key=lambda task: rung.tasks[task].due)

    def _take_turn(self, task: str) -> None:
        rung = self._rungs[rung_of(task)]
        rung.turn.due += 1
        rung.tasks[task].due += 1
        self._played[task] += 1

    def ended(self, episode: Episode) -> None:
        group = self._groups.ended(episode)
        if group is not None:
            self._rest(group)

    def refuse(self, task: str) -> None:
        self._groups.refuse(task)
        if self._played.pop(task, None) is not None:
            rung = rung_of(task)
            del self._rungs[rung].tasks[task]
            if not self._rungs[rung].tasks:
                del self._rungs[rung]
        _refuse_none(self._played)

    def _rest(self, group: PlayedGroup) -> None:
        if self._resting:
            rung = self._rungs[rung_of(group.task)]
            rung.turn.rest(group.flat, RUNG_PATIENCE)
            rung.tasks[group.task].rest(group.flat, 1)

    def success(self) -> Mapping[str, Any]:
        return self._book.success()


def _refuse_none(tasks: Collection[str]) -> None:
    if not tasks:
        remedy = "'openclaw-rl envs audit' shows why each is refused; else check its settings, or give tasks by name"
        raise NothingToPlay("this environment has no tasks that may train", remedy=remedy)


def success_line(success: Mapping[str, Mapping[str, Any]], *, most: int = 6) -> str:
    """Success in all and of the rungs that were played most, in a line.

    >>> success_line({"a": {"solved": 3, "of": 8, "groups": 1}, "b": {"solved": 1, "of": 8, "groups": 2}})
    '25% solved (b 12%, a 38%)'
    """
    solved, of = (sum(one[key] for one in success.values()) for key in ("solved", "of"))
    if not of:
        return "nothing played yet"
    ranked = islice(sorted(success.items(), key=lambda item: -item[1]["groups"]), most)
    rungs = ", ".join(f"{rung} {one['solved'] / max(one['of'], 1):.0%}" for rung, one in ranked)
    return f"{solved / of:.0%} solved ({rungs})"
