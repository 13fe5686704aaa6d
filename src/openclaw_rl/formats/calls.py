"""What the readers of tool calls share: numbering calls, and giving one back as text when it breaks."""

from __future__ import annotations

from abc import ABC, abstractmethod

from openclaw_rl.formats.jsonscan import Envelope
from openclaw_rl.formats.parts import CallArgs, CallBroken, CallEnd, CallStart, Part, Text
from openclaw_rl.types import new_id

MALFORMED = "malformed_tool_call"
SPACE = " \t\n\r"


class ToolCallParser(ABC):
    """A tool-call reader under construction: subclasses say how text is taken and how it ends."""

    def __init__(self) -> None:
        self.flaws: set[str] = set()
        self._parts: list[Part] = []
        self._count = 0
        self._open: int | None = None  # the call that has begun and is not whole
        self._raw: list[str] = []  # what the call was written as

    def feed(self, text: str) -> list[Part]:
        self._take(text)
        return self._take_parts()

    def end(self, *, cut: bool) -> list[Part]:
        self._finish(cut=cut)
        return self._take_parts()

    @abstractmethod
    def _take(self, text: str) -> None:
        """Read the next bit of raw text into parts."""

    @abstractmethod
    def _finish(self, *, cut: bool) -> None:
        """Make parts of what is still open; ``cut`` says that the reply ran out of tokens."""

    def _take_parts(self) -> list[Part]:
        given, self._parts = self._parts, []
        return _joined(given)

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
        """One character of a JSON call: begins it, passes arguments on, ends it."""
        more = envelope.take(char)
        if envelope.begun and self._open is None:
            self._start_call(envelope.name or "")
        if more:
            self._add_arguments(more)


def _joined(parts: list[Part]) -> list[Part]:
    """Neighbouring bits of one kind as one."""
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
    """How many characters at the end of ``text`` may be the beginning of ``marker``."""
    for size in range(min(len(marker) - 1, len(text)), 0, -1):
        if marker.startswith(text[-size:]):
            return size
    return 0
