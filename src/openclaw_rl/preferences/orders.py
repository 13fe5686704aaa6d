"""Standing orders in a user's message: sentences that say how all later replies are to be.

    standing_orders("From now on only give me the code. Next: sort by date.")   ("From now on only give me the code.",)
    standing_orders("Always sort the output by date.")                          ()

A logistic model of hashed n-grams reads each sentence by itself (fitted by `scripts/judge_reader/fit_orders.py` on
`data/orders`). Around it stand checks that others wrote none of the message: a false order changes every later prompt,
a missed one can be said again.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from openclaw_rl.errors import ConfigError
from openclaw_rl.preferences.features import Family, own_families, place
from openclaw_rl.preferences.signs import LANGUAGES, OTHERS, PLAYS, STATERS
from openclaw_rl.preferences.standing import HANDS_OVER, is_aside, is_framed, sentences_of, stands

LONGEST = 600
"""characters of a message that may hold a standing order; a longer one is a text"""
MOST_SENTENCES = 8
THRESHOLD = 2.5
"""log-odds from which on a sentence is an order: 6 of 1,570 messages of strangers that hold none reach it"""
MAGIC = b"orders-1\n"
SHIPPED = Path(__file__).parent / "orders.bin"

_PERSONS = re.compile(
    r"(?i)(?<!\w)(?:i|i'm|i've|i'd|i'll|im|ive|me|my|mine|you|your|u|ur|we|us|our|let's|ich|mir|mich|mein\w*|du|dir|dich|dein\w*|wir|uns|je|j|moi"
    r"|mon|ma|mes|tu|te|ton|ta|tes|vous|votre|vos|nous|yo|mi|mis|me|tú|tus|mí|io|mia|mio|ti|tuo|tua|eu|meu|minha|você|seu|sua|ik|mij|mijn|jij|jouw|wij|ons"
    r"|я|мне|меня|мой|моя|ты|тебя|твой|вы|ben|bana|benim|sen|saya|aku|kamu|tôi|mình|bạn|jag|mig|min|du|mnie|mój|ty)(?!\w)"
    r"|我|你|您|私|僕|俺|あなた|나|내|저|제|너|أنا|لي|मैं|मुझे|मेरे"
)
"""persons of a conversation: a sentence of a story rarely has one"""
_BRIEF = 5
"""words of a sentence that may stand before an order without naming a person ("Good.", "and in rust?")"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderModel:
    """``checks`` and ``table`` `[slots]`, a check of 0 where a slot is empty; a weight is its entry times ``scale``."""

    checks: bytes
    table: memoryview
    scale: float
    bias: float

    def score(self, sentence: str) -> float:
        """The log-odds that a sentence is a standing order."""
        slots, total = len(self.checks), 0.0
        for family in order_families(sentence):
            names = dict.fromkeys(family.names)
            value = family.weight / math.sqrt(len(names)) if names else 0.0
            for name in names:
                slot, check = place(name, slots)
                if self.checks[slot] == check:
                    total += value * self.table[slot]
        return total * self.scale + self.bias


def order_families(sentence: str) -> tuple[Family, ...]:
    """What the model sees of a sentence: its words and letters, and the signs that the languages' tables know."""
    return (*own_families(sentence), Family(names=list(_signs(sentence)), weight=1.5, shared=False))


def _signs(sentence: str) -> Iterator[str]:
    for signs in LANGUAGES:
        if signs.durable.search(sentence):
            yield "s durable"
        if signs.habits.match(sentence):
            yield "s habit"
        if signs.replies.search(sentence):
            yield "s replies"
        if signs.wishes.search(sentence):
            yield "s wish"
        if stands(sentence, signs):
            yield "s stands"
    if STATERS.match(sentence):
        yield "s statement"


def standing_orders(message: str) -> tuple[str, ...]:
    """The sentences of a user's own ``message`` that order something of all later replies."""
    if len(message) > LONGEST:
        return ()
    sentences = sentences_of(message)
    if not sentences or len(sentences) > MOST_SENTENCES:
        return ()
    model = shipped_orders()
    orders = [
        number
        for number, sentence in enumerate(sentences)
        if _may_order(sentence) and model.score(sentence) >= THRESHOLD
    ]
    rest = [sentence for at, sentence in enumerate(sentences) if at not in orders]
    if not orders or any(map(OTHERS.search, sentences)) or any(map(HANDS_OVER.search, rest)):
        return ()
    if _is_prose(sentences[: orders[0]]):
        return ()
    return tuple(sentences[at] for at in orders)


def _may_order(sentence: str) -> bool:
    """Whether a sentence has no shape of another text, asks nothing and gives no part to play."""
    return not is_framed(sentence) and sentence.rstrip(' "”)')[-1:] not in "?？؟" and PLAYS.search(sentence) is None


def _is_prose(before: Sequence[str]) -> bool:
    """Whether what stands before an order reads like a text: a story tells before somebody in it orders something."""
    return any(
        sentence.rstrip()[-1:] in ":："
        or is_framed(sentence)
        or not (
            len(sentence.split()) < _BRIEF
            or sentence.rstrip()[-1:] in "?？؟"
            or _PERSONS.search(sentence)
            or any(is_aside(sentence, signs) for signs in LANGUAGES)
        )
        for sentence in before
    )


def pack(model: OrderModel) -> bytes:
    """The model as a file."""
    head = {"slots": len(model.checks), "scale": model.scale, "bias": model.bias}
    return MAGIC + json.dumps(head).encode() + b"\n" + model.checks + model.table.tobytes()


def unpack(data: bytes, *, name: str) -> OrderModel:
    """The model of a file. Raises ConfigError for one that is damaged."""
    try:
        if not data.startswith(MAGIC):
            raise ValueError("it does not begin like one")
        end = data.index(b"\n", len(MAGIC))
        head, rest = json.loads(data[len(MAGIC) : end]), data[end + 1 :]
        if len(rest) != 2 * head["slots"]:
            raise ValueError(f"{len(rest)} bytes for {head['slots']} slots")
        table = memoryview(rest)[head["slots"] :].cast("b")
        return OrderModel(checks=rest[: head["slots"]], table=table, scale=head["scale"], bias=head["bias"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{name} is no model of standing orders: {error}", remedy="install again, or make judge-reader"
        ) from error


@cache
def shipped_orders() -> OrderModel:
    """The model that comes with the package."""
    return unpack(SHIPPED.read_bytes(), name=str(SHIPPED))
