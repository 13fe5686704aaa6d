"""Find the remembered turn that a history contains. Pure.

A history contains a turn *exactly* when its path up to a reply equals the turn's path. After a client dropped its
oldest messages, pruned results, lost a broken exchange or put a summary in their place, a turn still *explains* the
history under three conditions: the reply and the message that it answers are present, all remaining earlier messages
occur in the turn's past, and no other turn ends alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b

from openclaw_rl.collect.normalise import ATOM, CALL, TEXT, PromptPath, reply_path, reply_start, run_start, skeleton
from openclaw_rl.types import Kind, Message

WEIGHT = 24
"""minimum characters in the last exchange that identify a turn without a conversation name"""
JOINTS = 64
"""lines of a message after which a joined reply may begin"""
MOST_ALIKE = 256
"""maximum turns with one reply that are compared; beyond it the match is ambiguous"""


@dataclass(slots=True, eq=False)
class Thread:
    """A conversation in memory: its name, its open turns, and the position of its main line."""

    user: str
    name: str
    base: str | None
    open: dict[int, Entry] = field(default_factory=dict)
    size: int = 0
    last: int = -1
    index: int = -1


@dataclass(slots=True, eq=False)
class Entry:
    """A turn in memory, as a path without text. ``reply`` and ``run`` are byte offsets into the path."""

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
        """The request's path."""
        return self.path[: self.reply]

    @property
    def reply_atoms(self) -> bytes:
        """The reply's path."""
        return self.path[self.reply :]


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """A request prepared for matching: its user, its conversation if known, and its path."""

    user: str
    base: str | None
    prompt: PromptPath
    keys: Mapping[int, bytes]
    """path key by the atom count at which a reply ends"""

    @classmethod
    def of(cls, user: str, base: str | None, prompt: PromptPath) -> HistoryQuery:
        """Compute the key for every reply in one pass over the path."""
        keys: dict[int, bytes] = {}
        running, begin = _hasher(user), 0
        for end in prompt.ends:
            running.update(prompt.path[begin * ATOM : end * ATOM])
            keys[end] = running.copy().digest()
            begin = end
        return cls(user, base, prompt, keys)

    def history(self, end: int) -> bytes:
        """Return the path up to and including the reply that ends at atom ``end``."""
        return self.prompt.path[: end * ATOM]

    def weight(self, end: int) -> int:
        """Return the character count for the exchange that ends at atom ``end``."""
        path = self.history(end)
        return sum(self.prompt.sizes[run_start(path, reply_start(path)) // ATOM : end])


@dataclass(slots=True)
class TurnIndex:
    """Entries by their whole path, by their request, and by their tail (the reply and the atom before it)."""

    paths: dict[bytes, list[Entry]] = field(default_factory=dict)
    requests: dict[bytes, list[Entry]] = field(default_factory=dict)
    tails: dict[bytes, list[Entry]] = field(default_factory=dict)

    def add(self, entry: Entry) -> None:
        for table, key in self._keys(entry):
            table.setdefault(key, []).append(entry)

    def remove(self, entry: Entry) -> None:
        for table, key in self._keys(entry):
            entries = table[key]
            entries.remove(entry)
            if not entries:
                del table[key]

    def by_path(self, key: bytes) -> Sequence[Entry]:
        """Return turns whose prompt and reply have this key."""
        return self.paths.get(key, ())

    def by_request(self, user: str, path: bytes) -> Sequence[Entry]:
        """Return turns whose prompt has this path."""
        return self.requests.get(key_of(user, path), ())

    def by_tail(self, user: str, tail: bytes) -> Sequence[Entry]:
        """Return turns with this tail."""
        return self.tails.get(key_of(user, tail), ())

    def _keys(self, entry: Entry) -> Iterator[tuple[dict[bytes, list[Entry]], bytes]]:
        user = entry.thread.user
        yield self.requests, key_of(user, entry.request)
        if entry.reply_atoms:
            yield self.paths, key_of(user, entry.path)
            yield self.tails, key_of(user, tail_of(entry.path, entry.reply))


class AmbiguousMatch(Exception):
    """Raised if several turns match equally well and are not interchangeable; callers treat it as a result."""


def key_of(user: str, path: bytes) -> bytes:
    """Return the key for a user's path."""
    running = _hasher(user)
    running.update(path)
    return running.digest()


def match(index: TurnIndex, query: HistoryQuery, end: int) -> Entry | None:
    """Return the turn whose reply ends at atom ``end`` in this history, None if unknown; may raise `AmbiguousMatch`.

    Conversations are joined by content only within one name, or if neither has a name.
    """
    history = query.history(end)
    tail = tail_of(history, reply_start(history))
    exact = [entry for entry in index.by_path(query.keys[end]) if entry.thread.base == query.base]
    alike = [entry for entry in index.by_tail(query.user, tail) if entry.thread.base == query.base]
    variants = [entry for entry in alike if entry.path != history]
    if len(variants) > MOST_ALIKE:
        raise AmbiguousMatch
    if exact:
        if any(_left_over(history, entry.path) == 0 for entry in variants):
            raise AmbiguousMatch
        return _choose(exact, query)
    if not alike or (query.base is None and query.weight(end) < WEIGHT):
        return None
    if len({entry.path for entry in alike}) > 1:
        raise AmbiguousMatch
    return _choose(alike, query) if explains(history, alike[0]) else None


def match_joined(index: TurnIndex, query: HistoryQuery, end: int, text: str) -> Entry | None:
    """Return the main turn whose reply opens the history's last message, None if unknown; may raise `AmbiguousMatch`.

    OpenClaw omits a machine's message from a history and joins the replies before and after it by a newline.
    """
    history = query.history(end)
    reply = reply_start(history)
    if query.base is None or end != query.prompt.ends[-1] or len(history) - reply != ATOM:
        return None
    lines = text.split("\n")
    for cut in range(min(len(lines) - 1, JOINTS), 0, -1):
        path = history[:reply] + reply_path(Message(role="assistant", content="\n".join(lines[:cut])))
        candidates = index.by_path(key_of(query.user, path))
        entries = [entry for entry in candidates if entry.thread.base == query.base and entry.kind == "main"]
        if entries:
            return _choose(entries, query)
    return None


def explains(history: bytes, entry: Entry) -> bool:
    """Check if ``history`` can derive from the entry's past, with messages lost or replaced by a summary."""
    unmatched = _left_over(history, entry.path)
    if any(atom[0] in (TEXT, CALL) for atom in skeleton(history)[:unmatched]):
        return False
    # A history that fits into the entry's prompt may end in an earlier reply with equal text.
    return _left_over(history, entry.request) > 0


def tail_of(path: bytes, reply: int) -> bytes:
    """Return the reply that begins at ``reply`` and the last atom before it."""
    return path[max(0, reply - ATOM) :]


def _left_over(history: bytes, path: bytes) -> int:
    """Count the atoms at a history's head that remain once its tail is matched in ``path``, in order.

    Tool results do not count: clients prune old ones.
    """
    target = skeleton(history)
    remaining = len(target)
    for atom in reversed(skeleton(path)):
        if remaining and target[remaining - 1] == atom:
            remaining -= 1
    return remaining


@lru_cache(maxsize=4096)
def _seed(user: str) -> bytes:
    return blake2b(user.encode("utf-8", "surrogatepass")).digest()


def _hasher(user: str) -> blake2b:
    return blake2b(digest_size=16, key=_seed(user))


def _choose(twins: Sequence[Entry], query: HistoryQuery) -> Entry:
    """Choose one of several turns with equal paths by their context.

    Turns with equal context are interchangeable; the latest unanswered turn is returned.
    """
    near = [entry for entry in twins if entry.context == query.prompt.context]
    if not near and len({entry.context for entry in twins}) > 1:
        raise AmbiguousMatch
    return max(near or twins, key=lambda entry: (not entry.answered, entry.seq))
