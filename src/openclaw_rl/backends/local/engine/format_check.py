"""Tries a reply format in a process of its own, which can be ended: its grammar may take for ever to compile.

A schema of 2 kB can stand for a grammar whose size doubles with each of its patterns. So each new format is compiled
and followed for some tokens by a child first, within `SECONDS` of processor time. The child needs no torch; it ends
with the engine, whose end of the pipe breaks then.
"""

from __future__ import annotations

import re
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from random import Random
from typing import Any, Final

from openclaw_rl.errors import BackendError

SECONDS: Final = 1.5
"""processor time that a format may take; time that the machine gives to others does not count"""
WAIT: Final = 60.0
"""seconds that the engine waits for the child at most, however busy the machine is"""
TOKENS: Final = 32
"""how far each beginning of a reply is followed: some grammars compile, and cannot be followed"""
MEMORY: Final = 4 << 30
"""bytes of address space that the child may take"""
TOO_LONG: Final = f"its grammar takes more than {SECONDS:g} s to compile"
TOO_LARGE: Final = "its grammar takes more memory than the compiler may have"
NO_REPLY: Final = "no reply can follow it: it refers to itself without end, or its parts exclude each other"
TOO_WIDE: Final = "too many of its parts may come at the same place, such as optional properties"
TOO_BRANCHED: Final = "its grammar has too many branches, as where a required property refers to the whole again"
_IN_WORDS: Final = (
    ("NoExtensionBias", NO_REPLY),
    ("Current row has", TOO_WIDE),
    ("Too many items", TOO_BRANCHED),
    ("Unable to determine if regex is empty", "its patterns cannot be combined"),
    ("regex parse error", "a pattern is no regular expression, or looks ahead or back"),
)
"""beginnings and middles of the compiler's own messages that say nothing about a schema, with what they stand for"""
_INSIDE: Final = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: )?")
"""a place in our grammar, which the caller has never seen"""


def tokenizer_of(text: str, *, vocabulary: int, ends: list[int]) -> Any:
    """The vocabulary as the grammars use it; ``text`` is the tokenizer as JSON."""
    from llguidance import LLTokenizer

    return LLTokenizer(text, n_vocab=vocabulary, eos_token=ends)


def compiled(tokenizer: Any, grammar: str) -> Any:
    """The grammar, ready to be followed; in its error state where it cannot be."""
    from llguidance import LLMatcher, LLParserLimits

    return LLMatcher(tokenizer, grammar, log_level=0, limits=LLParserLimits(verbose_errors=False))


def fault_of(matcher: Any) -> str:
    """Why a grammar cannot be followed, in one line; "" where it can."""
    if not matcher.is_error():
        return ""
    lines = str(matcher.get_error()).strip().splitlines()
    return in_words(lines[0] if lines else "no reason is given")


def in_words(fault: str) -> str:
    """The compiler's message about a schema in words for its author.

    >>> in_words('at 3(8): failed to compile JSON schema: Unimplemented keys: ["not"]')
    'Unimplemented keys: ["not"]'
    """
    return next((words for part, words in _IN_WORDS if part in fault), _INSIDE.sub("", fault))


def fault_from(matcher: Any, tokenizer: Any, starts: Sequence[str], ends: frozenset[int]) -> str:
    """The first fault of replies that begin in these ways, or ""; a beginning that does not fit is passed over."""
    for start in starts:
        way, tokens = matcher.deep_copy(), tokenizer.tokenize_str(start)
        if way.validate_tokens(tokens) == len(tokens):
            way.consume_tokens(tokens)
            if fault := _follow(way, ends):
                return fault
    return ""


def _follow(matcher: Any, ends: frozenset[int]) -> str:
    """Go on for `TOKENS` tokens, always the same ones; the fault that it leads to, or ""."""
    choose = Random(0)
    for _ in range(TOKENS):
        if fault_of(matcher):
            break
        token = _some_allowed(bytes(matcher.compute_logit_bias()), ends, choose)
        if token is None:
            break
        matcher.consume_token(token)
    return fault_of(matcher)


def _some_allowed(marks: bytes, ends: frozenset[int], choose: Random) -> int | None:
    """A token whose byte is set, from a random place on; None where only the end is allowed."""
    mark = max(marks)
    places = range(choose.randrange(len(marks)), len(marks)), range(len(marks))
    for place in places if mark else ():
        token = marks.find(mark, place.start)
        while token in ends:
            token = marks.find(mark, token + 1)
        if token >= 0:
            return token
    return None


def main(pipe: int) -> None:
    """The child: a tokenizer comes first, then grammars with the beginnings to try, each answered by its fault."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError, ValueError):  # a limit that this system does not have
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with Connection(pipe) as conn, suppress(EOFError, OSError):
        text, vocabulary, ends = conn.recv()
        tokenizer = tokenizer_of(text, vocabulary=vocabulary, ends=ends)
        conn.send("")
        while True:
            grammar, starts = conn.recv()
            signal.setitimer(signal.ITIMER_PROF, SECONDS)  # its signal ends the process, native code or not
            matcher = compiled(tokenizer, grammar)
            fault = fault_of(matcher) or fault_from(matcher, tokenizer, starts, frozenset(ends))
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            conn.send(fault)


class FormatChecker:
    """The engine's end of such a child, which is started when it is needed and replaced when it ends. One thread."""

    def __init__(self, text: str, *, vocabulary: int, ends: frozenset[int]) -> None:
        self._given = (text, vocabulary, sorted(ends))
        self._child: subprocess.Popen[bytes] | None = None
        self._conn: Connection | None = None

    def fault(self, grammar: str, starts: Sequence[str]) -> str:
        """Why this grammar cannot be used, or ""; raises BackendError where no child can be started."""
        conn = self._conn or self._start()
        try:
            conn.send((grammar, starts))
            if conn.poll(WAIT):
                return str(conn.recv())
        except (EOFError, OSError):
            pass  # it ended over this grammar: by its limit of time, of memory, or by a fault of the compiler
        code = self.close()
        return TOO_LONG if code in (-signal.SIGPROF, -signal.SIGKILL) else TOO_LARGE

    def close(self) -> int | None:
        """End the child; its exit code. Safe to call twice."""
        child, conn, self._child, self._conn = self._child, self._conn, None, None
        if conn is not None:
            conn.close()
        if child is None:
            return None
        child.kill()  # one that has ended keeps its own code
        return child.wait()

    def _start(self) -> Connection:
        ours, theirs = Pipe()
        code = f"import sys; sys.path[:0] = {sys.path!r}; from {__name__} import main; main({theirs.fileno()})"
        self._conn = ours
        with theirs:
            self._child = subprocess.Popen(
                (sys.executable, "-c", code), stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),)
            )
        try:
            ours.send(self._given)
            ours.recv()
        except (EOFError, OSError) as error:
            self.close()
            raise BackendError("formats cannot be checked: the process for it does not start") from error
        return ours
