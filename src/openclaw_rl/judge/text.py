"""Parsing a message: the person's own words without envelopes, quotes and code, cut into sentences and clauses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from openclaw_rl.judge.quoting import MOST, is_text, outside
from openclaw_rl.types import Message

_STAMP = re.compile(r"\A\[[A-Z][a-z]{2} \d{4}-\d\d-\d\d \d\d:\d\d[^\]\n]*\]\s*")
_INTERNAL = re.compile(r"<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>.*?(?:<<<END_OPENCLAW_INTERNAL_CONTEXT>>>|\Z)", re.DOTALL)
_RUNTIME = re.compile(r"\n\nRuntime: agent=.*\Z", re.DOTALL)
_MACHINE = re.compile(r"\A(?:A background task completed\.|Follow the heartbeat monitor|System: )")
QUOTED = re.compile(
    r"\"[^\"\n]*+\"|“[^“”\n]*+”|「[^「」\n]*+」|『[^『』\n]*+』|«[^«»\n]*+»|`[^`\n]++`|(?<!\w)'[^'\n]++'(?!\w)"
)
_SENTENCE = re.compile(r"(?<=[.!?…])[\"”')]*+\s++|(?<=[。！？；])\s*+|\n++|;\s++")
_CLAUSE = re.compile(
    r",\s++|，|：|:\s++|(?<![^\S\n])[^\S\n]++[-–—]++\s++|—|\.{3,}+\s*+|…\s*+"
    r"|(?<!\s)\s++(?=(?:but|however|though|although|yet|except)\b)|(?=但是|不过|可是|然而)",
    re.IGNORECASE,
)
_SET_OFF = re.compile(r"[:：–—-]")
_SPELLING = {
    **dict.fromkeys(("pls", "plz", "plaese", "pleas"), "please"),
    **dict.fromkeys(("thx", "thanx", "thnx", "thnks", "tahnks", "thnaks", "tnx", "thanks"), "thanks"),
    **dict.fromkeys(("ty", "tysm", "thankyou"), "thank you"),
    **dict.fromkeys(("dosent", "doesnt", "dosnt", "doesn"), "doesn't"),
    "dont": "don't",
    "didnt": "didn't",
    "isnt": "isn't",
    "wasnt": "wasn't",
    "cant": "can't",
    "wont": "won't",
    "thats": "that's",
    "whats": "what's",
    "im": "i'm",
    "ive": "i've",
    "youre": "you're",
    "u": "you",
    "ur": "your",
    "k": "ok",
    "okay": "ok",
    "okey": "ok",
    "wrng": "wrong",
    "worng": "wrong",
    "metres": "meters",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """A piece of a sentence: as it was written, and folded for matching with its quotes blanked out.

    ``before`` is the colon or dash that sets it off from the clause before it, else empty.
    """

    text: str
    folded: str
    before: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """A sentence as it was written, folded whole, its clauses, and the line it begins on."""

    text: str
    folded: str
    clauses: tuple[Clause, ...]
    asks: bool
    line: int = 0


@lru_cache(maxsize=32)  # a case is looked at from several sides, one after another
def own_words(text: str) -> str:
    """What the person wrote: no time stamp, no machine's context, no words of others; perhaps nothing."""
    return outside(unwrapped(text))


def unwrapped(text: str) -> str:
    """A message without what a client put around it; empty where all of it is a machine's."""
    text = _INTERNAL.sub("", text)
    text = _RUNTIME.sub("", text)
    text = _STAMP.sub("", text.strip())
    return "" if _MACHINE.match(text) else text.strip()


def others_words(text: str) -> str:
    """What is not the sender's own in a message: the stretches between the lines that are."""
    whole, at = unwrapped(text)[:MOST], 0
    rest: list[str] = []
    for line in filter(None, map(str.strip, own_words(text).splitlines())):
        found = whole.find(line, at)
        if found < 0:
            break
        rest.append(whole[at:found].strip())
        at = found + len(line)
    return "\n".join(filter(None, (*rest, whole[at:].strip())))


def hands_over(text: str) -> bool:
    """Whether a message holds words that are not its sender's own."""
    own = own_words(text)
    return is_text(own) or own.split() != unwrapped(text).split()


def user_text(messages: Sequence[Message]) -> str:
    """The user's own words of a next state; no other role has a say."""
    return "\n".join(filter(None, (own_words(message.content) for message in messages if message.role == "user")))


def fold(text: str) -> str:
    """Small letters, straight apostrophes, common misspellings corrected, no punctuation but what carries meaning."""
    text = text.lower().replace("’", "'").replace("‘", "'")
    text = re.sub(r"(\w)\1{2,}", r"\1\1", text)
    text = re.sub(r"[^\w\s'?/+*%_$.-]", " ", text)
    text = re.sub(r"(?<![.!?])[.!?]++(?=\s|$)", " ", text)
    words = (_SPELLING.get(word, word) for word in text.split())
    return " ".join(words)


def parse(text: str) -> tuple[Sentence, ...]:
    """A message cut into sentences and clauses; text in quotation marks is never cut and shows as `_` when folded."""
    masked = QUOTED.sub(lambda found: "\x00" * len(found.group()), text)
    found = []
    for start, end in _spans(masked, _SENTENCE):
        whole = masked[start:end]
        clauses = _clauses(text, masked, start, end)
        if clauses:
            asks = whole.strip()[-1:] in "?？"
            line = masked.count("\n", 0, start)
            found.append(
                Sentence(text=text[start:end].strip(), folded=_blank(whole), clauses=clauses, asks=asks, line=line)
            )
    return tuple(found)


def _clauses(text: str, masked: str, start: int, end: int) -> tuple[Clause, ...]:
    found: list[Clause] = []
    at = start
    for a, b in _spans(masked, _CLAUSE, start, end):
        sign = _SET_OFF.search(masked, at, a) if found else None
        before = "" if sign is None else ":" if sign.group() in ":：" else "-"
        found.append(Clause(text=text[a:b].strip(), folded=_blank(masked[a:b]), before=before))
        at = b
    return tuple(found)


def _blank(masked: str) -> str:
    return fold(re.sub(r"\x00+", " _ ", masked))


def _spans(text: str, cut: re.Pattern[str], start: int = 0, end: int | None = None) -> list[tuple[int, int]]:
    """The stretches between cuts that hold more than space."""
    end = len(text) if end is None else end
    spans, at = [], start
    for found in cut.finditer(text, start, end):
        spans.append((at, found.start()))
        at = found.end()
    spans.append((at, end))
    return [(a, b) for a, b in spans if text[a:b].strip()]
