"""Finds tool calls in what the model writes, as it streams: hermes, llama and pythonic.

A reader is fed text in any pieces and gives `Part`s; where the pieces are cut never changes what they add up to.
A call that cannot be read comes back as the text that it was, and ``flaws`` says so.
"""

from __future__ import annotations

import ast
import json
import re
from typing import Protocol

from openclaw_rl.serve.jsonscan import Broken, Envelope
from openclaw_rl.serve.parts import CallArgs, CallBroken, CallEnd, CallStart, Part, Text
from openclaw_rl.types import Json, new_id

MALFORMED = "malformed_tool_call"
_SPACE = " \t\n\r"


class Reader(Protocol):
    """Text in, parts out. ``end`` gives what was held back; ``cut`` says that the reply did not end by itself."""

    flaws: set[str]

    def feed(self, text: str) -> list[Part]: ...

    def end(self, *, cut: bool) -> list[Part]: ...


def reader(tool_format: str) -> Reader:
    """The reader of a model's tool format; a format nobody knows has no calls."""
    known: dict[str, type[_Calls]] = {"hermes": Hermes, "llama": Llama, "pythonic": Pythonic}
    return known[tool_format]() if tool_format in known else Plain()


class Plain:
    """All is text."""

    def __init__(self) -> None:
        self.flaws: set[str] = set()

    def feed(self, text: str) -> list[Part]:
        return [Text(text)] if text else []

    def end(self, *, cut: bool) -> list[Part]:
        return []


class _Calls:
    """What the three formats share: numbering calls, and giving one back as text when it breaks."""

    def __init__(self) -> None:
        self.flaws: set[str] = set()
        self._parts: list[Part] = []
        self._count = 0
        self._open: int | None = None  # the call that has begun and is not whole
        self._raw: list[str] = []  # what the call was written as

    def feed(self, text: str) -> list[Part]:
        self._take(text)
        return self._given()

    def end(self, *, cut: bool) -> list[Part]:
        self._finish(cut=cut)
        return self._given()

    def _take(self, text: str) -> None:
        raise NotImplementedError

    def _finish(self, *, cut: bool) -> None:
        raise NotImplementedError

    def _given(self) -> list[Part]:
        given, self._parts = self._parts, []
        return _joined(given)

    def _say(self, text: str) -> None:
        if text:
            self._parts.append(Text(text))

    def _begin(self, name: str) -> None:
        self._open = self._count
        self._count += 1
        self._parts.append(CallStart(self._open, "call" + new_id(), name))

    def _argue(self, text: str) -> None:
        assert self._open is not None
        if text:
            self._parts.append(CallArgs(self._open, text))

    def _whole(self) -> None:
        assert self._open is not None
        self._parts.append(CallEnd(self._open))
        self._open = None
        self._raw = []

    def _break(self, *, flaw: bool) -> None:
        if self._open is not None:
            self._parts.append(CallBroken(self._open))
            self._open = None
        raw, self._raw = "".join(self._raw), []
        self._say(raw)
        if flaw:
            self.flaws.add(MALFORMED)

    def _envelope(self, envelope: Envelope, char: str) -> None:
        """One character of a JSON call: begins it, passes arguments on, ends it."""
        more = envelope.take(char)
        if envelope.begun and self._open is None:
            self._begin(envelope.name or "")
        if more:
            self._argue(more)


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


class Hermes(_Calls):
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, among text."""

    OPEN, CLOSE = "<tool_call>", "</tool_call>"

    def __init__(self) -> None:
        super().__init__()
        self._held = ""  # text that may yet be space before a call, or its marker
        self._call: Envelope | None = None
        self._tail: str | None = None  # after a call's JSON: what may yet be its closing marker

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
            said = text[:at].rstrip(_SPACE)
            self._say(said)
            self._raw = [text[len(said) : at + len(self.OPEN)]]
            self._call = Envelope()
            return text[at + len(self.OPEN) :]
        keep = len(text) - held_back(text, self.OPEN)
        keep = len(text[:keep].rstrip(_SPACE))
        self._say(text[:keep])
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
                self._break(flaw=True)
                return text[at + 1 :]
        return ""

    def _close_call(self, call: Envelope) -> None:
        if call.name is None:
            raise Broken("a call needs a name")
        if not call.begun:
            self._begin(call.name)
            self._argue("{}")
        self._whole()
        self._call, self._tail = None, ""

    def _take_tail(self, text: str) -> str:
        """A brace too many and a missing closing marker are forgiven: the call itself is whole."""
        rest = text.lstrip(_SPACE + "}")
        if not rest or (len(rest) < len(self.CLOSE) and self.CLOSE.startswith(rest)):
            self._tail = rest
            return ""
        self._tail = None
        return rest.removeprefix(self.CLOSE)

    def _finish(self, *, cut: bool) -> None:
        if self._call is not None:
            self._call = None
            self._break(flaw=not cut)
        if self._held.strip(_SPACE) or not self._count:
            self._say(self._held)
        self._held, self._tail = "", None


class Llama(_Calls):
    """The whole reply is ``{"name": ..., "parameters": {...}}``, several split by ``;``, perhaps after a tag."""

    TAG = "<|python_tag|>"
    CALL_KEYS = frozenset({"name", "type", "id", "function", "parameters", "arguments"})

    def __init__(self) -> None:
        super().__init__()
        self._text = False  # this reply is no call: the rest is text
        self._tagged = False
        self._held = ""
        self._call: Envelope | None = None

    def _take(self, text: str) -> None:
        while text:
            if self._text:
                self._say(text)
                return
            text = self._take_call(self._call, text) if self._call else self._take_gap(self._held + text)

    def _take_gap(self, text: str) -> str:
        self._held = ""
        rest = text.lstrip(_SPACE + (";," if self._count else ""))
        if not rest or (len(rest) < len(self.TAG) and self.TAG.startswith(rest)):
            self._held = text
            return ""
        if rest.startswith(self.TAG):
            self._tagged = True
            self._raw = [text[: len(text) - len(rest)] + self.TAG]
            return rest[len(self.TAG) :]
        if rest[0] == "{":
            self._raw.append(text[: len(text) - len(rest)])
            self._call = Envelope()
            return rest
        self._text = True
        self._break(flaw=self._tagged and not self._count)
        return rest if self._count else text

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
        self._whole()
        self._call = None

    def _give_up(self, call: Envelope, *, cut: bool) -> None:
        self._call, self._text = None, True
        meant = self._tagged or (call.argued and "name" in call.keys)
        self._break(flaw=meant and not cut)

    def _finish(self, *, cut: bool) -> None:
        if self._call is not None:
            self._give_up(self._call, cut=cut)
        elif not self._count:
            self._break(flaw=False)
            self._say(self._held)
        elif self._held.strip(_SPACE + ";,"):
            self._say(self._held)
        self._held = ""


class Pythonic(_Calls):
    """The whole reply is ``[name(key=value, ...), ...]``; arguments are passed on one by one."""

    def __init__(self) -> None:
        super().__init__()
        self._step = "start"  # start, name, args, after, gap, text
        self._name = ""
        self._value = ""
        self._depth = 0
        self._quote = ""
        self._escaped = False
        self._argued = False

    def _take(self, text: str) -> None:
        for at, char in enumerate(text):
            if self._step == "text":
                self._say(text[at:])
                return
            self._raw.append(char)
            try:
                self._char(char)
            except Broken:
                self._step = "text"
                self._break(flaw=self._open is not None or self._count > 0)

    def _char(self, char: str) -> None:
        match self._step:
            case "start":
                if char == "[":
                    self._step = "name"
                elif char not in _SPACE:
                    raise Broken("no call")
            case "name":
                self._in_name(char)
            case "args":
                self._in_args(char)
            case "after":
                if char in ",]":
                    self._step = "name" if char == "," else "gap"
                    self._name, self._raw = "", []
                elif char not in _SPACE:
                    raise Broken("a call must be followed by a comma or the end")
            case "gap":
                self._raw = []
                if char not in _SPACE:
                    self._step = "text"
                    self._say(char)

    def _in_name(self, char: str) -> None:
        if char == "(":
            if not re.fullmatch(r"[A-Za-z_][\w.-]*", self._name):
                raise Broken("no name")
            self._begin(self._name)
            self._step, self._value, self._argued = "args", "", False
        elif char not in _SPACE or self._name:
            self._name += char
            if not re.fullmatch(r"[A-Za-z_][\w.-]*", self._name):
                raise Broken("no name")

    def _in_args(self, char: str) -> None:
        if self._quote:
            self._value += char
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == self._quote:
                self._quote = ""
        elif self._depth == 0 and char in ",)":
            self._argument(last=char == ")")
        else:
            self._value += char
            if char in "\"'":
                self._quote = char
            self._depth += (char in "([{") - (char in ")]}")

    def _argument(self, *, last: bool) -> None:
        if self._value.strip():
            key, sep, value = self._value.partition("=")
            if not sep or not key.strip().isidentifier():
                raise Broken("an argument needs its name")
            said = f"{json.dumps(key.strip(), ensure_ascii=False)}: {json.dumps(literal(value), ensure_ascii=False)}"
            self._argue((", " if self._argued else "{") + said)
            self._argued = True
        elif not last:
            raise Broken("an empty argument")
        self._value = ""
        if last:
            self._argue("}" if self._argued else "{}")
            self._whole()
            self._step = "after"

    def _finish(self, *, cut: bool) -> None:
        if self._step in ("start", "name", "args"):
            self._break(flaw=not cut and (self._open is not None or self._count > 0))


def literal(text: str) -> Json:
    """A Python or JSON literal as a JSON value; raises `Broken` for anything else."""
    try:
        return _plain(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise Broken("no literal") from error


_CONSTANTS: dict[str, bool | None] = {"true": True, "false": False, "null": None, "none": None}


def _plain(node: ast.expr) -> Json:
    match node:
        case ast.Constant(value=str() | int() | float() | bool() | None as value):
            json.dumps(value, allow_nan=False)
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_plain(element) for element in elements]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _plain(value) for key, value in zip(keys, values, strict=True)}
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
    raise Broken("no literal")


def _key(node: ast.expr | None) -> str:
    key = _plain(node) if node is not None else None
    if not isinstance(key, str):
        raise Broken("a key must be text")
    return key
