"""Parse tool calls from a model's text as it streams: hermes, llama and pythonic.

A parser takes text in any pieces and returns `Part`s; where the text is split does not change the result. A malformed
call is returned as its original text, and ``flaws`` reports it.
"""

from __future__ import annotations

from typing import Protocol

from openclaw_rl.formats.calls import SPACE, ToolCallParser, held_back
from openclaw_rl.formats.jsonscan import Broken, Envelope
from openclaw_rl.formats.parts import Part, Text
from openclaw_rl.formats.pythonic import Pythonic


class ToolCallReader(Protocol):
    """A parser from text to parts. ``end`` returns the text held back; ``cut``: the reply ran out of tokens."""

    flaws: set[str]

    def feed(self, text: str) -> list[Part]: ...

    def end(self, *, cut: bool) -> list[Part]: ...


def tool_call_reader(tool_format: str) -> ToolCallReader:
    """Return the parser for a model's tool format; an unknown format has no calls."""
    readers: dict[str, type[ToolCallParser]] = {"hermes": Hermes, "llama": Llama, "pythonic": Pythonic}
    return readers[tool_format]() if tool_format in readers else Plain()


class Plain:
    """A parser that treats everything as text."""

    def __init__(self) -> None:
        self.flaws: set[str] = set()

    def feed(self, text: str) -> list[Part]:
        return [Text(text)] if text else []

    def end(self, *, cut: bool) -> list[Part]:
        return []


class Hermes(ToolCallParser):
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, among text."""

    OPEN, CLOSE = "<tool_call>", "</tool_call>"

    def __init__(self) -> None:
        super().__init__()
        self._held = ""  # possibly space before a call, or the beginning of its marker
        self._call: Envelope | None = None
        self._tail: str | None = None  # text after a call's JSON: possibly its closing marker

    def _take(self, text: str) -> None:
        while text:
            if self._call is not None:
                text = self._take_call(self._call, text)
            elif self._tail is not None:
                text = self._take_tail(self._tail + text)
            else:
                text = self._take_text(self._held + text)

    def _take_text(self, text: str) -> str:
        self._held = ""
        at = text.find(self.OPEN)
        if at >= 0:
            before = text[:at].rstrip(SPACE)
            self._add_text(before)
            self._raw = [text[len(before) : at + len(self.OPEN)]]
            self._call = Envelope()
            return text[at + len(self.OPEN) :]
        keep = len(text) - held_back(text, self.OPEN)
        keep = len(text[:keep].rstrip(SPACE))
        self._add_text(text[:keep])
        self._held = text[keep:]
        return ""

    def _take_call(self, call: Envelope, text: str) -> str:
        for at, char in enumerate(text):
            self._raw.append(char)
            try:
                self._envelope(call, char)
                if call.done:
                    self._close_call(call)
                    return text[at + 1 :]
            except Broken:
                self._call = None
                self._break_call(flaw=True)
                return text[at + 1 :]
        return ""

    def _close_call(self, call: Envelope) -> None:
        if call.name is None:
            raise Broken("a call needs a name")
        if not call.begun:
            self._start_call(call.name)
            self._add_arguments("{}")
        self._end_call()
        self._call, self._tail = None, ""

    def _take_tail(self, text: str) -> str:
        """Accept an extra brace and a missing closing marker: the call itself is complete."""
        tail = text.lstrip(SPACE + "}")
        if not tail or (len(tail) < len(self.CLOSE) and self.CLOSE.startswith(tail)):
            self._tail = tail
            return ""
        self._tail = None
        return tail.removeprefix(self.CLOSE)

    def _finish(self, *, cut: bool) -> None:
        if self._call is not None:
            self._call = None
            self._break_call(flaw=not cut)
        if self._held.strip(SPACE) or not self._count:
            self._add_text(self._held)
        self._held, self._tail = "", None


class Llama(ToolCallParser):
    """The whole reply is ``{"name": ..., "parameters": {...}}``, several split by ``;``, perhaps after a tag."""

    TAG = "<|python_tag|>"
    CALL_KEYS = frozenset({"name", "type", "id", "function", "parameters", "arguments"})

    def __init__(self) -> None:
        super().__init__()
        self._text = False  # the reply is no call: pass its remainder on as text
        self._tagged = False
        self._held = ""
        self._call: Envelope | None = None

    def _take(self, text: str) -> None:
        while text:
            if self._text:
                self._add_text(text)
                return
            text = self._take_call(self._call, text) if self._call else self._take_gap(self._held + text)

    def _take_gap(self, text: str) -> str:
        self._held = ""
        body = text.lstrip(SPACE + (";," if self._count else ""))
        if not body or (len(body) < len(self.TAG) and self.TAG.startswith(body)):
            self._held = text
            return ""
        if body.startswith(self.TAG):
            self._tagged = True
            self._raw = [text[: len(text) - len(body)] + self.TAG]
            return body[len(self.TAG) :]
        if body[0] == "{":
            self._raw.append(text[: len(text) - len(body)])
            self._call = Envelope()
            return body
        self._text = True
        self._break_call(flaw=self._tagged and not self._count)
        return body if self._count else text

    def _take_call(self, call: Envelope, text: str) -> str:
        for at, char in enumerate(text):
            self._raw.append(char)
            try:
                self._envelope(call, char)
                if call.keys and call.keys[0] not in self.CALL_KEYS:
                    raise Broken("no call, some other object")
                if call.done:
                    self._close_call(call)
                    return text[at + 1 :]
            except Broken:
                self._give_up(call, cut=False)
                return text[at + 1 :]
        return ""

    def _close_call(self, call: Envelope) -> None:
        if not call.begun:
            raise Broken("no call, some other object")
        self._end_call()
        self._call = None

    def _give_up(self, call: Envelope, *, cut: bool) -> None:
        self._call, self._text = None, True
        intended = self._tagged or (call.has_arguments and "name" in call.keys)
        self._break_call(flaw=intended and not cut)

    def _finish(self, *, cut: bool) -> None:
        if self._call is not None:
            self._give_up(self._call, cut=cut)
        elif not self._count:
            self._break_call(flaw=False)
            self._add_text(self._held)
        elif self._held.strip(SPACE + ";,"):
            self._add_text(self._held)
        self._held = ""
