"""Special tokens in text are text: what people, tools and documents say can never open or close a turn.

A template writes its special tokens as text among the contents, so in the rendered prompt nothing tells them apart.
Here a sign that occurs nowhere in the prompt (a mark) is put into contents wherever they spell a special token or could
spell one together with what stands beside them; after rendering, a special token with a mark inside it is none, and the
text is cut there before it is encoded. A prompt in which no content spells one is encoded as if this were not here.

Which tokens count (`Guard`): those that the tokenizer calls special, those that the template itself writes, and those
of the form ``<|name|>``. In what the assistant wrote plain tags (``<think>``, ``<tool_call>``) stay what they are: they
are how a reply spells its parts, and templates look for them there. A single word is never marked, because templates
compare words (``function``, ``string``). A tokenizer that begins each text with a space writes one at a cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from openclaw_rl.errors import RequestError

_BARS = re.compile(r"<[|｜].+[|｜]>", re.DOTALL)
TAG = re.compile(r"</?\w[\w-]*>")
_WORD = re.compile(r"[\w.-]*")
_SIGNS = range(0xF0000, 0xFFFFE)
"""private use: nobody's characters, and not white space, so that templates do not trim them"""


class Spellings:
    """A set of special tokens, and where a text spells one of them."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(name for name in names if len(name) > 1)
        heads: dict[str, set[int]] = {}
        for name in self._names:
            heads.setdefault(name[:2], set()).add(len(name))
        self._lengths = {head: sorted(lengths, reverse=True) for head, lengths in heads.items()}
        first, second = ("".join(map(re.escape, sorted({head[at] for head in heads}))) for at in (0, 1))
        self._head = re.compile(f"[{first}](?=[{second}])" if heads else r"(?!)")
        self._begins = {name[:size] for name in self._names for size in range(1, len(name))}
        self._ends = {name[size:] for name in self._names for size in range(1, len(name))}
        self._longest = max(map(len, self._names), default=0)
        self._all = "\0".join(sorted(self._names))

    def found(self, text: str) -> Iterator[tuple[int, int]]:
        """Start and end of every special token that a text spells, overlapping ones too; the longest at each start."""
        for head in self._head.finditer(text):
            at = head.start()
            for length in self._lengths.get(text[at : at + 2], ()):
                if text[at : at + length] in self._names:
                    yield at, at + length
                    break

    def marked(self, text: str, mark: str) -> str:
        """The text with a mark in every special token that it spells, and at an end that may become part of one."""
        body = text.strip()
        if _WORD.fullmatch(body):
            return text
        first = text.index(body)
        places = {at + 1 for at, _ in self.found(text)}
        sizes = range(1, min(len(body), self._longest) + 1)
        inside = len(body) < self._longest and body in self._all
        if inside or any(body[:size] in self._ends for size in sizes):
            places.add(first)
        if any(body[-size:] in self._begins for size in sizes):
            places.add(first + len(body))
        return _at(text, places, mark) if places else text

    def cut(self, text: str, mark: str) -> list[str]:
        """A rendered text without its marks, in pieces: it is cut where a mark lies inside what would be a token."""
        if mark not in text:
            return [text]
        parts = text.split(mark)
        whole = "".join(parts)
        marks, at = set(), 0
        for part in parts[:-1]:
            at += len(part)
            marks.add(at)
        cuts = sorted({place for start, end in self.found(whole) for place in range(start + 1, end) if place in marks})
        return [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


class Guard:
    """The special tokens of one tokenizer and its template. ``all`` count in contents, ``turns`` in a reply's too."""

    def __init__(self, tokenizer: Any) -> None:
        template = json.dumps(tokenizer.chat_template, ensure_ascii=False) if tokenizer.chat_template else ""
        added = tokenizer.added_tokens_decoder.values()
        special = {*tokenizer.all_special_tokens, *(token.content for token in added if token.special)}
        other = {token.content for token in added} - special
        counted = special | {name for name in other if _BARS.fullmatch(name) or (name.strip() and name in template)}
        self.all = Spellings(counted)
        self.turns = Spellings(name for name in counted if name in special or not TAG.fullmatch(name))
        self._escapes = bool(re.search(r"ensure_ascii\s*=\s*true", template, re.IGNORECASE))

    def pieces(self, text: str, mark: str) -> list[str]:
        """A rendered text in which contents carry marks, in the pieces that are to be encoded one by one."""
        if self._escapes:
            text = text.replace(json.dumps(mark)[1:-1], mark)
        return self.all.cut(text, mark)


def free_mark(texts: Iterable[str]) -> str:
    """A sign that none of the texts holds."""
    taken = set().union(*texts)
    for code in _SIGNS:
        if chr(code) not in taken:
            return chr(code)
    raise RequestError("the prompt holds every private character there is", field="messages")


def within(value: Any, change: Callable[[str], str]) -> Any:
    """A JSON value with every text in it changed, names of fields too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(name): within(item, change) for name, item in value.items()}
    return [within(item, change) for item in value] if isinstance(value, list | tuple) else value


def _at(text: str, places: set[int], mark: str) -> str:
    cuts = sorted(places)
    return mark.join(text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True))
