"""A play's record of episodes begun, scored and paid: one line each, in a file locked by its process.

An outcome is written before its payment, and the payment after it: a player killed in between pays the same session the
same outcome when it resumes, and no session has two. An episode begun and never scored is marked as failed, so that it
is not trained on.
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
    """A play's work: each task ``rollouts`` times, by one agent. ``id`` names its groups."""

    id: str
    agent: str
    env: str
    split: str
    tasks: tuple[str, ...]
    rollouts: int

    def same_work(self, other: PlayPlan) -> bool:
        """Return True if both plans describe the same work, whatever their ids."""
        return {**asdict(self), "id": ""} == {**asdict(other), "id": ""}

    @property
    def trains(self) -> bool:
        """Return True if its episodes are paid and trained on; held-out tasks are played for their score alone."""
        return self.split == "train"

    def group(self, task: str) -> str:
        """Return the group name under which a task's episodes are compared."""
        return f"{self.id}-{task}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptEpisode:
    """The journal's record for one session. ``number`` counts a task's episodes from 0."""

    session: str
    task: str
    number: int
    state: State
    outcome: float | None = None


class PlayJournal:
    """One play's file, locked by this process until `close` or its end."""

    def __init__(self, path: Path, fd: int) -> None:
        """Use `begin` or `taken_over`."""
        self._path = path
        self._fd = fd
        self._kept: dict[str, KeptEpisode] = {}
        self.plan: PlayPlan | None = None
        text = path.read_text(encoding="utf-8")
        if text and not text.endswith("\n"):  # its player was killed while writing a line
            os.write(fd, b"\n")
        for line in _lines(text):
            self._read(line)

    @classmethod
    def begin(cls, folder: Path, plan: PlayPlan) -> Self:
        """Create a file for this plan."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{plan.id}.jsonl"
        fd = _held(path)
        assert fd is not None, f"{path} belongs to another process"
        journal = cls(path, fd)
        journal._write({"event": "plan", **asdict(plan)})
        return journal

    @classmethod
    def taken_over(cls, folder: Path) -> Iterator[Self]:
        """Yield the files that no process locks any more, newest first; each is locked until it is closed."""
        for path in sorted(folder.glob("*.jsonl"), reverse=True):
            fd = _held(path)
            if fd is not None:
                yield cls(path, fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock. Safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    # --- writing

    def begun(self, session: str, *, task: str, number: int) -> None:
        self._write({"event": "begun", "session": session, "task": task, "number": number})

    def scored(self, session: str, outcome: float) -> None:
        self._write({"event": "scored", "session": session, "outcome": outcome})

    def settled(self, session: str) -> None:
        """Record that the session is paid or marked as failed: no work remains for it."""
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
            record = self._kept[session]
            self._kept[session] = KeptEpisode(
                session=session,
                task=record.task,
                number=record.number,
                state=event,
                outcome=entry.get("outcome", record.outcome),
            )

    @property
    def unsettled(self) -> Sequence[KeptEpisode]:
        """Return the sessions that are neither paid nor marked as failed."""
        return [record for record in self._kept.values() if record.state != "settled"]

    @property
    def done(self) -> Mapping[tuple[str, int], float]:
        """Return the finished episodes' outcomes, by task and number."""
        return {
            (record.task, record.number): record.outcome for record in self._kept.values() if record.outcome is not None
        }


def resumed(folder: Path, plan: PlayPlan) -> PlayJournal:
    """Return the newest journal for the same work, to continue it; raise ConfigError if there is none."""
    for journal in PlayJournal.taken_over(folder):
        if journal.plan is not None and journal.plan.same_work(plan):
            return journal
        journal.close()
    raise ConfigError(
        "there is no play of this agent on these tasks to resume",
        remedy="leave --resume out, or give the agent, the tasks and --rollouts as they were",
    )


def _held(path: Path) -> int | None:
    """Open the file for appending and lock it; return None if another process locks it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def _lines(text: str) -> Iterator[Mapping[str, Any]]:
    for line in text.splitlines():
        with contextlib.suppress(ValueError):  # a truncated line: its event has not happened
            yield json.loads(line)
