"""Which turn follows which, and what was said next: pure, in memory, bounded.

`Threads` is given every turn in the order of the ledger and answers with the outcomes that this settles. What it
promises:

- a request continues the turn whose reply its history shows, told by content (see `normalise`, `matching`); a named
  conversation (a declared session, or the one that OpenClaw's Runtime line names) is never joined to another one;
- the next state of a turn is what stands in a later request after its reply and before the next one, never a part of
  its own prompt; a side call settles nothing, and its exchange is skipped where a history keeps it;
- where several turns would do, none is taken, with one exception: turns of unnamed conversations that are alike in
  prompt, reply, system prompt, tools and user are interchangeable, and the latest one still unanswered is taken;
- every turn gets exactly one outcome: at once when it is a side call or declares its session done, with the first
  continuation, or when its conversation is over (`ENDINGS`);
- the outcomes depend on the turns and endings alone, not on when or how often the process was started, as far as
  `restore` is given what was settled within `memory` seconds.

A turn leaves memory ``memory`` seconds after it was answered or sooner when there are more than ``capacity``.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from openclaw_rl.collect import classify as kinds
from openclaw_rl.collect.matching import Ambiguous, Ask, Entry, Index, Thread, joined, match
from openclaw_rl.collect.normalise import (
    ATOM,
    CALL,
    Reading,
    read,
    reply_path,
    reply_start,
    run_start,
    runtime,
    skeleton,
    stripped,
)
from openclaw_rl.types import Message, Outcome, SessionEnd, Turn

ENDINGS = {
    "done": "the session was declared over",
    "idle": "nothing came for the length of session_idle",
    "superseded": "the conversation went on without this reply",
    "compacted": "a summary took the place of this reply",
    "side": "side calls are not waited for",
    "evicted": "too many turns were open at once",
}
"""why nothing more will come, as `Outcome.ended` says it"""

REGENERATED_AFTER = 1.0
"""seconds between two equal requests from which on the second is a person's wish, not a parallel call"""
REGENERATED_WITHIN = 300.0
"""seconds within which a request without a past, asked again in one session, is a wish for another reply"""

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_EPOCH = re.compile(rf"({_UUID}):(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Name:
    """A conversation as it is named: ``base`` stays over compactions and resets, ``epoch`` counts them."""

    full: str
    base: str
    epoch: int | None


@dataclass(frozen=True, slots=True)
class Link:
    """What a history shows: the nearest known main turn, and the messages ``begin .. stop`` said after its reply.

    ``direct`` is False when replies that nobody knows stand between that turn and the request. ``side`` is the kind
    reason of a side turn that the request directly follows. ``thread`` is the conversation if no turn is shown but it
    is known all the same.
    """

    entry: Entry | None = None
    begin: int = 0
    stop: int = 0
    direct: bool = False
    side: str | None = None
    thread: Thread | None = None


def named(turn: Turn) -> Name | None:
    """The conversation that a turn says it belongs to, None when it says nothing.

    ``<uuid>:<number>`` is OpenClaw's session id with its epoch; other declared names are taken as they are.
    """
    said = turn.session
    if said is None:
        line = runtime(turn.prompt.messages)
        return Name(line.session, line.session, None) if line and line.session else None
    parts = _EPOCH.fullmatch(said)
    return Name(said, parts.group(1), int(parts.group(2))) if parts else Name(said, said, None)


class Threads:
    """The open turns of all users and how they hang together."""

    def __init__(self, *, idle: float, memory: float | None = None, capacity: int = 50_000) -> None:
        self.idle = idle
        self.memory = max(idle, memory if memory is not None else 2 * idle)
        self.capacity = capacity
        self._index = Index()
        self._entries: dict[str, Entry] = {}
        self._threads: dict[tuple[str, str], Thread] = {}
        self._bases: dict[tuple[str, str], dict[str, int]] = {}
        self._due: list[tuple[float, int, Entry]] = []
        self._old: list[tuple[float, int, Entry]] = []

    def __len__(self) -> int:
        """How many turns are remembered, settled ones included."""
        return len(self._entries)

    @property
    def open(self) -> int:
        """How many turns wait for what comes next."""
        return sum(len(thread.open) for thread in self._threads.values())

    def add(self, seq: int, turn: Turn) -> list[Outcome]:
        """Take in the next turn; the outcomes that it settles, its own among them when nothing can follow."""
        settled = self.expire(turn.at)
        link, entry = self._place(seq, turn)
        settled += self._continue(link, entry, turn)
        if entry.kind == "side":
            settled += self._close(entry, "side", turn.at)
        if turn.done:
            settled += self._close_all(entry.thread, "done", turn.at)
        return settled + self._make_room(turn.at)

    def restore(self, seq: int, turn: Turn, outcome: Outcome | None) -> None:
        """Remember a turn that was read before, with its outcome where it has one. Oldest first, nothing is settled."""
        self._forget_older(turn.at - self.memory)
        link, entry = self._place(seq, turn, known=outcome)
        parent = link.entry
        if outcome is not None:
            self._settled(entry)
            parent = parent if parent is not None and outcome.parent in (None, parent.turn) else None
        if parent is not None and _speaks(entry) and self._said(link, turn):
            parent.answered = True

    def end(self, ending: SessionEnd) -> list[Outcome]:
        """A session was declared over: its turns up to then wait no longer."""
        names = {ending.session, *self._bases.get((ending.user, ending.session), ())}
        threads = (self._threads.get((ending.user, name)) for name in sorted(names))
        return [
            outcome
            for thread in threads
            if thread is not None
            for outcome in self._close_all(thread, "done", ending.at, until=ending.at)
        ]

    def expire(self, now: float) -> list[Outcome]:
        """End what has waited for ``idle`` seconds, forget what is older than ``memory`` seconds."""
        settled: list[Outcome] = []
        while self._due and self._due[0][0] + self.idle < now:
            at, _, entry = heapq.heappop(self._due)
            if not entry.settled:
                settled += self._close(entry, "idle", at + self.idle)
        self._forget_older(now - self.memory)
        return settled

    def _place(self, seq: int, turn: Turn, known: Outcome | None = None) -> tuple[Link, Entry]:
        reading = read(turn.prompt.messages, turn.prompt.tools)
        name = named(turn)
        link = self._follow(Ask.of(turn.user, name.base if name else None, reading), turn.prompt.messages)
        thread = self._thread(turn, name, link, known)
        entry = self._entry(seq, turn, reading, link, thread, known)
        self._remember(entry)
        return link, entry

    def _follow(self, ask: Ask, messages: Sequence[Message]) -> Link:
        """Walk a history from its latest reply back to the first known main turn."""
        owners, stop, begin = ask.reading.owners, len(messages), -1
        direct, side, thread = True, None, None
        for end in reversed(ask.reading.ends):
            first = reply_start(ask.history(end)) // ATOM
            try:
                entry = match(self._index, ask, end) or joined(self._index, ask, end, messages[owners[first]].content)
            except Ambiguous:
                return Link()
            if entry is not None and entry.kind == "main":
                return Link(entry, owners[end - 1] + 1 if begin < 0 else begin, stop, direct, side, entry.thread)
            if entry is not None and entry.reason == kinds.REWRITTEN:  # a later history has it as it was said
                stop, begin, direct = owners[first], -1, False
                continue
            if entry is not None or _by_machine(messages, owners[first]):
                begin = owners[end - 1] + 1 if begin < 0 else begin
                side = side or (entry.reason if entry and stop == len(messages) else None)
                thread = thread or (entry.thread if entry else None)
                continue
            asked = [e for e in self._index.asking(ask.user, ask.history(first)) if e.thread.base == ask.base]
            if asked:  # the reply to a known request was rewritten: what came before is settled already
                return Link(thread=next((e.thread for e in reversed(asked) if e.parent), None))
            stop, begin, direct = owners[first], -1, False
        return Link(side=side, thread=thread)

    def _thread(self, turn: Turn, name: Name | None, link: Link, known: Outcome | None) -> Thread:
        full = known.session if known else name.full if name else None
        if full is None:
            if link.thread is not None:
                return link.thread
            full = f"thread-{turn.id}"
        thread = self._threads.get((turn.user, full))
        if thread is None:
            base = name.base if name else link.thread.base if link.thread else None
            thread = self._threads[turn.user, full] = Thread(turn.user, full, base)
            if base is not None:
                epoch = name.epoch if name and name.epoch is not None else -1
                self._bases.setdefault((turn.user, base), {})[full] = epoch
        return thread

    def _entry(
        self, seq: int, turn: Turn, reading: Reading, link: Link, thread: Thread, known: Outcome | None
    ) -> Entry:
        path = reading.path + reply_path(turn.completion.reply)
        ruling = kinds.rule(turn, _around(link))
        reply = reply_start(path) if len(path) > len(reading.path) else len(path)
        return Entry(
            turn=turn.id,
            seq=seq,
            at=turn.at,
            thread=thread,
            kind=known.kind if known else ruling.kind,
            reason=known.kind_reason if known else ruling.reason,
            confidence=known.confidence if known else ruling.confidence,
            index=known.index if known else self._position(turn, reading, link, thread),
            path=path,
            reply=reply,
            run=run_start(path, reply),
            setting=reading.setting,
            aborted=turn.completion.finish == "aborted",
            tools=bool(turn.prompt.tools),
            parent=link.entry if link.direct else None,
            evidence=_repeats(path, reply),
        )

    def _position(self, turn: Turn, reading: Reading, link: Link, thread: Thread) -> int:
        """One after its parent; without one, as many replies as its history has, or on from before a compaction."""
        if link.entry is not None and link.direct:
            return link.entry.index + 1
        if link.entry is None and thread.size and kinds.compacted(turn.prompt.messages):
            return thread.index + 1
        return len(reading.ends)

    def _continue(self, link: Link, entry: Entry, turn: Turn) -> list[Outcome]:
        """Settle what a request says about the turns before it: a main turn's, or a person's words sent again."""
        if not _speaks(entry):
            return []
        settled: list[Outcome] = []
        said = self._said(link, turn)
        if link.entry is not None and said:
            link.entry.answered = True
            if not link.entry.settled:
                settled.append(self._outcome(link.entry, turn.at, next_state=said))
                settled += self._abandon(link.entry, turn.at)
        return settled + self._compact(link, entry, turn)

    def _said(self, link: Link, turn: Turn) -> tuple[Message, ...]:
        if link.entry is None:
            return ()
        after = (stripped(message) for message in turn.prompt.messages[link.begin : link.stop])
        return tuple(message for message in after if message is not None)

    def _abandon(self, chosen: Entry, at: float) -> list[Outcome]:
        """Other replies to the same request wait in vain once one of them was answered."""
        alike = self._index.asking(chosen.thread.user, chosen.request)
        others = [e for e in alike if e is not chosen and e.thread is chosen.thread and not e.settled]
        return [outcome for entry in others for outcome in self._close(entry, "superseded", at)]

    def _compact(self, link: Link, entry: Entry, turn: Turn) -> list[Outcome]:
        """End the turns that a new epoch or a summary left behind."""
        summary = kinds.compacted(turn.prompt.messages)
        why = "compacted" if summary else "superseded"
        waiting = [e for thread in self._earlier(entry.thread) for e in thread.open.values() if e.seq < entry.seq]
        if link.thread is None and summary:  # of several talks under one name it is the latest that was cut short
            waiting += [e for e in entry.thread.open.values() if e is not entry and e.kind == "main"][-1:]
        return [outcome for e in waiting for outcome in self._close(e, why, turn.at)]

    def _earlier(self, thread: Thread) -> Iterable[Thread]:
        """The same conversation in its earlier epochs."""
        epochs = self._bases.get((thread.user, thread.base), {}) if thread.base is not None else {}
        mine = epochs.get(thread.name, -1)
        return [self._threads[thread.user, name] for name, epoch in epochs.items() if -1 < epoch < mine]

    def _close_all(self, thread: Thread, why: str, at: float, until: float | None = None) -> list[Outcome]:
        waiting = [entry for entry in thread.open.values() if until is None or entry.at <= until]
        return [outcome for entry in waiting for outcome in self._close(entry, why, at)]

    def _close(self, entry: Entry, why: str, at: float) -> list[Outcome]:
        if entry.settled:
            return []
        if why == "idle" and entry.thread.last > entry.seq:
            why = "superseded"
        return [self._outcome(entry, at, ended=why, evidence=("regenerated",) if self._regenerated(entry) else ())]

    def _regenerated(self, entry: Entry) -> bool:
        """Whether somebody asked again for a reply that was whole and another than the later one."""
        if entry.aborted or entry.kind == "side":
            return False
        return any(
            later.thread is entry.thread
            and REGENERATED_AFTER <= later.at - entry.at <= (REGENERATED_WITHIN if entry.run == 0 else self.idle)
            and later.seq > entry.seq
            and later.kind == "main"
            and later.said != entry.said
            for later in self._index.asking(entry.thread.user, entry.request)
        )

    def _outcome(
        self,
        entry: Entry,
        at: float,
        *,
        next_state: tuple[Message, ...] = (),
        ended: str | None = None,
        evidence: tuple[str, ...] = (),
    ) -> Outcome:
        self._settled(entry)
        return Outcome(
            turn=entry.turn,
            session=entry.thread.name,
            kind=entry.kind,
            kind_reason=entry.reason,
            confidence=entry.confidence,
            index=entry.index,
            parent=entry.parent.turn if entry.parent else None,
            next_state=next_state,
            ended=ended,
            evidence=entry.evidence + evidence,
            at=at,
        )

    def _settled(self, entry: Entry) -> None:
        entry.settled = True
        entry.thread.open.pop(entry.seq, None)

    def _remember(self, entry: Entry) -> None:
        thread = entry.thread
        self._index.add(entry)
        self._entries[entry.turn] = entry
        thread.open[entry.seq] = entry
        thread.size += 1
        if entry.kind == "main":
            thread.last = max(thread.last, entry.seq)
            thread.index = max(thread.index, entry.index)
        heapq.heappush(self._due, (entry.at, entry.seq, entry))
        heapq.heappush(self._old, (entry.at, entry.seq, entry))

    def _make_room(self, at: float) -> list[Outcome]:
        settled: list[Outcome] = []
        while len(self._entries) > self.capacity:
            entry = heapq.heappop(self._old)[2]
            settled += self._close(entry, "evicted", at)
            self._forget(entry)
        return settled

    def _forget_older(self, than: float) -> None:
        waiting = []
        while self._old and self._old[0][0] < than:
            item = heapq.heappop(self._old)
            if item[2].settled:
                self._forget(item[2])
            else:
                waiting.append(item)
        for item in waiting:
            heapq.heappush(self._old, item)

    def _forget(self, entry: Entry) -> None:
        self._index.remove(entry)
        del self._entries[entry.turn]
        entry.parent, entry.path = None, b""  # a chain of parents would keep a whole conversation alive
        thread = entry.thread
        thread.size -= 1
        if thread.size:
            return
        del self._threads[thread.user, thread.name]
        if thread.base is not None:
            names = self._bases[thread.user, thread.base]
            del names[thread.name]
            if not names:
                del self._bases[thread.user, thread.base]


def _speaks(entry: Entry) -> bool:
    """Whether somebody's words are in the request, be it that a client sent them again in words of its own."""
    return entry.kind == "main" or entry.reason == kinds.REWRITTEN


def _around(link: Link) -> kinds.Around:
    parent = link.entry if link.direct else None
    tools = parent is not None and parent.tools
    if link.side is not None:
        return kinds.Around(parent="side", reason=link.side, tools=tools)
    return kinds.Around(parent="main" if parent else None, reason=parent.reason if parent else "", tools=tools)


def _by_machine(messages: Sequence[Message], before: int) -> bool:
    """Whether the reply at message ``before`` answers a client's own message, such as a heartbeat."""
    asked = next((m for m in reversed(messages[:before]) if m.role == "user" and stripped(m)), None)
    return asked is not None and kinds.machine_said(asked.content)


def _repeats(path: bytes, reply: int) -> tuple[str, ...]:
    """``repeated_call`` when the reply makes a call that was made since the user last spoke."""
    made: set[bytes] = set()
    for atom in skeleton(path[:reply])[::-1]:
        if atom[0] != CALL:
            if atom[0] in b"ui":
                break
            continue
        made.add(atom)
    return ("repeated_call",) if any(atom in made for atom in skeleton(path[reply:]) if atom[0] == CALL) else ()
