"""The hashed n-gram model: a table of small integers, read with the standard library alone.

A feature's hash names its slot, eight more bits of it must agree with what the slot was filled with, so that an n-gram
never seen in training counts for nothing and not for what happens to lie in its slot.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from openclaw_rl.errors import ConfigError
from openclaw_rl.judge.reader.features import families
from openclaw_rl.judge.reader.kinds import KINDS, KindLogprobs, MessageKind, normalised

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
