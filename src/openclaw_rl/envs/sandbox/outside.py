"""Reads a sandbox's files from outside: no program in the sandbox runs, and none of its links leads to the host.

A path is walked part by part, each opened relative to the previous one without kernel link resolution; links are
resolved here, with the sandbox's root as the root. Host folders that the sandbox exposes are read from the host.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePosixPath

_LINKS = 40
"""most links in one path, the kernel's own limit"""
_PLACE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class OutsideFiles:
    """See the module. ``root`` is the host path of the sandbox's root, ``shown`` maps paths inside to host folders.

    Raises OSError as `open` does, and FileNotFoundError if the path is not a regular file or folder.
    """

    def __init__(self, root: str, shown: Mapping[str, str]) -> None:
        self._root = root
        self._shown = shown

    def read(self, path: str, *, most: int) -> bytes:
        """Return the first ``most`` bytes."""
        with self._opened(path, "file") as place:
            if not stat.S_ISREG(os.fstat(place).st_mode):
                raise _missing(path, "file")
            with open(_reopened(place), "rb") as file:  # noqa: PTH123 (the file itself, by its descriptor)
                return file.read(most)

    def names(self, path: str) -> list[str]:
        """Return the names in a folder."""
        with self._opened(path, "folder") as place:
            if not stat.S_ISDIR(os.fstat(place).st_mode):
                raise _missing(path, "folder")
            return os.listdir(_reopened(place))  # noqa: PTH208

    @contextmanager
    def _opened(self, path: str, kind: str) -> Iterator[int]:
        """Yield a path-only descriptor, so that no pipe or device is opened."""
        walked = _Walk(self._root, self._shown)
        try:
            try:
                walked.follow(path)
            except (FileNotFoundError, NotADirectoryError, ValueError) as error:  # ValueError: a null character
                raise _missing(path, kind) from error
            yield walked.place
        finally:
            walked.close()


def _missing(path: str, kind: str) -> FileNotFoundError:
    return FileNotFoundError(f"no {kind} {path} in the sandbox")


class _Walk:
    """A walk along a path: open descriptors for the folders from the root to the current one."""

    def __init__(self, root: str, shown: Mapping[str, str]) -> None:
        self._shown = {PurePosixPath(inside).parts[1:]: host for inside, host in shown.items()}
        self._names: list[str] = []
        self._places = [os.open(root, _PLACE)]
        self._links = 0

    @property
    def place(self) -> int:
        return self._places[-1]

    def follow(self, path: str) -> None:
        """Continue from the current folder, or from the root if ``path`` is absolute."""
        if path.startswith("/"):
            self._back(len(self._names))
        for name in path.split("/"):
            if name == "..":
                self._back(1)
            elif name not in ("", "."):
                self._enter(name)

    def _enter(self, name: str) -> None:
        host = self._shown.get((*self._names, name))
        place = os.open(host, _PLACE) if host else os.open(name, _PLACE, dir_fd=self.place)
        if not stat.S_ISLNK(os.fstat(place).st_mode):
            self._names.append(name)
            self._places.append(place)
            return
        try:
            self._links += 1
            if self._links > _LINKS:
                raise FileNotFoundError(f"too many links at {name}")
            target = os.readlink("", dir_fd=place)
        finally:
            os.close(place)
        self.follow(target)

    def _back(self, count: int) -> None:
        for _ in range(min(count, len(self._names))):
            self._names.pop()
            os.close(self._places.pop())

    def close(self) -> None:
        for place in self._places:
            os.close(place)
        self._places.clear()


def _reopened(place: int) -> str:
    """Return the path that reopens a descriptor's file."""
    return f"/proc/self/fd/{place}"
