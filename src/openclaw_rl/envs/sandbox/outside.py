"""Files of a sandbox read from outside: no program that lies in it runs, and no link of it leads to the host.

A path is walked part by part, each opened below the one before and never followed by the kernel; links are taken apart
here, with the sandbox's root as the root. Folders of the host that the sandbox shows are read where the host has them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePosixPath

_LINKS = 40
"""links in one path, as the kernel has it"""
_PLACE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class OutsideFiles:
    """See the module. ``root`` is where the host finds the sandbox's root, ``shown`` host folders by their path inside.

    Raises OSError as `open` does; FileNotFoundError where something else than a file or folder lies in the way.
    """

    def __init__(self, root: str, shown: Mapping[str, str]) -> None:
        self._root = root
        self._shown = shown

    def read(self, path: str, *, most: int) -> bytes:
        """The first bytes of a file."""
        with self._opened(path, "file") as place:
            if not stat.S_ISREG(os.fstat(place).st_mode):
                raise _missing(path, "file")
            with open(_reopened(place), "rb") as file:  # noqa: PTH123 (the file itself, by its descriptor)
                return file.read(most)

    def names(self, path: str) -> list[str]:
        """The names in a folder."""
        with self._opened(path, "folder") as place:
            if not stat.S_ISDIR(os.fstat(place).st_mode):
                raise _missing(path, "folder")
            return os.listdir(_reopened(place))  # noqa: PTH208

    @contextmanager
    def _opened(self, path: str, kind: str) -> Iterator[int]:
        """Yield a descriptor of the place without opening it, so that no pipe or device is touched."""
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
    """The folders from the root to where a path has led so far."""

    def __init__(self, root: str, shown: Mapping[str, str]) -> None:
        self._shown = {PurePosixPath(inside).parts[1:]: host for inside, host in shown.items()}
        self._names: list[str] = []
        self._places = [os.open(root, _PLACE)]
        self._links = 0

    @property
    def place(self) -> int:
        return self._places[-1]

    def follow(self, path: str) -> None:
        """Walk on from here, or from the root."""
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
    """The path that opens what a descriptor stands for."""
    return f"/proc/self/fd/{place}"
