"""Link each turn to its predecessor and derive its next state: pure, in memory, bounded.

`Threads` takes every turn in ledger order and returns the outcomes that this settles. It guarantees:

- a request continues the turn whose reply its history contains, matched by content (see `normalise`, `matching`); a
  named conversation (a declared session, or the one in OpenClaw's Runtime line) is never joined to another one;
- a turn's next state is the content between its reply and the next reply in a later request, never a part of its own
  prompt; a side call settles nothing, and its exchange is skipped in a history that contains it;
- if several turns match, none is chosen, with one exception: turns in unnamed conversations that are equal in prompt,
  reply, system prompt, tools and user are interchangeable, and the latest unanswered turn is chosen;
- every turn gets exactly one outcome: at once if it is a side call or declares its session done, with the first
  continuation, or when its conversation is over (`ENDINGS`);
- the outcomes depend on the turns and endings alone, not on when or how often the process was started, as far as
  `restore` receives the turns settled within `memory` seconds.

A settled turn leaves memory ``memory`` seconds after it was answered; older turns leave sooner beyond ``capacity``.
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
    "idle": "no continuation within session_idle",
    "superseded": "the conversation continued without this reply",
    "compacted": "a summary replaced this reply",
    "side": "a side call gets no next state",
    "evicted": "too many turns were open at once",
}
"""reasons why a turn gets no continuation, by `Outcome.ended`"""

CAPACITY = 50_000
"""maximum turns in memory, about 100 MiB; the oldest leave first and are read again if needed"""
REGENERATED_AFTER = 1.0
"""minimum seconds between two equal requests for the second to count as a person's, not as a parallel call"""
REGENERATED_WITHIN = 300.0
"""maximum seconds between equal requests without a past, in one session, for the second to ask for another reply"""

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_EPOCH = re.compile(rf"({_UUID}):(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ConversationName:
    """A conversation's name: ``base`` persists over compactions and resets, ``epoch`` counts them."""

    full: str
    base: str
    epoch: int | None


@dataclass(frozen=True, slots=True)
class HistoryMatch:
    """The past in a history: the nearest known main turn, and the messages ``begin .. stop`` after its reply.

    ``direct`` is False if unknown replies separate that turn from the request. ``side`` is the kind reason for a side
    turn that the request directly follows. ``thread`` is the conversation, known in some cases without a turn.
    """

    entry: Entry | None = None
    begin: int = 0
    stop: int = 0
    direct: bool = False
    side: str | None = None
    thread: Thread | None = None


def conversation_name(turn: Turn) -> ConversationName | None:
    """Return the name of a turn's conversation, None if it has none.

    ``<uuid>:<number>`` is OpenClaw's session id with its epoch; other declared names are used unchanged.
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
    """The open turns of all users and the links between them."""

    def __init__(
        self, *, idle: float, env_idle: float | None = None, memory: float | None = None, capacity: int = CAPACITY
    ) -> None:
        """Set the limits: ``idle`` seconds of silence end a session, ``env_idle`` an environment's (None: ``idle``)."""
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
        """Number of remembered turns, settled ones included."""
        return len(self._entries)

    @property
    def open(self) -> int:
        """Number of turns that wait for a next state."""
        return sum(len(thread.open) for thread in self._threads.values())

    def add(self, seq: int, turn: Turn) -> list[Outcome]:
        """Add the next turn; return the outcomes that it settles, including its own if nothing can follow."""
        settled = self.expire(turn.at)
        past, entry = self._place(seq, turn)
        settled += self._continue(past, entry, turn)
        if entry.kind == "side":
            settled += self._close(entry, "side", turn.at)
        if turn.done:
            settled += self._close_all(entry.thread, "done", turn.at)
        return settled + self._make_room(turn.at)

    def restore(self, seq: int, turn: Turn, outcome: Outcome | None) -> None:
        """Remember a turn that was read before, with its outcome if it has one. Oldest first; nothing is settled."""
        self._forget_older(turn.at - self.memory)
        past, entry = self._place(seq, turn, known=outcome)
        parent = past.entry
        if outcome is not None:
            self._settled(entry)
            parent = parent if parent is not None and outcome.parent in (None, parent.turn) else None
        if parent is not None and _speaks(entry) and self._next_state(past, turn):
            parent.answered = True

    def placement(self, seq: int, turn: Turn) -> Placement:
        """Return a request's placement. This adds the turn to memory, so call it on a disposable instance."""
        _, entry = self._place(seq, turn)
        return Placement(kind=entry.kind, before=entry.parent.turn if entry.parent else None)

    def end(self, ending: SessionEnd) -> list[Outcome]:
        """Close a session that was declared over: its turns up to then stop waiting."""
        names = {ending.session, *self._bases.get((ending.user, ending.session), ())}
        threads = (self._threads.get((ending.user, name)) for name in sorted(names))
        return [
            outcome
            for thread in threads
            if thread is not None
            for outcome in self._close_all(thread, "done", ending.at, until=ending.at)
        ]

    def expire(self, now: float) -> list[Outcome]:
        """Close turns that waited for their full time; forget settled turns older than ``memory`` seconds."""
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
            if entry is not None and entry.reason == REWRITTEN:  # a later history contains the original message
                stop, begin, direct = owners[first], -1, False
                continue
            if entry is not None or _by_machine(messages, owners[first]):
                begin = after
                side = side or (entry.reason if entry and stop == len(messages) else None)
                thread = thread or (entry.thread if entry else None)
                continue
            requests = self._index.by_request(query.user, query.history(first))
            requested = [e for e in requests if e.thread.base == query.base]
            if requested:  # the reply to a known request was rewritten: earlier turns are settled already
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
        classification = classify(turn, _context(past))
        reply = reply_start(path) if len(path) > len(prompt.path) else len(path)
        return Entry(
            turn=turn.id,
            seq=seq,
            at=turn.at,
            thread=thread,
            kind=known.kind if known else classification.kind,
            reason=known.kind_reason if known else classification.reason,
            confidence=known.confidence if known else classification.confidence,
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
        """Return the parent's position plus one; else the reply count in its history, or the thread's next index."""
        if past.entry is not None and past.direct:
            return past.entry.index + 1
        if past.entry is None and thread.size and compacted(turn.prompt.messages):
            return thread.index + 1
        return len(prompt.ends)

    def _continue(self, past: HistoryMatch, entry: Entry, turn: Turn) -> list[Outcome]:
        """Settle the earlier turns that a main turn, or a resent user message, contains in its history."""
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
        """Close other replies to the same request once one was answered."""
        alike = self._index.by_request(chosen.thread.user, chosen.request)
        siblings = [e for e in alike if e is not chosen and e.thread is chosen.thread and not e.settled]
        return [outcome for entry in siblings for outcome in self._close(entry, "superseded", at)]

    def _compact(self, past: HistoryMatch, entry: Entry, turn: Turn) -> list[Outcome]:
        """Close the turns that a new epoch or a summary replaced."""
        summary = compacted(turn.prompt.messages)
        why: Ended = "compacted" if summary else "superseded"
        waiting = [e for thread in self._earlier(entry.thread) for e in thread.open.values() if e.seq < entry.seq]
        if past.thread is None and summary:  # among several conversations with one name the latest was cut short
            waiting += [e for e in entry.thread.open.values() if e is not entry and e.kind == "main"][-1:]
        return [outcome for e in waiting for outcome in self._close(e, why, turn.at)]

    def _earlier(self, thread: Thread) -> Iterable[Thread]:
        """Return the same conversation's earlier epochs."""
        epochs = self._bases.get((thread.user, thread.base), {}) if thread.base is not None else {}
        current = epochs.get(thread.name, -1)
        return [self._threads[thread.user, name] for name, epoch in epochs.items() if -1 < epoch < current]

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
        """Return True if a complete reply was requested again and the later reply differs."""
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
    """Return True if the request contains a user's message, even if the client resent it in its own wording."""
    return entry.kind == "main" or entry.reason == REWRITTEN


def _context(past: HistoryMatch) -> ThreadContext:
    parent = past.entry if past.direct else None
    tools = parent is not None and parent.tools
    if past.side is not None:
        return ThreadContext(parent="side", reason=past.side, tools=tools)
    return ThreadContext(parent="main" if parent else None, reason=parent.reason if parent else "", tools=tools)


def _by_machine(messages: Sequence[Message], before: int) -> bool:
    """Return True if the reply at message ``before`` answers a client's message, such as a heartbeat."""
    request = next((m for m in reversed(messages[:before]) if m.role == "user" and without_envelope(m)), None)
    return request is not None and is_machine_message(request.content)


def _repeats(path: bytes, reply: int) -> tuple[str, ...]:
    """Return ``repeated_call`` if the reply repeats a call made since the last user message."""
    calls: set[bytes] = set()
    for atom in skeleton(path[:reply])[::-1]:
        if atom[0] != CALL:
            if atom[0] in b"ui":
                break
            continue
        calls.add(atom)
    return ("repeated_call",) if any(atom in calls for atom in skeleton(path[reply:]) if atom[0] == CALL) else ()
