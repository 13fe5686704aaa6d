"""Ledgers for tests."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from openclaw_rl.errors import NotInLedger
from openclaw_rl.store import CollectLedger, JudgeLedger, Place, ServeLedger, TrainLedger
from openclaw_rl.testing.rows import make_outcome, make_turn, make_verdict
from openclaw_rl.types import Feedback, Hint, SessionReward, Turn, Version, VersionState


class MemoryLedger:
    """The API's ledger in memory; every write raises ``fails`` if it is set.

    >>> from openclaw_rl.testing import make_turn
    >>> ledger = MemoryLedger()
    >>> ledger.add_turn(make_turn("hello", session="s"))
    >>> ledger.last.session, ledger.has_session("s", "u1")
    ('s', True)
    """

    def __init__(self) -> None:
        self.turns: dict[str, Turn] = {}
        self.feedback: list[Feedback] = []
        self.endings: list[tuple[str, str]] = []
        self.rewards: list[SessionReward] = []
        self.optouts: set[tuple[str, str]] = set()
        self.fails: Exception | None = None
        self._changed = threading.Condition()

    def add_turn(self, turn: Turn) -> None:
        if self.fails is not None:
            raise self.fails
        with self._changed:
            self.turns[turn.id] = turn
            self._changed.notify_all()

    def add_feedback(self, feedback: Feedback) -> None:
        self.feedback.append(feedback)

    def add_ending(self, session: str, user: str) -> None:
        self.endings.append((session, user))

    def add_reward(self, reward: SessionReward) -> bool:
        self.rewards.append(reward)
        return True

    def turn(self, turn_id: str) -> Turn:
        if turn_id not in self.turns:
            raise NotInLedger(f"no turn {turn_id}")
        return self.turns[turn_id]

    def has_session(self, session: str, user: str) -> bool:
        return any((turn.session, turn.user) == (session, user) for turn in self.turns.values())

    def add_optout(self, session: str, user: str) -> None:
        if self.fails is not None:
            raise self.fails
        self.optouts.add((session, user))

    def opted_out(self, session: str, user: str) -> bool:
        return (session, user) in self.optouts

    def latest_turns(self, user: str, *, session: str | None, limit: int) -> list[Turn]:
        of_user = [turn for turn in self.turns.values() if turn.user == user and session in (None, turn.session)]
        return of_user[-limit:]

    @property
    def last(self) -> Turn:
        """Return the newest turn."""
        return list(self.turns.values())[-1]

    def wait_for_turns(self, count: int) -> None:
        """Wait for ``count`` turns, since a server writes a turn after its answer."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.turns) >= count, timeout=20)


class TemporaryLedger:
    """A real ledger with every writer: ``serve``, ``collect``, ``judge`` and ``train``.

    It is stored in ``folder``, or in a temporary folder removed on close; ``place`` overrides the ledger's own
    location.

    >>> with TemporaryLedger() as ledger:
    ...     turn = ledger.add(-1.0, "Be brief, please.", user="ann")
    ...     ledger.train.turn(turn.id).user, ledger.train.counts()["verdicts"]
    ('ann', 1)
    """

    def __init__(self, folder: Path | None = None, *, place: Place | None = None) -> None:
        self._own = tempfile.TemporaryDirectory() if folder is None else None
        self.folder = folder or Path(self._own.name if self._own else "")
        self.path: Place = place or self.folder / "ledger.db"
        self.serve = ServeLedger(self.path, sync="normal")
        self.collect = CollectLedger(self.path)
        self.judge = JudgeLedger(self.path)
        self.train = TrainLedger(self.path, sync="normal")

    def add(
        self, score: float | None, *hints: str | Hint, outcome: Mapping[str, Any] | None = None, **turn: Any
    ) -> Turn:
        """Add a turn with its outcome and verdict, ready to train; ``turn`` and ``outcome`` set fields of these."""
        added = make_turn(**turn)
        self.serve.add_turn(added)
        settled = make_outcome(added, **{"at": added.at, **(outcome or {})})
        self.collect.settle([settled], [], turns_read=self.serve.newest("turns"))
        hint_rows = tuple(hint if isinstance(hint, Hint) else Hint(text=hint) for hint in hints)
        self.judge.add_verdicts([make_verdict(added, score, hints=hint_rows, at=added.at)])
        return added

    def close(self) -> None:
        for ledger in (self.serve, self.collect, self.judge, self.train):
            ledger.close()
        if self._own is not None:
            self._own.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class MemoryVersions:
    """Versions in memory, for `LiveVersions`; the last added is live."""

    def __init__(self, *versions: Version) -> None:
        self._versions = {version.number: version for version in versions}

    def add(self, *versions: Version) -> None:
        self._versions |= {version.number: version for version in versions}

    def version(self, number: int) -> Version:
        if number not in self._versions:
            raise NotInLedger(f"no version {number}")
        return self._versions[number]

    def versions(self) -> list[Version]:
        return list(self._versions.values())

    def last_live(self) -> int | None:
        return max(self._versions, default=None)

    def ever(self, state: VersionState) -> set[int]:
        return {version.number for version in self._versions.values() if version.state == state}
