"""Checks a reply format in a separate process that can be killed, because its grammar may compile forever.

A 2 kB schema can describe a grammar whose size doubles with each pattern. So a child process first compiles each new
format and follows it for some tokens, within `SECONDS` of processor time. The child needs no torch. It ends with the
engine, because its pipe breaks.
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
"""processor time for a format; time that the machine gives to other processes does not count"""
WAIT: Final = 60.0
"""longest wait for the child in seconds, however busy the machine is"""
TOKENS: Final = 32
"""tokens for which each beginning of a reply is followed: some grammars compile but cannot be followed"""
MEMORY: Final = 4 << 30
"""the child's address space limit in bytes"""
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
"""beginnings and middles of compiler messages that do not mention the schema, with their meaning"""
_INSIDE: Final = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: )?")
"""a position in the generated grammar, which the caller does not see"""


def tokenizer_of(text: str, *, vocabulary: int, ends: list[int]) -> Any:
    """Build the grammars' vocabulary; ``text`` is the tokenizer as JSON."""
    from llguidance import LLTokenizer

    return LLTokenizer(text, n_vocab=vocabulary, eos_token=ends)


def compiled(tokenizer: Any, grammar: str) -> Any:
    """Compile a grammar; the matcher is in its error state if that fails."""
    from llguidance import LLMatcher, LLParserLimits

    return LLMatcher(tokenizer, grammar, log_level=0, limits=LLParserLimits(verbose_errors=False))


def fault_of(matcher: Any) -> str:
    """Return the reason that a grammar cannot be followed, in one line, or ""."""
    if not matcher.is_error():
        return ""
    lines = str(matcher.get_error()).strip().splitlines()
    return in_words(lines[0] if lines else "no reason is given")


def in_words(fault: str) -> str:
    """Translate the compiler's message about a schema for the schema's author.

    >>> in_words('at 3(8): failed to compile JSON schema: Unimplemented keys: ["not"]')
    'Unimplemented keys: ["not"]'
    """
    return next((words for part, words in _IN_WORDS if part in fault), _INSIDE.sub("", fault))


def fault_from(matcher: Any, tokenizer: Any, starts: Sequence[str], ends: frozenset[int]) -> str:
    """Return the first fault of replies with these beginnings, or ""; skip a beginning that does not fit."""
    for start in starts:
        way, tokens = matcher.deep_copy(), tokenizer.tokenize_str(start)
        if way.validate_tokens(tokens) == len(tokens):
            way.consume_tokens(tokens)
            if fault := _follow(way, ends):
                return fault
    return ""


def _follow(matcher: Any, ends: frozenset[int]) -> str:
    """Follow the grammar for `TOKENS` tokens, the same on each call; return the fault, or ""."""
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
    """Return a token whose byte is set, from a random position on; None if only the end is allowed."""
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
    """Run the child: receive a tokenizer, then grammars with their beginnings; answer each with its fault."""
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
            signal.setitimer(signal.ITIMER_PROF, SECONDS)  # its signal ends the process, even in native code
            matcher = compiled(tokenizer, grammar)
            fault = fault_of(matcher) or fault_from(matcher, tokenizer, starts, frozenset(ends))
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            conn.send(fault)


class FormatChecker:
    """The engine's end of the child, which is started on first use and replaced when it ends. For one thread."""

    def __init__(self, text: str, *, vocabulary: int, ends: frozenset[int]) -> None:
        self._given = (text, vocabulary, sorted(ends))
        self._child: subprocess.Popen[bytes] | None = None
        self._conn: Connection | None = None

    def fault(self, grammar: str, starts: Sequence[str]) -> str:
        """Return the reason that a grammar cannot be used, or ""; raise `BackendError` if no child can be started."""
        conn = self._conn or self._start()
        try:
            conn.send((grammar, starts))
            if conn.poll(WAIT):
                return str(conn.recv())
        except (EOFError, OSError):
            pass  # this grammar ended the child: the time limit, the memory limit, or a compiler fault
        code = self.close()
        return TOO_LONG if code in (-signal.SIGPROF, -signal.SIGKILL) else TOO_LARGE

    def close(self) -> int | None:
        """End the child and return its exit code. Safe to call twice."""
        child, conn, self._child, self._conn = self._child, self._conn, None, None
        if conn is not None:
            conn.close()
        if child is None:
            return None
        child.kill()  # a child that has already ended keeps its exit code
        return child.wait()

    def _start(self) -> Connection:
        conn, child_conn = Pipe()
        code = f"import sys; sys.path[:0] = {sys.path!r}; from {__name__} import main; main({child_conn.fileno()})"
        self._conn = conn
        with child_conn:
            self._child = subprocess.Popen(
                (sys.executable, "-c", code), stdin=subprocess.DEVNULL, pass_fds=(child_conn.fileno(),)
            )
        try:
            conn.send(self._given)
            conn.recv()
        except (EOFError, OSError) as error:
            self.close()
            raise BackendError("formats cannot be checked: the process for it does not start") from error
        return conn
