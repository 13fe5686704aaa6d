"""What a command prints, however much: the beginning and the end are kept, the middle is counted."""

from __future__ import annotations


class BoundedOutput:
    """Takes bytes until there are more than ``most``; of those it keeps ``shown`` at most, half from each end."""

    def __init__(self, *, most: int, shown: int) -> None:
        self.most = most
        self._half = max(1, shown // 2)
        self._seen = 0
        self._head = b""
        self._tail = b""

    @property
    def over(self) -> bool:
        """Whether more was printed than is allowed."""
        return self._seen > self.most

    def add(self, part: bytes) -> None:
        self._seen += len(part)
        room = self._half - len(self._head)
        self._head += part[:room]
        if room < len(part):
            self._tail = (self._tail + part[room:])[-self._half :]

    def text(self) -> str:
        hidden = self._seen - len(self._head) - len(self._tail)
        gap = f"\n[... {hidden} bytes left out ...]\n".encode() if hidden else b""
        return (self._head + gap + self._tail).decode(errors="replace")
