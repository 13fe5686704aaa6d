"""Loop 2: read turns, write outcomes.

A tick reads new ledger rows, lets `Threads` decide, and writes the outcomes and both cursors in one transaction.
After a crash at any point it resumes from the ledger: unsettled turns are read again and decided alike.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, runtime_checkable

from openclaw_rl.collect.normalise import clean
from openclaw_rl.collect.threads import CAPACITY, Threads
from openclaw_rl.ports import Placement
from openclaw_rl.types import Drop, DropReason, ImportRecord, Outcome, SessionEnd, Turn, UnreadableTurn

log = logging.getLogger(__name__)

BATCH = 256
"""turns read per tick, settled in one transaction"""


class OutcomeLedger(Protocol):
    """The ledger methods that collect needs."""

    def new_turns(self, limit: int) -> Sequence[tuple[int, Turn | UnreadableTurn]]:
        """Return turns after the cursor with their sequence numbers, oldest first."""
        ...

    def open_turns(self) -> Sequence[tuple[int, Turn | UnreadableTurn]]:
        """Return turns that were read before and are not settled yet, oldest first."""
        ...

    def new_endings(self, limit: int) -> Sequence[tuple[int, SessionEnd]]:
        """Return declared session ends after the cursor, oldest first."""
        ...

    def recorded(self, turn: str, /) -> ImportRecord | UnreadableTurn | None:
        """Return an imported turn's record; None for a turn that was served."""
        ...

    def settle(
        self, outcomes: Sequence[Outcome], drops: Sequence[Drop], *, turns_read: int | None, endings_read: int | None
    ) -> None:
        """Write all outcomes and drops and move the cursors, in one transaction."""
        ...


@runtime_checkable
class SettledLedger(Protocol):
    """A ledger that also returns recently settled turns, so that a restart restores the threads exactly.

    Without it a restart still settles every turn once and with the same next state, as long as its history is exact;
    the name, the parent and the position of unfinished threads are then derived from their open turns alone.
    """

    def settled_turns(self, since: float) -> Sequence[tuple[int, Turn, Outcome]]:
        """Return settled turns with ``turn.at >= since``, oldest first."""
        ...


@dataclass(slots=True)
class Settlement:
    """The decisions of one tick and the positions it read up to."""

    outcomes: list[Outcome] = field(default_factory=list)
    drops: list[Drop] = field(default_factory=list)
    turns_read: int | None = None
    endings_read: int | None = None
    moved: int = 0
    stopped: bool = False


class CollectLoop:
    """Links each turn to its continuation. ``counts`` holds this process's outcomes and drops by kind and reason.

    A turn that cannot be decoded or placed is dropped with the reason: placement is a pure function of the ledger, so
    a retry would fail alike. After a failed placement memory is rebuilt from the ledger, since it may be half changed.
    """

    name = "collect"

    def __init__(
        self,
        ledger: OutcomeLedger,
        *,
        session_idle: float,
        env_idle: float,
        batch: int = BATCH,
        capacity: int = CAPACITY,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.ledger = ledger
        self.session_idle, self.env_idle = session_idle, env_idle
        self.batch = batch
        self.capacity = capacity
        self.clock = clock
        self.counts: Counter[str] = Counter()
        self._threads: Threads | None = None
        self._unfit: list[Drop] = []

    @property
    def open(self) -> int:
        """Number of turns that wait for a next state."""
        return self._threads.open if self._threads is not None else 0

    async def tick(self) -> int:
        """Settle every turn that can be settled; return how many turns, endings and outcomes moved."""
        # If this tick is interrupted, memory is rebuilt from the ledger.
        threads, self._threads = self._threads, None
        if threads is None:
            threads = await asyncio.to_thread(self._remember)
        # Endings first: a turn that was durable before its session's end was declared is then certain to be read.
        endings = await asyncio.to_thread(self.ledger.new_endings, self.batch)
        turns = await asyncio.to_thread(self.ledger.new_turns, self.batch)
        records = await asyncio.to_thread(self._records, turns)
        settlement = await asyncio.to_thread(self._decide, threads, turns, endings, records)
        if settlement.moved:
            await asyncio.to_thread(
                self.ledger.settle,
                settlement.outcomes,
                settlement.drops,
                turns_read=settlement.turns_read,
                endings_read=settlement.endings_read,
            )
        self._threads = None if settlement.stopped else threads
        self._unfit = []
        self._count(settlement)
        return settlement.moved

    def _remember(self) -> Threads:
        """Rebuild memory as it was when the cursors last moved."""
        threads = Threads(idle=self.session_idle, env_idle=self.env_idle, capacity=self.capacity)
        waiting = self.ledger.open_turns()
        rows: list[tuple[int, Turn, Outcome | None]] = [
            (seq, turn, None) for seq, turn in waiting if not isinstance(turn, UnreadableTurn)
        ]
        self._unfit = [unreadable(turn) for _, turn in waiting if isinstance(turn, UnreadableTurn)]
        if isinstance(self.ledger, SettledLedger):
            read = (turn for _, turn in (*waiting, *self.ledger.new_turns(1)))
            coming = [turn.at for turn in read if not isinstance(turn, UnreadableTurn)]
            rows += self.ledger.settled_turns(min((*coming, self.clock())) - threads.memory)
        for seq, turn, outcome in sorted(rows, key=lambda item: item[0]):
            if outcome is None or outcome.kind_reason != RECORDED:
                self._restore(threads, seq, turn, outcome)
        return threads

    def _restore(self, threads: Threads, seq: int, turn: Turn, outcome: Outcome | None) -> None:
        """Remember a turn; if that fails, drop the turn if it is open and skip it if it is settled."""
        try:
            threads.restore(seq, turn, outcome)
        except Exception as error:  # a malformed turn must not block the others
            log.warning("collect.failed turn=%s", turn.id, exc_info=True)
            if outcome is None:
                self._unfit.append(_failed(turn, error))

    def _records(self, turns: Sequence[tuple[int, Turn | UnreadableTurn]]) -> dict[str, ImportRecord | UnreadableTurn]:
        pairs = ((turn.id, self.ledger.recorded(turn.id)) for _, turn in turns if not isinstance(turn, UnreadableTurn))
        return {turn: record for turn, record in pairs if record is not None}

    def _decide(
        self,
        threads: Threads,
        turns: Sequence[tuple[int, Turn | UnreadableTurn]],
        endings: Sequence[tuple[int, SessionEnd]],
        records: dict[str, ImportRecord | UnreadableTurn],
    ) -> Settlement:
        """Process turns and endings in time order; expire idle turns last, once all rows are read."""
        settlement, coming, now = Settlement(drops=list(self._unfit)), deque(endings), self.clock()
        for seq, turn in turns:
            if isinstance(turn, UnreadableTurn):
                settlement.turns_read = seq
                settlement.drops.append(unreadable(turn))
                continue
            while coming and coming[0][1].at < turn.at:
                self._end(threads, settlement, coming)
            self._add(threads, settlement, seq, turn, records.get(turn.id))
            if settlement.stopped:
                break
        if len(turns) < self.batch and not settlement.stopped:
            while coming:
                self._end(threads, settlement, coming)
            settlement.outcomes += threads.expire(now)
        settlement.moved = len(turns) + len(endings) - len(coming) + len(settlement.outcomes) + len(self._unfit)
        return settlement

    def _end(self, threads: Threads, found: Settlement, coming: deque[tuple[int, SessionEnd]]) -> None:
        found.endings_read, ending = coming.popleft()
        found.outcomes += threads.end(ending)

    def _add(
        self, threads: Threads, found: Settlement, seq: int, turn: Turn, record: ImportRecord | UnreadableTurn | None
    ) -> None:
        found.turns_read = seq
        if isinstance(record, UnreadableTurn):
            found.drops.append(unreadable(record))
        elif record is not None:
            found.outcomes.append(from_record(record, at=turn.at))
        elif not turn.completion.reply_tokens:
            reason, detail = _why_empty(turn)
            found.drops.append(Drop(turn=turn.id, stage="collect", reason=reason, detail=detail, at=turn.at))
        else:
            try:
                found.outcomes += threads.add(seq, turn)
            except Exception as error:  # a malformed turn must not block the others
                log.warning("collect.failed turn=%s", turn.id, exc_info=True)
                found.drops.append(_failed(turn, error))
                found.stopped = True

    def _count(self, found: Settlement) -> None:
        for outcome in found.outcomes:
            self.counts[f"{outcome.kind}: {outcome.ended or 'continued'}"] += 1
        for drop in found.drops:
            self.counts[f"dropped: {drop.reason}"] += 1


RECORDED: Final = "recorded"


def unreadable(found: UnreadableTurn) -> Drop:
    """Return the drop record for a turn whose row is damaged."""
    return Drop(turn=found.turn, stage="collect", reason="unreadable", detail=found.why)


def _failed(turn: Turn, error: Exception) -> Drop:
    detail = f"it could not be placed among the turns: {type(error).__name__}"
    return Drop(turn=turn.id, stage="collect", reason="collect failed", detail=detail, at=turn.at)


def from_record(record: ImportRecord, *, at: float) -> Outcome:
    """Convert an imported turn's record to its outcome; every field was recorded, none is derived."""
    return Outcome(
        turn=record.turn,
        session=record.session,
        kind=record.kind,
        kind_reason=RECORDED,
        index=record.index,
        next_state=record.next_state,
        ended=None if record.next_state else RECORDED,
        at=at,
    )


def _why_empty(turn: Turn) -> tuple[DropReason, str]:
    """Return the drop reason for a turn without reply tokens: they were redacted, or none was sampled."""
    if "redacted" in turn.completion.flaws:
        return "redacted", "its text was redacted, so its tokens were not stored; see serve.redact"
    return "empty reply", f"finish {turn.completion.finish}"


# Placement of a single request, without waiting for the loop.


class ThreadLookup:
    """Places requests in conversations as the loop does, using only the turns passed to it."""

    def words(self, text: str) -> str:
        """Return a user's text without the envelopes that clients add."""
        return clean(text)

    def place(self, request: Turn, known: Sequence[Turn]) -> Placement:
        """Return the placement of ``request`` among ``known`` turns, oldest first."""
        threads = Threads(idle=math.inf)
        for seq, turn in enumerate(known):
            threads.restore(seq, turn, None)
        return threads.placement(len(known), request)
