"""Pasted matter in a message: logs, traces and listings, told apart line by line from what a person wrote. Pure."""
# ruff: noqa: E501  (a shape is read in one line)

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

FEWEST = 2
"""lines in a row that look like a machine's from which on they are pasted"""
_MOST = 64_000  # characters of a message that are looked at, half of them from its end
_MACHINE = re.compile(
    r"^(?:Traceback \(most recent|\s+File \"|\s*at [\w.$<>/]+ ?\(|\s*\^+~*\s*$|\s*\d+ ?\||\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d|\d\d:\d\d:\d\d"
    r"|\[?(?:INFO|WARN(?:ING)?|ERROR|DEBUG|TRACE|FATAL|E|W|I)\]?[:\s]|[\w.]*(?:Error|Exception|Warning)\b ?:|error(?:\[\w+\])?:|warning:|npm (?:ERR|error|WARN)"
    r"|FAILED |PASSED |ok \d|not ok \d|\S+:\d+(?::\d+)?: |\s*[-=+|_*]{4,}|[$>#%] \S|\s{4,}\S|\s*[\[{}\]]|\s*\"[\w.-]+\" ?:|\S+\(\d+,\d+\): |make: |E\s{2,}|[\w./-]+\s+\|\s+\d+)"
)


class Stretch(NamedTuple):
    """A stretch of a message; ``pasted`` where a machine wrote it."""

    text: str
    pasted: bool


def stretches_of(message: str) -> tuple[Stretch, ...]:
    """The stretches of a message in their order; blank lines belong to the stretch before them."""
    lines = _looked_at(message).splitlines()
    marks = [bool(_MACHINE.match(line)) for line in lines]
    for at, line in enumerate(lines):
        if not line.strip():
            marks[at] = marks[at - 1] if at else False
    return tuple(_joined(list(zip(lines, marks, strict=True))))


def _looked_at(message: str) -> str:
    return message if len(message) <= _MOST else f"{message[: _MOST // 2]}\n...\n{message[-_MOST // 2 :]}"


def _joined(marked: list[tuple[str, bool]]) -> Iterator[Stretch]:
    """Stretches of one kind; a single line that looks like a machine's, beside a person's words, stays a person's."""
    runs = [(mark, [line for line, _ in group]) for mark, group in groupby(marked, key=lambda pair: pair[1])]
    alone = len(runs) == 1
    kept: list[tuple[bool, list[str]]] = []
    for mark, lines in runs:
        pasted = mark and (alone or sum(bool(line.strip()) for line in lines) >= FEWEST)
        if kept and kept[-1][0] == pasted:
            kept[-1][1].extend(lines)
        else:
            kept.append((pasted, list(lines)))
    for pasted, lines in kept:
        if text := "\n".join(lines).strip("\n"):
            yield Stretch(text, pasted)
