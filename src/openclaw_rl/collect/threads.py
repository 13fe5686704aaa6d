"""Which turn follows which, and the next state of each: pure, in memory, bounded.

`Threads` is given every turn in the order of the ledger and answers with the outcomes that this settles. What it
promises:

- a request continues the turn whose reply its history shows, known by content (see `normalise`, `matching`); a named
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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from openclaw_rl.collect.classify import REWRITTEN, ThreadContext, classify, compacted, is_machine_message
from openclaw_rl.collect.matching import AmbiguousMatch, Entry, HistoryQuery, Thread, TurnIndex, match, match_joined
from openclaw_rl.collect.normalise import (
    ATOM,
    CALL,
    PromptPath,
    prompt_path,
    reply_path,
    reply_start,
    run_start,
    runtime_line,
    skeleton,
    without_envelope,
)
from openclaw_rl.ports import Placement
from openclaw_rl.types import Ended, Message, Outcome, SessionEnd, Turn, environment_of

ENDINGS: Mapping[Ended, str] = {
    "done": "the session was declared over",
    "idle": "nothing came for the length of session_idle",
    "superseded": "the conversation went on without this reply",
    "compacted": "a summary took the place of this reply",
    "side": "side calls are not waited for",
    "evicted": "too many turns were open at once",
}
"""why nothing more will come, as `Outcome.ended` says it"""

CAPACITY = 50_000
"""turns kept in memory, about 100 MiB; the oldest leave first and are read again if needed"""
REGENERATED_AFTER = 1.0
"""seconds between two equal requests from which on the second is a person's request, not a parallel call"""
REGENERATED_WITHIN = 300.0
"""seconds within which a request without a past, sent again in one session, asks for another reply"""

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_EPOCH = re.compile(rf"({_UUID}):(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ConversationName:
    """A conversation as it is named: ``base`` stays over compactions and resets, ``epoch`` counts them."""

    full: str
    base: str
    epoch: int | None


@dataclass(frozen=True, slots=True)
class HistoryMatch:
    """The past that a history shows: the nearest known main turn, and the messages ``begin .. stop`` after its reply.

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


def conversation_name(turn: Turn) -> ConversationName | None:
    """The conversation that a turn names, None when it names none.

    ``<uuid>:<number>`` is OpenClaw's session id with its epoch; other declared names are taken as they are.
    """
    session = turn.session
    if session is None:
        line = runtime_line(turn.prompt.messages)
        return ConversationName(line.session, line.session, None) if line and line.session else None
    parts = _EPOCH.fullmatch(session)
    if parts is None:
        return ConversationName(session, session, None)
    return ConversationName(session, parts.group(1), int(parts.group(2)))


class Threads:
    """The open turns of all users and how they hang together."""

    def __init__(
        self, *, idle: float, env_idle: float | None = None, memory: float | None = None, capacity: int = CAPACITY
    ) -> None:
        """``idle`` seconds of silence end a session, ``env_idle`` one of an environment (None: as many)."""
        self.idle = idle
        self.env_idle = idle if env_idle is None else min(env_idle, idle)
        self.memory = max(idle, memory if memory is not None else 2 * idle)
        self.capacity = capacity
        self._index = TurnIndex()
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
        past, entry = self._place(seq, turn)
        settled += self._continue(past, entry, turn)
        if entry.kind == "side":
            settled += self._close(entry, "side", turn.at)
        if turn.done:
            settled += self._close_all(entry.thread, "done", turn.at)
        return settled + self._make_room(turn.at)

    def restore(self, seq: int, turn: Turn, outcome: Outcome | None) -> None:
        """Remember a turn that was read before, with its outcome where it has one. Oldest first, nothing is settled."""
        self._forget_older(turn.at - self.memory)
        past, entry = self._place(seq, turn, known=outcome)
        parent = past.entry
        if outcome is not None:
            self._settled(entry)
            parent = parent if parent is not None and outcome.parent in (None, parent.turn) else None
        if parent is not None and _speaks(entry) and self._next_state(past, turn):
            parent.answered = True

    def placement(self, seq: int, turn: Turn) -> Placement:
        """Where a request stands; the turn is remembered from then on, so ask this of a memory that is thrown away."""
        _, entry = self._place(seq, turn)
        return Placement(kind=entry.kind, before=entry.parent.turn if entry.parent else None)

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
        """End what has waited for as long as it may, forget what is older than ``memory`` seconds."""
        settled: list[Outcome] = []
        while self._due and self._due[0][0] < now:
            due, _, entry = heapq.heappop(self._due)
            if not entry.settled:
                settled += self._close(entry, "idle", due)
        self._forget_older(now - self.memory)
        return settled

    def _place(self, seq: int, turn: Turn, known: Outcome | None = None) -> tuple[HistoryMatch, Entry]:
        prompt = prompt_path(turn.prompt.messages, turn.prompt.tools)
        name = conversation_name(turn)
        past = self._follow(HistoryQuery.of(turn.user, name.base if name else None, prompt), turn.prompt.messages)
        thread = self._thread(turn, name, past, known)
        entry = self._entry(seq, turn, prompt, past, thread, known)
        self._remember(entry)
        return past, entry

    def _follow(self, query: HistoryQuery, messages: Sequence[Message]) -> HistoryMatch:
        """Walk a history from its latest reply back to the first known main turn."""
        owners, stop, begin = query.prompt.owners, len(messages), -1
        direct, side, thread = True, None, None
        for end in reversed(query.prompt.ends):
            first = reply_start(query.history(end)) // ATOM
            text = messages[owners[first]].content
            try:
                entry = match(self._index, query, end) or match_joined(self._index, query, end, text)
            except AmbiguousMatch:
                return HistoryMatch()
            after = owners[end - 1] + 1 if begin < 0 else begin
            if entry is not None and entry.kind == "main":
                return HistoryMatch(entry, after, stop, direct, side, entry.thread)
            if entry is not None and entry.reason == REWRITTEN:  # a later history has it as it was sent
                stop, begin, direct = owners[first], -1, False
                continue
            if entry is not None or _by_machine(messages, owners[first]):
                begin = after
                side = side or (entry.reason if entry and stop == len(messages) else None)
                thread = thread or (entry.thread if entry else None)
                continue
            requests = self._index.by_request(query.user, query.history(first))
            requested = [e for e in requests if e.thread.base == query.base]
            if requested:  # the reply to a known request was rewritten: what came before is settled already
                return HistoryMatch(thread=next((e.thread for e in reversed(requested) if e.parent), None))
            stop, begin, direct = owners[first], -1, False
        return HistoryMatch(side=side, thread=thread)

    def _thread(self, turn: Turn, name: ConversationName | None, past: HistoryMatch, known: Outcome | None) -> Thread:
        full = known.session if known else name.full if name else None
        if full is None:
            if past.thread is not None:
                return past.thread
            full = f"thread-{turn.id}"
        thread = self._threads.get((turn.user, full))
        if thread is None:
            base = name.base if name else past.thread.base if past.thread else None
            thread = self._threads[turn.user, full] = Thread(turn.user, full, base)
            if base is not None:
                epoch = name.epoch if name and name.epoch is not None else -1
                self._bases.setdefault((turn.user, base), {})[full] = epoch
        return thread

    def _entry(
        self, seq: int, turn: Turn, prompt: PromptPath, past: HistoryMatch, thread: Thread, known: Outcome | None
    ) -> Entry:
        path = prompt.path + reply_path(turn.completion.reply)
        found = classify(turn, _context(past))
        reply = reply_start(path) if len(path) > len(prompt.path) else len(path)
        return Entry(
            turn=turn.id,
            seq=seq,
            at=turn.at,
            thread=thread,
            kind=known.kind if known else found.kind,
            reason=known.kind_reason if known else found.reason,
            confidence=known.confidence if known else found.confidence,
            index=known.index if known else self._position(turn, prompt, past, thread),
            path=path,
            reply=reply,
            run=run_start(path, reply),
            context=prompt.context,
            aborted=turn.completion.finish == "aborted",
            tools=bool(turn.prompt.tools),
            parent=past.entry if past.direct else None,
            evidence=_repeats(path, reply),
        )

    def _position(self, turn: Turn, prompt: PromptPath, past: HistoryMatch, thread: Thread) -> int:
        """One after its parent; without one, as many replies as its history has, or on from before a compaction."""
        if past.entry is not None and past.direct:
            return past.entry.index + 1
        if past.entry is None and thread.size and compacted(turn.prompt.messages):
            return thread.index + 1
        return len(prompt.ends)

    def _continue(self, past: HistoryMatch, entry: Entry, turn: Turn) -> list[Outcome]:
        """Settle what a request shows of the turns before it: a main turn's, or a person's words sent again."""
        if not _speaks(entry):
            return []
        settled: list[Outcome] = []
        next_state = self._next_state(past, turn)
        if past.entry is not None and next_state:
            past.entry.answered = True
            if not past.entry.settled:
                settled.append(self._outcome(past.entry, turn.at, next_state=next_state))
                settled += self._abandon(past.entry, turn.at)
        return settled + self._compact(past, entry, turn)

    def _next_state(self, past: HistoryMatch, turn: Turn) -> tuple[Message, ...]:
        if past.entry is None:
            return ()
        after = (without_envelope(message) for message in turn.prompt.messages[past.begin : past.stop])
        return tuple(message for message in after if message is not None)

    def _abandon(self, chosen: Entry, at: float) -> list[Outcome]:
        """Other replies to the same request wait in vain once one of them was answered."""
        alike = self._index.by_request(chosen.thread.user, chosen.request)
        others = [e for e in alike if e is not chosen and e.thread is chosen.thread and not e.settled]
        return [outcome for entry in others for outcome in self._close(entry, "superseded", at)]

    def _compact(self, past: HistoryMatch, entry: Entry, turn: Turn) -> list[Outcome]:
        """End the turns that a new epoch or a summary left behind."""
        summary = compacted(turn.prompt.messages)
        why: Ended = "compacted" if summary else "superseded"
        waiting = [e for thread in self._earlier(entry.thread) for e in thread.open.values() if e.seq < entry.seq]
        if past.thread is None and summary:  # of several conversations of one name the latest was cut short
            waiting += [e for e in entry.thread.open.values() if e is not entry and e.kind == "main"][-1:]
        return [outcome for e in waiting for outcome in self._close(e, why, turn.at)]

    def _earlier(self, thread: Thread) -> Iterable[Thread]:
        """The same conversation in its earlier epochs."""
        epochs = self._bases.get((thread.user, thread.base), {}) if thread.base is not None else {}
        mine = epochs.get(thread.name, -1)
        return [self._threads[thread.user, name] for name, epoch in epochs.items() if -1 < epoch < mine]

    def _close_all(self, thread: Thread, why: Ended, at: float, until: float | None = None) -> list[Outcome]:
        waiting = [entry for entry in thread.open.values() if until is None or entry.at <= until]
        return [outcome for entry in waiting for outcome in self._close(entry, why, at)]

    def _close(self, entry: Entry, why: Ended, at: float) -> list[Outcome]:
        if entry.settled:
            return []
        if why == "idle" and entry.thread.last > entry.seq:
            why = "superseded"
        return [self._outcome(entry, at, ended=why, evidence=("regenerated",) if self._regenerated(entry) else ())]

    def _regenerated(self, entry: Entry) -> bool:
        """Whether somebody requested again a reply that was whole and another than the later one."""
        if entry.aborted or entry.kind == "side":
            return False
        return any(
            later.thread is entry.thread
            and REGENERATED_AFTER <= later.at - entry.at <= (REGENERATED_WITHIN if entry.run == 0 else self.idle)
            and later.seq > entry.seq
            and later.kind == "main"
            and later.reply_atoms != entry.reply_atoms
            for later in self._index.by_request(entry.thread.user, entry.request)
        )

    def _outcome(
        self,
        entry: Entry,
        at: float,
        *,
        next_state: tuple[Message, ...] = (),
        ended: Ended | None = None,
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
        idle = self.idle if environment_of(entry.thread.user) is None else self.env_idle
        heapq.heappush(self._due, (entry.at + idle, entry.seq, entry))
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
    return entry.kind == "main" or entry.reason == REWRITTEN


def _context(past: HistoryMatch) -> ThreadContext:
    parent = past.entry if past.direct else None
    tools = parent is not None and parent.tools
    if past.side is not None:
        return ThreadContext(parent="side", reason=past.side, tools=tools)
    return ThreadContext(parent="main" if parent else None, reason=parent.reason if parent else "", tools=tools)


def _by_machine(messages: Sequence[Message], before: int) -> bool:
    """Whether the reply at message ``before`` answers a client's own message, such as a heartbeat."""
    request = next((m for m in reversed(messages[:before]) if m.role == "user" and without_envelope(m)), None)
    return request is not None and is_machine_message(request.content)


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
