"""The hashed n-gram model: a table of small integers, read with the standard library alone.

A feature's hash names its slot, eight more bits of it must agree with what the slot was filled with, so that an n-gram
never seen in training counts for nothing and not for what happens to lie in its slot.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from openclaw_rl.errors import ConfigError
from openclaw_rl.judge.channel import channel_of_texts
from openclaw_rl.judge.coding import signs_in
from openclaw_rl.judge.reader.combination import KINDS, KindLogprobs, MessageKind, normalised
from openclaw_rl.judge.text import stretches_of
from openclaw_rl.preferences.features import ASKS, CJK, QUOTED, TOKEN, Family, bounded, bucket, own_families, place

# What the n-gram model sees of a message: its words, its letters, and how they meet the request and the reply. Pure.
#
# The request and the reply are never read by themselves: only what the message shares with them counts, so that the
# model cannot learn that some topics, or long replies, are complained about.


def families(request: str, reply: str, message: str, *, context: bool = True) -> tuple[Family, ...]:
    """All features of ``message``; without ``context`` what it shares with the request and the reply is left out."""
    own = own_families(message)
    if not context:
        return own
    request, reply, message = bounded(request), bounded(reply), bounded(message)
    asked, told = _units(request), _units(reply)
    return (
        *own,
        Family(names=list(_skeleton(message, asked, told)), weight=0.7, shared=True),
        Family(names=list(_meeting(reply, message, asked, told)), weight=0.7, shared=True),
        Family(names=list(_place(request, reply, message)), weight=0.7, shared=True),
    )


def _place(request: str, reply: str, message: str) -> Iterator[str]:
    """Where it is said, what is pasted, and the signs of an agent's failure or of the user's consent."""
    channel = channel_of_texts(request, reply, message)
    parts = stretches_of(message)
    pasted = sum(part.pasted for part in parts)
    matter = "none" if not pasted else "all" if pasted == len(parts) else "some"
    signs = [sign.name for sign in signs_in(message, reply)] or ["no sign"]
    yield f"p {channel} pasted {matter}"
    yield f"p {channel} length {bucket(len(message), (20, 60, 160, 500, 1500))}"
    yield f"p {channel} the reply asks {int(bool(ASKS.search(reply[-160:].rstrip())))}"
    for sign in signs:
        yield f"p {sign}"
        yield f"p {channel} {sign} pasted {matter}"


def _units(text: str) -> frozenset[str]:
    """What two texts can share: beginnings of longer words, numbers, pairs of unspaced characters."""
    plain = unicodedata.normalize("NFKC", text).lower()
    found = TOKEN.findall(plain)
    pairs = {a + b for a, b in pairwise(found) if CJK.match(a) and CJK.match(b)}
    return frozenset(pairs | {unit for word in found if (unit := _unit(word))})


def _unit(word: str) -> str:
    """The beginning of a longer word (its end changes with grammar), a number whole; else nothing."""
    if word[0].isdigit():
        return word
    return word[:5] if len(word) >= 4 and word[0].isalpha() and not CJK.match(word) else ""


def _skeleton(message: str, asked: frozenset[str], told: frozenset[str]) -> Iterator[str]:
    """The message with what it shares with the request or the reply put as signs: "not <reply> but <new number>"."""
    plain = unicodedata.normalize("NFKC", message).lower().replace("’", "'")
    raw = TOKEN.findall(plain)
    signs: list[str] = []
    for at, word in enumerate(raw):
        unit = raw[at] + raw[at + 1] if CJK.match(word) and at + 1 < len(raw) else _unit(word)
        sign = _sign(unit, asked, told) if unit else word
        if sign in ("<Q>", "<A>", "<QA>") and signs and signs[-1] == sign:
            continue
        signs.append(word if sign == "<new>" else sign)
    marked = ("^", *signs, "$")
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
    yield f"m request {bucket(of_request, steps)}"
    yield f"m reply {bucket(of_reply, steps)}"
    yield f"m again {bucket(again, steps)}"
    yield f"m request {bucket(of_request, steps)} reply {bucket(of_reply, steps)}"
    only_told = said & (told - asked)
    yield f"m of the reply alone {bucket(len(only_told), (1, 2, 4))}"
    asks = bool(ASKS.search(reply[-160:].rstrip()))
    yield f"m the reply asks {int(asks)}"
    yield f"m the reply asks {int(asks)} length {bucket(len(said), (1, 3, 6, 12))}"
    numbers = {unit for unit in said if unit[0].isdigit()}
    if numbers:
        known = f"told {int(bool(numbers & told))} asked {int(bool(numbers & asked))}"
        yield f"m numbers new {int(bool(numbers - asked - told))} {known}"
        if any(unit[0].isdigit() for unit in told) and numbers - told:
            yield "m another number than the reply's"
    quoted = [quote.lower() for quote in QUOTED.findall(message)]
    if quoted:
        yield f"m quotes the reply {int(any(quote in reply.lower() for quote in quoted))}"
    yield f"m the request again as a question {int(again >= 0.6)} {int(bool(ASKS.search(message)))}"


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
