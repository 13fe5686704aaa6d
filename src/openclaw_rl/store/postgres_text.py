"""Statements and texts as PostgreSQL wants them."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

from psycopg import Connection
from psycopg.adapt import Loader
from psycopg.pq import Format
from psycopg.types.string import StrDumperUnknown

_PARTS: Final = re.compile(r"""'(?:[^']|'')*'|"[^"]*"|\?(\d*)|\buser\b""")
_ESCAPE: Final = "\x1a"


@lru_cache(maxsize=1024)
def translated(sql: str) -> bytes:
    """A statement with ``$1`` for ``?`` and ``?1``, and ``user``, which is a word of PostgreSQL's own, in quotes.

    >>> translated("SELECT 1 FROM turns t WHERE t.user = ? AND note != '?' AND seq > ?")
    b'SELECT 1 FROM turns t WHERE t."user" = $1 AND note != \\'?\\' AND seq > $2'
    >>> translated("SELECT ?2, ?1")
    b'SELECT $2, $1'
    """
    counted = 0

    def part(found: re.Match[str]) -> str:
        nonlocal counted
        if found[0] == "user":
            return '"user"'
        if found[0][0] != "?":
            return found[0]
        counted += 1
        return f"${found[1] or counted}"

    return _PARTS.sub(part, sql).encode()


def escaped(text: str) -> str:
    """A text that PostgreSQL takes, which is any but one with a zero character; `unescaped` gives it back.

    >>> escaped("as it is"), unescaped(escaped("a zero \\0 and the mark \\x1a")) == "a zero \\0 and the mark \\x1a"
    ('as it is', True)
    """
    if "\0" not in text and _ESCAPE not in text:
        return text
    return text.replace(_ESCAPE, _ESCAPE * 2).replace("\0", f"{_ESCAPE}0")


def unescaped(text: str) -> str:
    """The text that `escaped` was given."""
    if _ESCAPE not in text:
        return text
    return re.sub(f"{_ESCAPE}(.)", lambda found: "\0" if found[1] == "0" else _ESCAPE, text, flags=re.DOTALL)


class _TextDumper(StrDumperUnknown):
    def dump(self, obj: str) -> bytes | bytearray | memoryview | None:
        return super().dump(escaped(obj))


class _TextLoader(Loader):
    format = Format.BINARY

    def load(self, data: bytes | bytearray | memoryview) -> str:
        return unescaped(str(data, "utf-8"))


def register_texts(connection: Connection[Any]) -> None:
    """Let every text of a connection come and go as it is."""
    connection.adapters.register_dumper(str, _TextDumper)
    connection.adapters.register_loader("text", _TextLoader)
