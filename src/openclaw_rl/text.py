"""Words, sentences, list items and the script of a text, and detection of degenerate replies. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

WORD = re.compile(r"[^\W_]+(?:[-'’][^\W_]+)*")
_PLAIN_WORD = re.compile(r"[^\W_]+(?:'[^\W\d_]+)?")
_CJK = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]")
ITEM = re.compile(r"^[ \t]*(?:[-*•+–]|\(?(?:\d{1,2}|[a-hA-H])[.)])[ \t]+(?=\S)", re.MULTILINE)
HEADING = re.compile(r"^[ \t]*#{1,6}[ \t]+", re.MULTILINE)
BOLD = re.compile(r"\*\*[^*\n]+\*\*|__[^_\n]+__")
_END = re.compile(r"(?<![.!?…])([.!?…]++)[\"”’')\]*_]*+\s++(?=[\"“‘'(\[*_]*+([A-Z0-9]\S*+))|[。！？]\s*+(?=\S)")
_TITLES = frozenset(
    ["mr", "mrs", "ms", "dr", "prof", "st", "vs", "e.g", "i.e", "eg", "ie", "fig", "approx", "cf", "jr"]
)
_INITIALS = re.compile(r"(?:[A-Za-z]\.)*[A-Za-z]")
_OPENERS = frozenset(
    ["the", "it", "this", "that", "in", "a", "an", "he", "she", "they", "we", "you", "there", "these", "for", "if"]
)
_TEMPLATE = re.compile(r"<\|\w+\|>|</?s>|\[/?INST\]|\ufffd|[\x00-\x08\x0b-\x1f]")
_RUN_OF_ONE = re.compile(r"([^\s\-=_*#.~+|/\\<>])\1{59,}")
_ONES = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_TEENS = ("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")
_TENS = ("ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SPELT = {word: at for at, word in enumerate(_ONES, 1)} | {word: at for at, word in enumerate(_TEENS, 11)}
_SPELT |= {word: 10 * at for at, word in enumerate(_TENS, 1)} | {"a hundred": 100, "one hundred": 100}
NUMBER = (
    rf"(?<![\w-])(?:\d{{1,4}}|(?:a|one) hundred|(?:{'|'.join(_TENS[1:])})[ -](?:{'|'.join(_ONES)})"
    rf"|{'|'.join((*_TENS, *_TEENS, *_ONES))})"
)
"""a pattern for a number in small letters, up to 9,999 in figures and up to a hundred in words; `number_of` reads it"""
UNSPACED = frozenset({"CJK", "HIRAGANA", "KATAKANA", "THAI"})
"""scripts without spaces between words, in which a word count is meaningless"""


def number_of(text: str) -> int:
    """Return the number in a match of `NUMBER`."""
    lowered = text.lower()
    if lowered.isdigit():
        return int(lowered)
    return _SPELT[lowered] if lowered in _SPELT else sum(_SPELT[part] for part in re.split("[ -]", lowered))


def head_and_tail(tokens: Sequence[int], most: int) -> list[int]:
    """Return tokens cut to ``most``: two thirds from the head, one third from the tail; unchanged if not longer."""
    if len(tokens) <= most:
        return list(tokens)
    tail = most // 3
    return [*tokens[: most - tail], *tokens[len(tokens) - tail :]]


def words(text: str) -> tuple[str, ...]:
    """Return the text's words in small letters, for comparison; each Chinese character is a word."""
    parts: list[str] = []
    for word in _PLAIN_WORD.findall(text.lower().replace("’", "'")):
        parts.extend(word if _CJK.search(word) else (word,))
    return tuple(parts)


def is_chinese(text: str) -> bool:
    """Check if at least a third of the text's letters and digits are Chinese characters."""
    return len(_CJK.findall(text)) * 3 >= max(1, len(re.findall(r"\w", text)))


def word_count(text: str) -> int:
    """Count words as a reader would: list markers, heading signs and lone punctuation do not count."""
    return sum(any(sign.isalnum() for sign in word) for word in unmarked(text).split())


def unmarked(text: str) -> str:
    """Return the text without list markers, heading signs and bold signs."""
    return BOLD.sub(lambda match: match[0][2:-2], HEADING.sub("", ITEM.sub("", text)))


def sentence_count(text: str) -> int:
    """Count sentences: abbreviations, initials and decimals end none; an item or a paragraph has at least one."""
    marked = ITEM.sub("\n\n", HEADING.sub("\n\n", text.strip()))
    blocks = [" ".join(block.split()) for block in re.split(r"\n\s*\n|(?<=[.!?:])\n", marked)]
    return sum(1 + sum(map(_ends, _END.finditer(block))) for block in blocks if any(map(str.isalnum, block)))


def _ends(found: re.Match[str]) -> bool:
    """Return True if a full stop before a capital ends a sentence."""
    sign, after = found.groups()
    if sign != ".":
        return True
    text, at = found.string, found.start()
    bare = text[text.rfind(" ", 0, at) + 1 : at].lstrip("\"“‘'([*_")
    if bare.lower() in _TITLES or (bare.lower() == "no" and after[0].isdigit()):
        return False
    if not _INITIALS.fullmatch(bare) or bare in ("I", "a"):
        return True
    return after.lower().strip(",.") in _OPENERS


def items(text: str) -> list[str]:
    """Return the list items: the text after each list marker, up to the line's end."""
    return [text[match.end() :].partition("\n")[0].strip() for match in ITEM.finditer(text)]


def script(text: str) -> str | None:
    """Return the script that most letters have, such as LATIN or CJK; None for a text with few letters."""
    counts = Counter(unicodedata.name(sign, "").partition(" ")[0] for sign in text if sign.isalpha())
    named, count = counts.most_common(1)[0] if counts else ("", 0)
    return named if count >= 4 else None


def degenerate(reply: str, *, figure: bool | None = None, least: int | None = None) -> str | None:
    """Return why a reply is degenerate (too short, junk, or repetitive); None for any other reply.

    ``figure`` is True if a bare figure answers the request; if it is False, a reply of figures alone is degenerate. A
    reply has at least ``least`` words; by default three, or one if a figure answers. List markers are not words, so a
    list of the same item repeats itself. List markers and bold signs do not count in the share of signs either.
    """
    if least is None:
        least = 1 if figure else 3
    if _TEMPLATE.search(reply):
        return "signs that are no text"
    if word_count(reply) < least:
        return f"under {least} words" if least > 1 else "no word and no figure"
    text = unmarked(reply)
    solid = [sign for sign in text if not sign.isspace()]
    if sum(sign.isalnum() for sign in solid) < 0.6 * len(solid):
        return "more signs than letters"
    if figure is False and sum(sign.isalpha() for sign in solid) < 0.3 * len(solid):
        return "figures where words were asked for"
    spelled = [word.lower() for word in WORD.findall(text)]
    if _repeats(spelled):
        return "it repeats a phrase"
    if len(spelled) >= 40 and len(set(spelled)) < 0.3 * len(spelled):
        return "few different words"
    return None


def _repeats(found: list[str]) -> bool:
    """Return True if 1 to 12 words occur four times in a row, or 8 words four times anywhere."""
    for period in range(1, 13):
        run = period * 4
        if any(found[at : at + period] * 4 == found[at : at + run] for at in range(len(found) - run + 1)):
            return True
    phrases = Counter(tuple(found[at : at + 8]) for at in range(len(found) - 7))
    return bool(phrases) and max(phrases.values()) >= 4


def broken(reply: str) -> str | None:
    """Return why a reply is degenerate whatever the request: empty, a junk token, or an endless loop; else None.

    This is evidence on its own, so it is far more conservative than `degenerate`, which compares many replies.
    """
    text = reply.strip()
    if not text:
        return "an empty reply"
    if len(text) <= 3 and not any(
        unicodedata.category(sign)[0] in "LN" or unicodedata.category(sign) == "So"
        for sign in text.replace("\ufffd", "")
    ):
        return "a single junk token"
    if _RUN_OF_ONE.search(text) or _ends_in_loop(words(text)):
        return "the reply repeats itself"
    return None


def _ends_in_loop(found: tuple[str, ...]) -> bool:
    """Return True if the words end in one phrase six times or more, 24 words or more in all."""
    for period in range(1, 25):
        repeats = max(6, -(-24 // period))
        tail = found[-period * repeats :]
        if len(tail) == period * repeats and tail == tail[:period] * repeats:
            return True
    return False
