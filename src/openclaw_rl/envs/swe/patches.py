"""What a patch may change: the gate before anything of it is tried.

A patch that edits tests, or what steers them, would decide on itself; one that is huge is no fix of anything.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import PurePosixPath

LARGEST = 256 << 10
"""bytes of a patch"""
MOST_FILES = 50
STEERING = (
    *("conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg"),
    *("pyproject.toml", "sitecustomize.py", "usercustomize.py", "*.pth", ".gitattributes", ".gitmodules"),
)
"""files that say how tests are run"""
_TEST_FOLDERS = frozenset({"test", "tests", "testing"})
_TEST_FILES = ("test_*.py", "*_test.py", "tests.py")
_HEAD = re.compile(r"diff --git (\S.*)")
_MODE = re.compile(r"(?:new file mode|new mode) (\d+)")
_PLAIN = ("100644", "100755")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """What a patch does to one file: its path, and whether it can be shown as text lines of a plain file."""

    path: str
    plain: bool


def is_test(path: str) -> bool:
    """Whether a file belongs to tests, by its name or a folder that it is in.

    >>> is_test("tests/data/a.sql"), is_test("src/pkg/test_a.py"), is_test("src/pkg/contest.py")
    (True, True, False)
    """
    place = PurePosixPath(path)
    inside = any(part.casefold() in _TEST_FOLDERS for part in place.parts[:-1])
    return inside or any(fnmatch.fnmatch(place.name, each) for each in _TEST_FILES)


def changes(patch: str) -> list[FileChange]:
    """The files of a unified diff as git writes it, without renames."""
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
    """Why a patch is not tried; "" where it is. ``tests`` are files that the instance stages.

    ``allowed`` are files that the author's own solution changes.
    """
    if len(patch.encode(errors="replace")) > LARGEST:
        return f"the patch is larger than {LARGEST >> 10} KiB"
    found = changes(patch)
    if len(found) > MOST_FILES:
        return f"the patch changes {len(found)} files, more than {MOST_FILES}"
    return next((why for change in found if (why := _refused(change, tests, allowed))), "")


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
    return any(fnmatch.fnmatch(name, each) for each in STEERING)


def paths(patch: str) -> frozenset[str]:
    """The files that a patch changes."""
    return frozenset(change.path for change in changes(patch))


def source_paths(names: Sequence[str]) -> list[str]:
    """Of the files of a repository, those that a solution may change and that Python reads."""
    return [name for name in names if name.endswith(".py") and not is_test(name) and not _steers(name)]
