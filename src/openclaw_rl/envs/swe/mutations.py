"""Small program changes that a test should detect: each edits one place and leaves the other text unchanged."""

from __future__ import annotations

import ast
import fnmatch
import re
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import PurePosixPath

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
    """A replacement for the bytes ``start`` to ``end`` of a file; ``what`` describes it in words."""

    start: int
    end: int
    new: bytes
    what: str

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.new + source[self.end :]


def mutations(source: bytes) -> list[Mutation]:
    """Return every mutation of a Python file's functions that leaves valid syntax, from the top down.

    >>> [each.what for each in mutations(b"def f(a):\\n    return a < 1\\n")]
    ['< becomes <=', '1 becomes 2', 'what is returned becomes None']
    """
    starts = _line_starts(source)
    by_place = {
        (mutation.start, mutation.end): mutation
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for statement in node.body
        for inner in ast.walk(statement)
        for mutation in _of(inner, source, starts)
        if _readable(mutation.apply(source))
    }
    return [by_place[place] for place in sorted(by_place, key=lambda place: (place[1], -place[0]))]


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
    """Yield the mutation of the operator between two expressions, if there is exactly one and the table contains it."""
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


# The gate: checks that a patch passes before any part of it is applied.
#
# A patch that edits tests, or their configuration, would grade itself; a huge patch is not a fix.

LARGEST = 256 << 10
"""most bytes in a patch"""
MOST_FILES = 50
STEERING = (
    *("conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg"),
    *("pyproject.toml", "sitecustomize.py", "usercustomize.py", "*.pth", ".gitattributes", ".gitmodules"),
)
"""files that configure how tests run"""
_TEST_FOLDERS = frozenset({"test", "tests", "testing"})
_TEST_FILES = ("test_*.py", "*_test.py", "tests.py")
_HEAD = re.compile(r"diff --git (\S.*)")
_MODE = re.compile(r"(?:new file mode|new mode) (\d+)")
_PLAIN = ("100644", "100755")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """A patch's change to one file: its path, and True in ``plain`` if it is text lines of a plain file."""

    path: str
    plain: bool


def is_test(path: str) -> bool:
    """Return True if a file belongs to tests, by its name or a folder above it.

    >>> is_test("tests/data/a.sql"), is_test("src/pkg/test_a.py"), is_test("src/pkg/contest.py")
    (True, True, False)
    """
    place = PurePosixPath(path)
    inside = any(part.casefold() in _TEST_FOLDERS for part in place.parts[:-1])
    return inside or any(fnmatch.fnmatch(place.name, pattern) for pattern in _TEST_FILES)


def changes(patch: str) -> list[FileChange]:
    """Parse a unified diff in git's format, without renames, into its file changes."""
    sections = re.split(r"(?m)^(?=diff --git )", patch)
    return [_change(section) for section in sections if section.startswith("diff --git ")]


def _change(section: str) -> FileChange:
    head = section.partition("\n@@")[0]
    first = _HEAD.match(head)
    words = first[1] if first else ""
    half = (len(words) - 1) // 2  # "a/PATH b/PATH": without renames both are the same
    path = words[half + 1 :].removeprefix("b/")
    modes = _MODE.findall(head)
    plain = words[:half].removeprefix("a/") == path and '"' not in words and all(mode in _PLAIN for mode in modes)
    binary = "GIT binary patch" in head or "Binary files" in head
    return FileChange(path=path, plain=plain and not binary)


def refusal(patch: str, *, tests: AbstractSet[str], allowed: AbstractSet[str]) -> str:
    """Return the reason to reject a patch, or "". ``tests`` are files that the instance stages.

    ``allowed`` are files that the author's own solution changes.
    """
    if len(patch.encode(errors="replace")) > LARGEST:
        return f"the patch is larger than {LARGEST >> 10} KiB"
    files = changes(patch)
    if len(files) > MOST_FILES:
        return f"the patch changes {len(files)} files, more than {MOST_FILES}"
    return next((why for change in files if (why := _refused(change, tests, allowed))), "")


def _refused(change: FileChange, tests: AbstractSet[str], allowed: AbstractSet[str]) -> str:
    path = PurePosixPath(change.path)
    if not change.plain:
        return f"{change.path} is no plain text file"
    if path.is_absolute() or ".." in path.parts or ".git" in path.parts:
        return f"{change.path} is outside of the repository"
    if change.path in tests:
        return f"{change.path} is a test"
    if change.path in allowed:
        return ""
    if is_test(change.path):
        return f"{change.path} is a test"
    return f"{change.path} says how tests are run" if _steers(path.name) else ""


def _steers(name: str) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in STEERING)


def paths(patch: str) -> frozenset[str]:
    """Return the files that a patch changes."""
    return frozenset(change.path for change in changes(patch))


def source_paths(names: Sequence[str]) -> list[str]:
    """Return the repository files that a solution may change and Python reads."""
    return [name for name in names if name.endswith(".py") and not is_test(name) and not _steers(name)]
