"""Which remembered turn a history shows. Pure.

A history shows a turn *exactly* when its path up to a reply is the turn's own path. Where a client dropped its oldest
messages, pruned results, lost a broken exchange or put a summary in their place, the reply and what it answers must
still be there, everything kept before them must come from the turn's own past, and no other turn may end alike: then
the turn *explains* the history.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b

from openclaw_rl.collect.normalise import ATOM, CALL, TEXT, PromptPath, reply_path, reply_start, run_start, skeleton
from openclaw_rl.types import Kind, Message

WEIGHT = 24
"""characters that the last exchange must have to be known from others without a name"""
JOINTS = 64
"""lines of a message after which another reply may begin"""
MOST_ALIKE = 256
"""how many turns with one reply are compared before all of them count as alike"""


@dataclass(slots=True, eq=False)
class Thread:
    """A conversation in memory: its name, its turns that wait for what comes next, and how far its main line got."""

    user: str
    name: str
    base: str | None
    open: dict[int, Entry] = field(default_factory=dict)
    size: int = 0
    last: int = -1
    index: int = -1


@dataclass(slots=True, eq=False)
class Entry:
    """A turn in memory: no text, only its path. ``reply`` and ``run`` are offsets into it, in bytes."""

    turn: str
    seq: int
    at: float
    thread: Thread
    kind: Kind
    reason: str
    confidence: float
    index: int
    path: bytes
    reply: int
    run: int
    context: bytes
    aborted: bool
    tools: bool
    parent: Entry | None = None
    evidence: tuple[str, ...] = ()
    settled: bool = False
    answered: bool = False

    @property
    def request(self) -> bytes:
        """The path of the request."""
        return self.path[: self.reply]

    @property
    def reply_atoms(self) -> bytes:
        """The path of the reply alone."""
        return self.path[self.reply :]


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """A request as it is matched: its user, its conversation if that is known, and its path."""

    user: str
    base: str | None
    prompt: PromptPath
    keys: Mapping[int, bytes]
    """by the atom at which a reply ends: the key of the path so far"""

    @classmethod
    def of(cls, user: str, base: str | None, prompt: PromptPath) -> HistoryQuery:
        """One pass over the path gives the key of every reply in it."""
        keys: dict[int, bytes] = {}
        running, begin = _hasher(user), 0
        for end in prompt.ends:
            running.update(prompt.path[begin * ATOM : end * ATOM])
            keys[end] = running.copy().digest()
            begin = end
        return cls(user, base, prompt, keys)

    def history(self, end: int) -> bytes:
        """The path up to and with the reply that ends at atom ``end``."""
        return self.prompt.path[: end * ATOM]

    def weight(self, end: int) -> int:
        """How many characters the exchange has that ends at atom ``end``."""
        path = self.history(end)
        return sum(self.prompt.sizes[run_start(path, reply_start(path)) // ATOM : end])


@dataclass(slots=True)
class TurnIndex:
    """Entries by what they show: their whole path, their request, their tail (the reply and the atom before it)."""

    paths: dict[bytes, list[Entry]] = field(default_factory=dict)
    requests: dict[bytes, list[Entry]] = field(default_factory=dict)
    tails: dict[bytes, list[Entry]] = field(default_factory=dict)

    def add(self, entry: Entry) -> None:
        for table, key in self._keys(entry):
            table.setdefault(key, []).append(entry)

    def remove(self, entry: Entry) -> None:
        for table, key in self._keys(entry):
            kept = table[key]
            kept.remove(entry)
            if not kept:
                del table[key]

    def by_path(self, key: bytes) -> Sequence[Entry]:
        """Turns whose prompt and reply have this key."""
        return self.paths.get(key, ())

    def by_request(self, user: str, path: bytes) -> Sequence[Entry]:
        """Turns whose prompt is this path."""
        return self.requests.get(key_of(user, path), ())

    def by_tail(self, user: str, tail: bytes) -> Sequence[Entry]:
        """Turns with this tail."""
        return self.tails.get(key_of(user, tail), ())

    def _keys(self, entry: Entry) -> Iterator[tuple[dict[bytes, list[Entry]], bytes]]:
        user = entry.thread.user
        yield self.requests, key_of(user, entry.request)
        if entry.reply_atoms:
            yield self.paths, key_of(user, entry.path)
            yield self.tails, key_of(user, tail_of(entry.path, entry.reply))


class AmbiguousMatch(Exception):
    """Several turns show equally well, and they are not interchangeable. No failure: an answer."""


def key_of(user: str, path: bytes) -> bytes:
    """A key for a path of one user."""
    running = _hasher(user)
    running.update(path)
    return running.digest()


def match(index: TurnIndex, query: HistoryQuery, end: int) -> Entry | None:
    """The turn whose reply ends at atom ``end`` of this history, None when none is known; may raise `AmbiguousMatch`.

    Conversations are joined by content only within one name, or where neither has a name.
    """
    history = query.history(end)
    tail = tail_of(history, reply_start(history))
    exact = [entry for entry in index.by_path(query.keys[end]) if entry.thread.base == query.base]
    alike = [entry for entry in index.by_tail(query.user, tail) if entry.thread.base == query.base]
    others = [entry for entry in alike if entry.path != history]
    if len(others) > MOST_ALIKE:
        raise AmbiguousMatch
    if exact:
        if any(_left_over(history, entry.path) == 0 for entry in others):
            raise AmbiguousMatch
        return _choose(exact, query)
    if not alike or (query.base is None and query.weight(end) < WEIGHT):
        return None
    if len({entry.path for entry in alike}) > 1:
        raise AmbiguousMatch
    return _choose(alike, query) if explains(history, alike[0]) else None


def match_joined(index: TurnIndex, query: HistoryQuery, end: int, text: str) -> Entry | None:
    """The main turn whose reply opens the history's last message, None when none is known; may raise `AmbiguousMatch`.

    Where OpenClaw leaves a machine's message out of a history, it joins the replies before and after it by a newline.
    """
    history = query.history(end)
    reply = reply_start(history)
    if query.base is None or end != query.prompt.ends[-1] or len(history) - reply != ATOM:
        return None
    lines = text.split("\n")
    for cut in range(min(len(lines) - 1, JOINTS), 0, -1):
        path = history[:reply] + reply_path(Message(role="assistant", content="\n".join(lines[:cut])))
        shown = index.by_path(key_of(query.user, path))
        found = [entry for entry in shown if entry.thread.base == query.base and entry.kind == "main"]
        if found:
            return _choose(found, query)
    return None


def explains(history: bytes, entry: Entry) -> bool:
    """Whether ``history`` can be what a client made of the entry's past: messages lost, or a summary in their place."""
    left = _left_over(history, entry.path)
    if any(atom[0] in (TEXT, CALL) for atom in skeleton(history)[:left]):
        return False
    # A history that fits into the entry's own prompt may end in an earlier reply with the same words.
    return _left_over(history, entry.request) > 0


def tail_of(path: bytes, reply: int) -> bytes:
    """The reply that begins at ``reply`` and the last atom before it."""
    return path[max(0, reply - ATOM) :]


def _left_over(history: bytes, path: bytes) -> int:
    """How many atoms at the head of a history are left over when its tail is found in ``path``, in order.

    Tool results do not count: clients prune old ones.
    """
    wanted = skeleton(history)
    left = len(wanted)
    for atom in reversed(skeleton(path)):
        if left and wanted[left - 1] == atom:
            left -= 1
    return left


@lru_cache(maxsize=4096)
def _seed(user: str) -> bytes:
    return blake2b(user.encode("utf-8", "surrogatepass")).digest()


def _hasher(user: str) -> blake2b:
    return blake2b(digest_size=16, key=_seed(user))


def _choose(twins: Sequence[Entry], query: HistoryQuery) -> Entry:
    """One of several turns with the same path, by their context.

    Turns that are alike in that too are interchangeable; the latest that nobody answered yet is taken.
    """
    near = [entry for entry in twins if entry.context == query.prompt.context]
    if not near and len({entry.context for entry in twins}) > 1:
        raise AmbiguousMatch
    return max(near or twins, key=lambda entry: (not entry.answered, entry.seq))
