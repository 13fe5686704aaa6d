"""The hashed n-gram model: a table of small integers, read with the standard library alone.

A feature's hash names its slot, eight more bits of it must agree with what the slot was filled with, so that an n-gram
never seen in training counts for nothing and not for what happens to lie in its slot.
"""

from __future__ import annotations

import json
import re
import unicodedata
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from openclaw_rl.errors import ConfigError
from openclaw_rl.judge.channel import channel_of_texts
from openclaw_rl.judge.coding import signs_in
from openclaw_rl.judge.reader.combination import KINDS, KindLogprobs, MessageKind, normalised
from openclaw_rl.judge.text import stretches_of

# What the n-gram model sees of a message: its words, its letters, and how they meet the request and the reply. Pure.
#
# The request and the reply are never read by themselves: only what the message shares with them counts, so that the
# model cannot learn that some topics, or long replies, are complained about.

MOST = 2_000
"""characters of a text that are looked at: the head and the tail"""

_PUNCTUATION = r"\s!-/:-@\[-`{-~¡-¿‐-⁯、-〿！-／：-＠［-｀｛-･।॥؟،؛۔"
_UNSPACED = r"㐀-䶿一-鿿぀-ヿ豈-﫿ฯ-๛"
_TOKEN = re.compile(
    rf"\d+(?:[.,:]\d+)*|[{_UNSPACED}]|(?:(?![{_PUNCTUATION}{_UNSPACED}\d])\S)+(?:['’](?:(?![{_PUNCTUATION}{_UNSPACED}\d])\S)+)*"
    r"|\.{2,}|…|[!?！？؟]+|[^\s\w]"
)
_CJK = re.compile(rf"[{_UNSPACED}]")
_STRETCHED = re.compile(r"(\w)\1{2,}")
_QUOTED = re.compile(r"[\"“„«「『]([^\"“”„«»「」『』\n]{2,80})[\"”“»」』]")
_EMOJI = re.compile("[\U0001f300-\U0001faff☀-➿]")
_CODE = re.compile(r"```|`[^`]+`|[{};]\s*$|\w\(\)|</?\w+>|^[ \t]*(?:\$|>>>|import |def |SELECT )", re.MULTILINE)
_ASKS = re.compile(r"[?？؟]\W*\Z")
_ENDS = "^", "$"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Features of one sort; together they weigh ``weight``, however many they are."""

    names: Sequence[str]
    weight: float
    shared: bool


def bounded(text: str, most: int = MOST) -> str:
    """Head and tail of a long text."""
    return text if len(text) <= most else f"{text[: most * 2 // 3]}\n{text[-most // 3 :]}"


def tokens(text: str) -> list[str]:
    """Words in small letters, single characters where words are not spaced, numbers as 0, marks that carry tone."""
    plain = unicodedata.normalize("NFKC", text).lower().replace("’", "'")
    plain = _STRETCHED.sub(r"\1\1", plain)
    return ["0" if found[0].isdigit() else found for found in _TOKEN.findall(plain)]


def families(request: str, reply: str, message: str, *, context: bool = True) -> tuple[Family, ...]:
    """All features of ``message``; without ``context`` what it shares with the request and the reply is left out."""
    request, reply, message = bounded(request), bounded(reply), bounded(message)
    found = tokens(message)
    own = (
        Family(names=list(_words(found)), weight=3.0, shared=False),
        Family(names=list(_letters(found)), weight=2.0, shared=False),
        Family(names=list(_shape(message, found)), weight=0.5, shared=False),
    )
    if not context:
        return own
    asked, told = _units(request), _units(reply)
    return (
        *own,
        Family(names=list(_skeleton(message, asked, told)), weight=0.7, shared=True),
        Family(names=list(_meeting(reply, message, asked, told)), weight=0.7, shared=True),
        Family(names=list(_place(request, reply, message)), weight=0.7, shared=True),
    )


def _words(found: Sequence[str]) -> Iterator[str]:
    """Runs of one to three tokens (one to four characters of an unspaced script), with both ends marked."""
    marked = (_ENDS[0], *found, _ENDS[1])
    yield from (f"w {word}" for word in found)
    for size in (2, 3):
        yield from ("w " + " ".join(marked[at : at + size]) for at in range(len(marked) - size + 1))
    yield from (
        "w " + " ".join(marked[at : at + 4])
        for at in range(len(marked) - 3)
        if all(map(_CJK.match, marked[at : at + 4]))
    )
    if len(found) <= 6:
        yield "whole " + " ".join(found)


def _letters(found: Sequence[str]) -> Iterator[str]:
    """Runs of three to five letters within a spaced word and over its ends."""
    for word in found:
        if _CJK.match(word) or not word[0].isalpha():
            continue
        whole = f" {word} "
        for size in (3, 4, 5):
            yield from (f"c{whole[at : at + size]}" for at in range(len(whole) - size + 1))


def _bucket(count: float, steps: Sequence[float]) -> int:
    return sum(count >= step for step in steps)


def _shape(message: str, found: Sequence[str]) -> Iterator[str]:
    """Length, tone of the punctuation, lines, code."""
    yield f"x length {_bucket(len(found), (2, 4, 7, 11, 16, 24, 36, 60))}"
    yield f"x asks {int(bool(_ASKS.search(message)))}"
    yield f"x marks {_bucket(message.count('!') + message.count('！'), (1, 2, 4))}"
    yield f"x lines {_bucket(message.count(chr(10)), (1, 3, 8))}"
    yield f"x emoji {_bucket(len(_EMOJI.findall(message)), (1, 2, 4))}"
    if "?" in message or "？" in message or "؟" in message:
        yield "x question somewhere"
    if _CODE.search(message):
        yield "x code"
    if _QUOTED.search(message):
        yield "x quotes"
    letters = [sign for sign in message if sign.isalpha()]
    if len(letters) > 5 and sum(map(str.isupper, letters)) > 0.6 * len(letters):
        yield "x shouts"
    if "0" in found:
        yield f"x numbers {_bucket(found.count('0'), (1, 2, 4))}"


def _place(request: str, reply: str, message: str) -> Iterator[str]:
    """Where it is said, what is pasted, and the signs of an agent's failure or of the user's consent."""
    channel = channel_of_texts(request, reply, message)
    parts = stretches_of(message)
    pasted = sum(part.pasted for part in parts)
    matter = "none" if not pasted else "all" if pasted == len(parts) else "some"
    signs = [sign.name for sign in signs_in(message, reply)] or ["no sign"]
    yield f"p {channel} pasted {matter}"
    yield f"p {channel} length {_bucket(len(message), (20, 60, 160, 500, 1500))}"
    yield f"p {channel} the reply asks {int(bool(_ASKS.search(reply[-160:].rstrip())))}"
    for sign in signs:
        yield f"p {sign}"
        yield f"p {channel} {sign} pasted {matter}"


def _units(text: str) -> frozenset[str]:
    """What two texts can share: beginnings of longer words, numbers, pairs of unspaced characters."""
    plain = unicodedata.normalize("NFKC", text).lower()
    found = _TOKEN.findall(plain)
    pairs = {a + b for a, b in pairwise(found) if _CJK.match(a) and _CJK.match(b)}
    return frozenset(pairs | {unit for word in found if (unit := _unit(word))})


def _unit(word: str) -> str:
    """The beginning of a longer word (its end changes with grammar), a number whole; else nothing."""
    if word[0].isdigit():
        return word
    return word[:5] if len(word) >= 4 and word[0].isalpha() and not _CJK.match(word) else ""


def _skeleton(message: str, asked: frozenset[str], told: frozenset[str]) -> Iterator[str]:
    """The message with what it shares with the request or the reply put as signs: "not <reply> but <new number>"."""
    plain = unicodedata.normalize("NFKC", message).lower().replace("’", "'")
    raw = _TOKEN.findall(plain)
    signs: list[str] = []
    for at, word in enumerate(raw):
        unit = raw[at] + raw[at + 1] if _CJK.match(word) and at + 1 < len(raw) else _unit(word)
        sign = _sign(unit, asked, told) if unit else word
        if sign in ("<Q>", "<A>", "<QA>") and signs and signs[-1] == sign:
            continue
        signs.append(word if sign == "<new>" else sign)
    marked = (_ENDS[0], *signs, _ENDS[1])
    for size in (2, 3):
        for at in range(len(marked) - size + 1):
            run = marked[at : at + size]
            if any(part[0] == "<" and len(part) > 1 for part in run):
                yield "s " + " ".join(run)


def _sign(unit: str, asked: frozenset[str], told: frozenset[str]) -> str:
    inside = ("Q" if unit in asked else "") + ("A" if unit in told else "")
    if unit[0].isdigit():
        return f"<number {inside or 'new'}>"
    return f"<{inside}>" if inside else "<new>"


def _meeting(reply: str, message: str, asked: frozenset[str], told: frozenset[str]) -> Iterator[str]:
    """How much of the message was in the request or the reply; what it quotes; whether the reply asked something."""
    said = _units(message)
    steps = (0.01, 0.2, 0.4, 0.6, 0.8)
    of_request = len(said & asked) / len(said) if said else 0.0
    of_reply = len(said & told) / len(said) if said else 0.0
    again = len(said & asked) / len(asked) if asked else 0.0
    yield f"m request {_bucket(of_request, steps)}"
    yield f"m reply {_bucket(of_reply, steps)}"
    yield f"m again {_bucket(again, steps)}"
    yield f"m request {_bucket(of_request, steps)} reply {_bucket(of_reply, steps)}"
    only_told = said & (told - asked)
    yield f"m of the reply alone {_bucket(len(only_told), (1, 2, 4))}"
    asks = bool(_ASKS.search(reply[-160:].rstrip()))
    yield f"m the reply asks {int(asks)}"
    yield f"m the reply asks {int(asks)} length {_bucket(len(said), (1, 3, 6, 12))}"
    numbers = {unit for unit in said if unit[0].isdigit()}
    if numbers:
        known = f"told {int(bool(numbers & told))} asked {int(bool(numbers & asked))}"
        yield f"m numbers new {int(bool(numbers - asked - told))} {known}"
        if any(unit[0].isdigit() for unit in told) and numbers - told:
            yield "m another number than the reply's"
    quoted = [quote.lower() for quote in _QUOTED.findall(message)]
    if quoted:
        yield f"m quotes the reply {int(any(quote in reply.lower() for quote in quoted))}"
    yield f"m the request again as a question {int(again >= 0.6)} {int(bool(_ASKS.search(message)))}"


MAGIC = b"ngrams-1\n"
SHIPPED = Path(__file__).parent / "ngrams.bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A feature of the message and how much it spoke for a kind, against the mean of all kinds."""

    feature: str
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramModel:
    """``checks`` `[slots]`, 0 where a slot is empty; ``table`` `[slots * 6]` in int8; a weight is its entry times
    ``scale`` of its kind."""

    checks: bytes
    table: memoryview
    scale: tuple[float, ...]
    bias: tuple[float, ...]
    context: bool

    def logprobs(self, request: str, reply: str, message: str) -> KindLogprobs:
        """What the message is, by its words and by what they share with the request and the reply."""
        sums = [0.0] * len(KINDS)
        for _, value, at in self._found(request, reply, message):
            for kind in range(len(KINDS)):
                sums[kind] += value * self.table[at + kind]
        return normalised(
            [total * scale + bias for total, scale, bias in zip(sums, self.scale, self.bias, strict=True)]
        )

    def reasons(self, request: str, reply: str, message: str, kind: MessageKind, *, most: int) -> tuple[Reason, ...]:
        """The features that weighed most for ``kind``."""
        column, found = KINDS.index(kind), []
        for name, value, at in self._found(request, reply, message):
            weights = [self.table[at + other] * self.scale[other] for other in range(len(KINDS))]
            found.append(Reason(feature=name, weight=value * (weights[column] - sum(weights) / len(weights))))
        return tuple(sorted(found, key=lambda reason: -reason.weight)[:most])

    def _found(self, request: str, reply: str, message: str) -> Iterator[tuple[str, float, int]]:
        """Each known feature with its value and the place of its weights."""
        slots = len(self.checks)
        for family in families(request, reply, message, context=self.context):
            names = dict.fromkeys(family.names)
            value = family.weight / len(names) ** 0.5 if names else 0.0
            for name in names:
                slot, check = place(name, slots)
                if self.checks[slot] == check:
                    yield name, value, slot * len(KINDS)


def place(feature: str, slots: int) -> tuple[int, int]:
    """The slot of a feature, and what its check must be: 1 .. 255."""
    hashed = zlib.crc32(feature.encode("utf-8", "replace"))
    return hashed % slots, (hashed >> 24) % 255 + 1


def pack(model: NgramModel) -> bytes:
    """The model as a file."""
    head = {
        "slots": len(model.checks),
        "scale": list(model.scale),
        "bias": list(model.bias),
        "context": model.context,
        "kinds": list(KINDS),
    }
    return MAGIC + json.dumps(head).encode() + b"\n" + model.checks + model.table.tobytes()


def unpack(data: bytes, *, name: str) -> NgramModel:
    """The model of a file; raises ConfigError for one that is damaged or of other kinds."""
    try:
        if not data.startswith(MAGIC):
            raise ValueError("it does not begin like one")
        end = data.index(b"\n", len(MAGIC))
        head = json.loads(data[len(MAGIC) : end])
        slots, rest = head["slots"], data[end + 1 :]
        if head["kinds"] != list(KINDS) or len(rest) != slots * (1 + len(KINDS)):
            raise ValueError(f"{len(rest)} bytes for {slots} slots of {head['kinds']}")
        return NgramModel(
            checks=rest[:slots],
            table=memoryview(rest)[slots:].cast("b"),
            scale=tuple(head["scale"]),
            bias=tuple(head["bias"]),
            context=bool(head["context"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{name} is no n-gram model: {error}", remedy="install again, or make judge-reader"
        ) from error


@cache
def shipped_ngrams() -> NgramModel:
    """The model that comes with the package."""
    return unpack(SHIPPED.read_bytes(), name=str(SHIPPED))
