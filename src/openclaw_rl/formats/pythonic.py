"""Tool calls written as Python: ``[name(key=value, ...), ...]``."""

from __future__ import annotations

import ast
import json
import re

from openclaw_rl.formats.calls import SPACE, ToolCallParser
from openclaw_rl.formats.jsonscan import Broken
from openclaw_rl.types import Json


class Pythonic(ToolCallParser):
    """The whole reply is ``[name(key=value, ...), ...]``; arguments are passed on one by one."""

    def __init__(self) -> None:
        super().__init__()
        self._step = "start"  # start, name, args, after, gap, text
        self._name = ""
        self._value = ""
        self._depth = 0
        self._quote = ""
        self._escaped = False
        self._has_arguments = False

    def _take(self, text: str) -> None:
        for at, char in enumerate(text):
            if self._step == "text":
                self._add_text(text[at:])
                return
            self._raw.append(char)
            try:
                self._char(char)
            except Broken:
                self._step = "text"
                self._break_call(flaw=self._open is not None or self._count > 0)

    def _char(self, char: str) -> None:
        match self._step:
            case "start":
                if char == "[":
                    self._step = "name"
                elif char not in SPACE:
                    raise Broken("no call")
            case "name":
                self._in_name(char)
            case "args":
                self._in_args(char)
            case "after":
                if char in ",]":
                    self._step = "name" if char == "," else "gap"
                    self._name, self._raw = "", []
                elif char not in SPACE:
                    raise Broken("a call must be followed by a comma or the end")
            case "gap":
                self._raw = []
                if char not in SPACE:
                    self._step = "text"
                    self._add_text(char)

    def _in_name(self, char: str) -> None:
        if char == "(":
            if not re.fullmatch(r"[A-Za-z_][\w.-]*", self._name):
                raise Broken("no name")
            self._start_call(self._name)
            self._step, self._value, self._has_arguments = "args", "", False
        elif char not in SPACE or self._name:
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
            written = f"{json.dumps(key.strip(), ensure_ascii=False)}: {json.dumps(literal(value), ensure_ascii=False)}"
            self._add_arguments((", " if self._has_arguments else "{") + written)
            self._has_arguments = True
        elif not last:
            raise Broken("an empty argument")
        self._value = ""
        if last:
            self._add_arguments("}" if self._has_arguments else "{}")
            self._end_call()
            self._step = "after"

    def _finish(self, *, cut: bool) -> None:
        if self._step in ("start", "name", "args"):
            self._break_call(flaw=not cut and (self._open is not None or self._count > 0))


def literal(text: str) -> Json:
    """Return a Python or JSON literal as a JSON value; raise `Broken` for other text."""
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
