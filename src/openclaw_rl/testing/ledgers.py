"""Ledgers for tests."""

from __future__ import annotations

import threading

from openclaw_rl.errors import NotInLedger
from openclaw_rl.types import Feedback, Turn, Version


class MemoryLedger:
    """The ledger as the API sees it, in memory; every write raises ``fails`` once that is set.

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
        self.optouts: set[tuple[str, str]] = set()
        self.live: Version | None = None
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

    def live_version(self) -> Version | None:
        return self.live

    @property
    def last(self) -> Turn:
        """The newest turn."""
        return list(self.turns.values())[-1]

    def wait_for_turns(self, count: int) -> None:
        """Return when there are so many turns: a server writes a turn after its answer."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.turns) >= count, timeout=20)
