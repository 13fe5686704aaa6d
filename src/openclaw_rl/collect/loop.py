"""Loop 2: turns in, outcomes out.

One tick reads what is new in the ledger, lets `Threads` decide, and writes the outcomes and both cursors in one
transaction. Killed anywhere, it starts again from the ledger: what was not settled is read again and decided alike.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from openclaw_rl.collect.threads import Threads
from openclaw_rl.types import Drop, ImportRecord, Outcome, SessionEnd, Turn, UnreadableTurn

log = logging.getLogger(__name__)


class Ledger(Protocol):
    """What collect asks of the ledger."""

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
class Remembers(Protocol):
    """A ledger that also gives back what was settled lately, so that a restart knows the threads as before.

    Without it a restart still settles every turn once and with the same next state, as long as its history is exact;
    the name, the parent and the position of threads under way are then found from their open turns alone.
    """

    def settled_turns(self, since: float) -> Sequence[tuple[int, Turn, Outcome]]:
        """Settled turns with ``turn.at >= since``, oldest first."""
        ...


@dataclass(slots=True)
class Batch:
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
        ledger: Ledger,
        *,
        session_idle: float = 1800,
        batch: int = 256,
        capacity: int = 50_000,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.ledger = ledger
        self.session_idle = session_idle
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
        threads, self._threads = (
            self._threads,
            None,
        )  # whatever interrupts this tick, memory starts again from the ledger
        if threads is None:
            threads = await asyncio.to_thread(self._wake)
        # Endings first: a turn that was durable before its session's end was said is then seen for sure.
        endings = await asyncio.to_thread(self.ledger.new_endings, self.batch)
        turns = await asyncio.to_thread(self.ledger.new_turns, self.batch)
        records = await asyncio.to_thread(self._records, turns)
        decided = await asyncio.to_thread(self._decide, threads, turns, endings, records)
        if decided.moved:
            await asyncio.to_thread(
                self.ledger.settle,
                decided.outcomes,
                decided.drops,
                turns_read=decided.turns_read,
                endings_read=decided.endings_read,
            )
        self._threads = None if decided.stopped else threads
        self._unfit = []
        self._count(decided)
        return decided.moved

    def _wake(self) -> Threads:
        """Memory as it was when the cursors were last moved."""
        threads = Threads(idle=self.session_idle, capacity=self.capacity)
        waiting = self.ledger.open_turns()
        known: list[tuple[int, Turn, Outcome | None]] = [
            (seq, turn, None) for seq, turn in waiting if not isinstance(turn, UnreadableTurn)
        ]
        self._unfit = [unreadable(turn) for _, turn in waiting if isinstance(turn, UnreadableTurn)]
        if isinstance(self.ledger, Remembers):
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
        return {turn: said for turn, said in found if said is not None}

    def _decide(
        self,
        threads: Threads,
        turns: Sequence[tuple[int, Turn | UnreadableTurn]],
        endings: Sequence[tuple[int, SessionEnd]],
        records: dict[str, ImportRecord | UnreadableTurn],
    ) -> Batch:
        """Turns and endings in the order of their times; idleness last, once nothing is left to read."""
        batch, coming, now = Batch(drops=list(self._unfit)), deque(endings), self.clock()
        for seq, turn in turns:
            if isinstance(turn, UnreadableTurn):
                batch.turns_read = seq
                batch.drops.append(unreadable(turn))
                continue
            while coming and coming[0][1].at < turn.at:
                self._end(threads, batch, coming)
            self._add(threads, batch, seq, turn, records.get(turn.id))
            if batch.stopped:
                break
        if len(turns) < self.batch and not batch.stopped:
            while coming:
                self._end(threads, batch, coming)
            batch.outcomes += threads.expire(now)
        batch.moved = len(turns) + len(endings) - len(coming) + len(batch.outcomes) + len(self._unfit)
        return batch

    def _end(self, threads: Threads, batch: Batch, coming: deque[tuple[int, SessionEnd]]) -> None:
        batch.endings_read, ending = coming.popleft()
        batch.outcomes += threads.end(ending)

    def _add(
        self, threads: Threads, batch: Batch, seq: int, turn: Turn, said: ImportRecord | UnreadableTurn | None
    ) -> None:
        batch.turns_read = seq
        if isinstance(said, UnreadableTurn):
            batch.drops.append(unreadable(said))
        elif said is not None:
            batch.outcomes.append(from_record(said, at=turn.at))
        elif not turn.completion.reply_tokens:
            reason, detail = _why_empty(turn)
            batch.drops.append(Drop(turn=turn.id, stage="collect", reason=reason, detail=detail, at=turn.at))
        else:
            try:
                batch.outcomes += threads.add(seq, turn)
            except Exception as error:  # whatever a client sent must not keep the others from being settled
                log.warning("collect.failed turn=%s", turn.id, exc_info=True)
                batch.drops.append(_failed(turn, error))
                batch.stopped = True

    def _count(self, batch: Batch) -> None:
        for outcome in batch.outcomes:
            self.counts[f"{outcome.kind}: {outcome.ended or 'continued'}"] += 1
        for drop in batch.drops:
            self.counts[f"dropped: {drop.reason}"] += 1


RECORDED = "recorded"


def unreadable(found: UnreadableTurn) -> Drop:
    """The drop of a turn whose row is damaged."""
    return Drop(turn=found.turn, stage="collect", reason="unreadable", detail=found.why)


def _failed(turn: Turn, error: Exception) -> Drop:
    detail = f"its place among the turns could not be found: {type(error).__name__}"
    return Drop(turn=turn.id, stage="collect", reason="collect failed", detail=detail, at=turn.at)


def from_record(said: ImportRecord, *, at: float) -> Outcome:
    """The outcome of an imported turn: all of it was recorded, nothing is found out."""
    return Outcome(
        turn=said.turn,
        session=said.session,
        kind=said.kind,
        kind_reason=RECORDED,
        index=said.index,
        next_state=said.next_state,
        ended=None if said.next_state else RECORDED,
        at=at,
    )


def _why_empty(turn: Turn) -> tuple[str, str]:
    """Why a turn has no reply tokens: they were taken out, or none was drawn."""
    if "redacted" in turn.completion.flaws:
        return "redacted", "it holds something that must not be kept, so its tokens were not; serve.redact"
    return "empty reply", f"finish {turn.completion.finish}"
