"""Standing orders in a user's message: sentences with an order about all later replies.

    standing_orders("From now on only give me the code. Next: sort by date.")   ("From now on only give me the code.",)
    standing_orders("Always sort the output by date.")                          ()

A logistic model over hashed n-grams reads each sentence by itself (fitted on `data/orders` by
`scripts/feedback_classifier/fit_orders.py`). Further checks reject messages with foreign text: a false order changes
every later prompt, while a missed one can be repeated.
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
"""maximum characters in a message with a standing order; a longer one is a text"""
MOST_SENTENCES = 8
THRESHOLD = 2.5
"""minimum log-odds of an order: 6 of 1,570 strangers' messages without one reach it"""
MAGIC = b"orders-1\n"
SHIPPED = Path(__file__).parent / "orders.bin"

_PERSONS = re.compile(
    r"(?i)(?<!\w)(?:i|i'm|i've|i'd|i'll|im|ive|me|my|mine|you|your|u|ur|we|us|our|let's|ich|mir|mich|mein\w*|du|dir|dich|dein\w*|wir|uns|je|j|moi"
    r"|mon|ma|mes|tu|te|ton|ta|tes|vous|votre|vos|nous|yo|mi|mis|me|tú|tus|mí|io|mia|mio|ti|tuo|tua|eu|meu|minha|você|seu|sua|ik|mij|mijn|jij|jouw|wij|ons"
    r"|я|мне|меня|мой|моя|ты|тебя|твой|вы|ben|bana|benim|sen|saya|aku|kamu|tôi|mình|bạn|jag|mig|min|du|mnie|mój|ty)(?!\w)"
    r"|我|你|您|私|僕|俺|あなた|나|내|저|제|너|أنا|لي|मैं|मुझे|मेरे"
)
"""persons in a conversation: a story's sentence rarely has one"""
_BRIEF = 5
"""words below which a sentence before an order need not name a person ("Good.", "and in rust?")"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderModel:
    """``checks`` and ``table`` `[slots]`, a check of 0 for an empty slot; a weight is its entry times ``scale``."""

    checks: bytes
    table: memoryview
    scale: float
    bias: float

    def score(self, sentence: str) -> float:
        """Return the log-odds that a sentence is a standing order."""
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
    """Return a sentence's features: its words and letters, and the signs in the languages' tables."""
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
    """Return the sentences in a user's own ``message`` with an order about all later replies."""
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
    remainder = [sentence for at, sentence in enumerate(sentences) if at not in orders]
    if not orders or any(map(OTHERS.search, sentences)) or any(map(HANDS_OVER.search, remainder)):
        return ()
    if _is_prose(sentences[: orders[0]]):
        return ()
    return tuple(sentences[at] for at in orders)


def _may_order(sentence: str) -> bool:
    """Check that a sentence does not resemble foreign text, is no question and assigns no role."""
    return not is_framed(sentence) and sentence.rstrip(' "”)')[-1:] not in "?？؟" and PLAYS.search(sentence) is None


def _is_prose(before: Sequence[str]) -> bool:
    """Check if the text before an order reads like prose: a story narrates before a character orders something."""
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
    """Return the model as a file."""
    head = {"slots": len(model.checks), "scale": model.scale, "bias": model.bias}
    return MAGIC + json.dumps(head).encode() + b"\n" + model.checks + model.table.tobytes()


def unpack(data: bytes, *, name: str) -> OrderModel:
    """Return a file's model; raises ConfigError if it is damaged."""
    try:
        if not data.startswith(MAGIC):
            raise ValueError("its header is missing")
        end = data.index(b"\n", len(MAGIC))
        head, body = json.loads(data[len(MAGIC) : end]), data[end + 1 :]
        if len(body) != 2 * head["slots"]:
            raise ValueError(f"{len(body)} bytes for {head['slots']} slots")
        table = memoryview(body)[head["slots"] :].cast("b")
        return OrderModel(checks=body[: head["slots"]], table=table, scale=head["scale"], bias=head["bias"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{name} is no model of standing orders: {error}", remedy="install again, or make feedback-classifier"
        ) from error


@cache
def shipped_orders() -> OrderModel:
    """Return the model shipped with the package."""
    return unpack(SHIPPED.read_bytes(), name=str(SHIPPED))
