"""Message features for hashed-feature models: runs of words and letters, and the text's form."""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MOST = 2_000
"""characters of a text that are read: the head and the tail"""

_PUNCTUATION = r"\s!-/:-@\[-`{-~¡-¿‐-⁯、-〿！-／：-＠［-｀｛-･।॥؟،؛۔"
_UNSPACED = r"㐀-䶿一-鿿぀-ヿ豈-﫿ฯ-๛"
TOKEN = re.compile(
    rf"\d+(?:[.,:]\d+)*|[{_UNSPACED}]|(?:(?![{_PUNCTUATION}{_UNSPACED}\d])\S)+(?:['’](?:(?![{_PUNCTUATION}{_UNSPACED}\d])\S)+)*"
    r"|\.{2,}|…|[!?！？؟]+|[^\s\w]"
)
CJK = re.compile(rf"[{_UNSPACED}]")
_STRETCHED = re.compile(r"(\w)\1{2,}")
QUOTED = re.compile(r"[\"“„«「『]([^\"“”„«»「」『』\n]{2,80})[\"”“»」』]")
_EMOJI = re.compile("[\U0001f300-\U0001faff☀-➿]")
_CODE = re.compile(r"```|`[^`]+`|[{};]\s*$|\w\(\)|</?\w+>|^[ \t]*(?:\$|>>>|import |def |SELECT )", re.MULTILINE)
ASKS = re.compile(r"[?？؟]\W*\Z")
_ENDS = "^", "$"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Features of one kind, with ``weight`` as their total regardless of the count."""

    names: Sequence[str]
    weight: float
    shared: bool


def bounded(text: str, most: int = MOST) -> str:
    """Return a long text's head and tail."""
    return text if len(text) <= most else f"{text[: most * 2 // 3]}\n{text[-most // 3 :]}"


def tokens(text: str) -> list[str]:
    """Return words in small letters, single unspaced characters, numbers as 0, and marks that carry tone."""
    plain = unicodedata.normalize("NFKC", text).lower().replace("’", "'")
    plain = _STRETCHED.sub(r"\1\1", plain)
    return ["0" if token[0].isdigit() else token for token in TOKEN.findall(plain)]


def own_families(message: str) -> tuple[Family, ...]:
    """Return a message's own features."""
    message = bounded(message)
    pieces = tokens(message)
    return (
        Family(names=list(_words(pieces)), weight=3.0, shared=False),
        Family(names=list(_letters(pieces)), weight=2.0, shared=False),
        Family(names=list(_shape(message, pieces)), weight=0.5, shared=False),
    )


def place(feature: str, slots: int) -> tuple[int, int]:
    """Return a feature's slot, and the required value of its check: 1 .. 255."""
    hashed = zlib.crc32(feature.encode("utf-8", "replace"))
    return hashed % slots, (hashed >> 24) % 255 + 1


def _words(found: Sequence[str]) -> Iterator[str]:
    """Yield runs of one to three tokens (up to four characters in an unspaced script), with both ends marked."""
    marked = (_ENDS[0], *found, _ENDS[1])
    yield from (f"w {word}" for word in found)
    for size in (2, 3):
        yield from ("w " + " ".join(marked[at : at + size]) for at in range(len(marked) - size + 1))
    yield from (
        "w " + " ".join(marked[at : at + 4])
        for at in range(len(marked) - 3)
        if all(map(CJK.match, marked[at : at + 4]))
    )
    if len(found) <= 6:
        yield "whole " + " ".join(found)


def _letters(found: Sequence[str]) -> Iterator[str]:
    """Yield runs of three to five letters within a spaced word and across its ends."""
    for word in found:
        if CJK.match(word) or not word[0].isalpha():
            continue
        padded = f" {word} "
        for size in (3, 4, 5):
            yield from (f"c{padded[at : at + size]}" for at in range(len(padded) - size + 1))


def bucket(count: float, steps: Sequence[float]) -> int:
    """Return the number of steps that a count reaches."""
    return sum(count >= step for step in steps)


def _shape(message: str, found: Sequence[str]) -> Iterator[str]:
    """Yield length, punctuation tone, lines and code."""
    yield f"x length {bucket(len(found), (2, 4, 7, 11, 16, 24, 36, 60))}"
    yield f"x asks {int(bool(ASKS.search(message)))}"
    yield f"x marks {bucket(message.count('!') + message.count('！'), (1, 2, 4))}"
    yield f"x lines {bucket(message.count(chr(10)), (1, 3, 8))}"
    yield f"x emoji {bucket(len(_EMOJI.findall(message)), (1, 2, 4))}"
    if "?" in message or "？" in message or "؟" in message:
        yield "x question somewhere"
    if _CODE.search(message):
        yield "x code"
    if QUOTED.search(message):
        yield "x quotes"
    letters = [sign for sign in message if sign.isalpha()]
    if len(letters) > 5 and sum(map(str.isupper, letters)) > 0.6 * len(letters):
        yield "x shouts"
    if "0" in found:
        yield f"x numbers {bucket(found.count('0'), (1, 2, 4))}"
