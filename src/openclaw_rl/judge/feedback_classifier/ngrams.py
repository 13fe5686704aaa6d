"""The hashed n-gram model: a table of small integers, read with the standard library alone.

A feature's hash names its slot, and eight more of its bits must match the slot's check, so that an n-gram unseen in
training has no weight instead of another's.
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
from openclaw_rl.judge.feedback_classifier.combination import KINDS, KindLogprobs, MessageKind, normalised
from openclaw_rl.judge.text import stretches_of
from openclaw_rl.preferences.features import ASKS, CJK, QUOTED, TOKEN, Family, bounded, bucket, own_families, place

# Features of a message for the n-gram model: its words, its letters, and its overlap with request and reply. Pure.
#
# The request and the reply never count by themselves, only their overlap with the message, so that the model cannot
# learn that some topics, or long replies, attract complaints.


def families(request: str, reply: str, message: str, *, context: bool = True) -> tuple[Family, ...]:
    """Return all features of ``message``; without ``context``, omit its overlap with the request and the reply."""
    message_families = own_families(message)
    if not context:
        return message_families
    request, reply, message = bounded(request), bounded(reply), bounded(message)
    request_units, reply_units = _units(request), _units(reply)
    return (
        *message_families,
        Family(names=list(_skeleton(message, request_units, reply_units)), weight=0.7, shared=True),
        Family(names=list(_meeting(reply, message, request_units, reply_units)), weight=0.7, shared=True),
        Family(names=list(_place(request, reply, message)), weight=0.7, shared=True),
    )


def _place(request: str, reply: str, message: str) -> Iterator[str]:
    """Yield the channel, pasted text, and signs that an agent failed or the user consents."""
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
    """Return the units that texts can share: longer words' stems, numbers, unspaced characters in pairs."""
    plain = unicodedata.normalize("NFKC", text).lower()
    tokens = TOKEN.findall(plain)
    pairs = {a + b for a, b in pairwise(tokens) if CJK.match(a) and CJK.match(b)}
    return frozenset(pairs | {unit for word in tokens if (unit := _unit(word))})


def _unit(word: str) -> str:
    """Return a longer word's stem (its end varies with grammar) or a number; otherwise an empty text."""
    if word[0].isdigit():
        return word
    return word[:5] if len(word) >= 4 and word[0].isalpha() and not CJK.match(word) else ""


def _skeleton(message: str, asked: frozenset[str], told: frozenset[str]) -> Iterator[str]:
    """Yield the message's runs with words from the request or the reply as signs: "not <reply> but <new number>"."""
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
    """Yield the message's overlap with the request and the reply, its quotes, and the reply's question."""
    units = _units(message)
    steps = (0.01, 0.2, 0.4, 0.6, 0.8)
    of_request = len(units & asked) / len(units) if units else 0.0
    of_reply = len(units & told) / len(units) if units else 0.0
    again = len(units & asked) / len(asked) if asked else 0.0
    yield f"m request {bucket(of_request, steps)}"
    yield f"m reply {bucket(of_reply, steps)}"
    yield f"m again {bucket(again, steps)}"
    yield f"m request {bucket(of_request, steps)} reply {bucket(of_reply, steps)}"
    reply_only = units & (told - asked)
    yield f"m of the reply alone {bucket(len(reply_only), (1, 2, 4))}"
    asks = bool(ASKS.search(reply[-160:].rstrip()))
    yield f"m the reply asks {int(asks)}"
    yield f"m the reply asks {int(asks)} length {bucket(len(units), (1, 3, 6, 12))}"
    numbers = {unit for unit in units if unit[0].isdigit()}
    if numbers:
        origin = f"told {int(bool(numbers & told))} asked {int(bool(numbers & asked))}"
        yield f"m numbers new {int(bool(numbers - asked - told))} {origin}"
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
    """A message's feature and its weight for a kind, relative to the mean over kinds."""

    feature: str
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramModel:
    """The model's arrays: ``checks`` `[slots]`, 0 for an empty slot, and ``table`` `[slots * 6]` in int8.

    A weight is its entry in ``table`` times its kind's ``scale``.
    """

    checks: bytes
    table: memoryview
    scale: tuple[float, ...]
    bias: tuple[float, ...]
    context: bool

    def logprobs(self, request: str, reply: str, message: str) -> KindLogprobs:
        """Return the kinds' log-probs, by the message's words and its overlap with the request and the reply."""
        sums = [0.0] * len(KINDS)
        for _, value, at in self._found(request, reply, message):
            for kind in range(len(KINDS)):
                sums[kind] += value * self.table[at + kind]
        return normalised(
            [total * scale + bias for total, scale, bias in zip(sums, self.scale, self.bias, strict=True)]
        )

    def reasons(self, request: str, reply: str, message: str, kind: MessageKind, *, most: int) -> tuple[Reason, ...]:
        """Return the features with the highest weight for ``kind``."""
        column, ranked = KINDS.index(kind), []
        for name, value, at in self._found(request, reply, message):
            weights = [self.table[at + index] * self.scale[index] for index in range(len(KINDS))]
            ranked.append(Reason(feature=name, weight=value * (weights[column] - sum(weights) / len(weights))))
        return tuple(sorted(ranked, key=lambda reason: -reason.weight)[:most])

    def _found(self, request: str, reply: str, message: str) -> Iterator[tuple[str, float, int]]:
        """Yield each known feature with its value and its weights' offset."""
        slots = len(self.checks)
        for family in families(request, reply, message, context=self.context):
            names = dict.fromkeys(family.names)
            value = family.weight / len(names) ** 0.5 if names else 0.0
            for name in names:
                slot, check = place(name, slots)
                if self.checks[slot] == check:
                    yield name, value, slot * len(KINDS)


def pack(model: NgramModel) -> bytes:
    """Return the model as a file."""
    head = {
        "slots": len(model.checks),
        "scale": list(model.scale),
        "bias": list(model.bias),
        "context": model.context,
        "kinds": list(KINDS),
    }
    return MAGIC + json.dumps(head).encode() + b"\n" + model.checks + model.table.tobytes()


def unpack(data: bytes, *, name: str) -> NgramModel:
    """Return a file's model; raises ConfigError if it is damaged or has other kinds."""
    try:
        if not data.startswith(MAGIC):
            raise ValueError("its header is missing")
        end = data.index(b"\n", len(MAGIC))
        head = json.loads(data[len(MAGIC) : end])
        slots, body = head["slots"], data[end + 1 :]
        if head["kinds"] != list(KINDS) or len(body) != slots * (1 + len(KINDS)):
            raise ValueError(f"{len(body)} bytes for {slots} slots of {head['kinds']}")
        return NgramModel(
            checks=body[:slots],
            table=memoryview(body)[slots:].cast("b"),
            scale=tuple(head["scale"]),
            bias=tuple(head["bias"]),
            context=bool(head["context"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{name} is no n-gram model: {error}", remedy="install again, or make feedback-classifier"
        ) from error


@cache
def shipped_ngrams() -> NgramModel:
    """Return the model shipped with the package."""
    return unpack(SHIPPED.read_bytes(), name=str(SHIPPED))
