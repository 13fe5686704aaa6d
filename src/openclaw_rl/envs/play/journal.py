"""What a play has begun, scored and paid, one line each in a file that its process holds.

An outcome is written before it is paid, and that it is paid after: a player that is killed in between pays the same
session the same outcome when it comes back, and no session has two. What was begun and never scored is told to have
failed, so that it trains nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

from openclaw_rl.errors import ConfigError

State = Literal["begun", "scored", "settled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayPlan:
    """What a play is to do: each task so many times, by one agent. ``id`` names its groups."""

    id: str
    agent: str
    env: str
    split: str
    tasks: tuple[str, ...]
    rollouts: int

    def same_work(self, other: PlayPlan) -> bool:
        """Whether both ask for the same, whoever began it when."""
        return {**asdict(self), "id": ""} == {**asdict(other), "id": ""}

    @property
    def trains(self) -> bool:
        """Whether its episodes are paid and train; held-out tasks are played for their score alone."""
        return self.split == "train"

    def group(self, task: str) -> str:
        """The name under which the episodes of a task are compared."""
        return f"{self.id}-{task}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptEpisode:
    """What the journal knows of one session. ``number`` counts the episodes of a task from 0."""

    session: str
    task: str
    number: int
    state: State
    outcome: float | None = None


class PlayJournal:
    """The file of one play, held by this process until `close` or its end."""

    def __init__(self, path: Path, fd: int) -> None:
        """Use `begin` or `taken_over`."""
        self._path = path
        self._fd = fd
        self._kept: dict[str, KeptEpisode] = {}
        self.plan: PlayPlan | None = None
        text = path.read_text(encoding="utf-8")
        if text and not text.endswith("\n"):  # its player was killed in the middle of a line
            os.write(fd, b"\n")
        for line in _lines(text):
            self._read(line)

    @classmethod
    def begin(cls, folder: Path, plan: PlayPlan) -> Self:
        """A new file for this plan."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{plan.id}.jsonl"
        fd = _held(path)
        assert fd is not None, f"{path} is of another process"
        journal = cls(path, fd)
        journal._write({"event": "plan", **asdict(plan)})
        return journal

    @classmethod
    def taken_over(cls, folder: Path) -> Iterator[Self]:
        """The files there that no process holds any more, newest first; each is held until it is closed."""
        for path in sorted(folder.glob("*.jsonl"), reverse=True):
            fd = _held(path)
            if fd is not None:
                yield cls(path, fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hold it no longer. Safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    # --- writing

    def begun(self, session: str, *, task: str, number: int) -> None:
        self._write({"event": "begun", "session": session, "task": task, "number": number})

    def scored(self, session: str, outcome: float) -> None:
        self._write({"event": "scored", "session": session, "outcome": outcome})

    def settled(self, session: str) -> None:
        """It is paid, or told to have failed: nothing more is to be done about it."""
        self._write({"event": "settled", "session": session})

    def _write(self, entry: Mapping[str, Any]) -> None:
        os.write(self._fd, (json.dumps(entry, ensure_ascii=False) + "\n").encode())
        os.fsync(self._fd)
        self._read(entry)

    # --- reading

    def _read(self, entry: Mapping[str, Any]) -> None:
        event, session = entry["event"], entry.get("session", "")
        if event == "plan":
            self.plan = PlayPlan(**{**{name: entry[name] for name in PlayPlan.__slots__}, "tasks": (*entry["tasks"],)})
        elif event == "begun":
            self._kept[session] = KeptEpisode(
                session=session, task=entry["task"], number=entry["number"], state="begun"
            )
        elif session in self._kept:
            kept = self._kept[session]
            self._kept[session] = KeptEpisode(
                session=session,
                task=kept.task,
                number=kept.number,
                state=event,
                outcome=entry.get("outcome", kept.outcome),
            )

    @property
    def unsettled(self) -> Sequence[KeptEpisode]:
        """Sessions that are neither paid nor told to have failed."""
        return [kept for kept in self._kept.values() if kept.state != "settled"]

    @property
    def done(self) -> Mapping[tuple[str, int], float]:
        """The outcomes of the episodes that came to their end, by task and number."""
        return {(kept.task, kept.number): kept.outcome for kept in self._kept.values() if kept.outcome is not None}


def resumed(folder: Path, plan: PlayPlan) -> PlayJournal:
    """The newest journal of the same work, to go on with. Raises ConfigError where there is none."""
    for journal in PlayJournal.taken_over(folder):
        if journal.plan is not None and journal.plan.same_work(plan):
            return journal
        journal.close()
    raise ConfigError(
        "there is no play of this agent on these tasks to resume",
        remedy="leave --resume out, or give the agent, the tasks and --rollouts as they were",
    )


def _held(path: Path) -> int | None:
    """The file open for adding and locked; None where another process holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def _lines(text: str) -> Iterator[Mapping[str, Any]]:
    for line in text.splitlines():
        with contextlib.suppress(ValueError):  # a line that was cut off: what it was to tell has not happened
            yield json.loads(line)
