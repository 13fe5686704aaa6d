"""Base for tool-call parsers: it numbers calls and returns malformed ones as text."""

from __future__ import annotations

from abc import ABC, abstractmethod

from openclaw_rl.formats.jsonscan import Envelope
from openclaw_rl.formats.parts import CallArgs, CallBroken, CallEnd, CallStart, Part, Text
from openclaw_rl.types import new_id

MALFORMED = "malformed_tool_call"
SPACE = " \t\n\r"


class ToolCallParser(ABC):
    """Base class for tool-call parsers; subclasses implement `_take` and `_finish`."""

    def __init__(self) -> None:
        self.flaws: set[str] = set()
        self._parts: list[Part] = []
        self._count = 0
        self._open: int | None = None  # the call in progress
        self._raw: list[str] = []  # its raw text

    def feed(self, text: str) -> list[Part]:
        self._take(text)
        return self._take_parts()

    def end(self, *, cut: bool) -> list[Part]:
        self._finish(cut=cut)
        return self._take_parts()

    @abstractmethod
    def _take(self, text: str) -> None:
        """Parse the next piece of raw text into parts."""

    @abstractmethod
    def _finish(self, *, cut: bool) -> None:
        """Turn unfinished text and calls into parts; ``cut`` is True if the reply ran out of tokens."""

    def _take_parts(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return _joined(parts)

    def _add_text(self, text: str) -> None:
        if text:
            self._parts.append(Text(text))

    def _start_call(self, name: str) -> None:
        self._open = self._count
        self._count += 1
        self._parts.append(CallStart(self._open, "call" + new_id(), name))

    def _add_arguments(self, text: str) -> None:
        assert self._open is not None
        if text:
            self._parts.append(CallArgs(self._open, text))

    def _end_call(self) -> None:
        assert self._open is not None
        self._parts.append(CallEnd(self._open))
        self._open = None
        self._raw = []

    def _break_call(self, *, flaw: bool) -> None:
        if self._open is not None:
            self._parts.append(CallBroken(self._open))
            self._open = None
        raw, self._raw = "".join(self._raw), []
        self._add_text(raw)
        if flaw:
            self.flaws.add(MALFORMED)

    def _envelope(self, envelope: Envelope, char: str) -> None:
        """Feed one character to a JSON call: start the call, pass its arguments on."""
        arguments = envelope.take(char)
        if envelope.begun and self._open is None:
            self._start_call(envelope.name or "")
        if arguments:
            self._add_arguments(arguments)


def _joined(parts: list[Part]) -> list[Part]:
    """Merge neighbouring parts of one kind."""
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if isinstance(part, Text) and isinstance(last, Text):
            joined[-1] = Text(last.text + part.text)
        elif isinstance(part, CallArgs) and isinstance(last, CallArgs) and last.index == part.index:
            joined[-1] = CallArgs(part.index, last.text + part.text)
        else:
            joined.append(part)
    return joined


def held_back(text: str, marker: str) -> int:
    """Return how many characters at the end of ``text`` may be the beginning of ``marker``."""
    for size in range(min(len(marker) - 1, len(text)), 0, -1):
        if marker.startswith(text[-size:]):
            return size
    return 0
