"""Small changes of a program that a test should notice: one place each, the rest of the text as it was."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARED = {
    "==": "!=",
    "!=": "==",
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "in": "not in",
    "not in": "in",
    "is": "is not",
    "is not": "is",
}
_JOINED = {"and": "or", "or": "and"}
_COMPUTED = {"+": "-", "-": "+", "*": "+", "//": "*"}
_WORD = re.compile(rb"not\s+in|is\s+not|in|is|[=!<>]=|[<>]|and|or|//|[+*-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """Bytes ``start`` to ``end`` of a file become ``new``; ``what`` says it in words."""

    start: int
    end: int
    new: bytes
    what: str

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.new + source[self.end :]


def mutations(source: bytes) -> list[Mutation]:
    """Every mutation of a Python file's functions that leaves it readable, from the top down.

    >>> [each.what for each in mutations(b"def f(a):\\n    return a < 1\\n")]
    ['< becomes <=', '1 becomes 2', 'what is returned becomes None']
    """
    starts = _line_starts(source)
    found = {
        (each.start, each.end): each
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for statement in node.body
        for inner in ast.walk(statement)
        for each in _of(inner, source, starts)
        if _readable(each.apply(source))
    }
    return [found[place] for place in sorted(found, key=lambda place: (place[1], -place[0]))]


def _of(node: ast.AST, source: bytes, starts: list[int]) -> Iterator[Mutation]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield from _between(node.left, node.comparators[0], _COMPARED, source, starts)
    elif isinstance(node, ast.BoolOp) and len(node.values) == 2:
        yield from _between(node.values[0], node.values[1], _JOINED, source, starts)
    elif isinstance(node, ast.BinOp):
        yield from _between(node.left, node.right, _COMPUTED, source, starts)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        start, end = _place(node, starts)[0], _place(node.operand, starts)[0]
        yield Mutation(start=start, end=end, new=b"", what="not is left out")
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int):
        yield _constant(node, node.value, starts)
    elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        start, end = _place(node.value, starts)
        yield Mutation(start=start, end=end, new=b"None", what="what is returned becomes None")


def _between(
    left: ast.expr, right: ast.expr, table: dict[str, str], source: bytes, starts: list[int]
) -> Iterator[Mutation]:
    """The one operator between two expressions, if there is but one and the table has it."""
    begin, end = _place(left, starts)[1], _place(right, starts)[0]
    words = list(_WORD.finditer(source[begin:end]))
    operator = " ".join(words[0][0].decode().split()) if len(words) == 1 else ""
    if operator in table:
        start = begin + words[0].start()
        new = table[operator]
        yield Mutation(start=start, end=begin + words[0].end(), new=new.encode(), what=f"{operator} becomes {new}")


def _constant(node: ast.Constant, value: bool | int, starts: list[int]) -> Mutation:
    start, end = _place(node, starts)
    new = repr(not value) if isinstance(value, bool) else repr(value + 1)
    return Mutation(start=start, end=end, new=new.encode(), what=f"{value!r} becomes {new}")


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _place(node: ast.expr | ast.stmt, starts: list[int]) -> tuple[int, int]:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset


def _line_starts(source: bytes) -> list[int]:
    return [0, *(match.end() for match in re.finditer(rb"\r\n|\r|\n", source))]


def _readable(source: bytes) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError):
        return False
    return True
