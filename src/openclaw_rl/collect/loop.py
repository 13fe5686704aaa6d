"""Loop 2: turns in, outcomes out.

One tick reads what is new in the ledger, lets `Threads` decide, and writes the outcomes and both cursors in one
transaction. Killed anywhere, it starts again from the ledger: what was not settled is read again and decided alike.
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
"""turns read at once: what one transaction settles"""


class OutcomeLedger(Protocol):
    """What collect needs of the ledger."""

    def new_turns(self, limit: int) -> Sequence[tuple[int, Turn | UnreadableTurn]]:
        """Turns after the cursor, oldest first, with their sequence numbers."""
        ...

    def open_turns(self) -> Sequence[tuple[int, Turn | UnreadableTurn]]:
        """Turns read before and not settled yet, oldest first."""
        ...

    def new_endings(self, limit: int) -> Sequence[tuple[int, SessionEnd]]:
        """Sessions declared over, after the cursor, oldest first."""
        ...

    def recorded(self, turn: str, /) -> ImportRecord | UnreadableTurn | None:
        """What an imported record says of its turn, None for a turn that was served."""
        ...

    def settle(
        self, outcomes: Sequence[Outcome], drops: Sequence[Drop], *, turns_read: int | None, endings_read: int | None
    ) -> None:
        """Write all of it and move the cursors, in one transaction."""
        ...


@runtime_checkable
class SettledLedger(Protocol):
    """A ledger that also gives back what was settled lately, so that a restart knows the threads as before.

    Without it a restart still settles every turn once and with the same next state, as long as its history is exact;
    the name, the parent and the position of threads under way are then found from their open turns alone.
    """

    def settled_turns(self, since: float) -> Sequence[tuple[int, Turn, Outcome]]:
        """Settled turns with ``turn.at >= since``, oldest first."""
        ...


@dataclass(slots=True)
class Settlement:
    """What one tick decided and how far it read."""

    outcomes: list[Outcome] = field(default_factory=list)
    drops: list[Drop] = field(default_factory=list)
    turns_read: int | None = None
    endings_read: int | None = None
    moved: int = 0
    stopped: bool = False


class CollectLoop:
    """Finds what came after each turn. ``counts`` are the outcomes and drops of this process by kind and reason.

    A turn that cannot be decoded, or that cannot be placed among the others, is dropped with the reason: placing is a
    pure function of the ledger, so a second try would fail alike. Memory is then read from the ledger anew, since the
    failure may have left it half changed.
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
        """How many turns wait for what comes next."""
        return self._threads.open if self._threads is not None else 0

    async def tick(self) -> int:
        """Settle what can be settled; how many turns, endings and outcomes moved."""
        # whatever interrupts this tick, memory starts again from the ledger
        threads, self._threads = self._threads, None
        if threads is None:
            threads = await asyncio.to_thread(self._remember)
        # Ends first: a turn that was durable before its session's end was declared is then seen for sure.
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
        """Memory as it was when the cursors were last moved."""
        threads = Threads(idle=self.session_idle, env_idle=self.env_idle, capacity=self.capacity)
        waiting = self.ledger.open_turns()
        known: list[tuple[int, Turn, Outcome | None]] = [
            (seq, turn, None) for seq, turn in waiting if not isinstance(turn, UnreadableTurn)
        ]
        self._unfit = [unreadable(turn) for _, turn in waiting if isinstance(turn, UnreadableTurn)]
        if isinstance(self.ledger, SettledLedger):
            read = (turn for _, turn in (*waiting, *self.ledger.new_turns(1)))
            coming = [turn.at for turn in read if not isinstance(turn, UnreadableTurn)]
            known += self.ledger.settled_turns(min((*coming, self.clock())) - threads.memory)
        for seq, turn, outcome in sorted(known, key=lambda item: item[0]):
            if outcome is None or outcome.kind_reason != RECORDED:
                self._restore(threads, seq, turn, outcome)
        return threads

    def _restore(self, threads: Threads, seq: int, turn: Turn, outcome: Outcome | None) -> None:
        """Remember a turn; one that fails is forgotten if it is settled, and dropped if it is open."""
        try:
            threads.restore(seq, turn, outcome)
        except Exception as error:  # one turn's content must not keep the others from being remembered
            log.warning("collect.failed turn=%s", turn.id, exc_info=True)
            if outcome is None:
                self._unfit.append(_failed(turn, error))

    def _records(self, turns: Sequence[tuple[int, Turn | UnreadableTurn]]) -> dict[str, ImportRecord | UnreadableTurn]:
        found = ((turn.id, self.ledger.recorded(turn.id)) for _, turn in turns if not isinstance(turn, UnreadableTurn))
        return {turn: record for turn, record in found if record is not None}

    def _decide(
        self,
        threads: Threads,
        turns: Sequence[tuple[int, Turn | UnreadableTurn]],
        endings: Sequence[tuple[int, SessionEnd]],
        records: dict[str, ImportRecord | UnreadableTurn],
    ) -> Settlement:
        """Turns and endings in the order of their times; idleness last, once nothing is left to read."""
        found, coming, now = Settlement(drops=list(self._unfit)), deque(endings), self.clock()
        for seq, turn in turns:
            if isinstance(turn, UnreadableTurn):
                found.turns_read = seq
                found.drops.append(unreadable(turn))
                continue
            while coming and coming[0][1].at < turn.at:
                self._end(threads, found, coming)
            self._add(threads, found, seq, turn, records.get(turn.id))
            if found.stopped:
                break
        if len(turns) < self.batch and not found.stopped:
            while coming:
                self._end(threads, found, coming)
            found.outcomes += threads.expire(now)
        found.moved = len(turns) + len(endings) - len(coming) + len(found.outcomes) + len(self._unfit)
        return found

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
            except Exception as error:  # whatever a client sent must not keep the others from being settled
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
    """The drop of a turn whose row is damaged."""
    return Drop(turn=found.turn, stage="collect", reason="unreadable", detail=found.why)


def _failed(turn: Turn, error: Exception) -> Drop:
    detail = f"its place among the turns could not be found: {type(error).__name__}"
    return Drop(turn=turn.id, stage="collect", reason="collect failed", detail=detail, at=turn.at)


def from_record(record: ImportRecord, *, at: float) -> Outcome:
    """The outcome of an imported turn: all of it was recorded, nothing is derived."""
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
    """Why a turn has no reply tokens: they were redacted, or none was sampled."""
    if "redacted" in turn.completion.flaws:
        return "redacted", "it holds something that must not be kept, so its tokens were not; serve.redact"
    return "empty reply", f"finish {turn.completion.finish}"


# Where a request stands among turns, for whoever cannot wait for the loop.


class ThreadLookup:
    """Reads conversations as the loop does, from what it is given alone."""

    def words(self, text: str) -> str:
        """A user's text without the envelopes that clients put around it."""
        return clean(text)

    def place(self, request: Turn, known: Sequence[Turn]) -> Placement:
        """Where ``request`` stands among turns that are known, oldest first."""
        threads = Threads(idle=math.inf)
        for seq, turn in enumerate(known):
            threads.restore(seq, turn, None)
        return threads.placement(len(known), request)
