"""Scan JSON character by character, so that a call's arguments can be passed on before they are complete."""

from __future__ import annotations

import json
import re
from enum import Enum, auto

_SPACE = " \t\n\r"
_WORDS = ("true", "false", "null")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NUMBER_BEGUN = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:(?<=[0-9])[eE][+-]?[0-9]*)?)?")
_DEEPEST = 64
_LONGEST = 400


class Broken(Exception):
    """Raised if the text cannot be the beginning of the expected value."""


class JsonState(Enum):
    """The scanner's position, by the kind of character it expects next."""

    VALUE = auto()
    FIRST_KEY = auto()
    KEY = auto()
    COLON = auto()
    AFTER = auto()
    STRING = auto()
    ESCAPE = auto()
    HEX = auto()
    LITERAL = auto()
    DONE = auto()


_IN_KEY = (JsonState.KEY, JsonState.FIRST_KEY, JsonState.STRING, JsonState.ESCAPE, JsonState.HEX)
_BETWEEN = (JsonState.COLON, JsonState.AFTER, JsonState.KEY, JsonState.FIRST_KEY)


class JsonScanner:
    """Scanner for one JSON object or list, checked as it streams. ``take`` returns the text to emit or raises `Broken`.

    A bare control character inside a string is escaped, since models write raw line breaks.
    """

    def __init__(self) -> None:
        self.state = JsonState.VALUE
        self.keyed = False
        self._stack: list[str] = []
        self._literal = ""
        self._hex = 0

    @property
    def depth(self) -> int:
        return len(self._stack)

    def take(self, char: str) -> str:
        match self.state:
            case JsonState.STRING:
                return self._string(char)
            case JsonState.ESCAPE:
                return self._escape(char)
            case JsonState.HEX:
                return self._hexadecimal(char)
            case JsonState.LITERAL:
                return self._more_literal(char)
            case JsonState.DONE:
                raise Broken("more after the end")
        if char in _SPACE:
            return char
        return self._between(char)

    def _between(self, char: str) -> str:
        state = self.state
        if state is JsonState.VALUE or (state is JsonState.FIRST_KEY and self._stack[-1] == "["):
            if char == "]" and state is JsonState.FIRST_KEY:
                return self._close(char)
            return self._open(char)
        if state in (JsonState.KEY, JsonState.FIRST_KEY):
            if char == '"':
                self.state, self.keyed = JsonState.STRING, True
                return char
            if char == "}" and state is JsonState.FIRST_KEY:
                return self._close(char)
        elif state is JsonState.COLON and char == ":":
            self.state = JsonState.VALUE
            return char
        elif state is JsonState.AFTER:
            return self._next(char)
        raise Broken(f"unexpected {char!r}")

    def _open(self, char: str) -> str:
        if char in "{[":
            if self.depth >= _DEEPEST:
                raise Broken("nested too deep")
            self._stack.append(char)
            self.state = JsonState.FIRST_KEY
        elif not self._stack:
            raise Broken("neither an object nor a list")
        elif char == '"':
            self.state, self.keyed = JsonState.STRING, False
        else:
            self._literal = ""
            self.state = JsonState.LITERAL
            return self._more_literal(char)
        return char

    def _close(self, char: str) -> str:
        if self._stack[-1] != {"}": "{", "]": "["}[char]:
            raise Broken(f"unexpected {char!r}")
        self._stack.pop()
        self.state = JsonState.AFTER if self._stack else JsonState.DONE
        return char

    def _next(self, char: str) -> str:
        if char == ",":
            self.state = JsonState.KEY if self._stack[-1] == "{" else JsonState.VALUE
            return char
        if char in "}]":
            return self._close(char)
        raise Broken(f"unexpected {char!r}")

    def _string(self, char: str) -> str:
        if char == '"':
            self.state = JsonState.COLON if self.keyed else JsonState.AFTER
        elif char == "\\":
            self.state = JsonState.ESCAPE
        elif char < " ":
            return json.dumps(char)[1:-1]
        return char

    def _escape(self, char: str) -> str:
        if char not in '"\\/bfnrtu':
            raise Broken(f"no escape is called {char!r}")
        self.state, self._hex = (JsonState.HEX, 4) if char == "u" else (JsonState.STRING, 0)
        return char

    def _hexadecimal(self, char: str) -> str:
        if char not in "0123456789abcdefABCDEF":
            raise Broken(f"no hexadecimal digit: {char!r}")
        self._hex -= 1
        if self._hex == 0:
            self.state = JsonState.STRING
        return char

    def _more_literal(self, char: str) -> str:
        if char in _SPACE or char in ",]}":
            if self._literal not in _WORDS and not _NUMBER.fullmatch(self._literal):
                raise Broken(f"no value: {self._literal!r}")
            self.state = JsonState.AFTER
            return char if char in _SPACE else self._next(char)
        self._literal += char
        if len(self._literal) > _LONGEST:
            raise Broken("a number without end")
        if not any(word.startswith(self._literal) for word in _WORDS) and not _NUMBER_BEGUN.fullmatch(self._literal):
            raise Broken(f"no value: {self._literal!r}")
        return char


class Envelope:
    """The object around a call: ``{"name": ..., "arguments": {...}}`` in either order, ``parameters`` likewise.

    ``take`` returns the next piece of the arguments, empty until the name is known.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.keys: list[str] = []
        self.begun = False  # arguments are being passed on
        self.has_arguments = False  # the arguments' key was read
        self._scan = JsonScanner()
        self._key = ""
        self._value = ""
        self._waiting = ""

    @property
    def done(self) -> bool:
        return self._scan.state is JsonState.DONE

    def take(self, char: str) -> str:
        scan = self._scan
        before, depth = scan.state, scan.depth
        if depth == 0 and char == "[":
            raise Broken("a list is no call")
        written = scan.take(char)
        if (
            depth == 1
            and scan.keyed
            and before in (JsonState.KEY, JsonState.FIRST_KEY, JsonState.STRING, JsonState.ESCAPE, JsonState.HEX)
        ):
            self._read_key(before, char)
            return ""
        if depth == 0 or (before in _BETWEEN and depth == 1):
            return ""
        return self._read_value(before, depth, written)

    def _read_key(self, before: JsonState, char: str) -> None:
        if before in (JsonState.KEY, JsonState.FIRST_KEY):
            self._key = ""
        elif self._scan.state is JsonState.COLON:
            key = json.loads(f'"{self._key}"')
            if key in ("arguments", "parameters"):
                if self.has_arguments:
                    raise Broken("arguments twice")
                self.has_arguments = True
            self.keys.append(key)
            self._value = ""
        else:
            self._key += char

    def _read_value(self, before: JsonState, depth: int, written: str) -> str:
        scan = self._scan
        if depth == 1 and before is JsonState.VALUE and scan.state is JsonState.VALUE:
            return ""  # space before the value
        ended_before = depth == 1 and before is JsonState.LITERAL and scan.state is not JsonState.LITERAL
        if not ended_before and not self._value.startswith("{"):  # an object is passed on, not buffered
            self._value += written
        complete = ended_before or (scan.depth == 1 and scan.state is JsonState.AFTER)
        key = self.keys[-1]
        if key == "name" and complete:
            return self._named()
        if key not in ("arguments", "parameters"):
            return ""
        return self._argument("" if ended_before else written, complete)

    def _named(self) -> str:
        name = json.loads(self._value)
        if not isinstance(name, str) or not name:
            raise Broken("a call needs a name")
        self.name = name
        waiting, self._waiting = self._waiting, ""
        self.begun = self.begun or bool(waiting)
        return waiting

    def _argument(self, written: str, whole: bool) -> str:
        if not self._value.startswith("{"):
            if not whole:
                return ""
            written = _unwrapped(self._value)
        if self.name is None:
            self._waiting += written
            return ""
        self.begun = True
        return written


def _unwrapped(value: str) -> str:
    """Convert arguments that are not an object to one: null means none, a string may contain the object."""
    inner = json.loads(value)
    if inner is None:
        return "{}"
    if isinstance(inner, str):
        try:
            if isinstance(json.loads(inner), dict):
                return inner
        except (ValueError, RecursionError) as error:
            raise Broken("the arguments are no JSON") from error
    raise Broken("the arguments are no object")
